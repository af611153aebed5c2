//! `matmul`: `y[o] = Σ_i W[o,i]·x[i]` for every row, then the epilogue: nothing, `max(y, 0)²`, plus the residual, or
//! `activation(g)·y` as in `glu`, with the gate's product `g[o] = Σ_i G[o,i]·x[i]`.
//!
//! Weights are `[out, in]` in any stored type, a gate's in that of its product. A kernel that reads rounded rows is judged on the values
//! those rows stand for; how good the rounded rows are is the contract of `quantize`.
//! Tolerance: an f32 sum of `in` products.

use mambo_tensor::{DType, decode_row};

use super::{glu, relu2};
use crate::case::{Case, CaseWeight, Rng};
use crate::dims::Activation;
use crate::op::{Epilogue, Op};
use crate::rounding::bf16_bits;

/// `W·x` of one row, in f64; beside it the epilogue has the residual, or the product of the gate.
pub fn reference(weight: &[f32], x: &[f32], epilogue: Epilogue, beside: &[f32]) -> Vec<f32> {
    let dot = |row: &[f32]| row.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum::<f64>() as f32;
    let products = weight.chunks(x.len()).map(dot);
    match epilogue {
        Epilogue::None => products.collect(),
        Epilogue::Relu2 => products.map(relu2::value).collect(),
        Epilogue::Residual => products.zip(beside).map(|(y, r)| y + r).collect(),
        Epilogue::Glu(activation) => {
            products.zip(beside).map(|(y, &gate)| glu::value(activation, gate, y)).collect()
        }
    }
}

/// Every stored type with widths whole and odd, from one row to more than any tile.
pub fn types() -> Vec<(DType, &'static [usize])> {
    let single = DType::all().filter_map(|dtype| Some((dtype, widths(dtype)?)));
    let mut types: Vec<(DType, &[usize])> = single.collect();
    let affine = DType::all().filter(|dtype| matches!(dtype, DType::Affine(_)));
    types.extend(affine.step_by(4).map(|dtype| (dtype, &[128][..])));
    let common = ["affine4g64_bf16", "affine4g32", "affine4g128_f32", "affine8g64_bf16"];
    types.extend(common.into_iter().filter_map(DType::from_name).map(|dtype| (dtype, &[128, 384][..])));
    types
}

/// Widths of the weights of a type; none for integers, and for affine groups, of which some stand for all.
fn widths(dtype: DType) -> Option<&'static [usize]> {
    Some(match (dtype, dtype.block_elems()) {
        (DType::F32, _) => &[1, 60, 97, 256],
        (DType::F16, _) => &[20, 130],
        (DType::BF16 | DType::F8E4M3, _) => &[33, 256],
        (DType::F8E5M2, _) => &[20],
        (DType::Q8_0, _) => &[32, 96, 320],
        (DType::Q4_0, _) => &[32, 96, 2688],
        (DType::Affine(_), _) | (_, 1) => return None,
        (_, 32) => &[32, 160],
        (_, 64) => &[64, 320],
        _ => &[256, 768],
    })
}

/// A random weight of any type. Types without an encoder get random blocks, drawn again until the values
/// are of ordinary size.
pub fn weight(dtype: DType, shape: &[usize], rng: &mut Rng, scale: f32) -> CaseWeight {
    let count: usize = shape.iter().product();
    if dtype.is_encodable() {
        return CaseWeight::encode(dtype, shape, &rng.normals(count, scale));
    }
    let mut values = vec![0.0; dtype.block_elems()];
    let mut bytes = Vec::new();
    for _ in 0..count / values.len() {
        let mut block = vec![0; dtype.block_bytes()];
        loop {
            block.fill_with(|| rng.bits() as u8);
            decode_row(dtype, &block, &mut values).expect("a whole block");
            let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
            if values.iter().all(|v| v.is_finite()) && (scale / 16.0..scale * 16.0).contains(&largest) {
                break;
            }
        }
        bytes.extend(block);
    }
    CaseWeight { dtype, shape: shape.to_vec(), bytes }
}

/// Output widths around the panel size, token counts around every blocking.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(10);
    let mut cases = Vec::new();
    for (dtype, widths) in types() {
        for (index, &cols) in widths.iter().enumerate() {
            let out = [40, 16, 97, 1][index];
            let epilogue = [Epilogue::None, Epilogue::Relu2, Epilogue::Residual, Epilogue::None][index];
            let weight = weight(dtype, &[out, cols], &mut rng, 0.3);
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
    cases.extend(gated_cases(&mut rng));
    // Enough columns and outputs for every blocking of 16-bit floats, and tiny activations.
    for (out, cols, size) in [(224, 544, 1.0), (210, 1100, 1e-30), (16, 47, 1.0)] {
        let weight = far_apart(&[out, cols], &mut rng);
        let op = Op::Matmul { out, epilogue: Epilogue::None };
        let name = format!("bf16 far apart, {cols} -> {out}, activations of {size}");
        let case = Case::new(name, op, &[1, 2, 5, 23, 33], 1e-5).weight(weight);
        cases.push(case.input(cols, || rng.normal() * size));
    }
    cases
}

/// Gates of the stored types whose products run differently, and of every activation.
fn gated_cases(rng: &mut Rng) -> Vec<Case> {
    let mut cases = Vec::new();
    for (index, (dtype, cols, out)) in GATED.into_iter().enumerate() {
        let activation = ACTIVATIONS[index % ACTIVATIONS.len()];
        let op = Op::Matmul { out, epilogue: Epilogue::Glu(activation) };
        let name = format!("{dtype} {cols} -> {out}, gated with {activation:?}");
        let case = Case::new(name, op, &[1, 2, 5, 23, 57], 1e-5)
            .weight(weight(dtype, &[out, cols], rng, 0.3))
            .weight(weight(dtype, &[out, cols], rng, 0.3));
        cases.push(case.input(cols, || rng.normal()));
    }
    cases
}

/// Types, columns and outputs of gated products: codes with one scale, two and a minimum, floats, types that are decoded.
pub(super) const GATED: [(DType, usize, usize); 9] = [
    (DType::Q4_0, 96, 40),
    (DType::Q4K, 256, 97),
    (DType::Q6K, 512, 144),
    (DType::Q8_0, 64, 33),
    (DType::Q4_1, 160, 16),
    (DType::BF16, 256, 210),
    (DType::F32, 60, 24),
    (DType::NVFP4, 64, 49),
    (DType::Q2K, 256, 40),
];

/// Every activation of a gate.
pub(super) const ACTIVATIONS: [Activation; 5] = [
    Activation::Silu,
    Activation::GeluTanh,
    Activation::ClampedSilu { alpha: 1.702, limit: 2.5 },
    Activation::Sigmoid,
    Activation::Gelu,
];

/// bf16 of all sizes: zeros of both signs, the smallest there are, and the rest over thirty powers of two.
fn far_apart(shape: &[usize], rng: &mut Rng) -> CaseWeight {
    let count = shape.iter().product::<usize>();
    let mut value = |i: usize| match i % 11 {
        0 => 0x0000,
        1 => 0x8000,
        2 => 0x0001,
        _ => bf16_bits(rng.normal() * 0.5f32.powi((rng.bits() % 30) as i32)),
    };
    let bytes = (0..count).map(&mut value).flat_map(u16::to_le_bytes).collect();
    CaseWeight { dtype: DType::BF16, shape: shape.to_vec(), bytes }
}
