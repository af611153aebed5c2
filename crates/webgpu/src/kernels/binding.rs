//! A call with everything its kernel can ask for: places of operands, weights and caches; and what it becomes.

use std::cell::Cell;

use mambo_kernel::{BackendError, Call, HiddenRows, Operand, Rows, StepInputs};

use crate::caches::{KvPool, SlotPool};
use crate::params::{Params, View, narrow};
use crate::program::Places;
use crate::source::Specialisation;
use crate::step_table::GRID_ROWS;
use crate::vectors::Vectors;
use crate::weights::{Matrix, Weight};

/// What the grids of a step depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepFacts {
    pub tokens: usize,
    pub wanted: usize,
    pub segments: usize,
    /// Whether every segment has one row.
    pub has_single_rows: bool,
    /// The position after the last one of any segment.
    pub end: usize,
    /// Whether hidden rows are rows of the step before.
    pub takes_rows: bool,
}

impl StepFacts {
    pub fn of(step: &StepInputs) -> StepFacts {
        StepFacts {
            tokens: step.token_ids.len(),
            wanted: step.wanted.len(),
            segments: step.segments.len(),
            has_single_rows: step.segments.iter().all(|segment| segment.rows == 1),
            end: step.segments.iter().map(|s| (s.position + s.rows) as usize).max().unwrap_or(0),
            takes_rows: matches!(step.hidden, HiddenRows::Previous { .. }),
        }
    }

    /// The rows of an operand.
    pub fn rows(&self, rows: Rows) -> usize {
        rows.count(self.tokens, self.wanted)
    }
}

/// Gives every dispatch of a launch in a step: which of its parameters, and the grid.
pub(crate) type Dispatch = Box<dyn Fn(&StepFacts, &mut dyn FnMut(usize, [u32; 3])) + Send + Sync>;

/// A kernel that follows every dispatch of another, with parameters of the same number.
pub(crate) struct Then {
    pub kernel: Specialisation,
    pub params: Vec<Vec<u32>>,
    /// Its grid, from that of the other.
    pub grid: Box<dyn Fn([u32; 3]) -> [u32; 3] + Send + Sync>,
}

/// A kernel to run in every step.
pub(crate) struct Launch {
    pub kernel: Specialisation,
    /// Parameters, of which a dispatch takes one.
    pub params: Vec<Vec<u32>>,
    pub matrix: Option<wgpu::Buffer>,
    pub cache: Option<wgpu::Buffer>,
    pub then: Option<Box<Then>>,
    pub dispatch: Dispatch,
}

impl Launch {
    /// A kernel that is dispatched once.
    pub fn new(
        kernel: Specialisation,
        params: &impl Params,
        grid: impl Fn(&StepFacts) -> [u32; 3] + Send + Sync + 'static,
    ) -> Launch {
        let dispatch: Dispatch = Box::new(move |facts, dispatch| dispatch(0, grid(facts)));
        Launch { kernel, params: vec![params.words()], matrix: None, cache: None, then: None, dispatch }
    }

    /// The same for every row of an operand, with so many workgroups each.
    pub fn by_row(kernel: Specialisation, params: &impl Params, workgroups: usize, rows: Rows) -> Launch {
        let x = narrow(workgroups);
        Launch::new(kernel, params, move |facts| rows_grid(x, facts.rows(rows)))
    }

    /// The same, left out of some steps.
    pub fn unless(mut self, is_out: impl Fn(&StepFacts) -> bool + Send + Sync + 'static) -> Launch {
        self.leave_out(is_out);
        self
    }

    /// Leaves it out of some steps.
    pub fn leave_out(&mut self, is_out: impl Fn(&StepFacts) -> bool + Send + Sync + 'static) {
        let inner = std::mem::replace(&mut self.dispatch, Box::new(|_, _| ()));
        self.dispatch = Box::new(move |facts, dispatch| {
            if !is_out(facts) {
                inner(facts, dispatch);
            }
        });
    }

    /// The same with a shard of a weight.
    pub fn reading(self, matrix: &wgpu::Buffer) -> Launch {
        Launch { matrix: Some(matrix.clone()), ..self }
    }

    /// The same with a layer's pages or slots.
    pub fn caching(self, cache: &wgpu::Buffer) -> Launch {
        Launch { cache: Some(cache.clone()), ..self }
    }
}

/// A grid of rows, as kernels count them.
pub(crate) fn rows_grid(x: u32, rows: usize) -> [u32; 3] {
    let rows = narrow(rows);
    [x, rows.min(GRID_ROWS), rows.div_ceil(GRID_ROWS)]
}

/// A norm before a product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm {
    pub x: View,
    /// Its weights among the vectors.
    pub weight: u32,
    pub eps: f32,
    /// Groups of columns with a norm each.
    pub groups: usize,
}

/// A call and its surroundings, checked as they are taken.
pub(crate) struct Binding<'a> {
    pub call: &'a Call,
    pub max_tokens: usize,
    pub max_wanted: usize,
    pub places: Places,
    /// Bytes of workgroup memory.
    pub workgroup_bytes: usize,
    /// The norm that this call has to do itself where there is a single row, and whether another one does this call's.
    pub norm: Option<Norm>,
    pub is_absorbed: bool,
    /// Words of working memory that this call has asked for.
    pub need: &'a Cell<usize>,
    pub kv: Option<&'a KvPool>,
    pub slots: Option<&'a SlotPool>,
    pub vectors: &'a mut Vectors,
    pub names: Vec<&'a str>,
    pub weights: Vec<Weight>,
}

impl Binding<'_> {
    fn view(&self, operand: &Operand) -> View {
        View::of(operand, self.places.hidden)
    }

    /// An input.
    pub fn input(&self, port: usize) -> View {
        self.view(&self.call.inputs[port])
    }

    /// An input that the op may lack.
    pub fn optional_input(&self, port: usize) -> View {
        self.call.inputs.get(port).map_or_else(View::default, |operand| self.view(operand))
    }

    /// An output.
    pub fn output(&self, port: usize) -> View {
        self.view(&self.call.outputs[port])
    }

    /// The first output rounded, where the program wants it.
    pub fn rounded(&self) -> Option<View> {
        self.call.rounded.as_ref().map(|operand| self.view(operand))
    }

    /// The rows of the first output.
    pub fn rows(&self) -> Rows {
        self.call.outputs[0].rows
    }

    /// The most rows of the first output.
    pub fn most_rows(&self) -> usize {
        self.rows().count(self.max_tokens, self.max_wanted)
    }

    /// Working memory of the call's own kernels, with anything in it; its word in the arena's buffer.
    pub fn scratch(&self, words: usize) -> u32 {
        let at = self.need.get();
        self.need.set(at + words.next_multiple_of(64));
        self.places.scratch + narrow(at)
    }

    /// The pages of the call's attention layer.
    pub fn kv(&self) -> &KvPool {
        self.kv.expect("steps are checked for their caches before a call is bound")
    }

    /// The parts of the recurrent slots of the call's state layer.
    pub fn slots(&self) -> &SlotPool {
        self.slots.expect("steps are checked for their caches before a call is bound")
    }

    /// A call that lowering would never bind to this kernel.
    pub fn wrong_op(&self) -> ! {
        unreachable!("`{}` is a {} bound to another op's kernel", self.call.label, self.call.op.kind().name())
    }

    fn wrong(&self, port: usize, shape: String, problem: String) -> BackendError {
        BackendError::WeightShape { name: self.names[port].to_string(), shape, problem }
    }

    /// Where a weight of so many f32 is among the vectors.
    pub fn vector(&self, port: usize, want: usize) -> Result<u32, BackendError> {
        match &self.weights[port] {
            Weight::Vector { at, len } if *len == want => Ok(*at),
            Weight::Vector { len, .. } => {
                Err(self.wrong(port, format!("[{len}]"), format!("but the call reads {want} values")))
            }
            Weight::Matrix(_) => {
                Err(self.wrong(port, "another".into(), "but the call reads a vector".into()))
            }
        }
    }

    /// A matrix of so many experts, outputs and columns; of a table the rows are free.
    pub fn matrix(&self, port: usize, want: [usize; 3]) -> Result<&Matrix, BackendError> {
        match &self.weights[port] {
            Weight::Matrix(matrix) if (0..3).all(|i| want[i] == 0 || want[i] == matrix.dims[i]) => Ok(matrix),
            Weight::Matrix(matrix) => {
                Err(self.wrong(port, format!("{:?}", matrix.dims), format!("but the call reads {want:?}")))
            }
            Weight::Vector { .. } => {
                Err(self.wrong(port, "another".into(), "but the call reads a matrix".into()))
            }
        }
    }
}
