//! What can be wrong with a model's description or its tensors; every message names the place and a remedy.
//!
//! Must not know how the files are read: it is told their names.

use mambo_checkpoint::CheckpointError;

/// Why a checkpoint cannot be described, bound or built.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file's architecture has no row in the table.
    #[error(
        "{file}: architecture `{architecture}` is not supported; use a checkpoint of one of these: {supported}"
    )]
    UnknownArchitecture {
        /// File that names the architecture.
        file: String,
        /// The name it gives.
        architecture: String,
        /// The names that would work.
        supported: String,
    },
    /// A field that cannot be guessed is absent.
    #[error("{file}: `{field}` is missing; take the file from the model's original release")]
    MissingField {
        /// File that lacks the field.
        file: String,
        /// The field, with the spellings that are accepted.
        field: String,
    },
    /// A field has the wrong type or a value that this engine does not compute.
    #[error("{file}: `{field}` {problem}; {remedy}")]
    BadField {
        /// File that holds the field.
        file: String,
        /// The field.
        field: String,
        /// What is wrong, as the rest of a sentence.
        problem: String,
        /// What to do about it.
        remedy: String,
    },
    /// Sizes that are impossible or do not fit together.
    #[error("{file}: {place}: {problem}; correct the metadata or take it from the model's original release")]
    BadSize {
        /// File the sizes come from.
        file: String,
        /// Which part of the model.
        place: String,
        /// What is wrong.
        problem: String,
    },
    /// A family that cannot be written in a format.
    #[error("models of the family `{family}` cannot be written as {what} yet; keep the files as they are")]
    NotWritten {
        /// The family.
        family: String,
        /// The format, as the end of a sentence.
        what: &'static str,
    },
    /// A model of which a GGUF file would describe another one.
    #[error(
        "this model of the family `{family}` cannot be written as a GGUF file: {what}; keep the files as they are"
    )]
    NotKept {
        /// The family.
        family: String,
        /// What would be lost.
        what: String,
    },
    /// A tensor the model needs is not in the files.
    #[error("{file}: tensor `{tensor}` is missing (it holds `{weight}`); {remedy}")]
    MissingTensor {
        /// File or folder searched.
        file: String,
        /// Name looked for.
        tensor: String,
        /// Canonical weight name.
        weight: String,
        /// What to do about it.
        remedy: String,
    },
    /// A tensor has other dimensions than the metadata says.
    #[error(
        "{file}: tensor `{tensor}` has shape {got}, but `{weight}` needs {want}; \
         the metadata and the tensors are of different models, take both from one release"
    )]
    WrongShape {
        /// File or folder searched.
        file: String,
        /// Name of the tensor.
        tensor: String,
        /// Canonical weight name.
        weight: String,
        /// Shape expected.
        want: String,
        /// Shape found.
        got: String,
    },
    /// A tensor that a model of this description does not have.
    #[error(
        "{file}: tensor `{tensor}` {problem}; \
         the metadata and the tensors are of different models, take both from one release"
    )]
    Contradiction {
        /// File or folder searched.
        file: String,
        /// Name of the tensor.
        tensor: String,
        /// What contradicts what, as the rest of a sentence.
        problem: String,
    },
    /// A tensor is stored in a form that is not read.
    #[error("{file}: tensor `{tensor}` {problem}; use the bf16 release or a GGUF file of this model")]
    UnsupportedTensor {
        /// File or folder searched.
        file: String,
        /// Name of the tensor.
        tensor: String,
        /// What is not supported about it.
        problem: String,
    },
    /// Codes without the scales that make values of them.
    #[error(
        "{file}: tensor `{tensor}` is missing, and `{codes}` cannot be read without it; \
         download the missing file of the model again"
    )]
    MissingScale {
        /// File or folder searched.
        file: String,
        /// Name looked for.
        tensor: String,
        /// The tensor that needs it.
        codes: String,
    },
    /// A scale that is NaN, infinite, zero or negative.
    #[error(
        "{file}: tensor `{tensor}` {problem}, but scales are finite and greater than zero; \
         the file is damaged, download it again or use another release of this model"
    )]
    BadScale {
        /// File or folder searched.
        file: String,
        /// Name of the tensor of scales.
        tensor: String,
        /// What it holds, as the rest of a sentence.
        problem: String,
    },
    /// A value that is NaN or infinite.
    #[error(
        "{file}: tensor `{tensor}` holds {value}, so `{weight}` cannot be used; \
         the file is damaged, download it again or use another release of this model"
    )]
    NotANumber {
        /// File or folder searched.
        file: String,
        /// Name of the tensor.
        tensor: String,
        /// Canonical weight name.
        weight: String,
        /// NaN or an infinity.
        value: f32,
    },
    /// No preset has this name.
    #[error("there is no preset `{name}`; choose one of {known}")]
    UnknownPreset {
        /// Name asked for.
        name: String,
        /// Names there are.
        known: String,
    },
    /// The graph could not be built; a specification that passed its checks never gives this.
    #[error("graph `{graph}`: {problem}; report this as a bug")]
    Graph {
        /// Name of the graph.
        graph: String,
        /// What the graph said.
        problem: String,
    },
    /// The metadata could not be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A specification is asked for a part it does not have.
    #[error("this model has no MTP head; run it without speculative decoding by MTP")]
    NoMtp,
}
