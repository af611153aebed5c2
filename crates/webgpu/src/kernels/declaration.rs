//! What the backend says of a kernel, in one place: the row it offers, what may be compiled for it and how a call
//! becomes launches. Every op's file makes its own.

use mambo_kernel::{BackendError, KernelRow, OpKind};

use super::binding::{Binding, Launch};
use crate::source::Specialisation;

/// Binds a call to launches.
pub(crate) type Bind = fn(&mut Binding) -> Result<Vec<Launch>, BackendError>;

/// Everything about one kernel.
pub(crate) struct Declaration {
    pub row: KernelRow,
    /// What tests validate: every form of the kernel, at the sizes that are met most. Binding may name others.
    pub specialisations: Vec<Specialisation>,
    pub bind: Bind,
}

impl Declaration {
    /// A kernel that reads f32 rows and f32 vectors as weights.
    pub fn new(op: OpKind, types: &str, specialisations: Vec<Specialisation>, bind: Bind) -> Declaration {
        let row = KernelRow::new(format!("webgpu:{}.{types}", op.name()), op).holding(VECTOR);
        Declaration { row, specialisations, bind }
    }

    /// The same with another row.
    pub fn offering(self, change: impl FnOnce(KernelRow) -> KernelRow) -> Declaration {
        Declaration { row: change(self.row), ..self }
    }
}

/// Weight form: f32 values.
pub(crate) const VECTOR: &str = "f32";
/// Weight form: rows that are looked up.
pub(crate) const TABLE: &str = "table";
/// Weight form: rows that products read.
pub(crate) const PACKED: &str = "packed";
