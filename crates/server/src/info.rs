//! What can be told of the served model.

/// Facts about a model, for clients that list them.
#[derive(Clone, Debug, Default)]
pub struct ModelInfo {
    /// The architecture, by the name in its files.
    pub architecture: String,
    /// `gguf` or `safetensors`.
    pub format: String,
    /// Such as `31.6B`.
    pub parameter_size: String,
    /// The type of most weights.
    pub quantization: String,
    /// Bytes of the tensors in its files.
    pub file_bytes: u64,
    /// What names its weights.
    pub fingerprint: String,
    /// Its layers and memory, as [`mambo_runtime::model_view`] tells them.
    pub view: serde_json::Value,
    /// Size of the vocabulary.
    pub vocabulary: usize,
}
