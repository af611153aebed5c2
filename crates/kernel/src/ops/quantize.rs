//! `quantize`: f32 rows to rows of a backend's private type ([`PrivateElem`]).
//!
//! The backend's own `encode` defines the bytes and `decode` what they stand for. A kernel's rows must decode to
//! exactly what encoded rows decode to, and those must be within the type's stated error of the values.

use crate::case::{Case, RAGGED, Rng};
use crate::op::Op;
use crate::value::{Elem, PrivateElem};

/// The values that a row stands for once it is encoded.
pub fn reference(x: &[f32], to: &PrivateElem) -> Vec<f32> {
    (to.decode)(&(to.encode)(x), x.len())
}

/// Zeros, outliers and tiny values, in widths whole and odd.
pub fn cases(to: &'static PrivateElem) -> Vec<Case> {
    let mut rng = Rng(9);
    let case = |(cols, outlier): (usize, f32)| {
        let mut count = 0;
        let name = format!("{cols} columns, outlier {outlier}, to {}", to.name);
        Case::new(name, Op::Quantize(Elem::Private(to)), &RAGGED, 0.0).input(cols, || {
            count += 1;
            match count % 96 {
                0 => outlier,
                1..32 => 0.0,
                _ => rng.normal(),
            }
        })
    };
    let sizes = [(1, 1.0), (32, 1.0), (47, 1e30), (96, 1e4), (256, 1e-6), (2688, 50.0), (2688, 1e-20)];
    sizes.into_iter().map(case).collect()
}
