//! How stored types are held for products: which codes, how wide, how many columns share a scale.
//!
//! The layout of a tile is `kernels/fragments.cuh`, of stored blocks `kernels/stored.cuh`. Must not know calls.

use mambo_kernel::{Arithmetic, Elem};
use mambo_tensor::{Affine, AffineScale, DType};

use crate::activation;
use crate::source::Specialisation;

/// What a code of a tile is; the names are those of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Coding {
    /// An integer with a zero in the middle of its range.
    Linear,
    /// An integer that a scale and an offset turn into a value.
    Line,
    /// A step of `iq4_nl`.
    Steps,
    /// A float of four bits.
    E2m1,
    /// A float of eight bits.
    E4m3,
    /// 16 bits that need no decoding.
    Plain,
}

/// Rows of outputs in a tile.
pub(in crate::kernels) const TILE_ROWS: usize = 16;
/// Columns of a tile.
pub(in crate::kernels) const TILE_COLS: usize = activation::TILE_COLS;
/// Bytes of weights that a warp copies at a time.
const CHUNK_BYTES: usize = 2400;

/// How tiles of a weight are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::kernels) struct Tiles {
    coding: Coding,
    /// Of a code.
    bits: usize,
    /// Columns that share a scale; 0 where there are no scales.
    group: usize,
    /// Of an activation: two where products read sums of two bf16.
    pub parts: usize,
}

/// How a weight is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::kernels) enum Form {
    /// Tiles in the order of the matrix units.
    Tiles(Tiles),
    /// Rows of f32, padded.
    Rows,
}

/// How a stored type comes to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub form: Form,
    /// The type that the kernel which packs reads; rows of others are decoded to f32 first.
    pub packed_from: DType,
}

/// The types that are held in their own bits, or a few more; affine groups of some widths are, too.
pub(super) const OWN_TYPES: [DType; 16] = [
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Q4K,
    DType::Q5K,
    DType::Q6K,
    DType::IQ4_NL,
    DType::IQ4_XS,
    DType::MXFP4,
    DType::NVFP4,
    DType::F8E4M3,
    DType::F16,
    DType::BF16,
    DType::F32,
];

/// Code widths of affine groups that are held in their own bits.
pub(super) const AFFINE_BITS: [usize; 2] = [4, 8];

/// The code width of an affine type that is held in its own bits.
pub(super) fn affine_bits(dtype: DType) -> Option<usize> {
    let DType::Affine(affine) = dtype else { return None };
    Some(affine.bits()).filter(|bits| AFFINE_BITS.contains(bits))
}

/// Whether a type is decoded to f16 when it is loaded.
pub(super) fn is_decoded(dtype: DType) -> bool {
    let is_weight = dtype.is_quantized() || dtype == DType::F8E5M2;
    is_weight && affine_bits(dtype).is_none() && !OWN_TYPES.contains(&dtype)
}

/// How a stored type is held; none for integers.
pub(super) fn held(dtype: DType) -> Option<Held> {
    let tiles = |coding, bits, group| Form::Tiles(Tiles { coding, bits, group, parts: 1 });
    let form = match dtype {
        DType::Q4_0 => tiles(Coding::Linear, 4, 32),
        DType::Q5_0 => tiles(Coding::Linear, 5, 32),
        DType::Q8_0 => tiles(Coding::Linear, 8, 32),
        DType::Q6K => tiles(Coding::Linear, 6, 16),
        DType::Q4_1 | DType::Q4K => tiles(Coding::Line, 4, 32),
        DType::Q5_1 | DType::Q5K => tiles(Coding::Line, 5, 32),
        DType::IQ4_NL | DType::IQ4_XS => tiles(Coding::Steps, 4, 32),
        DType::MXFP4 => tiles(Coding::E2m1, 4, 32),
        DType::NVFP4 => tiles(Coding::E2m1, 4, 16),
        DType::F8E4M3 => tiles(Coding::E4m3, 8, 0),
        DType::F16 => tiles(Coding::Plain, 16, 0),
        DType::BF16 => Form::Tiles(Tiles { coding: Coding::Plain, bits: 16, group: 0, parts: 2 }),
        DType::F32 => Form::Rows,
        DType::Affine(affine) if AFFINE_BITS.contains(&affine.bits()) => {
            tiles(Coding::Line, affine.bits(), affine.group().min(TILE_COLS))
        }
        _ if is_decoded(dtype) => {
            return Some(Held { form: tiles(Coding::Plain, 16, 0), packed_from: DType::F32 });
        }
        _ => return None,
    };
    Some(Held { form, packed_from: dtype })
}

impl Form {
    /// The activations that products with such weights read.
    pub fn input(self) -> Elem {
        match self {
            Form::Tiles(Tiles { parts: 2, .. }) => activation::BF16X2,
            Form::Tiles(_) => activation::F16,
            Form::Rows => Elem::F32,
        }
    }
}

impl Held {
    /// How products with such weights are computed.
    pub fn arithmetic(self) -> Arithmetic {
        let Form::Tiles(tiles) = self.form else { return Arithmetic::F32 };
        match (self.packed_from, tiles.coding) {
            (DType::BF16, _) => Arithmetic::Bf16InF32,
            (DType::F16 | DType::F8E4M3 | DType::NVFP4, _) => Arithmetic::F16InF32,
            (DType::F32, _) | (_, Coding::Line) => Arithmetic::OffsetF16InF32,
            _ => Arithmetic::RoundedF16InF32,
        }
    }
}

impl Tiles {
    /// Words of a lane's scales and offsets.
    fn line_words(self) -> usize {
        let groups = TILE_COLS.checked_div(self.group).unwrap_or(0);
        groups * if self.coding == Coding::Line { 2 } else { 1 }
    }

    /// Bytes of a tile.
    pub fn tile_bytes(self) -> usize {
        128 * self.bits + 32 * self.line_words()
    }

    /// Tiles that a warp copies at a time while it multiplies few rows.
    pub fn chunk(self) -> usize {
        (CHUNK_BYTES / self.tile_bytes()).max(1)
    }

    /// Groups of four warps of a block that multiplies few rows: as many as have room for their registers twice.
    pub fn groups(self) -> usize {
        match (self.coding, self.bits) {
            (Coding::Steps, _) | (Coding::Line, 5) => 2,
            _ => 4,
        }
    }

    /// Warpgroups of a block of many rows that multiply: as many as have room for their registers.
    pub fn consumers(self) -> usize {
        match (self.coding, self.bits) {
            _ if self.parts == 2 => 2,
            (_, 5 | 6) | (Coding::Steps | Coding::Plain, _) | (Coding::Line | Coding::Linear, 8) => 2,
            (Coding::Line, _) if self.group < 32 => 2,
            _ => 3,
        }
    }

    /// A kernel for these tiles.
    pub fn define(self, kernel: Specialisation) -> Specialisation {
        let coding = match self.coding {
            Coding::Linear => "CODING_LINEAR",
            Coding::Line => "CODING_LINE",
            Coding::Steps => "CODING_STEPS",
            Coding::E2m1 => "CODING_E2M1",
            Coding::E4m3 => "CODING_E4M3",
            Coding::Plain => "CODING_PLAIN",
        };
        kernel.define("CODING", coding).define("BITS", self.bits).define("GROUP", self.group)
    }
}

/// A kernel that reads rows of a stored type.
pub(super) fn define_stored(kernel: Specialisation, dtype: DType) -> Specialisation {
    let number = |scale: AffineScale| match scale {
        AffineScale::F16 => "STORED_F16",
        AffineScale::BF16 => "STORED_BF16",
        AffineScale::F32 => "STORED_F32",
    };
    let define_affine = |kernel: Specialisation, affine: Affine| {
        let kernel = kernel.define("STORED", "STORED_AFFINE").define("AFFINE_BITS", affine.bits());
        kernel.define("AFFINE_GROUP", affine.group()).define("AFFINE_NUMBER", number(affine.scale()))
    };
    match dtype {
        DType::Affine(affine) => define_affine(kernel, affine),
        _ => kernel.define("STORED", format!("STORED_{}", dtype.name().to_uppercase())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_of_weights_is_held() {
        for dtype in DType::all() {
            let is_weight = dtype.is_quantized() || OWN_TYPES.contains(&dtype) || dtype == DType::F8E5M2;
            assert_eq!(held(dtype).is_some(), is_weight, "{dtype}");
        }
    }

    #[test]
    fn tiles_take_about_as_many_bits_as_files() {
        for dtype in OWN_TYPES {
            let Some(Held { form: Form::Tiles(tiles), .. }) = held(dtype) else { continue };
            let bits = tiles.tile_bytes() as f64 * 8.0 / (TILE_ROWS * TILE_COLS) as f64;
            assert!(
                bits >= dtype.bits_per_weight() - 1e-9 && bits <= dtype.bits_per_weight() + 0.51,
                "{dtype}: {bits}"
            );
            assert!(tiles.tile_bytes().is_multiple_of(16), "{dtype}");
        }
    }
}
