//! The small model inside the binary.

/// A GGUF file with weights, tokenizer and chat template.
pub const BYTES: &[u8] = include_bytes!("../assets/tiny-hybrid.gguf");

/// What messages call it.
pub const NAME: &str = "the built-in model";
