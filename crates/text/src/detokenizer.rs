//! Token ids to text while they arrive, never half a character. Knows the tokenizer's raw bytes; not what
//! the text means.

use crate::tokenizer::Tokenizer;

/// What becomes of special tokens in the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Specials {
    /// All appear as text.
    Show,
    /// None appear.
    #[default]
    Hide,
    /// Only these appear: the tags an output parser looks for.
    HideExcept(Vec<u32>),
}

/// Turns a stream of ids into text. The concatenation of all pieces equals decoding all ids at once, but for
/// the space that some tokenizers put before a text: unless told that the text begins here, it stays.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    specials: Specials,
    /// The start of a character whose other bytes have not come yet.
    pending: Vec<u8>,
    /// Nothing was shown yet of a text that begins here.
    at_start: bool,
}

impl Detokenizer {
    /// A stream for one answer.
    pub fn new(tokenizer: &Tokenizer, specials: Specials) -> Self {
        Self { tokenizer: tokenizer.clone(), specials, pending: Vec::new(), at_start: false }
    }

    /// A stream that hides special tokens except the given texts, such as `<think>`; texts that are
    /// not a single token need no exception.
    pub fn keeping(tokenizer: &Tokenizer, tags: &[&str]) -> Self {
        let ids = tags.iter().filter_map(|tag| tokenizer.id_of(tag)).collect();
        Self::new(tokenizer, Specials::HideExcept(ids))
    }

    /// The ids are a text of their own and do not go on with another: a space that encoding puts before every
    /// text is none of it.
    pub fn beginning(mut self) -> Self {
        self.at_start = self.tokenizer.prefixes_space();
        self
    }

    /// The text that is complete with this id; often empty inside a character of several tokens.
    pub fn push(&mut self, id: u32) -> String {
        if self.hides(id) {
            return String::new();
        }
        let bytes = self.tokenizer.token_bytes(id);
        let cut = usize::from(self.at_start && bytes.starts_with(b" "));
        self.at_start &= bytes.is_empty();
        self.pending.extend_from_slice(&bytes[cut..]);
        let (text, used) = decode_complete(&self.pending);
        self.pending.drain(..used);
        text
    }

    /// The rest: U+FFFD if the stream ended inside a character. The detokenizer can then be used again.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }

    fn hides(&self, id: u32) -> bool {
        match &self.specials {
            Specials::Show => false,
            Specials::Hide => self.tokenizer.is_special(id),
            Specials::HideExcept(shown) => self.tokenizer.is_special(id) && !shown.contains(&id),
        }
    }
}

/// Decodes up to the last byte that could still become a character: the text and the bytes it used.
fn decode_complete(bytes: &[u8]) -> (String, usize) {
    let mut text = String::new();
    let mut at = 0;
    loop {
        match std::str::from_utf8(&bytes[at..]) {
            Ok(rest) => {
                text.push_str(rest);
                return (text, bytes.len());
            }
            Err(error) => {
                let valid = at + error.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&bytes[at..valid]));
                let Some(bad) = error.error_len() else { return (text, valid) };
                text.push(char::REPLACEMENT_CHARACTER);
                at = valid + bad;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_still_become_a_character_is_held() {
        assert_eq!(decode_complete("aé".as_bytes()), ("aé".into(), 3));
        assert_eq!(decode_complete(b"a\xF0\x9F\x9A"), ("a".into(), 1));
        assert_eq!(decode_complete(b"a\xFFb"), ("a\u{FFFD}b".into(), 3));
        // The second lead byte shows that the first can never be completed.
        assert_eq!(decode_complete(b"\xE6\x97\xE6"), ("\u{FFFD}".into(), 2));
        assert_eq!(decode_complete(b""), (String::new(), 0));
    }
}
