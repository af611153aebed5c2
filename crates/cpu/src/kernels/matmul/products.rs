//! The weight of a call and the gate beside it, if there is one.
//!
//! A gate's products become factors in the output, while they are still in cache, and the product that they gate is
//! stored over them.
#![allow(unsafe_code)]

use std::sync::Arc;

use mambo_kernel::{Activation, BackendError, Epilogue};

use super::format::PANEL_ROWS;
use super::multiply::{Multiplier, TaskScratch, multiplier};
use super::task::Task;
use super::{Packed, activations};
use crate::isa::{Isa, Vectorized};
use crate::kernels::declaration::Binding;
use crate::kernels::glu::factor;
use crate::simd::{Simd, part, part_mut, vectors};

/// What the input of a call is multiplied with, and how.
pub(in crate::kernels) struct Products {
    pub weight: Arc<Packed>,
    pub multiplier: Box<dyn Multiplier>,
    gate: Option<Arc<Packed>>,
    isa: Isa,
}

impl Products {
    /// The weights of a call, of so many experts, outputs and columns.
    pub fn bind(b: &Binding, shape: [usize; 3]) -> Result<Products, BackendError> {
        let weight = b.packed(0, shape, activations(b))?;
        let gate = (b.weights.len() > 1).then(|| b.packed(1, shape, activations(b))).transpose()?;
        let multiplier = multiplier(b.isa, weight.dtype());
        Ok(Products { weight, multiplier, gate, isa: b.isa })
    }

    /// Runs a task, after the same task of its gate.
    pub fn multiply(&self, task: &Task, mut scratch: TaskScratch) {
        if let (Some(gate), Epilogue::Glu(activation)) = (&self.gate, task.epilogue) {
            let own = Task { weight: gate, epilogue: Epilogue::None, rounded: None, ..task.clone() };
            self.multiplier.multiply(&own, scratch.again());
            self.isa.call(Factors { task, activation });
        }
        self.multiplier.multiply(task, scratch);
    }
}

/// Puts a task's outputs through the activation.
struct Factors<'a> {
    task: &'a Task<'a>,
    activation: Activation,
}

impl Vectorized for Factors<'_> {
    type Output = ();
    type Home = Self;

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Factors { task, activation } = self;
        let cols = task.panels.start * PANEL_ROWS..task.weight.out().min(task.panels.end * PANEL_ROWS);
        for i in 0..task.rows.len() {
            // SAFETY: these columns of the row belong to one task.
            let out = unsafe { task.out.cols_mut(task.rows.at(i).1, cols.clone()) };
            for v in 0..vectors(out.len()) {
                let gate = S::load_part(part(out, v));
                S::store_part(factor::<S>(activation, gate), part_mut(out, v));
            }
        }
    }
}
