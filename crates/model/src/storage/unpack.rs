//! Words of AWQ and GPTQ become affine groups, or f16 values where no such group holds them.
//!
//! A group's bias is `-scale · zero`: a scale of at most 16 bits' precision times a small integer, which f32 holds
//! exactly, so that nothing is rounded. Must not know names or files.

use mambo_tensor::{Affine, DType, decode_row, encode_row};

/// Which way codes are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// Rows of the file are inputs; a word holds eight outputs in a shuffled order.
    Awq,
    /// A word holds neighbouring inputs of one output.
    Gptq,
}

/// A packed matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Packed {
    pub packing: Packing,
    /// Bits of a code.
    pub bits: usize,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Inputs that share a scale.
    pub group: usize,
    /// What is added to stored zeros.
    pub zero_offset: u32,
    /// Type of the scales.
    pub scale_type: DType,
    /// The type that holds it; f16 where there is none.
    pub affine: Option<Affine>,
}

/// Outputs that are unpacked together: words of several inputs lie far apart.
const TILE: usize = 64;
/// Which output of eight the codes of an AWQ word are for, lowest bits first.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

impl Packed {
    /// The matrix row by row; `beside` are zeros, scales and perhaps the group of every column.
    pub fn unpack(self, codes: &[u8], beside: &[&[u8]]) -> Vec<u8> {
        let codes = words(codes);
        let groups = Groups::read(self, beside);
        let mut out = Vec::new();
        let mut tile = vec![0u8; TILE.min(self.rows) * self.cols];
        for first in (0..self.rows).step_by(TILE) {
            let count = TILE.min(self.rows - first);
            self.unpack_tile(&codes, first, count, &mut tile);
            for (row, codes) in tile.chunks_exact(self.cols).take(count).enumerate() {
                match self.affine {
                    Some(affine) => self.write_groups(affine, codes, &groups, first + row, &mut out),
                    None => self.write_values(codes, &groups, first + row, &mut out),
                }
            }
        }
        out
    }

    /// The codes of outputs `first .. first + count`.
    fn unpack_tile(self, words: &[u32], first: usize, count: usize, tile: &mut [u8]) {
        let (per_word, mask) = (32 / self.bits, (1u32 << self.bits) - 1);
        for row in first..first + count {
            let codes = &mut tile[(row - first) * self.cols..][..self.cols];
            match self.packing {
                Packing::Awq => {
                    let shift = self.bits * awq_place(row % per_word, per_word);
                    let words = words[row / per_word..].iter().step_by(self.rows / per_word);
                    codes.iter_mut().zip(words).for_each(|(code, word)| *code = (word >> shift & mask) as u8);
                }
                Packing::Gptq => {
                    let words = words[row..].iter().step_by(self.rows);
                    for (codes, word) in codes.chunks_mut(per_word).zip(words) {
                        for (place, code) in codes.iter_mut().enumerate() {
                            *code = (word >> (self.bits * place) & mask) as u8;
                        }
                    }
                }
            }
        }
    }

    fn write_groups(self, affine: Affine, codes: &[u8], groups: &Groups, row: usize, out: &mut Vec<u8>) {
        let per_byte = 8 / self.bits;
        for (index, codes) in codes.chunks_exact(affine.group()).enumerate() {
            let (zero, scale) = groups.of(index * affine.group() / self.group, row);
            for codes in codes.chunks_exact(per_byte) {
                out.push(
                    codes.iter().rev().fold(0u32, |byte, code| byte << self.bits | u32::from(*code)) as u8
                );
            }
            out.extend(scale.to_le_bytes());
            out.extend((-(zero * scale)).to_le_bytes());
        }
    }

    fn write_values(self, codes: &[u8], groups: &Groups, row: usize, out: &mut Vec<u8>) {
        let value = |(column, code): (usize, &u8)| {
            let (zero, scale) = groups.of(groups.group(column), row);
            (f32::from(*code) - zero) * scale
        };
        let values: Vec<f32> = codes.iter().enumerate().map(value).collect();
        let start = out.len();
        out.resize(start + 2 * values.len(), 0);
        encode_row(DType::F16, &values, &mut out[start..]).expect("plain values of any number");
    }
}

/// Zeros and scales of all groups.
struct Groups {
    packed: Packed,
    zeros: Vec<u32>,
    scales: Vec<f32>,
    /// The group of every column, where they do not follow one another.
    order: Vec<u32>,
}

impl Groups {
    fn read(packed: Packed, beside: &[&[u8]]) -> Groups {
        let mut scales = vec![0.0; beside[1].len() / packed.scale_type.block_bytes()];
        decode_row(packed.scale_type, beside[1], &mut scales).expect("scales are plain floats");
        let order = beside.get(2).map_or_else(Vec::new, |bytes| words(bytes));
        Groups { packed, zeros: words(beside[0]), scales, order }
    }

    fn group(&self, column: usize) -> usize {
        let last = self.scales.len() / self.packed.rows - 1;
        let group = self.order.get(column).map_or(column / self.packed.group, |group| *group as usize);
        group.min(last)
    }

    /// Zero and scale of an output in a group.
    fn of(&self, group: usize, row: usize) -> (f32, f32) {
        let Packed { packing, bits, rows, zero_offset, .. } = self.packed;
        let per_word = 32 / bits;
        let word = self.zeros[group * (rows / per_word) + row / per_word];
        let place = match packing {
            Packing::Awq => awq_place(row % per_word, per_word),
            Packing::Gptq => row % per_word,
        };
        let zero = (word >> (bits * place) & ((1 << bits) - 1)) + zero_offset;
        (zero as f32, self.scales[group * rows + row])
    }
}

/// Where in a word the code of an output is.
fn awq_place(output: usize, per_word: usize) -> usize {
    match per_word == AWQ_ORDER.len() {
        true => AWQ_ORDER.iter().position(|own| *own == output).expect("one of eight"),
        false => output,
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}
