//! What can go wrong with one row of numbers; callers add the tensor's and the file's name.

use crate::DType;

/// Why a row could not be decoded or encoded, or a shape could not be formed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TensorError {
    /// The number of values is not a whole number of blocks.
    #[error("a {dtype} row must hold a multiple of {block} values, not {elems}")]
    NotWholeBlocks {
        /// Type of the row.
        dtype: DType,
        /// Values in the row.
        elems: usize,
        /// Values in one block of the type.
        block: usize,
    },
    /// The byte slice does not have the length the values need.
    #[error("a {dtype} row of {elems} values takes {expected} bytes, not {bytes}")]
    RowBytes {
        /// Type of the row.
        dtype: DType,
        /// Values in the row.
        elems: usize,
        /// Bytes the values need.
        expected: usize,
        /// Bytes given.
        bytes: usize,
    },
    /// A value that a quantised type cannot hold.
    #[error("value {index} of the row is {value}, which {dtype} cannot store")]
    NotFinite {
        /// Type asked for.
        dtype: DType,
        /// Position in the row.
        index: usize,
        /// The value: NaN or an infinity.
        value: f32,
    },
    /// A finite value beyond the largest the type can hold.
    #[error("value {index} of the row is {value}, beyond the range of {dtype}")]
    OutOfRange {
        /// Type asked for.
        dtype: DType,
        /// Position in the row (for a block format, of the block's largest value).
        index: usize,
        /// The value.
        value: f32,
    },
    /// The number of importance weights differs from that of the values.
    #[error("a row of {elems} values was given {weights} importance weights")]
    ImportanceLength {
        /// Values in the row.
        elems: usize,
        /// Weights given.
        weights: usize,
    },
    /// A negative or non-finite importance weight.
    #[error("importance weight {index} of the row is {value}; it must be finite and not negative")]
    BadImportance {
        /// Position in the row.
        index: usize,
        /// The weight.
        value: f32,
    },
    /// The type can be read but not written.
    #[error("there is no encoder for {0}; choose one of {list}", list = DType::encodable_names())]
    NoEncoder(DType),
    /// More dimensions than a shape can hold.
    #[error("{0} dimensions are more than the {max} a shape can hold", max = crate::MAX_RANK)]
    Rank(usize),
    /// The dimensions multiply to more than fits in memory's address range.
    #[error("the dimensions {0:?} multiply to more values than can be counted")]
    TooManyElements(Vec<usize>),
}
