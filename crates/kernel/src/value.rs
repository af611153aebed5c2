//! What flows between ops: two-dimensional row-major values whose row count is symbolic.
//!
//! Knows nothing of storage; a value's place in memory is an [`crate::Operand`].

use std::fmt;
use std::hash::{Hash, Hasher};

/// Element type of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Elem {
    /// 32-bit float, the type of the residual stream.
    F32,
    /// 32-bit index (token ids, row numbers, expert ids).
    I32,
    /// A type that only one backend knows; lowering converts to it, no graph has it.
    Private(&'static PrivateElem),
}

/// An activation type of one backend: blocks of codes, pairs of bf16, whatever its kernels read fastest.
///
/// The backend owns the bytes; the contract judges the values they decode to.
pub struct PrivateElem {
    /// The name in printed plans; unique within a process.
    pub name: &'static str,
    /// Bytes of a row of so many values, before alignment.
    pub row_bytes: fn(usize) -> usize,
    /// The bytes of a row of values: the definition that the backend's `quantize` kernels must match.
    pub encode: fn(&[f32]) -> Vec<u8>,
    /// The values that a row of so many columns stands for.
    pub decode: fn(&[u8], usize) -> Vec<f32>,
    /// Largest error of a decoded value, as a share of the largest magnitude in its row.
    pub error: f32,
}

impl fmt::Debug for PrivateElem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for PrivateElem {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other) || self.name == other.name
    }
}

impl Eq for PrivateElem {}

impl Hash for PrivateElem {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

/// Every row in an arena starts on a multiple of this many bytes.
pub const ROW_ALIGN: usize = 64;

impl Elem {
    /// Bytes of one row of `cols` elements, rounded up to [`ROW_ALIGN`].
    pub fn row_bytes(self, cols: usize) -> usize {
        self.packed_bytes(cols).next_multiple_of(ROW_ALIGN)
    }

    /// Bytes of the elements of one row, without padding.
    pub fn packed_bytes(self, cols: usize) -> usize {
        match self {
            Elem::F32 | Elem::I32 => cols * 4,
            Elem::Private(elem) => (elem.row_bytes)(cols),
        }
    }

    /// Whether the type is private to a backend.
    pub fn is_private(self) -> bool {
        matches!(self, Elem::Private(_))
    }

    /// The name in printed graphs and plans.
    pub fn name(self) -> &'static str {
        match self {
            Elem::F32 => "f32",
            Elem::I32 => "i32",
            Elem::Private(elem) => elem.name,
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
