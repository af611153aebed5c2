//! `glu`: `y = activation(gate) · x`, also quantised if the next call wants that. An item is some blocks of a row, or
//! all of it where its quantised form has no blocks; 12 bytes per value, one exponential.
#![allow(unsafe_code)]

use mambo_kernel::{Activation, Op, OpKind, Operand};

use super::declaration::{Binding, Declaration};
use super::quantize::{round_blocks, round_row};
use super::{Cx, Scratch, Work};
use crate::activation::BLOCK;
use crate::isa::Isa;
use crate::shared::Form;
use crate::simd::{Math, Simd, part, part_mut, vectors};

/// Columns of an item: enough blocks to be worthwhile.
const COLUMNS: usize = 32 * BLOCK;

pub(crate) struct Glu {
    pub gate: Operand,
    pub x: Operand,
    pub out: Operand,
    /// Where the quantised output goes.
    pub rounded: Option<Operand>,
    pub activation: Activation,
}

/// The factor that a gate is: its activation.
#[inline(always)]
pub(super) fn factor<S: Simd>(activation: Activation, gate: S::F) -> S::F {
    match activation {
        Activation::Silu => S::silu(gate),
        Activation::Sigmoid => S::sigmoid(gate),
        Activation::GeluTanh => gelu_tanh::<S>(gate),
        Activation::Gelu => S::mul(gate, S::normal_cdf(gate)),
        Activation::ClampedSilu { alpha, limit } => {
            // The bound is the first argument: NaN passes through.
            let gate = S::min(S::splat(limit), gate);
            S::mul(gate, S::sigmoid(S::mul(gate, S::splat(alpha))))
        }
    }
}

/// A gate's factor times the value that it lets through.
#[inline(always)]
pub(super) fn gated<S: Simd>(activation: Activation, factor: S::F, x: S::F) -> S::F {
    match activation {
        Activation::ClampedSilu { limit, .. } => {
            // As above.
            let x = S::min(S::splat(limit), S::max(S::splat(-limit), x));
            S::mul(factor, S::add(x, S::splat(1.0)))
        }
        _ => S::mul(factor, x),
    }
}

/// `g/2 · (1 + tanh(u))` as `g / (1 + exp(−2u))`, with `u = √(2/π) · (g + 0.044715·g³)`.
#[inline(always)]
fn gelu_tanh<S: Simd>(gate: S::F) -> S::F {
    const FACTOR: f32 = -1.595_769; // −2·√(2/π)
    let cubic = S::fma(S::mul(gate, gate), S::splat(0.044_715), S::splat(1.0));
    let power = S::exp(S::mul(S::mul(cubic, gate), S::splat(FACTOR)));
    S::div(gate, S::add(S::splat(1.0), power))
}

impl Work for Glu {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, _: &mut Scratch) {
        let (gate, x, out) = (cx.view(&self.gate), cx.view(&self.x), cx.view(&self.out));
        let rounded = self.rounded.map(|operand| cx.view(&operand));
        let is_whole = rounded.as_ref().is_some_and(|rounded| rounded.form() == Form::Bf16x2);
        let width = if is_whole { x.cols() } else { COLUMNS };
        let items = x.cols().div_ceil(width);
        for item in cx.own(x.rows() * items) {
            let (row, first) = (item / items, item % items * width);
            let cols = first..x.cols().min(first + width);
            let (gate, x) = (&gate.row(row)[cols.clone()], &x.row(row)[cols.clone()]);
            // SAFETY: these columns of the row belong to one item.
            let y = unsafe { out.cols_mut(row, cols) };
            for i in 0..vectors(x.len()) {
                let (gate, x) = (S::load_part(part(gate, i)), S::load_part(part(x, i)));
                let factor = factor::<S>(self.activation, gate);
                S::store_part(gated::<S>(self.activation, factor, x), part_mut(y, i));
            }
            match &rounded {
                // SAFETY: as above; the item is the whole row.
                Some(rounded) if is_whole => unsafe { round_row::<S>(y, rounded, row) },
                // SAFETY: as above; an item's first column starts a block.
                Some(rounded) => unsafe { round_blocks::<S>(y, rounded, row, first) },
                None => {}
            }
        }
    }
}

pub(super) fn declare(isa: Isa) -> Vec<Declaration> {
    let bind = |b: &Binding| match b.call.op {
        Op::Glu(activation) => {
            let rounded = b.call.rounded;
            b.kernel(Glu { gate: b.x(), x: b.input(1), out: b.out(), rounded, activation })
        }
        _ => b.wrong_op(),
    };
    vec![Declaration::new(isa, OpKind::Glu, "f32", bind).offering(|row| row.rounding(|_, _| true))]
}
