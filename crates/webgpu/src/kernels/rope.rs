//! `rope`.

use std::f64::consts::TAU;

use mambo_kernel::{BackendError, Op, OpKind, RopePairs};

use super::binding::{Binding, Launch};
use super::declaration::Declaration;
use super::pointwise::{VALUES, source};
use crate::params::{Params, View, params};
use crate::source::{Source, Specialisation};

params! {
    struct RopeParams {
        x: View,
        out: View,
        /// Turns per position of every pair among the constants: fractions of 64 bits, low word first.
        turns: u32,
        pairs: u32,
        head_dim: u32,
        magnitude: f32,
    }
}

source!(SOURCE, "rope", RopeParams);

fn kernel(pairs: RopePairs) -> Specialisation {
    Specialisation::new(&SOURCE).define("NEIGHBOURS", usize::from(pairs == RopePairs::Neighbours))
}

pub(crate) fn declare() -> Vec<Declaration> {
    let kernels = [RopePairs::Halves, RopePairs::Neighbours].map(kernel).to_vec();
    vec![Declaration::new(OpKind::Rope, "f32", kernels, bind)]
}

/// The fraction of a number of turns, in units of 2^-64.
fn fraction(turns: f64) -> u64 {
    let part = turns - turns.floor();
    // The upper and the lower half one after the other: an f64 has fewer digits than both.
    let upper = (part * 4_294_967_296.0).floor();
    let lower = (part * 4_294_967_296.0 - upper) * 4_294_967_296.0;
    (upper as u64) << 32 | (lower as u64).min(u64::from(u32::MAX))
}

fn bind(binding: &mut Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::Rope(rope) = binding.call.op else { binding.wrong_op() };
    let pairs = rope.rotary / 2;
    let factors: Option<Vec<f32>> = match rope.has_factors {
        true => {
            let at = binding.vector(0, pairs)?;
            Some(binding.vectors.words(at, pairs).iter().map(|word| f32::from_bits(*word)).collect())
        }
        false => None,
    };
    let frequencies = rope.frequencies(factors.as_deref());
    let fractions = frequencies.iter().map(|frequency| fraction(frequency / TAU));
    let words = fractions.flat_map(|fraction| [fraction as u32, (fraction >> 32) as u32]).collect();
    let params = RopeParams {
        x: binding.input(0),
        out: binding.output(0),
        turns: binding.vectors.constants(words),
        pairs: pairs as u32,
        head_dim: rope.head_dim as u32,
        magnitude: rope.magnitude() as f32,
    };
    let items = params.out.cols as usize / rope.head_dim * (rope.head_dim - pairs);
    Ok(vec![Launch::by_row(kernel(rope.pairs), &params, items.div_ceil(VALUES), binding.rows())])
}

#[cfg(test)]
mod tests {
    use super::fraction;

    #[test]
    fn fractions_are_those_of_turns() {
        assert_eq!([0.0, 0.5, 3.25, -0.25].map(fraction), [0, 1 << 63, 1 << 62, 3 << 62]);
        assert_eq!(fraction(2f64.powi(-60)), 16);
    }
}
