//! `glu`: `y = activation(gate) · x`, element by element ([`Activation`] has the formulas).
//!
//! Tolerance: one exponential in f32 and a few products.

use super::gated_group_norm::silu;
use crate::case::{Case, RAGGED, Rng};
use crate::dims::Activation;
use crate::op::Op;

/// One value, in f64.
pub fn value(activation: Activation, gate: f32, x: f32) -> f32 {
    let (g, x) = (f64::from(gate), f64::from(x));
    let y = match activation {
        Activation::Silu => silu(g) * x,
        Activation::Sigmoid => x / (1.0 + (-g).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g * g * g);
            0.5 * g * (1.0 + inner.tanh()) * x
        }
        Activation::Gelu => 0.5 * g * (1.0 + erf(g / std::f64::consts::SQRT_2)) * x,
        Activation::ClampedSilu { alpha, limit } => {
            let limit = f64::from(limit);
            let (g, x) = (g.min(limit), x.clamp(-limit, limit));
            g / (1.0 + (-f64::from(alpha) * g).exp()) * (x + 1.0)
        }
    };
    y as f32
}

/// The error function: its Taylor series near zero, a continued fraction beyond.
fn erf(x: f64) -> f64 {
    if x.abs() < 2.5 {
        let (mut term, mut sum) = (x, x);
        for n in 1..60 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return sum * 2.0 / std::f64::consts::PI.sqrt();
    }
    let z = x.abs();
    let fraction = (1..60).rev().fold(z, |below, n| z + f64::from(n) / 2.0 / below);
    let rest = (-z * z).exp() / (fraction * std::f64::consts::PI.sqrt());
    (1.0 - rest).copysign(x)
}

/// A row.
pub fn reference(activation: Activation, gate: &[f32], x: &[f32]) -> Vec<f32> {
    gate.iter().zip(x).map(|(&gate, &x)| value(activation, gate, x)).collect()
}

/// Every activation, from closed to wide open, and widths around a vector's length.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(34);
    let kinds = [
        (Activation::Silu, 101),
        (Activation::Silu, 512),
        (Activation::Sigmoid, 33),
        (Activation::GeluTanh, 97),
        (Activation::Gelu, 40),
        (Activation::ClampedSilu { alpha: 1.702, limit: 2.5 }, 24),
    ];
    let case = |&(activation, cols): &(Activation, usize)| {
        Case::new(format!("{activation:?}, {cols} columns"), Op::Glu(activation), &RAGGED, 4e-6)
            .input(cols, || rng.range(-12.0, 12.0))
            .input(cols, || rng.normal() * 2.0)
    };
    kinds.iter().map(case).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_error_function_is_known_at_a_few_points() {
        for (x, want) in [(0.0, 0.0), (0.5, 0.5204998778), (1.0, 0.8427007929), (3.0, 0.9999779095)] {
            assert!((super::erf(x) - want).abs() < 1e-9 && (super::erf(-x) + want).abs() < 1e-9, "{x}");
        }
    }
}
