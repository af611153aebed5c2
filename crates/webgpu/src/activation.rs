//! Rows that products with integer weights read: signed codes of eight bits in blocks of 32 columns, with a scale each.
//!
//! A block is twelve words: the codes of even columns, four a word, then those of odd ones, which is how words of 4-bit
//! codes fall apart; the scale; the sum of all codes, and of the first sixteen; and nothing. A scale has five significant
//! bits, so that its inverse is the same everywhere: it is computed with integers (`kernels/rounded.wgsl` has the same
//! steps). A block of tiny values is zero, and one with a value that is infinite or no number has no number for a scale.

use mambo_kernel::{Elem, PrivateElem};

use crate::stored::BLOCK;

/// Words of a block.
pub(crate) const BLOCK_WORDS: usize = 12;
/// Bits of the largest magnitude, 2^-100, below which a block is zero.
const LEAST: u32 = 27 << 23;
const INFINITE: u32 = 0x7f80_0000;
const NO_NUMBER: u32 = 0x7fc0_0000;

static I8_ELEM: PrivateElem = PrivateElem {
    name: "i8",
    row_bytes: |cols| cols.div_ceil(BLOCK) * BLOCK_WORDS * 4,
    encode,
    decode,
    // Half a code; the scale may be a sixteenth larger than the largest value needs.
    error: 1.07 / 254.0,
};

/// Blocks of codes of eight bits.
pub(crate) const I8: Elem = Elem::Private(&I8_ELEM);

/// A block's scale from the bits of its largest magnitude, and what its values are multiplied with.
fn scale(largest: u32) -> (u32, f32) {
    if largest >= INFINITE {
        return (NO_NUMBER, 0.0);
    }
    if largest < LEAST {
        return (0, 0.0);
    }
    let bits = ((f32::from_bits(largest) * (1.0 / 127.0)).to_bits() + 0x7_ffff) & 0xfff8_0000;
    let sixteenths = 16 + (bits >> 19 & 15);
    let inverse = ((1 << 28) + sixteenths / 2) / sixteenths;
    let power = f32::from_bits((254 - (bits >> 23)) << 23);
    (bits, inverse as f32 / (1 << 24) as f32 * power)
}

/// The byte of a block at which a column's code stands.
fn place(column: usize) -> usize {
    column % 2 * 16 + column / 2
}

fn encode(x: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((I8_ELEM.row_bytes)(x.len()));
    for values in x.chunks(BLOCK) {
        let largest = values.iter().fold(0, |most, value| value.abs().to_bits().max(most));
        let (scale, inverse) = scale(largest);
        let mut codes = [0i8; BLOCK];
        let (mut all, mut first) = (0, 0);
        for (column, value) in values.iter().enumerate() {
            let code = (value * inverse).round_ties_even() as i8;
            codes[place(column)] = code;
            all += i32::from(code);
            first += if column < BLOCK / 2 { i32::from(code) } else { 0 };
        }
        bytes.extend(codes.map(|code| code as u8));
        [scale, all as u32, first as u32, 0].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    }
    bytes
}

fn decode(row: &[u8], cols: usize) -> Vec<f32> {
    let block = |bytes: &[u8]| -> [f32; BLOCK] {
        let scale = f32::from_le_bytes(std::array::from_fn(|i| bytes[BLOCK + i]));
        std::array::from_fn(|column| f32::from(bytes[place(column)] as i8) * scale)
    };
    row.chunks_exact(BLOCK_WORDS * 4).flat_map(block).take(cols).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_near_what_they_stand_for() {
        for largest in [1.0f32, 126.9, 127.0, 1e-20, 3e38, 7.3] {
            let values: Vec<f32> = (0..47).map(|i| largest * ((i * 29 % 94) as f32 / 46.5 - 1.0)).collect();
            let bytes = encode(&values);
            assert_eq!(bytes.len(), 2 * BLOCK_WORDS * 4);
            for (value, decoded) in values.iter().zip(decode(&bytes, 47)) {
                assert!((value - decoded).abs() <= largest * I8_ELEM.error, "{decoded} for {value}");
            }
        }
    }
}
