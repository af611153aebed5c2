//! Element types, shapes and quantised block formats: what a stored tensor's bytes mean.
//!
//! This crate handles single rows of numbers. It must not know about files, tensor names, models or devices.

pub mod blocks;
mod dtype;
mod error;
mod plain;
mod row;
mod shape;

pub use blocks::grouped::{Affine, AffineScale};
pub use dtype::DType;
pub use error::TensorError;
pub use plain::{F8_E4M3_MAX, f8_e4m3};
pub use row::{decode_row, encode_row, encode_row_weighted};
pub use shape::{MAX_RANK, Shape};
