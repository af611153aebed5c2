//! Dimensions of a tensor: row-major, outermost first. Knows nothing of element types.

use std::fmt;

use crate::TensorError;

/// Maximum dimensions of a [`Shape`].
pub const MAX_RANK: usize = 8;

/// Dimensions, outermost first; the last one is contiguous in memory.
///
/// The product of the dimensions is known to fit `usize`, so [`Shape::elems`] cannot fail.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [usize; MAX_RANK],
    rank: u8,
}

impl Shape {
    /// A shape of the given dimensions, or an error when there are too many of them or their product overflows.
    pub fn new(dims: &[usize]) -> Result<Shape, TensorError> {
        if dims.len() > MAX_RANK {
            return Err(TensorError::Rank(dims.len()));
        }
        // Zeros are skipped so that they cannot hide an overflow of the other dimensions.
        let product = dims.iter().filter(|&&d| d != 0).try_fold(1usize, |n, &d| n.checked_mul(d));
        if product.is_none() {
            return Err(TensorError::TooManyElements(dims.to_vec()));
        }
        let mut shape = Shape::scalar();
        shape.dims[..dims.len()].copy_from_slice(dims);
        shape.rank = dims.len() as u8;
        Ok(shape)
    }

    /// The shape of a single value: no dimensions.
    pub const fn scalar() -> Shape {
        Shape { dims: [1; MAX_RANK], rank: 0 }
    }

    /// The dimensions, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// Number of values.
    pub fn elems(&self) -> usize {
        self.dims().iter().product()
    }

    /// Length of the innermost, contiguous dimension; 1 for a scalar.
    pub fn row_elems(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    /// Number of innermost rows; 1 for a scalar or a vector.
    pub fn rows(&self) -> usize {
        self.dims().split_last().map_or(1, |(_, outer)| outer.iter().product())
    }
}

impl Default for Shape {
    fn default() -> Shape {
        Shape::scalar()
    }
}

/// For dimensions written in code, where a bad shape is a bug.
///
/// # Panics
/// When there are more than [`MAX_RANK`] dimensions or their product overflows.
impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Shape {
        Shape::new(&dims).expect("a shape written in code is valid")
    }
}

impl TryFrom<&[usize]> for Shape {
    type Error = TensorError;

    fn try_from(dims: &[usize]) -> Result<Shape, TensorError> {
        Shape::new(dims)
    }
}

impl std::ops::Index<usize> for Shape {
    type Output = usize;

    fn index(&self, axis: usize) -> &usize {
        &self.dims()[axis]
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_prints() {
        let s = Shape::from([3, 4, 5]);
        assert_eq!((s.rank(), s.elems(), s.row_elems(), s.rows(), s[1]), (3, 60, 5, 12, 4));
        assert_eq!(s.to_string(), "[3, 4, 5]");
        assert_eq!(Shape::scalar().to_string(), "[]");
        assert_eq!((Shape::scalar().elems(), Shape::scalar().rows()), (1, 1));
        assert_eq!(Shape::from([0, 7]).elems(), 0);
    }

    #[test]
    fn rejects_shapes_that_overflow() {
        assert_eq!(Shape::new(&[1; 9]), Err(TensorError::Rank(9)));
        assert!(Shape::new(&[usize::MAX, 2]).is_err());
        assert!(Shape::new(&[0, usize::MAX, 2]).is_err(), "a zero does not hide an overflow");
        assert_eq!(Shape::new(&[2, 3]).unwrap(), Shape::from([2, 3]));
    }
}
