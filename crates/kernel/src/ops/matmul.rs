//! `matmul`: `y[o] = Σ_i W[o,i]·x[i]` for every row, then the epilogue: nothing, `max(y, 0)²`, or plus
//! the residual.
//!
//! Weights are `[out, in]` in any stored type. A kernel that reads 8-bit rows is judged on the values
//! those rows stand for; how good the 8-bit rows are is the contract of `quantize`.
//! Tolerance: an f32 sum of `in` products.

use mambo_tensor::DType;

use super::relu2;
use crate::case::{Case, CaseWeight, Rng};
use crate::op::{Epilogue, Op};

/// `W·x` of one row, in f64.
pub fn reference(weight: &[f32], x: &[f32], epilogue: Epilogue, residual: &[f32]) -> Vec<f32> {
    let dot = |row: &[f32]| row.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum::<f64>() as f32;
    let products = weight.chunks(x.len()).map(dot);
    match epilogue {
        Epilogue::None => products.collect(),
        Epilogue::Relu2 => products.map(relu2::value).collect(),
        Epilogue::Residual => products.zip(residual).map(|(y, r)| y + r).collect(),
    }
}

/// Every stored type with widths whole and odd, from one row to more than any tile.
pub const TYPES: [(DType, &[usize]); 8] = [
    (DType::F32, &[1, 60, 97, 256]),
    (DType::F16, &[20, 130]),
    (DType::BF16, &[33, 256]),
    (DType::Q8_0, &[32, 96, 320]),
    (DType::Q4_0, &[32, 96, 2688]),
    (DType::Q5_0, &[32, 160]),
    (DType::Q4K, &[256, 768]),
    (DType::Q6K, &[256, 512]),
];

/// Output widths around the panel size, token counts around every blocking.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(10);
    let mut cases = Vec::new();
    for (dtype, widths) in TYPES {
        for (index, &cols) in widths.iter().enumerate() {
            let out = [40, 16, 97, 1][index];
            let epilogue = [Epilogue::None, Epilogue::Relu2, Epilogue::Residual, Epilogue::None][index];
            let weight = CaseWeight::encode(dtype, &[out, cols], &rng.normals(out * cols, 0.3));
            let name = format!("{dtype} {cols} -> {out}, {epilogue:?}");
            let mut case = Case::new(name, Op::Matmul { out, epilogue }, &[1, 2, 5, 23, 33], 1e-5)
                .weight(weight)
                .input(cols, || rng.normal());
            if epilogue == Epilogue::Residual {
                case = case.input(out, || rng.normal());
            }
            cases.push(case);
        }
    }
    cases
}
