//! What a file must be: its SHA-256 where the hub keeps it as a large file, else the id that git gives it. Both are also
//! its name in a cache.

use std::fmt::Write;

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The checksum of a file, in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// SHA-256 of the bytes.
    Sha256(String),
    /// SHA-1 of git's header and the bytes.
    GitBlob(String),
}

impl Checksum {
    /// A checksum as the hub writes it in headers and listings: 64 digits or 40, perhaps in quotes.
    pub fn parse(text: &str) -> Option<Checksum> {
        let digits = text.strip_prefix("W/").unwrap_or(text).trim_matches('"').to_ascii_lowercase();
        if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        match digits.len() {
            64 => Some(Checksum::Sha256(digits)),
            40 => Some(Checksum::GitBlob(digits)),
            _ => None,
        }
    }

    /// The digits: the name of the file in a cache.
    pub fn digits(&self) -> &str {
        match self {
            Checksum::Sha256(digits) | Checksum::GitBlob(digits) => digits,
        }
    }

    /// Something that takes the bytes of a file of that size.
    pub fn hasher(&self, size: u64) -> Hasher {
        match self {
            Checksum::Sha256(_) => Hasher::Sha256(Sha256::new()),
            Checksum::GitBlob(_) => Hasher::GitBlob(Sha1::new().chain_update(format!("blob {size}\0"))),
        }
    }
}

/// A checksum on its way.
pub enum Hasher {
    Sha256(Sha256),
    GitBlob(Sha1),
}

impl Hasher {
    /// Takes more bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::GitBlob(hasher) => hasher.update(bytes),
        }
    }

    /// The digits of what came.
    pub fn digits(self) -> String {
        let digits = |bytes: &[u8]| {
            bytes.iter().fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            })
        };
        match self {
            Hasher::Sha256(hasher) => digits(&hasher.finalize()),
            Hasher::GitBlob(hasher) => digits(&hasher.finalize()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_git_and_sha256sum() {
        let of = |checksum: &Checksum| {
            let mut hasher = checksum.hasher(5);
            hasher.update(b"hel");
            hasher.update(b"lo");
            hasher.digits()
        };
        let sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        let git = "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0";
        for digits in [sha256, git] {
            let checksum = Checksum::parse(&format!("\"{}\"", digits.to_uppercase())).unwrap();
            assert_eq!(of(&checksum), digits);
            assert_eq!(checksum.digits(), digits);
        }
    }

    #[test]
    fn nothing_else_becomes_a_file_name() {
        for text in ["", "\"abc\"", "../../etc/passwd", &"g".repeat(40), &"../".repeat(20)] {
            assert_eq!(Checksum::parse(text), None, "{text}");
        }
    }
}
