//! What can go wrong between JavaScript and the engine. The sentences of the libraries below pass through unchanged.

use mambo_cpu::CpuError;
use mambo_engine::EngineError;
use mambo_kernel::BackendError;
use mambo_runtime::RuntimeError;

/// Why a model cannot be opened, loaded or asked.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    /// Opening, loading or asking failed.
    #[error("{}", with_sources(.0))]
    Runtime(#[from] RuntimeError),
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] BackendError),
    /// The backend could not be made.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// Bytes of a file could not be fetched.
    #[error("{file}: {reason}")]
    Fetch {
        /// The file's name.
        file: String,
        /// What JavaScript says.
        reason: String,
    },
    /// A request that is not what it should be.
    #[error("the request is not understood: {0}")]
    Request(String),
    /// A file of a model folder that is not JSON.
    #[error("the files beside the weights are not understood: {0}")]
    Beside(String),
    /// A model without a tokenizer, which takes token ids alone.
    #[error("{0}")]
    NoText(String),
    /// A snapshot that was never taken.
    #[error("there is no snapshot of that number; it was taken already, or its text is still being read")]
    NoSnapshot,
    /// No file at all.
    #[error("no file was given; name a GGUF file, or the files of a safetensors folder")]
    NoFiles,
}

/// A message with those of what caused it, which the program's own error printer shows line by line.
fn with_sources(error: &RuntimeError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
