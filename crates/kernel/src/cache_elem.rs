//! Element types of the caches: what they are called, what they take, and how a row is stored in a page.

use std::fmt;
use std::str::FromStr;

use crate::cache::PAGE_TOKENS;
use crate::dims::AttentionDims;
use crate::rounding::{
    KV_BLOCK, bf16_bits, bf16_value, e4m3_code, e4m3_value, f16_bits, f16_stochastic, f16_value, q8_block,
    state_random,
};

/// Element type of cached keys or values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvElem {
    /// 32-bit float: lossless for checkpoints stored in f32.
    #[default]
    F32,
    /// 16-bit float.
    F16,
    /// The upper half of a 32-bit float: its range with 8 digits.
    BF16,
    /// 8-bit integers with a scale for every 32 channels of a position. Keys have a few outlier
    /// channels, which would cost all others precision if a head shared one scale; kernels widen a page before they
    /// compute, so the finer scale costs them one product per vector either way. Scales are bf16: their
    /// range covers every head, and their rounding costs nothing, because codes are made with the
    /// scale as it is stored.
    Q8,
    /// 8-bit float (e4m3) with one scale per layer, from the checkpoint or 1.
    F8,
}

impl KvElem {
    /// Every type, most bits first.
    pub const ALL: [KvElem; 5] = [KvElem::F32, KvElem::F16, KvElem::BF16, KvElem::Q8, KvElem::F8];

    /// The name in flags and printed plans.
    pub fn name(self) -> &'static str {
        match self {
            KvElem::F32 => "f32",
            KvElem::F16 => "f16",
            KvElem::BF16 => "bf16",
            KvElem::Q8 => "q8",
            KvElem::F8 => "f8",
        }
    }

    /// Bytes of one channel, without scales.
    pub fn code_bytes(self) -> usize {
        match self {
            KvElem::F32 => 4,
            KvElem::F16 | KvElem::BF16 => 2,
            KvElem::Q8 | KvElem::F8 => 1,
        }
    }

    /// Scales of one position of a head; each takes two bytes.
    pub fn scales(self, head_dim: usize) -> usize {
        if self == KvElem::Q8 { head_dim.div_ceil(KV_BLOCK) } else { 0 }
    }

    /// Bytes of one position of a head.
    pub fn row_bytes(self, head_dim: usize) -> usize {
        head_dim * self.code_bytes() + 2 * self.scales(head_dim)
    }

    /// Bytes of one head of a page: codes `[position][channel]`, then scales `[position][block]`.
    pub fn head_bytes(self, head_dim: usize) -> usize {
        PAGE_TOKENS * self.row_bytes(head_dim)
    }

    /// Stores the values of one position in a head of a page; `scale` is the layer's.
    pub fn store(self, scale: f32, values: &[f32], position: usize, head: &mut [u8]) {
        let n = values.len();
        let (codes, scales) = head.split_at_mut(PAGE_TOKENS * n * self.code_bytes());
        let codes = &mut codes[position * n * self.code_bytes()..][..n * self.code_bytes()];
        match self {
            KvElem::F32 => put(codes, values.iter().map(|v| v.to_le_bytes())),
            KvElem::F16 => put(codes, values.iter().map(|v| f16_bits(*v).to_le_bytes())),
            KvElem::BF16 => put(codes, values.iter().map(|v| bf16_bits(*v).to_le_bytes())),
            KvElem::F8 => put(codes, values.iter().map(|v| [e4m3_code(v / scale)])),
            KvElem::Q8 => {
                let blocks = values.chunks(KV_BLOCK).zip(codes.chunks_mut(KV_BLOCK));
                let made = blocks.map(|(values, codes)| q8_block(values, codes).to_le_bytes());
                put(&mut scales[2 * position * self.scales(n)..], made);
            }
        }
    }

    /// The values that [`KvElem::store`] left.
    pub fn load(self, scale: f32, head_dim: usize, position: usize, head: &[u8]) -> Vec<f32> {
        let n = head_dim;
        let (codes, scales) = head.split_at(PAGE_TOKENS * n * self.code_bytes());
        let codes = &codes[position * n * self.code_bytes()..][..n * self.code_bytes()];
        let half = |b: &[u8; 2]| u16::from_le_bytes(*b);
        match self {
            KvElem::F32 => codes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            KvElem::F16 => codes.as_chunks().0.iter().map(|b| f16_value(half(b))).collect(),
            KvElem::BF16 => codes.as_chunks().0.iter().map(|b| bf16_value(half(b))).collect(),
            KvElem::F8 => codes.iter().map(|b| e4m3_value(*b) * scale).collect(),
            KvElem::Q8 => {
                let scales = &scales.as_chunks().0[position * self.scales(n)..];
                let value = |(i, code): (usize, &u8)| {
                    f32::from(*code as i8) * bf16_value(half(&scales[i / KV_BLOCK]))
                };
                codes.iter().enumerate().map(value).collect()
            }
        }
    }
}

fn put<const N: usize>(out: &mut [u8], values: impl Iterator<Item = [u8; N]>) {
    for (out, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
        *out = value;
    }
}

impl FromStr for KvElem {
    type Err = String;

    /// Also takes the names of other programs: `q8_0` and `fp8`.
    fn from_str(text: &str) -> Result<Self, String> {
        let name = match text {
            "q8_0" => "q8",
            "fp8" => "f8",
            _ => text,
        };
        let found = KvElem::ALL.into_iter().find(|elem| elem.name() == name);
        found.ok_or_else(|| {
            format!(
                "`{text}` is not a type of keys and values; use {}",
                listed(&KvElem::ALL.map(KvElem::name))
            )
        })
    }
}

/// Element types of a KV cache. Errors in keys change the attention weights, errors in values only
/// what is summed, so keys may need more bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct KvTypes {
    /// Of keys.
    pub k: KvElem,
    /// Of values.
    pub v: KvElem,
}

impl KvTypes {
    /// One type for both.
    pub const fn both(elem: KvElem) -> Self {
        KvTypes { k: elem, v: elem }
    }

    /// Bytes that one position takes in a layer.
    pub fn token_bytes(self, dims: &AttentionDims) -> usize {
        dims.kv_heads * (self.k.row_bytes(dims.head_dim) + self.v.row_bytes(dims.head_dim))
    }

    /// Bytes of a layer's page: all heads' keys, then all heads' values.
    pub fn page_bytes(self, dims: &AttentionDims) -> usize {
        PAGE_TOKENS * self.token_bytes(dims)
    }
}

impl fmt::Display for KvTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.k == self.v {
            true => f.write_str(self.k.name()),
            false => write!(f, "{}/{}", self.k.name(), self.v.name()),
        }
    }
}

impl FromStr for KvTypes {
    type Err = String;

    /// One type, or that of keys and that of values with a slash between.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            None => Ok(KvTypes::both(text.parse()?)),
            Some((k, v)) => Ok(KvTypes { k: k.parse()?, v: v.parse()? }),
        }
    }
}

/// Scales of one attention layer's keys and values in [`KvElem::F8`]: `stored = value / scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvScale {
    /// Of keys.
    pub k: f32,
    /// Of values.
    pub v: f32,
}

impl Default for KvScale {
    fn default() -> Self {
        KvScale { k: 1.0, v: 1.0 }
    }
}

/// Element type of the states that recurrent slots hold; what a slot keeps of the current chunk is f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StateElem {
    /// 32-bit float.
    #[default]
    F32,
    /// 16-bit float, rounded stochastically: a state is a long sum of small steps, which rounding to the
    /// nearest would lose.
    F16,
    /// The upper half of a 32-bit float, rounded to the nearest.
    BF16,
}

impl StateElem {
    /// Every type.
    pub const ALL: [StateElem; 3] = [StateElem::F32, StateElem::F16, StateElem::BF16];

    /// The name in flags and printed plans.
    pub fn name(self) -> &'static str {
        match self {
            StateElem::F32 => "f32",
            StateElem::F16 => "f16",
            StateElem::BF16 => "bf16",
        }
    }

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            StateElem::F32 => 4,
            StateElem::F16 | StateElem::BF16 => 2,
        }
    }

    /// Stores one head's state, in words that hold one or two elements in the order of memory; `seed` is
    /// that of the random bits.
    pub fn store(self, seed: u32, values: &[f32], words: &mut [f32]) {
        let half = |i: usize| {
            let value = values.get(i).copied().unwrap_or(0.0);
            match self {
                StateElem::F16 => f16_stochastic(value, state_random(seed, i)).to_le_bytes(),
                _ => bf16_bits(value).to_le_bytes(),
            }
        };
        if self == StateElem::F32 {
            return words[..values.len()].copy_from_slice(values);
        }
        for (i, word) in words.iter_mut().enumerate().take(values.len().div_ceil(2)) {
            let (low, high) = (half(2 * i), half(2 * i + 1));
            *word = f32::from_ne_bytes([low[0], low[1], high[0], high[1]]);
        }
    }

    /// The first `count` values that [`StateElem::store`] left.
    pub fn load(self, words: &[f32], count: usize) -> Vec<f32> {
        let value = |i: usize| {
            let bytes = words[i / 2].to_ne_bytes();
            let bits = u16::from_le_bytes([bytes[i % 2 * 2], bytes[i % 2 * 2 + 1]]);
            if self == StateElem::F16 { f16_value(bits) } else { bf16_value(bits) }
        };
        match self {
            StateElem::F32 => words[..count].to_vec(),
            _ => (0..count).map(value).collect(),
        }
    }
}

impl FromStr for StateElem {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = StateElem::ALL.into_iter().find(|elem| elem.name() == text);
        found.ok_or_else(|| {
            format!(
                "`{text}` is not a type of recurrent states; use {}",
                listed(&StateElem::ALL.map(StateElem::name))
            )
        })
    }
}

/// `a, b or c`.
fn listed(names: &[&str]) -> String {
    let (last, first) = names.split_last().expect("there are types");
    format!("{} or {last}", first.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_unknown_ones_listed() {
        for k in KvElem::ALL {
            for v in KvElem::ALL {
                let types = KvTypes { k, v };
                assert_eq!(types.to_string().parse(), Ok(types));
            }
        }
        assert!(StateElem::ALL.into_iter().all(|elem| elem.name().parse() == Ok(elem)));
        assert_eq!("q8_0/fp8".parse(), Ok(KvTypes { k: KvElem::Q8, v: KvElem::F8 }));
        let error = "f16/q3".parse::<KvTypes>().unwrap_err();
        assert_eq!(error, "`q3` is not a type of keys and values; use f32, f16, bf16, q8 or f8");
        assert!("q8".parse::<StateElem>().unwrap_err().contains("f32, f16 or bf16"));
    }

    #[test]
    fn rows_come_back_from_their_place_as_precise_as_their_type() {
        let dims = AttentionDims { q_heads: 2, kv_heads: 2, head_dim: 44 };
        let values: Vec<f32> = (0..44).map(|i| (i * i % 29) as f32 / 8.0 - 1.5).collect();
        let bytes = [176, 88, 88, 48, 44];
        for ((elem, bytes), precision) in
            KvElem::ALL.into_iter().zip(bytes).zip([0.0, 1e-3, 4e-3, 1e-2, 4e-2])
        {
            assert_eq!(KvTypes::both(elem).token_bytes(&dims), 2 * 2 * bytes);
            let mut head = vec![0xaa; elem.head_bytes(44)];
            elem.store(0.5, &values, 31, &mut head);
            elem.store(0.5, &[0.0; 44], 30, &mut head);
            for (got, want) in elem.load(0.5, 44, 31, &head).iter().zip(&values) {
                assert!(
                    (got - want).abs() <= precision * want.abs().max(1.0),
                    "{}: {got} {want}",
                    elem.name()
                );
            }
        }
    }

    #[test]
    fn states_of_any_length_come_back() {
        let values: Vec<f32> = (0..35).map(|i| i as f32 / 8.0).collect();
        for elem in StateElem::ALL {
            let mut words = vec![f32::NAN; 35];
            elem.store(3, &values, &mut words);
            assert_eq!(elem.load(&words, 35), values, "{}", elem.name());
        }
    }
}
