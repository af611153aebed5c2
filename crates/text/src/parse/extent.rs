//! Where a bracketed value ends in text that grows. Knows brackets and quotes, JSON's and Python's; each byte
//! is looked at once.

/// How far the brackets were followed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extent {
    at: usize,
    depth: usize,
    quote: Option<u8>,
    is_escaped: bool,
}

impl Extent {
    /// The end of the value at the start of `text`, which may have grown since the last call. A name before
    /// the brackets is part of it.
    pub(super) fn end_of(&mut self, text: &str) -> Option<usize> {
        let bytes = text.as_bytes();
        let is_list = text.trim_start().starts_with('[');
        while let Some(&byte) = bytes.get(self.at) {
            self.at += 1;
            if self.is_escaped {
                self.is_escaped = false;
                continue;
            }
            match (byte, self.quote) {
                (b'\\', Some(_)) => self.is_escaped = true,
                (_, Some(quote)) if byte == quote => self.quote = None,
                (_, Some(_)) => {}
                // Brackets inside a name, as in `f[ARGS]{`, are none of the value's.
                (b'[', None) if self.depth == 0 && !is_list => {}
                (b'"' | b'\'', None) if self.depth > 0 => self.quote = Some(byte),
                (b'{' | b'[' | b'(', None) => self.depth += 1,
                (b'}' | b']' | b')', None) if self.depth > 0 => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Some(self.at);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_end_with_their_brackets() {
        let cases = [
            ("{\"a\": \"}\"} x", Some(10)),
            (" [{\"a\": \"\\\"]\"}]", Some(15)),
            ("f[ARGS]{\"a\": [1]}g", Some(17)),
            ("f.call(a='(')", Some(13)),
            ("[1, 2", None),
            ("no", None),
        ];
        for (text, expected) in cases {
            assert_eq!(Extent::default().end_of(text), expected, "{text}");
            let mut slowly = Extent::default();
            let ends = (0..=text.len()).find_map(|at| slowly.end_of(&text[..at]));
            assert_eq!(ends, expected, "{text} by bytes");
        }
    }
}
