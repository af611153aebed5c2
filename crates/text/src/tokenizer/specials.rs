//! Special tokens written in a text, for vocabularies that this crate encodes itself: the longest token is
//! looked for first in the whole text, then the next in what is left. Knows texts and ids only.

/// Tokens that are matched as they stand, before a text is cut into anything else.
pub(super) struct Specials {
    /// Longest first.
    tokens: Vec<(String, u32)>,
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Part<'a> {
    Text(&'a str),
    Token(u32),
}

impl Specials {
    pub(super) fn new(tokens: impl IntoIterator<Item = (String, u32)>) -> Self {
        let mut tokens: Vec<_> = tokens.into_iter().filter(|(text, _)| !text.is_empty()).collect();
        tokens.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then(a.1.cmp(&b.1)));
        Self { tokens }
    }

    /// The texts and ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.tokens.iter().map(|(text, id)| (text.as_str(), *id))
    }

    /// Cuts a text at the tokens in it.
    pub(super) fn split<'a>(&self, text: &'a str) -> Vec<Part<'a>> {
        let mut parts = vec![Part::Text(text)];
        let present = BytePairs::of(text);
        for (token, id) in self.tokens.iter().filter(|(token, _)| present.may_hold(token)) {
            if !text.contains(token.as_str()) {
                continue;
            }
            let before = std::mem::take(&mut parts);
            for part in before {
                let Part::Text(mut rest) = part else {
                    parts.push(part);
                    continue;
                };
                while let Some(at) = rest.find(token.as_str()) {
                    parts.extend((at > 0).then(|| Part::Text(&rest[..at])));
                    parts.push(Part::Token(*id));
                    rest = &rest[at + token.len()..];
                }
                parts.extend((!rest.is_empty()).then_some(Part::Text(rest)));
            }
        }
        parts
    }
}

/// Which two bytes stand side by side in a text. Vocabularies have thousands of special tokens, and this
/// tells for most that they are not there.
struct BytePairs(Vec<u64>);

impl BytePairs {
    fn of(text: &str) -> Self {
        let mut words = vec![0; 1024];
        for pair in text.as_bytes().windows(2) {
            let pair = usize::from(pair[0]) << 8 | usize::from(pair[1]);
            words[pair / 64] |= 1 << (pair % 64);
        }
        Self(words)
    }

    fn may_hold(&self, token: &str) -> bool {
        token.as_bytes().windows(2).all(|pair| {
            let pair = usize::from(pair[0]) << 8 | usize::from(pair[1]);
            self.0[pair / 64] >> (pair % 64) & 1 == 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_comes_first_wherever_it_stands() {
        let specials = Specials::new([("ab".to_owned(), 1), ("bcd".to_owned(), 2), ("x".to_owned(), 3)]);
        let split = |text| specials.split(text);
        assert_eq!(split("abcd"), [Part::Text("a"), Part::Token(2)]);
        assert_eq!(split("xabab"), [Part::Token(3), Part::Token(1), Part::Token(1)]);
        assert_eq!(split("no"), [Part::Text("no")]);
        assert_eq!(split("éx日"), [Part::Text("é"), Part::Token(3), Part::Text("日")]);
    }
}
