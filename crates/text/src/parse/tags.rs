//! Finding tags in text that may end inside one. Knows strings only.

/// The first complete tag in `text` and where it starts.
pub(super) fn find_first(text: &str, tags: &[&'static str]) -> Option<(usize, &'static str)> {
    tags.iter().filter_map(|&tag| Some((text.find(tag)?, tag))).min_by_key(|&(at, _)| at)
}

/// How many bytes of `text` are certain not to be the start of a tag that continues after its end.
pub(super) fn certain_len(text: &str, tags: &[&str]) -> usize {
    let longest = tags.iter().map(|tag| tag.len()).max().unwrap_or(0);
    let mut from = text.len().saturating_sub(longest);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    let begins = |&(at, _): &(usize, char)| tags.iter().any(|tag| tag.starts_with(&text[from + at..]));
    text[from..].char_indices().find(begins).map_or(text.len(), |(at, _)| from + at)
}

/// Whether there is nothing but whitespace.
pub(super) fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_possible_start_of_a_tag_is_uncertain() {
        let tags = ["<think>", "</think>", "<tool_call>"];
        for (text, certain) in
            [("", 0), ("a", 1), ("a<", 1), ("a<t", 1), ("a<tx", 4), ("<<", 1), ("é</think", 2), ("日本<", 6)]
        {
            assert_eq!(certain_len(text, &tags), certain, "{text}");
        }
        assert_eq!(certain_len("a<", &[]), 2);
    }
}
