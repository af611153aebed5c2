//! The byte alphabet of byte-level BPE: vocabularies write each byte as one printable character. This file
//! only maps characters back to bytes; it knows no vocabulary.

/// Bytes that stand for themselves; the others are written as U+0100 and up, in order.
fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// From alphabet characters to bytes.
pub(super) struct Alphabet {
    /// Indexed by code point; the alphabet ends below U+0144.
    byte_of: Vec<Option<u8>>,
}

impl Alphabet {
    pub(super) fn new() -> Self {
        let mut byte_of = vec![None; 0x144];
        let mut next = 0x100;
        for byte in 0..=255u8 {
            if is_printable(byte) {
                byte_of[usize::from(byte)] = Some(byte);
            } else {
                byte_of[next] = Some(byte);
                next += 1;
            }
        }
        Self { byte_of }
    }

    /// The bytes a vocabulary entry stands for, or `None` when it is not written in the alphabet.
    pub(super) fn bytes_of(&self, token: &str) -> Option<Vec<u8>> {
        token.chars().map(|c| self.byte_of.get(c as usize).copied().flatten()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        let alphabet = Alphabet::new();
        let mut seen: Vec<u8> = alphabet.byte_of.iter().flatten().copied().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn known_characters() {
        let alphabet = Alphabet::new();
        assert_eq!(alphabet.bytes_of("Ġa"), Some(b" a".to_vec()));
        assert_eq!(alphabet.bytes_of("ĊĉÃ©"), Some("\n\té".as_bytes().to_vec()));
        assert_eq!(alphabet.bytes_of("a b"), None);
        assert_eq!(alphabet.bytes_of("語"), None);
    }
}
