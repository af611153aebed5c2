//! A call with everything its kernel can ask for: addresses of operands, weights and caches, and the bucket of rows.

use std::cell::Cell;
use std::sync::Arc;

use mambo_kernel::{BackendError, Call, KvScale, KvTypes, Operand, RowBase, Rows, SlotLayout};

use super::embed::Table;
use super::matmul::Packed;
use crate::arch::Arch;
use crate::memory::DeviceBuffer;
use crate::params::{Ptr, View};
use crate::step_table::StepTable;

/// Rows that a captured graph is for: the most tokens and wanted rows of a step that may replay it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Bucket {
    pub tokens: usize,
    pub wanted: usize,
}

impl Bucket {
    /// The most rows of an operand.
    pub fn rows(self, rows: Rows) -> usize {
        let unit = match rows.base {
            RowBase::Tokens => self.tokens,
            RowBase::Wanted => self.wanted,
        };
        unit * rows.times
    }
}

/// What kernels choose their forms by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceFacts {
    pub arch: Arch,
    /// Streaming multiprocessors.
    pub processors: u32,
    /// Shared memory that a block can have, in bytes.
    pub shared_bytes: u32,
}

/// A weight in the form its kernel reads.
#[derive(Clone)]
pub(crate) enum Weight {
    /// f32 values.
    Vector { values: Arc<DeviceBuffer>, len: usize },
    /// Rows that are looked up.
    Table(Arc<Table>),
    /// What products read.
    Packed(Arc<Packed>),
}

/// Pages of one attention layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvPool {
    /// Page 0: all heads' keys, then all heads' values, each as `KvElem::head_bytes` says.
    pub pages: Ptr<u8>,
    /// Bytes from one page of the layer to the next.
    pub page_bytes: usize,
    /// The layer's group, whose page lists it reads.
    pub group: usize,
    pub types: KvTypes,
    pub scale: KvScale,
}

/// One state layer's parts of the recurrent slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotPool {
    /// The part of slot 0; offsets in it count words as the layout says.
    pub parts: Ptr<f32>,
    /// Words from one slot's part to the next.
    pub stride_words: usize,
    pub layout: SlotLayout,
}

/// A size as kernels take it.
pub(crate) fn narrow(n: usize) -> u32 {
    u32::try_from(n).expect("sizes are below 2^32")
}

/// A call and its surroundings, checked as they are taken.
pub(crate) struct Binding<'a> {
    pub facts: DeviceFacts,
    pub call: &'a Call,
    /// The rows to size grids for.
    pub bucket: Bucket,
    pub step: Ptr<StepTable>,
    pub arena: Ptr<u8>,
    pub hidden: Ptr<u8>,
    /// Working memory, which all calls share: they run one after the other.
    pub scratch: Ptr<u8>,
    /// A counter that is zero between launches.
    pub arrivals: Ptr<u32>,
    /// Bytes of working memory that this call has asked for.
    pub need: &'a Cell<usize>,
    pub kv: Option<KvPool>,
    pub slots: Option<SlotPool>,
    pub names: Vec<&'a str>,
    pub weights: Vec<Weight>,
}

impl Binding<'_> {
    /// The rows of an operand.
    pub fn view(&self, operand: &Operand) -> View {
        View::of(operand, self.arena, self.hidden)
    }

    /// An input.
    pub fn input(&self, port: usize) -> View {
        self.view(&self.call.inputs[port])
    }

    /// An input that the op may lack.
    pub fn optional_input(&self, port: usize) -> View {
        self.call.inputs.get(port).map_or(View::NONE, |operand| self.view(operand))
    }

    /// An output.
    pub fn output(&self, port: usize) -> View {
        self.view(&self.call.outputs[port])
    }

    /// The second, rounded form of the first output; [`View::NONE`] where none is wanted.
    pub fn rounded(&self) -> View {
        self.call.rounded.as_ref().map_or(View::NONE, |operand| self.view(operand))
    }

    /// The most rows of the first output.
    pub fn rows(&self) -> u32 {
        u32::try_from(self.bucket.rows(self.call.outputs[0].rows)).expect("a step has fewer than 2^32 rows")
    }

    /// Working memory of the call's own kernels, aligned to 256 bytes, with anything in it.
    pub fn scratch(&self, bytes: usize) -> Ptr<u8> {
        let at = self.need.get();
        self.need.set(at + bytes.next_multiple_of(256));
        self.scratch.plus_bytes(at)
    }

    /// The pages of the call's attention layer.
    pub fn kv(&self) -> KvPool {
        self.kv.expect("steps are checked for their caches before a call is bound")
    }

    /// The parts of the recurrent slots of the call's state layer.
    pub fn slots(&self) -> SlotPool {
        self.slots.expect("steps are checked for their caches before a call is bound")
    }

    /// A call that lowering would never bind to this kernel.
    pub fn wrong_op(&self) -> ! {
        unreachable!("`{}` is a {} bound to another op's kernel", self.call.label, self.call.op.kind().name())
    }

    fn wrong(&self, port: usize, shape: String, problem: String) -> BackendError {
        BackendError::WeightShape { name: self.names[port].to_string(), shape, problem }
    }

    /// A weight of so many f32.
    pub fn vector(&self, port: usize, want: usize) -> Result<Ptr<f32>, BackendError> {
        match &self.weights[port] {
            Weight::Vector { values, len } if *len == want => Ok(values.ptr()),
            Weight::Vector { len, .. } => {
                Err(self.wrong(port, format!("[{len}]"), format!("but the call reads {want} values")))
            }
            _ => Err(self.wrong(port, "another".into(), "but the call reads a vector".into())),
        }
    }

    /// A table with rows of so many columns.
    pub fn table(&self, port: usize, cols: usize) -> Result<&Table, BackendError> {
        match &self.weights[port] {
            Weight::Table(table) if table.cols == cols => Ok(table),
            Weight::Table(table) => {
                let shape = format!("[{}, {}]", table.rows, table.cols);
                Err(self.wrong(port, shape, format!("but the call reads rows of {cols}")))
            }
            _ => Err(self.wrong(port, "another".into(), "but the call looks rows up".into())),
        }
    }

    /// A packed weight of so many experts, outputs and columns.
    pub fn packed(&self, port: usize, want: [usize; 3]) -> Result<&Packed, BackendError> {
        match &self.weights[port] {
            Weight::Packed(packed) if packed.dims() == want => Ok(packed),
            Weight::Packed(packed) => Err(self.wrong(
                port,
                format!("{:?}", packed.dims()),
                format!("but the call multiplies {want:?}"),
            )),
            _ => Err(self.wrong(port, "another".into(), "but the call multiplies it".into())),
        }
    }
}
