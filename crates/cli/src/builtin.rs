//! The small model inside the binary: tiny-hybrid with tokenizer, chat template and MTP head.
//!
//! Made from the checkpoint in the repository, with the types of the mix `builtin` (`convert/src/mixes.rs`):
//!
//! ```text
//! mambo quantize -m models/tiny-hybrid --type builtin -o crates/cli/assets/tiny-hybrid.gguf --force
//! ```
//!
//! `tests/builtin.rs` holds the file to its size and to the answers of the original.

/// A GGUF file with weights, tokenizer and chat template.
pub const BYTES: &[u8] = include_bytes!("../assets/tiny-hybrid.gguf");

/// What messages call it.
pub const NAME: &str = "the built-in model";
