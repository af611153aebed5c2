//! What the backend says of a kernel, in one place: the row it offers, how a call becomes work, whether one thread may run it alone and how fast a thread is at it. Every op's file makes its own.

use std::sync::Arc;

use mambo_kernel::{BackendError, Call, Elem, KernelRow, OpKind, Operand, WeightKey};

use super::embed::Table;
use super::matmul::Packed;
use super::{Kernel, Work, bind};
use crate::isa::Isa;

/// Operations per second of one thread in element-wise ops, which memory bounds.
const POINTWISE_FLOPS: f64 = 4e9;

/// Binds a call to a kernel.
pub(crate) type Bind = fn(&Binding) -> Result<Box<dyn Kernel>, BackendError>;

/// Everything about one kernel.
pub(crate) struct Declaration {
    pub row: KernelRow,
    pub bind: Bind,
    /// Whether its work is divided evenly, without barriers or weights of its own: then one thread may do all of it.
    pub may_run_alone: bool,
    /// Operations per second of one thread.
    pub flops: f64,
}

impl Declaration {
    /// An element-wise kernel with f32 vectors as weights, divided evenly among threads.
    pub fn new(isa: Isa, op: OpKind, types: &str, bind: Bind) -> Declaration {
        Declaration {
            row: KernelRow::new(format!("cpu:{}.{isa}.{types}", op.name()), op)
                .holding(WeightForm::Vector.name()),
            bind,
            may_run_alone: true,
            flops: POINTWISE_FLOPS,
        }
    }

    /// The same with another row.
    pub fn offering(self, change: impl FnOnce(KernelRow) -> KernelRow) -> Declaration {
        Declaration { row: change(self.row), ..self }
    }

    /// The same, where threads always share the work.
    pub fn shared(self) -> Declaration {
        Declaration { may_run_alone: false, ..self }
    }

    /// The same, where one thread does so many operations per second.
    pub fn at(self, flops: f64) -> Declaration {
        Declaration { flops, ..self }
    }

    /// The same with weights in another form.
    pub fn holding(self, weights: WeightForm) -> Declaration {
        self.offering(|row| row.holding(weights.name()))
    }
}

/// How a kernel's weights are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightForm {
    /// Packed for products.
    Packed,
    /// As stored, for look-ups.
    Table,
    /// As f32.
    Vector,
}

impl WeightForm {
    /// The name in kernel rows and weight keys.
    pub fn name(self) -> &'static str {
        match self {
            WeightForm::Packed => "packed",
            WeightForm::Table => "stored",
            WeightForm::Vector => "f32",
        }
    }

    /// The form that a key made from this backend's rows names.
    pub fn of(key: &WeightKey) -> WeightForm {
        let all = [WeightForm::Packed, WeightForm::Table, WeightForm::Vector];
        all.into_iter().find(|form| form.name() == key.form).unwrap_or_else(|| {
            panic!("weight `{}` is wanted as `{}`, which no row of this backend reads", key.name, key.form)
        })
    }
}

/// A weight in the form its kernel reads.
#[derive(Clone)]
pub(crate) enum Weight {
    Packed(Arc<Packed>),
    Table(Arc<Table>),
    Vector(Arc<Vec<f32>>),
}

/// A call and its weights, checked as they are taken.
pub(crate) struct Binding<'a> {
    pub isa: Isa,
    pub call: &'a Call,
    pub names: Vec<&'a str>,
    pub weights: Vec<Weight>,
}

impl Binding<'_> {
    /// The first input.
    pub fn x(&self) -> Operand {
        self.call.inputs[0]
    }

    /// An input.
    pub fn input(&self, port: usize) -> Operand {
        self.call.inputs[port]
    }

    /// The first output.
    pub fn out(&self) -> Operand {
        self.call.outputs[0]
    }

    /// The cache layer.
    pub fn layer(&self) -> usize {
        self.call.cache.unwrap_or(0)
    }

    /// Work bound to the instruction set.
    pub fn kernel<W: Work>(&self, work: W) -> Result<Box<dyn Kernel>, BackendError> {
        Ok(bind(self.isa, work))
    }

    /// A call that lowering would never bind to this kernel.
    pub fn wrong_op(&self) -> ! {
        unreachable!("`{}` is a {} bound to another op's kernel", self.call.label, self.call.op.kind().name())
    }

    fn wrong(&self, port: usize, shape: String, problem: String) -> BackendError {
        BackendError::WeightShape { name: self.names[port].to_string(), shape, problem }
    }

    /// A weight of so many f32.
    pub fn vector(&self, port: usize, len: usize) -> Result<Arc<Vec<f32>>, BackendError> {
        match &self.weights[port] {
            Weight::Vector(v) if v.len() == len => Ok(Arc::clone(v)),
            Weight::Vector(v) => {
                Err(self.wrong(port, format!("[{}]", v.len()), format!("but the call reads {len} values")))
            }
            _ => Err(self.wrong(port, "another".into(), "but the call reads a vector".into())),
        }
    }

    /// A packed weight of so many experts, outputs and columns, whose products read the first input as `x`.
    pub fn packed(&self, port: usize, want: [usize; 3], x: Elem) -> Result<Arc<Packed>, BackendError> {
        match &self.weights[port] {
            Weight::Packed(p) if self.x().elem != x => {
                let problem = format!("of {}, but the call gives {} rows", p.dtype(), self.x().elem.name());
                Err(self.wrong(port, format!("{want:?}"), problem))
            }
            Weight::Packed(p) if [p.experts(), p.out(), p.cols()] == want => Ok(Arc::clone(p)),
            Weight::Packed(p) => {
                let shape = format!("{:?}", [p.experts(), p.out(), p.cols()]);
                Err(self.wrong(port, shape, format!("but the call multiplies {want:?}")))
            }
            _ => Err(self.wrong(port, "another".into(), "but the call multiplies it".into())),
        }
    }

    /// The stored type of a packed weight.
    pub fn packed_type(&self, port: usize) -> Option<mambo_tensor::DType> {
        match &self.weights[port] {
            Weight::Packed(packed) => Some(packed.dtype()),
            _ => None,
        }
    }

    /// A table with rows of so many columns.
    pub fn table(&self, port: usize, cols: usize) -> Result<Arc<Table>, BackendError> {
        match &self.weights[port] {
            Weight::Table(t) if t.cols == cols => Ok(Arc::clone(t)),
            Weight::Table(t) => {
                let shape = format!("[{}, {}]", t.rows, t.cols);
                Err(self.wrong(port, shape, format!("but the call reads rows of {cols}")))
            }
            _ => Err(self.wrong(port, "another".into(), "but the call looks rows up".into())),
        }
    }
}
