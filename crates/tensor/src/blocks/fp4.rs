//! The four-bit float `e2m1` that `mxfp4` and `nvfp4` share: sign, two exponent bits, one mantissa bit.

/// Twice the value of each code: whole numbers, so that products with a halved scale are exact. Negative
/// zero is stored as a code but decodes to zero.
pub const DOUBLED: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];
