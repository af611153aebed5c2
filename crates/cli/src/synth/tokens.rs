//! A tokenizer of any size: the built-in model's, followed by filler tokens that no text produces. Keeps
//! the keys llama.cpp needs.

use anyhow::{Result, bail};
use mambo_checkpoint::GgufMetadata;

const NORMAL: i32 = 1;

/// Extends the vocabulary of `small` to `size` tokens and stores it in `keys`.
pub fn grow(small: &GgufMetadata, size: usize, keys: &mut GgufMetadata) -> Result<()> {
    let mut tokens = small.strings("tokenizer.ggml.tokens")?.unwrap_or_default().to_vec();
    let mut types: Vec<i32> = small
        .i64s("tokenizer.ggml.token_type")?
        .unwrap_or_default()
        .into_iter()
        .map(|kind| kind as i32)
        .collect();
    if size < tokens.len() || types.len() != tokens.len() {
        bail!("the built-in vocabulary of {} tokens does not fit a model with {size}", tokens.len());
    }
    // Ordinary tokens, so that a random answer prints; the brackets keep text from producing them.
    tokens.extend((tokens.len()..size).map(|id| format!("<filler_{id}>")));
    types.resize(size, NORMAL);
    keys.set("tokenizer.ggml.tokens", tokens);
    keys.set("tokenizer.ggml.token_type", types);
    Ok(())
}
