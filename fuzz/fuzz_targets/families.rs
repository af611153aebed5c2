//! Any change to the config or GGUF metadata and to the tensors of any family: described, built and bound, or refused
//! with a sentence; never a panic, and never a tensor read before it is wanted.
//!
//! The input is a document as `mambo_fuzz::open` takes it.
#![cfg_attr(fuzzing, no_main)]

use mambo_fuzz::{fuzz_mutator, fuzz_target};
use mambo_model::{BuildOptions, ModelError, bind, describe};
use serde_json::Value;

fuzz_target!(|text: &str| {
    let Ok(document) = serde_json::from_str::<Value>(text) else { return };
    let Some(checkpoint) = mambo_fuzz::open(&document) else { return };
    let spec = match describe(&checkpoint) {
        Ok(spec) => spec,
        Err(error) => return check_sentence(&error),
    };
    let _ =
        (spec.to_string(), spec.gguf_metadata(), spec.hf_config(), spec.parameters(), spec.cache_layers());
    spec.trunk_graph(BuildOptions { hidden: true }).expect("what was described can be built");
    if spec.mtp.is_some() {
        spec.mtp_graph().expect("what was described can be built");
    }
    match bind(&checkpoint, &spec) {
        Ok(table) => _ = (table.stored_bytes(), table.notes(), table.kv_scales().len()),
        Err(error) => check_sentence(&error),
    }
});

/// Every refusal is one line that names the file and says what to do.
fn check_sentence(error: &ModelError) {
    let sentence = error.to_string();
    assert!(!sentence.contains('\n') && sentence.contains("; "), "{sentence}");
    assert!(sentence.starts_with("fuzz") || sentence.contains("generation_config.json"), "{sentence}");
}

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mambo_fuzz::change(data, size, max_size, seed)
});
