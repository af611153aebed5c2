//! The door to a backend: kernel rows to choose from, weights to load, programs to run.

use std::borrow::Cow;
use std::time::Duration;

use mambo_tensor::DType;

use crate::cache::CacheLayout;
use crate::op::{Op, OpKind};
use crate::program::{Phase, Program, WeightKey};
use crate::step::StepInputs;
use crate::value::Elem;

/// What went wrong in a backend.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// A weight's element type has no kernel.
    #[error(
        "weight `{name}` has element type {dtype}, for which {backend} has no kernel; convert it to one of {supported}"
    )]
    UnsupportedWeight {
        /// Canonical weight name.
        name: String,
        /// Its element type.
        dtype: DType,
        /// The backend's name.
        backend: String,
        /// What would work.
        supported: String,
    },
    /// A weight's shape cannot be packed.
    #[error("weight `{name}` has shape {shape}, {problem}")]
    WeightShape {
        /// Canonical weight name.
        name: String,
        /// Its shape.
        shape: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A weight's source cannot give its bytes.
    #[error("cannot read weight `{name}`: {source}")]
    ReadWeight {
        /// Canonical weight name.
        name: String,
        /// Why not.
        source: WeightError,
    },
    /// A program names a weight that was not loaded.
    #[error("program `{program}` needs weight `{name}`, which was not loaded")]
    MissingWeight {
        /// The program's name.
        program: String,
        /// Canonical weight name.
        name: String,
    },
    /// Memory ran out.
    #[error(
        "cannot allocate {bytes} bytes for {what}; use fewer sequences, a shorter context or a smaller model"
    )]
    OutOfMemory {
        /// What the memory was for.
        what: String,
        /// How much was asked for.
        bytes: usize,
    },
    /// A snapshot does not fit this model's caches.
    #[error("snapshot of {got} bytes does not fit: this model's recurrent slot is {want} bytes")]
    SnapshotSize {
        /// Bytes given.
        got: usize,
        /// Bytes needed.
        want: usize,
    },
}

/// A place in a graph that wants a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// The op with its parameters.
    pub op: &'a Op,
    /// What the program is for.
    pub phase: Phase,
    /// Element types of the weights, in port order.
    pub weight_types: &'a [DType],
    /// Columns of the first input.
    pub input_cols: usize,
}

/// One kernel a backend offers.
pub struct KernelRow {
    /// `backend:op.variant.types`, such as `cpu:matmul.avx512.q4_0`.
    pub name: String,
    /// The op it computes.
    pub op: OpKind,
    /// Element type it reads the first input in; lowering converts where the graph has another.
    pub input: Elem,
    /// Whether it can serve this site. The first row that accepts is taken, so rows stand best first.
    pub accepts: Box<dyn Fn(&Site) -> bool + Send + Sync>,
}

/// One part of a weight, read.
#[derive(Clone, Debug)]
pub struct WeightPart<'a> {
    /// Its bytes, borrowed from the mapped file wherever they need no change.
    pub bytes: Cow<'a, [u8]>,
    /// Factors on the values of its rows: none where all are 1, one for all rows, or one for each row.
    pub row_scales: Cow<'a, [f32]>,
}

impl<'a> WeightPart<'a> {
    /// A part whose values have no factors.
    pub fn plain(bytes: &'a [u8]) -> Self {
        WeightPart { bytes: Cow::Borrowed(bytes), row_scales: Cow::Borrowed(&[]) }
    }

    /// Factor on the values of a row.
    pub fn row_scale(&self, row: usize) -> f32 {
        match *self.row_scales {
            [] => 1.0,
            [scale] => scale,
            ref scales => scales[row],
        }
    }
}

/// Why a weight cannot be read; says the file, the tensor and the remedy.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct WeightError(pub String);

/// Where a weight's bytes come from: parts that stack along the outermost dimension.
pub trait WeightSource {
    /// Element type of every part.
    fn dtype(&self) -> DType;
    /// Shape of the whole, outermost first.
    fn shape(&self) -> &[usize];
    /// How many parts there are.
    fn part_count(&self) -> usize;
    /// Reads one part.
    fn part(&self, index: usize) -> Result<WeightPart<'_>, WeightError>;
    /// Says that a part was consumed and its mapped pages may go.
    fn release(&self, index: usize);
    /// A hash of some of the stored bytes: cheap, and enough to tell apart two models of one shape.
    fn digest(&self) -> u64;
}

/// Handle of a compiled program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProgramId(pub usize);

/// How long one call of a program took.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallTime {
    /// Total over the profiled runs.
    pub total: Duration,
    /// Profiled runs.
    pub runs: u32,
}

/// A machine that runs programs. It owns weights, caches and arena; who sits in which page or slot is
/// the engine's business.
pub trait Backend: Send {
    /// `cpu`, `cuda`, ... with what it runs on, such as `cpu/avx512 x2`.
    fn name(&self) -> &str;
    /// The kernels on offer, best first within an op.
    fn kernels(&self) -> &[KernelRow];
    /// Takes a weight in; `kernel` is the row that will read it. Loading a key twice is harmless.
    fn load_weight(
        &mut self,
        key: &WeightKey,
        kernel: usize,
        source: &dyn WeightSource,
    ) -> Result<(), BackendError>;
    /// Bytes the loaded weights take in the backend's own memory.
    fn weight_bytes(&self) -> usize;
    /// Bytes of one of them, where the backend keeps it in another form than the file.
    fn held_bytes(&self, _key: &WeightKey) -> Option<u64> {
        None
    }
    /// Allocates KV pages and recurrent slots; called once, before any program runs.
    fn create_caches(&mut self, layout: &CacheLayout) -> Result<(), BackendError>;
    /// Checks and keeps a program; grows the arena to its size.
    fn compile(&mut self, program: Program) -> Result<ProgramId, BackendError>;
    /// The program behind a handle.
    fn program(&self, id: ProgramId) -> &Program;
    /// Runs one step.
    fn run(&mut self, id: ProgramId, step: &StepInputs) -> Result<(), BackendError>;
    /// Rows of an output of the program that ran last, one after the other without padding; 8-bit rows
    /// come as the values they stand for, indices as whole numbers.
    fn read_output(
        &mut self,
        id: ProgramId,
        output: usize,
        rows: std::ops::Range<usize>,
        into: &mut Vec<f32>,
    );
    /// The recurrent memory of one slot as words, in the layout of [`CacheLayout`].
    fn snapshot_slot(&self, slot: usize) -> Vec<f32>;
    /// Puts a snapshot into a slot.
    fn restore_slot(&mut self, slot: usize, snapshot: &[f32]) -> Result<(), BackendError>;
    /// One KV page of every layer, as raw bytes in the cache's element types.
    fn snapshot_page(&self, page: usize) -> Vec<u8>;
    /// Puts a page back.
    fn restore_page(&mut self, page: usize, bytes: &[u8]) -> Result<(), BackendError>;
    /// Fills the arena with NaN, so that a kernel which leaves an output unwritten shows.
    fn poison_arena(&mut self);
    /// Starts or stops timing every call.
    fn set_profiling(&mut self, on: bool);
    /// Times per call of a program since profiling was switched on.
    fn call_times(&self, id: ProgramId) -> Vec<CallTime>;
}
