//! What can go wrong while a model is written. Messages say what to do in words; which flag does it is for the
//! program to add.

use std::io;
use std::path::{Path, PathBuf};

use mambo_checkpoint::CheckpointError;
use mambo_engine::EngineError;
use mambo_model::ModelError;
use mambo_runtime::RuntimeError;
use mambo_tensor::{DType, TensorError};
use mambo_text::TextError;

/// Why a model cannot be written as asked.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// No type or mix of that name.
    #[error("there is no type `{name}`; use one of {known}")]
    UnknownType {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A mix where one type is wanted.
    #[error("{mix} is a mix; name one type, such as {dtype}")]
    NotOneType {
        /// The mix.
        mix: &'static str,
        /// The type most of its weights have.
        dtype: DType,
    },
    /// A rule that does not parse.
    #[error("`{rule}` is not WEIGHT=TYPE, such as experts_down=q6_k or layers.1*=q8_0")]
    BadRule {
        /// The rule.
        rule: String,
    },
    /// A rule for nothing.
    #[error("the model has no matrix `{pattern}`; it has {known} (all else is f32 in every file)")]
    NoSuchMatrix {
        /// The rule's pattern.
        pattern: String,
        /// What a pattern could name.
        known: String,
    },
    /// A type that GGUF has no number for.
    #[error("a GGUF file cannot hold {dtype}, only a safetensors folder can; use q8_0 or nvfp4 in its place")]
    NotInGguf {
        /// The type.
        dtype: DType,
    },
    /// A type that safetensors cannot keep.
    #[error(
        "a safetensors folder cannot hold {dtype}; use {known} or the mix nvfp4_mix, or an output that ends in .gguf"
    )]
    NotInFolder {
        /// The type.
        dtype: DType,
        /// The types it can hold.
        known: String,
    },
    /// No preset of that name.
    #[error("there is no preset `{name}`; the presets are {known}")]
    UnknownPreset {
        /// What was asked for.
        name: String,
        /// The presets there are.
        known: String,
    },
    /// A file that must not be replaced.
    #[error("{path} exists; give another name, or allow it to be replaced", path = path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The output is the input.
    #[error("{path} is the model that is being read; give the output another name", path = path.display())]
    IsSource {
        /// The output.
        path: PathBuf,
    },
    /// A link where a folder would be made.
    #[error("{path} is a link; name the folder itself", path = path.display())]
    IsLink {
        /// The output.
        path: PathBuf,
    },
    /// A folder that holds something.
    #[error("the folder {path} is not empty; give another name, or empty it first", path = path.display())]
    NotEmpty {
        /// The output.
        path: PathBuf,
    },
    /// A file where a folder would be made.
    #[error("{path} is a file; name a folder, or an output that ends in .gguf", path = path.display())]
    IsFile {
        /// The output.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot write {path}{hint}", path = path.display())]
    Write {
        /// The output.
        path: PathBuf,
        /// What may help, after a colon.
        hint: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The layout names a weight that is not bound.
    #[error("the model has no weight `{weight}`")]
    NoSuchWeight {
        /// Its canonical name.
        weight: String,
    },
    /// A weight could not be read.
    #[error("cannot read weight `{weight}`")]
    Weight {
        /// Its canonical name.
        weight: String,
        /// Why.
        source: Box<ConvertError>,
    },
    /// A tensor could not be made.
    #[error("cannot write tensor `{tensor}`")]
    Tensor {
        /// Its name in the file.
        tensor: String,
        /// Why.
        source: Box<ConvertError>,
    },
    /// A value that is NaN or infinite.
    #[error(
        "{file}: tensor `{tensor}` holds {value} (row {row}, column {column} of weight `{weight}`); \
         the file is damaged, download it again or use another release of this model"
    )]
    Damaged {
        /// The model that is read.
        file: String,
        /// The tensor there.
        tensor: String,
        /// Canonical name of the weight.
        weight: String,
        /// Row of the weight.
        row: usize,
        /// Column in it.
        column: usize,
        /// NaN or an infinity.
        value: f32,
    },
    /// What calibration saw cannot weigh anything.
    #[error(
        "{file}: weight `{weight}` is fed values that are not numbers; the file is damaged, download it again or \
         use another release of this model"
    )]
    BadInputs {
        /// The model that ran.
        file: String,
        /// Canonical name of the weight.
        weight: String,
    },
    /// A disk that the output would fill.
    #[error(
        "{path} takes {need} of disk space, but {free} are free there; free some, write to another disk or \
         choose a smaller type", path = path.display()
    )]
    DiskFull {
        /// The output.
        path: PathBuf,
        /// Bytes of the output, for people.
        need: String,
        /// Bytes that are free, for people.
        free: String,
    },
    /// A thread that makes rows is gone.
    #[error("a worker thread stopped early")]
    WorkerGone,
    /// A tokenizer that GGUF cannot hold, or that does not suit the model.
    #[error("{problem}")]
    Vocabulary {
        /// What is wrong, as a sentence.
        problem: String,
    },
    /// The caller's callback ended the work; nothing was written.
    #[error("stopped; nothing was written")]
    Stopped,
    /// The checkpoint cannot give a weight.
    #[error(transparent)]
    ReadWeight(#[from] mambo_kernel::WeightError),
    /// Values do not fit a type.
    #[error(transparent)]
    Values(#[from] TensorError),
    /// A file cannot be read or written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The model's description or weights.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model could not be opened or loaded.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The engine that measures importance.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The tokenizer.
    #[error(transparent)]
    Text(#[from] TextError),
}

impl ConvertError {
    pub(crate) fn write(path: &Path) -> impl FnOnce(io::Error) -> ConvertError {
        ConvertError::write_hint(path, "")
    }

    pub(crate) fn write_hint(path: &Path, hint: &'static str) -> impl FnOnce(io::Error) -> ConvertError {
        let path = path.to_owned();
        move |source| ConvertError::Write { path, hint, source }
    }

    pub(crate) fn vocabulary(problem: impl Into<String>) -> ConvertError {
        ConvertError::Vocabulary { problem: problem.into() }
    }
}
