//! Why a graph cannot become a program; every message names the node and the remedy.

/// What stops lowering.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The graph itself is invalid.
    #[error("cannot plan an invalid graph: {0}")]
    Graph(#[from] mambo_graph::GraphError),
    /// A program for no rows.
    #[error(
        "program `{name}` is for at most {tokens} tokens and {wanted} wanted rows; both must be at least 1"
    )]
    NoRows {
        /// Name of the program.
        name: String,
        /// Most tokens asked for.
        tokens: usize,
        /// Most wanted rows asked for.
        wanted: usize,
    },
    /// More memory than can be addressed.
    #[error(
        "program `{name}` for {tokens} tokens and {wanted} wanted rows needs more memory than can be addressed; use steps of fewer tokens"
    )]
    TooLarge {
        /// Name of the program.
        name: String,
        /// Most tokens asked for.
        tokens: usize,
        /// Most wanted rows asked for.
        wanted: usize,
    },
    /// No kernel row accepts a node.
    #[error("{0}")]
    NoKernel(Box<NoKernel>),
    /// The checkpoint lacks a weight.
    #[error(
        "node `{label}` needs weight `{weight}`, which the checkpoint does not have; \
         check that the file is complete and of this architecture"
    )]
    MissingWeight {
        /// Label of the node.
        label: String,
        /// Canonical weight name.
        weight: String,
    },
    /// A kernel reads an element type the value cannot be converted to.
    #[error("kernel {kernel} at `{label}` reads {want} elements, the value is {got}; only f32 is converted")]
    Element {
        /// Name of the kernel row.
        kernel: String,
        /// Label of the node.
        label: String,
        /// What the kernel reads.
        want: &'static str,
        /// Type of the value.
        got: String,
    },
    /// An output that no call computes.
    #[error(
        "output `{output}` is columns of a step input, which the caller has already; name a computed value"
    )]
    InputOutput {
        /// Name of the output.
        output: String,
    },
}

/// A place in a graph that no kernel row of a backend accepts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{backend} has no kernel for {op} at `{label}` ({types}) in {phase} programs; {remedy}")]
pub struct NoKernel {
    /// Name of the backend.
    pub backend: String,
    /// Name of the op.
    pub op: &'static str,
    /// Label of the node.
    pub label: String,
    /// What flows in and out, with the types of the weights.
    pub types: String,
    /// What the program is for.
    pub phase: &'static str,
    /// What would help.
    pub remedy: String,
}
