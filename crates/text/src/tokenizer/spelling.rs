//! How a vocabulary spells bytes: in the byte alphabet, or as SentencePiece does, with a mark for the space
//! and tokens such as `<0x0A>` for bytes. Knows tokens one at a time.

use super::alphabet::Alphabet;

/// How SentencePiece writes a space.
pub(super) const SPACE_MARK: &str = "\u{2581}";

/// The spelling of a vocabulary.
pub(super) enum Spelling {
    /// Each byte is one printable character.
    ByteLevel(Alphabet),
    /// Text with a mark for the space; bytes have tokens of their own.
    SentencePiece,
}

impl Spelling {
    /// The bytes a token stands for, or `None` if it is not spelled this way.
    pub(super) fn bytes_of(&self, token: &str) -> Option<Vec<u8>> {
        match self {
            Spelling::ByteLevel(alphabet) => alphabet.bytes_of(token),
            Spelling::SentencePiece => Some(match byte_of(token) {
                Some(byte) => vec![byte],
                None => token.replace(SPACE_MARK, " ").into_bytes(),
            }),
        }
    }
}

/// The token of a byte: `<0x0A>`.
pub(super) fn byte_token(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}

fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_number = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_number.then(|| u8::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_tokens_and_marks() {
        let bytes = |token: &str| Spelling::SentencePiece.bytes_of(token).unwrap();
        assert_eq!(bytes("<0x0A>"), b"\n");
        assert_eq!(bytes("<0xff>"), b"\xFF");
        assert_eq!(bytes("<0x+A>"), b"<0x+A>");
        assert_eq!(bytes("<0x0AB>"), b"<0x0AB>");
        assert_eq!(bytes("\u{2581}a\u{2581}"), b" a ");
        assert_eq!(byte_of(&byte_token(0xA0)), Some(0xA0));
    }
}
