//! What the tests compare encoders with: noise to encode, and plain rounding of it.

#![allow(dead_code, reason = "each test program uses its part")]

use half::f16;
use mambo_tensor::DType;

/// A sum of uniform values is normal enough; the generator is a 64-bit linear congruence.
pub struct Noise(pub u64);

impl Noise {
    pub fn uniform(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f32 / (1u64 << 24) as f32
    }

    pub fn gaussian(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }

    pub fn row(&mut self, elems: usize, scale: f32) -> Vec<f32> {
        (0..elems).map(|_| self.gaussian() * scale).collect()
    }
}

fn to_f16(v: f32) -> f32 {
    f16::from_f32(v).to_f32()
}

fn signed_max(x: &[f32]) -> f32 {
    x.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap()
}

fn low(x: &[f32]) -> f32 {
    x.iter().fold(f32::INFINITY, |m, &v| m.min(v))
}

fn high(x: &[f32]) -> f32 {
    x.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v))
}

fn nearest(v: f32, scale: f32, lo: f32, hi: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { (v / scale).round().clamp(lo, hi) }
}

fn nearest_of(table: &[f32], v: f32, scale: f32) -> f32 {
    let v = if scale == 0.0 { 0.0 } else { v / scale };
    scale * table.iter().copied().min_by(|a, b| (a - v).abs().total_cmp(&(b - v).abs())).unwrap()
}

const IQ4: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];
const E2M1: [f32; 15] = [-6.0, -4.0, -3.0, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// What a straightforward encoder stores: the largest value on the last code, everything else rounded.
pub fn plain_rounding(dtype: DType, values: &[f32]) -> Vec<f32> {
    let blocks = |size: usize, f: &dyn Fn(&[f32]) -> Vec<f32>| values.chunks(size).flat_map(f).collect();
    match dtype {
        DType::Q4_0 => blocks(32, &|x| symmetric(x, -8.0, 7.0)),
        DType::Q5_0 => blocks(32, &|x| symmetric(x, -16.0, 15.0)),
        DType::Q8_0 => blocks(32, &|x| symmetric(x, -127.0, 127.0)),
        DType::Q4_1 => blocks(32, &|x| affine(x, 15.0)),
        DType::Q5_1 => blocks(32, &|x| affine(x, 31.0)),
        DType::Q3K => blocks(256, &|x| nested(x, 16, 4.0, 32.0, &|v, s| s * nearest(v, s, -4.0, 3.0))),
        DType::Q6K => blocks(256, &|x| nested(x, 16, 32.0, 128.0, &|v, s| s * nearest(v, s, -32.0, 31.0))),
        DType::IQ4_XS => blocks(256, &|x| nested(x, 32, 127.0, 32.0, &|v, s| nearest_of(&IQ4, v, s))),
        DType::Q2K => blocks(256, &|x| nested_affine(x, 16, 3.0, 15.0)),
        DType::Q4K => blocks(256, &|x| nested_affine(x, 32, 15.0, 63.0)),
        DType::Q5K => blocks(256, &|x| nested_affine(x, 32, 31.0, 63.0)),
        DType::IQ4_NL => blocks(32, &|x| {
            let d = to_f16(signed_max(x) / -127.0);
            x.iter().map(|&v| nearest_of(&IQ4, v, d)).collect()
        }),
        DType::MXFP4 => blocks(32, &|x| {
            let largest = signed_max(x).abs();
            let d = if largest == 0.0 { 0.0 } else { (largest.log2().floor() - 2.0).max(-127.0).exp2() };
            x.iter().map(|&v| nearest_of(&E2M1, v, d)).collect()
        }),
        DType::NVFP4 => blocks(16, &|x| {
            let d = to_e4m3(signed_max(x).abs() / 6.0);
            x.iter().map(|&v| nearest_of(&E2M1, v, d)).collect()
        }),
        other => panic!("no plain rounding for {other}"),
    }
}

fn symmetric(x: &[f32], lo: f32, hi: f32) -> Vec<f32> {
    let d = to_f16(signed_max(x) / lo);
    x.iter().map(|&v| d * nearest(v, d, lo, hi)).collect()
}

fn affine(x: &[f32], last: f32) -> Vec<f32> {
    let (d, m) = (to_f16((high(x) - low(x)) / last), to_f16(low(x)));
    x.iter().map(|&v| d * nearest(v - m, d, 0.0, last) + m).collect()
}

/// Sub-blocks whose scales are integers up to `steps`; `first` is the largest number of the codes.
fn nested(x: &[f32], sub: usize, first: f32, steps: f32, round: &dyn Fn(f32, f32) -> f32) -> Vec<f32> {
    let scales: Vec<f32> = x.chunks(sub).map(|s| -signed_max(s) / first).collect();
    let d = to_f16(-signed_max(&scales) / steps);
    let sub_block = |(x, s): (&[f32], &f32)| {
        let scale = d * nearest(*s, d, -steps, steps - 1.0);
        x.iter().map(|&v| round(v, scale)).collect::<Vec<_>>()
    };
    x.chunks(sub).zip(&scales).flat_map(sub_block).collect()
}

fn nested_affine(x: &[f32], sub: usize, last: f32, steps: f32) -> Vec<f32> {
    let mins: Vec<f32> = x.chunks(sub).map(|s| -low(s).min(0.0)).collect();
    let scales: Vec<f32> = x.chunks(sub).zip(&mins).map(|(s, min)| (high(s).max(0.0) + min) / last).collect();
    let (d, dmin) = (to_f16(high(&scales) / steps), to_f16(high(&mins) / steps));
    let sub_block = |(j, x): (usize, &[f32])| {
        let scale = d * nearest(scales[j], d, 0.0, steps);
        let min = dmin * nearest(mins[j], dmin, 0.0, steps);
        x.iter().map(|&v| scale * nearest(v + min, scale, 0.0, last) - min).collect::<Vec<_>>()
    };
    x.chunks(sub).enumerate().flat_map(sub_block).collect()
}

fn to_e4m3(v: f32) -> f32 {
    let step = (v.log2().floor().max(-6.0) - 3.0).exp2();
    ((v / step).round() * step).min(448.0)
}
