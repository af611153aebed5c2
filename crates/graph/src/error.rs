//! What can be wrong with a graph; every message names the node or line and the remedy.

/// A rule of the graph that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// The op does not take these values.
    #[error("node `{label}`: {problem}; correct the op's parameters or what feeds it")]
    Type {
        /// Label of the node.
        label: String,
        /// What does not fit.
        problem: String,
    },
    /// The stored type of a value is not what its node computes.
    #[error(
        "node `{label}`: {value} is declared {declared} but the op gives {inferred}; correct the declaration"
    )]
    Declared {
        /// Label of the node, or `input`.
        label: String,
        /// The value.
        value: String,
        /// Type in the graph.
        declared: String,
        /// Type by inference.
        inferred: String,
    },
    /// A value, weight or cache number that nothing declares.
    #[error("{place} reads {what}, which nothing defines before it; define it first or correct the number")]
    Undefined {
        /// Node or output that reads it.
        place: String,
        /// What is missing.
        what: String,
    },
    /// A value that is not defined exactly once.
    #[error("{value} is defined {times} times; every value number below {count} needs one definition")]
    Definitions {
        /// The value.
        value: String,
        /// How often.
        times: usize,
        /// Number of values in the graph.
        count: usize,
    },
    /// The wrong number of weights or outputs.
    #[error("node `{label}`: {op} takes {want} {what}, got {got}; pass them in port order")]
    Count {
        /// Label of the node.
        label: String,
        /// Name of the op.
        op: &'static str,
        /// `weights` or `outputs`.
        what: &'static str,
        /// How many the op has.
        want: usize,
        /// How many were given.
        got: usize,
    },
    /// A weight's shape does not fit its port.
    #[error(
        "node `{label}`: weight `{weight}` has shape {got:?}, port `{port}` needs {want:?} (0 is free); \
         correct the size in the model's description or the declared shape"
    )]
    WeightShape {
        /// Label of the node.
        label: String,
        /// Canonical weight name.
        weight: String,
        /// Port of the op.
        port: &'static str,
        /// Expected shape.
        want: Vec<usize>,
        /// Declared shape.
        got: Vec<usize>,
    },
    /// A cache is used by the wrong op, with other sizes, twice or out of order.
    #[error("node `{label}`: {problem}")]
    Cache {
        /// Label of the node.
        label: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A name, label or declaration that is not allowed in a graph.
    #[error("{what} `{name}` {problem}")]
    Name {
        /// What is named.
        what: &'static str,
        /// The name.
        name: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A graph without outputs computes nothing.
    #[error("graph `{graph}` has no output; name at least one value as output")]
    NoOutput {
        /// Name of the graph.
        graph: String,
    },
    /// A text line that is not part of a graph.
    #[error("line {line}: {problem}")]
    Parse {
        /// Line number, from 1.
        line: usize,
        /// What is wrong and what was expected.
        problem: String,
    },
    /// A pass made an invalid graph.
    #[error("pass `{pass}` left an invalid graph: {problem}; this is a defect of the pass, not of the model")]
    Pass {
        /// Name of the pass.
        pass: &'static str,
        /// What the verifier said.
        problem: String,
    },
}
