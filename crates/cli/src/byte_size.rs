//! Sizes as people write them: `512M`, `2G`, `off`.

use std::str::FromStr;

/// A number of bytes, or none at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(Option<u64>);

impl ByteSize {
    /// The bytes; nothing for `off`.
    pub fn bytes(self) -> Option<u64> {
        self.0
    }
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if matches!(text, "off" | "0") {
            return Ok(ByteSize(None));
        }
        let wrong = || format!("`{text}` is not a size such as 512M or 2G, nor off");
        let plain = text.strip_suffix("iB").or(text.strip_suffix('B')).unwrap_or(text);
        let unit = plain.chars().last().filter(|c| c.is_alphabetic());
        let shift = match unit.map(|c| c.to_ascii_uppercase()) {
            None => 0,
            Some('K') => 10,
            Some('M') => 20,
            Some('G') => 30,
            Some('T') => 40,
            Some(_) => return Err(wrong()),
        };
        let digits = unit.map_or(plain, |unit| &plain[..plain.len() - unit.len_utf8()]);
        let number: f64 = digits.trim().parse().map_err(|_| wrong())?;
        let bytes = number * (1u64 << shift) as f64;
        if !(1.0..9e18).contains(&bytes) {
            return Err(wrong());
        }
        Ok(ByteSize(Some(bytes as u64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        let bytes = |text: &str| text.parse::<ByteSize>().map(ByteSize::bytes);
        assert_eq!(bytes("2G"), Ok(Some(2 << 30)));
        assert_eq!(bytes("1.5MiB"), Ok(Some(3 << 19)));
        assert_eq!(bytes("4096"), Ok(Some(4096)));
        assert_eq!(bytes("off"), Ok(None));
        for wrong in ["", "G", "two", "-1G", "2X", "2KG", "nan", "1e300", "0.1"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
