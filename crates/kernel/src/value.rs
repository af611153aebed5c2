//! What flows between ops: two-dimensional row-major values whose row count is symbolic.
//!
//! Knows nothing of storage; a value's place in memory is an [`crate::Operand`].

use std::fmt;

/// Element type of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Elem {
    /// 32-bit float, the type of the residual stream.
    F32,
    /// 32-bit index (token ids, row numbers, expert ids).
    I32,
    /// 8-bit activations in blocks of [`Q8_BLOCK`]; see [`Elem::row_bytes`] for the layout.
    Q8,
    /// Floats as sums of two bf16: the upper parts of a row, then the lower ones, each filled up with zeros to
    /// a multiple of [`BF16X2_COLS`].
    BF16X2,
}

/// Values of a [`Elem::Q8`] row that share one scale.
pub const Q8_BLOCK: usize = 32;
/// Bytes of a block: codes, scale, two offsets and a start.
pub const Q8_BLOCK_BYTES: usize = Q8_BLOCK + 16;
/// 1.5·2^23. A whole number of at most 22 bits gives the same float whether it is added to this one or to its bits:
/// a sum of whole numbers that starts here needs no conversion.
pub const Q8_ANCHOR: f32 = 12_582_912.0;

/// Parts of a [`Elem::BF16X2`] value that are smaller than 2^-56 are zero.
pub const BF16X2_LEAST: f32 = 1.0 / (1u64 << 56) as f32;

/// Columns that a [`Elem::BF16X2`] row has a multiple of.
pub const BF16X2_COLS: usize = 32;

/// Every row in an arena starts on a multiple of this many bytes.
pub const ROW_ALIGN: usize = 64;

impl Elem {
    /// Bytes of one row of `cols` elements, rounded up to [`ROW_ALIGN`].
    ///
    /// A `Q8` row is blocks of 32 signed codes, their f32 scale, two i32: -128 times the sum of all codes and of
    /// the first sixteen, and [`Q8_ANCHOR`] plus the first of these. A kernel takes the zero point of a weight's
    /// codes out with them.
    pub fn row_bytes(self, cols: usize) -> usize {
        let bytes = match self {
            Elem::F32 | Elem::I32 => cols * 4,
            Elem::Q8 => cols.div_ceil(Q8_BLOCK) * Q8_BLOCK_BYTES,
            Elem::BF16X2 => 2 * 2 * cols.next_multiple_of(BF16X2_COLS),
        };
        bytes.next_multiple_of(ROW_ALIGN)
    }

    /// Whether values are rounded for the kernels that read them; no graph has such.
    pub fn is_rounded(self) -> bool {
        matches!(self, Elem::Q8 | Elem::BF16X2)
    }

    /// The name in printed graphs and plans.
    pub fn name(self) -> &'static str {
        match self {
            Elem::F32 => "f32",
            Elem::I32 => "i32",
            Elem::Q8 => "q8",
            Elem::BF16X2 => "bf16x2",
        }
    }
}

/// What a step counts rows in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowBase {
    /// One row per token of the step (`T`).
    Tokens,
    /// One row per token whose logits are wanted (`W`).
    Wanted,
}

/// A symbolic row count: `times` rows for each unit of `base`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rows {
    /// The unit.
    pub base: RowBase,
    /// Rows per unit; the routed experts of one token make this larger than one.
    pub times: usize,
}

impl Rows {
    /// One row per token.
    pub const TOKENS: Rows = Rows { base: RowBase::Tokens, times: 1 };
    /// One row per wanted token.
    pub const WANTED: Rows = Rows { base: RowBase::Wanted, times: 1 };

    /// The actual count in a step with these numbers of tokens and wanted rows.
    pub fn count(self, tokens: usize, wanted: usize) -> usize {
        let unit = match self.base {
            RowBase::Tokens => tokens,
            RowBase::Wanted => wanted,
        };
        unit * self.times
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.base {
            RowBase::Tokens => "T",
            RowBase::Wanted => "W",
        };
        if self.times == 1 { f.write_str(unit) } else { write!(f, "{unit}*{}", self.times) }
    }
}

/// Type of a value: element type and shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ValueType {
    /// Element type.
    pub elem: Elem,
    /// Symbolic row count.
    pub rows: Rows,
    /// Elements per row.
    pub cols: usize,
}

impl ValueType {
    /// An f32 value.
    pub fn f32(rows: Rows, cols: usize) -> Self {
        ValueType { elem: Elem::F32, rows, cols }
    }

    /// An i32 value.
    pub fn i32(rows: Rows, cols: usize) -> Self {
        ValueType { elem: Elem::I32, rows, cols }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}, {}]", self.elem.name(), self.rows, self.cols)
    }
}
