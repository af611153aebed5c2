//! A small hash of bytes (64-bit FNV-1a) that is the same on every machine and in every version: good enough to
//! tell models apart, but not collision-resistant.

/// An incremental hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Digest(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// The hash of these bytes alone.
    pub fn of(bytes: &[u8]) -> u64 {
        let mut digest = Digest::default();
        digest.write(bytes);
        digest.finish()
    }

    /// Adds bytes; how they are cut into calls makes no difference.
    pub fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// The hash of everything added so far.
    pub fn finish(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::Digest;

    #[test]
    fn digests_are_those_of_fnv_1a() {
        assert_eq!(Digest::of(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(Digest::of(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(Digest::of(b"foobar"), 0x8594_4171_f739_67e8);
        let mut digest = Digest::default();
        digest.write(b"foo");
        digest.write(b"bar");
        assert_eq!(digest.finish(), Digest::of(b"foobar"));
    }
}
