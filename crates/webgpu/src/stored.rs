//! How stored types are held for products and look-ups: parts of words that `kernels/weights.wgsl` describes. Knows no
//! device.

use half::f16;
use mambo_kernel::Arithmetic;
use mambo_tensor::blocks::{Block, Iq4Nl, Mxfp4, Nvfp4, Q4_0, Q4K, Q6K, Q8_0, scale_and_min};
use mambo_tensor::{DType, decode_row};

/// Columns of a block.
pub(crate) const BLOCK: usize = 32;
/// Blocks that share a word which scales are multiplied with.
const SUPER_BLOCKS: usize = 8;

/// A form that kernels unpack; the names are those of the files that do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4K,
    Q6K,
    Iq4Nl,
    Mxfp4,
    Nvfp4,
}

impl Form {
    /// All of them.
    pub const ALL: [Form; 10] = [
        Form::Q4_0,
        Form::Q8_0,
        Form::Q4K,
        Form::Q6K,
        Form::Iq4Nl,
        Form::Mxfp4,
        Form::Nvfp4,
        Form::BF16,
        Form::F16,
        Form::F32,
    ];

    /// The type that is held in its own bits.
    pub fn dtype(self) -> DType {
        match self {
            Form::F32 => DType::F32,
            Form::F16 => DType::F16,
            Form::BF16 => DType::BF16,
            Form::Q8_0 => DType::Q8_0,
            Form::Q4_0 => DType::Q4_0,
            Form::Q4K => DType::Q4K,
            Form::Q6K => DType::Q6K,
            Form::Iq4Nl => DType::IQ4_NL,
            Form::Mxfp4 => DType::MXFP4,
            Form::Nvfp4 => DType::NVFP4,
        }
    }

    /// The name of `kernels/weight_NAME.wgsl`.
    pub fn name(self) -> &'static str {
        match self {
            Form::F32 => "f32",
            Form::F16 => "f16",
            Form::BF16 => "bf16",
            Form::Q8_0 => "q8_0",
            Form::Q4_0 => "q4_0",
            Form::Q4K => "q4_k",
            Form::Q6K => "q6_k",
            Form::Iq4Nl => "iq4_nl",
            Form::Mxfp4 => "mxfp4",
            Form::Nvfp4 => "nvfp4",
        }
    }

    /// Words of the codes of a block.
    fn code_words(self) -> usize {
        match self {
            Form::F32 => 32,
            Form::F16 | Form::BF16 => 16,
            Form::Q8_0 => 8,
            Form::Q6K => 6,
            _ => 4,
        }
    }

    /// Whether products with it are sums of integers, of rows that are rounded ([`crate::activation`]).
    pub fn is_integer(self) -> bool {
        matches!(self, Form::Q4_0 | Form::Q8_0 | Form::Q4K | Form::Q6K)
    }

    fn has_scales(self) -> bool {
        !matches!(self, Form::F32 | Form::F16 | Form::BF16)
    }

    fn has_supers(self) -> bool {
        matches!(self, Form::Q4K | Form::Q6K)
    }
}

/// How weights of a type come to be held for products; none for integers.
pub(crate) fn held(dtype: DType) -> Option<Form> {
    let own = Form::ALL.into_iter().find(|form| form.dtype() == dtype);
    let is_decoded = dtype.is_quantized() || matches!(dtype, DType::F8E4M3 | DType::F8E5M2);
    own.or(is_decoded.then_some(Form::F16))
}

/// How rows that are looked up are held: as they are where kernels decode them to the bit, else as f32.
pub(crate) fn held_as_table(dtype: DType) -> Option<Form> {
    held(dtype).map(|form| if form.dtype() == dtype { form } else { Form::F32 })
}

/// How products with weights of this type are computed.
pub(crate) fn arithmetic(dtype: DType) -> Arithmetic {
    match held(dtype) {
        // Decoded values are rounded to f16, with a power of two per row.
        Some(form) if form.dtype() != dtype => Arithmetic::OffsetF16InF32,
        Some(form) if form.is_integer() => Arithmetic::Integer,
        _ => Arithmetic::F32,
    }
}

/// A row of a weight: codes, then the parts whose first words are named here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub form: Form,
    pub blocks: usize,
    pub scales: usize,
    pub supers: usize,
    pub factor: usize,
    /// Words of a whole row: a multiple of four.
    pub words: usize,
}

impl Layout {
    pub fn new(form: Form, cols: usize) -> Layout {
        let blocks = cols.div_ceil(BLOCK);
        let scales = form.code_words() * blocks;
        let supers = scales + if form.has_scales() { blocks.div_ceil(2) } else { 0 };
        let factor = supers + if form.has_supers() { blocks.div_ceil(SUPER_BLOCKS) } else { 0 };
        Layout { form, blocks, scales, supers, factor, words: (factor + 1).next_multiple_of(4) }
    }
}

/// Packed rows, one after the other.
#[derive(Default)]
pub(crate) struct Packed {
    pub words: Vec<u32>,
    scales: Vec<u16>,
    supers: Vec<u32>,
}

impl Packed {
    /// Appends a stored row with its factor.
    pub fn push(
        &mut self,
        layout: &Layout,
        dtype: DType,
        row: &[u8],
        cols: usize,
        factor: f32,
    ) -> Result<(), String> {
        let start = self.words.len();
        let factor = match layout.form {
            form if form.dtype() != dtype => self.push_decoded(form, dtype, row, cols, factor)?,
            Form::F32 => {
                self.words.extend(row.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)));
                factor
            }
            Form::F16 | Form::BF16 => {
                let halves = row.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
                push_halves(&mut self.words, halves);
                factor
            }
            _ => {
                self.push_blocks(dtype, row);
                factor
            }
        };
        self.words.resize(start + layout.scales, 0);
        push_halves(&mut self.words, self.scales.drain(..));
        debug_assert_eq!(self.words.len(), start + layout.supers);
        self.words.append(&mut self.supers);
        debug_assert_eq!(self.words.len(), start + layout.factor);
        self.words.push(factor.to_bits());
        self.words.resize(start + layout.words, 0);
        Ok(())
    }

    /// Decodes a row: to f32 with its factor, or to f16 with a power of two that makes the most of its range.
    fn push_decoded(
        &mut self,
        form: Form,
        dtype: DType,
        row: &[u8],
        cols: usize,
        factor: f32,
    ) -> Result<f32, String> {
        let mut values = vec![0f32; cols];
        decode_row(dtype, row, &mut values).map_err(|error| error.to_string())?;
        if form == Form::F32 {
            self.words.extend(values.iter().map(|value| (value * factor).to_bits()));
            return Ok(1.0);
        }
        let largest = values.iter().fold(0f32, |most, value| most.max(value.abs()));
        let exponent = (largest.to_bits() >> 23) as i32 - 127;
        // The largest becomes a number of 2^14 to 2^15; nothing, what is no number and what is tiny stay.
        let power = if largest > 0.0 && largest.is_finite() { (exponent - 14).clamp(-100, 100) } else { 0 };
        let (up, down) = (2f32.powi(-power), 2f32.powi(power));
        push_halves(&mut self.words, values.iter().map(|value| f16::from_f32(value * up).to_bits()));
        Ok(down * factor)
    }

    fn push_blocks(&mut self, dtype: DType, row: &[u8]) {
        let half = |bytes: [u8; 2]| u16::from_le_bytes(bytes);
        match dtype {
            DType::Q8_0 => {
                for block in Q8_0::row(row) {
                    // Those of even columns first, as rounded rows have them.
                    let code = |i: usize| block.qs[i % 16 * 2 + i / 16];
                    let codes: [u8; BLOCK] = std::array::from_fn(code);
                    self.words.extend(codes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)));
                    self.scales.push(half(block.d));
                }
            }
            DType::Q4_0 => {
                for block in Q4_0::row(row) {
                    self.words.extend(split_words(&block.qs));
                    self.scales.push(half(block.d));
                }
            }
            DType::IQ4_NL => {
                for block in Iq4Nl::row(row) {
                    self.push_nibbles(&split(&block.qs));
                    self.scales.push(half(block.d));
                }
            }
            DType::MXFP4 => {
                for block in Mxfp4::row(row) {
                    self.push_nibbles(&split(&block.qs));
                    self.scales.push(u16::from(block.e));
                }
            }
            DType::NVFP4 => {
                for block in Nvfp4::row(row) {
                    for (scale, qs) in block.scales.as_chunks().0.iter().zip(block.qs.as_chunks::<2>().0) {
                        let code = |i: usize| qs[i / 16][i % 8] >> (i % 16 / 8 * 4) & 15;
                        self.push_nibbles(&std::array::from_fn(code));
                        self.scales.push(half(*scale));
                    }
                }
            }
            DType::Q4K => {
                for block in Q4K::row(row) {
                    for j in 0..SUPER_BLOCKS {
                        let (scale, min) = scale_and_min(&block.scales, j);
                        self.push_nibbles(&block.codes(j));
                        self.scales.push(u16::from(scale) | u16::from(min) << 8);
                    }
                    self.supers.push(u32::from(half(block.d)) | u32::from(half(block.dmin)) << 16);
                }
            }
            DType::Q6K => {
                for block in Q6K::row(row) {
                    for j in 0..SUPER_BLOCKS {
                        let codes = block.codes(j);
                        self.push_nibbles(&codes.map(|code| code & 15));
                        let high = codes.as_chunks::<16>().0.iter().map(|codes| {
                            codes.iter().rev().fold(0, |word, code| word << 2 | u32::from(code >> 4))
                        });
                        self.words.extend(high);
                        self.scales.push(u16::from_le_bytes([block.scales[2 * j], block.scales[2 * j + 1]]));
                    }
                    self.supers.push(u32::from(half(block.d)));
                }
            }
            _ => unreachable!("{dtype} has no blocks of its own"),
        }
    }

    /// Codes of four bits, eight a word, in order.
    fn push_nibbles(&mut self, codes: &[u8; BLOCK]) {
        let word = |codes: &[u8; 8]| codes.iter().rev().fold(0, |word, code| word << 4 | u32::from(*code));
        self.words.extend(codes.as_chunks().0.iter().map(word));
    }
}

/// Codes of a block in their order: value j low and value j + 16 high in byte j.
fn split(qs: &[u8; 16]) -> [u8; BLOCK] {
    std::array::from_fn(|i| qs[i % 16] >> (i / 16 * 4) & 15)
}

/// The same as words: most weights are held so, and this is quick.
fn split_words(qs: &[u8; 16]) -> [u32; 4] {
    let [low, high] = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|i| qs[at + i])));
    // Four bits of every byte, next to each other.
    let squeezed = |bytes: u64| {
        let nibbles = bytes & 0x0f0f_0f0f_0f0f_0f0f;
        let bytes = (nibbles | nibbles >> 4) & 0x00ff_00ff_00ff_00ff;
        let halves = (bytes | bytes >> 8) & 0x0000_ffff_0000_ffff;
        (halves | halves >> 16) as u32
    };
    [squeezed(low), squeezed(high), squeezed(low >> 4), squeezed(high >> 4)]
}

/// Two values of 16 bits a word, the first low.
fn push_halves(words: &mut Vec<u32>, mut halves: impl Iterator<Item = u16>) {
    while let Some(low) = halves.next() {
        words.push(u32::from(low) | u32::from(halves.next().unwrap_or(0)) << 16);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_of_weights_is_held() {
        for dtype in DType::all() {
            let is_weight = dtype.is_quantized()
                || matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2);
            assert_eq!(held(dtype).is_some(), is_weight, "{dtype}");
        }
    }

    #[test]
    fn codes_are_split_to_the_same_words() {
        let qs: [u8; 16] = std::array::from_fn(|i| (i * 37 + 11) as u8);
        let mut packed = Packed::default();
        packed.push_nibbles(&split(&qs));
        assert_eq!(packed.words, split_words(&qs));
    }

    #[test]
    fn rows_take_about_as_many_bits_as_files() {
        for form in Form::ALL {
            let bits = Layout::new(form, 4096).words as f64 * 32.0 / 4096.0;
            let stored = form.dtype().bits_per_weight();
            assert!(bits >= stored - 1e-9 && bits <= stored + 0.3, "{form:?}: {bits} for {stored}");
        }
    }
}
