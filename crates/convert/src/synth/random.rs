//! A fast random generator (xoshiro256++, by Blackman and Vigna) and draws from it. Knows no tensors.

/// The generator's state.
pub struct Random([u64; 4]);

/// One step of splitmix64: spreads any seed over all bits.
fn mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    /// A generator of its own for a place in a tensor.
    pub fn new(seed: u64, name: &str, row: u64) -> Random {
        let mut state = seed;
        let mut key = mix(&mut state);
        for byte in name.bytes() {
            state ^= u64::from(byte);
            key ^= mix(&mut state);
        }
        state = key ^ row.wrapping_mul(0xd134_2543_de82_ef95);
        Random([mix(&mut state), mix(&mut state), mix(&mut state), mix(&mut state)])
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        let (words, rest) = out.as_chunks_mut::<8>();
        for word in words {
            *word = self.bits().to_le_bytes();
        }
        let last = self.bits().to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }

    /// Evenly from 0 up to 1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// About normal with deviation 1: the sum of four even draws, which never strays beyond 3.5.
    pub fn normal(&mut self) -> f32 {
        let bits = self.bits();
        let sum: u64 = (0..4).map(|i| (bits >> (16 * i)) & 0xffff).sum();
        // Four draws from 0..65535 have mean 2 * 65535 and variance (65536^2 - 1) / 3.
        (sum as f32 - 131_070.0) / 37_837.23
    }
}
