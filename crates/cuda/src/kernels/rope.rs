//! `rope`.

use std::f64::consts::TAU;

use mambo_kernel::{BackendError, Op, OpKind, Rope, RopePairs, Site};

use super::binding::Binding;
use super::declaration::Declaration;
use crate::arch::Arch;
use crate::launch::Launch;
use crate::params::{CStruct, CType, Ptr, View, c_struct};
use crate::source::{Source, Specialisation};
use crate::step_table::StepTable;

/// Most pairs of channels that are turned.
const MAX_PAIRS: usize = 256;

/// Turns per position of every pair, before factors divide them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
struct Turns {
    values: [f64; MAX_PAIRS],
}

impl CType for Turns {
    fn c_name() -> String {
        "Turns".to_owned()
    }
}

impl CStruct for Turns {
    fn c_text() -> String {
        format!("#define MAX_PAIRS {MAX_PAIRS}\nstruct Turns {{\n    double values[MAX_PAIRS];\n}};\n")
    }
}

c_struct! {
    struct RopeParams {
        step: Ptr<StepTable>,
        x: View,
        out: View,
        factors: Ptr<f32>,
        pairs: u32,
        head_dim: u32,
        magnitude: f32,
        unused: u32,
        turns: Turns,
    }
}

static SOURCE: Source = Source {
    stem: "rope",
    text: include_str!("../../kernels/rope.cu"),
    structs: &[Turns::c_text, RopeParams::c_text],
};

fn kernel(pairs: RopePairs) -> Specialisation {
    Specialisation::new(&SOURCE, "rope").define("NEIGHBOURS", u32::from(pairs == RopePairs::Neighbours))
}

pub(crate) fn declare(_: Arch) -> Vec<Declaration> {
    let kernels = [RopePairs::Halves, RopePairs::Neighbours].map(kernel).to_vec();
    let accepts = |site: &Site| matches!(site.op, Op::Rope(rope) if rope.rotary <= 2 * MAX_PAIRS);
    vec![Declaration::new(OpKind::Rope, "f32", kernels, bind).offering(|row| row.accepting(accepts))]
}

fn bind(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::Rope(rope) = binding.call.op else { binding.wrong_op() };
    let mut turns = Turns { values: [0.0; MAX_PAIRS] };
    let frequencies = Rope { has_factors: false, ..rope }.frequencies(None);
    turns.values.iter_mut().zip(&frequencies).for_each(|(turns, frequency)| *turns = frequency / TAU);
    let pairs = rope.rotary / 2;
    let params = RopeParams {
        step: binding.step,
        x: binding.input(0),
        out: binding.output(0),
        factors: if rope.has_factors { binding.vector(0, pairs)? } else { Ptr::NULL },
        pairs: pairs as u32,
        head_dim: rope.head_dim as u32,
        magnitude: rope.magnitude() as f32,
        unused: 0,
        turns,
    };
    Ok(vec![Launch::new(kernel(rope.pairs), &params).grid([binding.rows(), 1, 1]).block(256)])
}
