//! What several fuzz targets share: changing documents of JSON so that they stay documents, and models that are headers
//! alone.

mod json_changes;
mod stored_model;
#[cfg(not(fuzzing))]
mod without_fuzzer;

#[cfg(fuzzing)]
use libfuzzer_sys::fuzzer_mutate;
#[cfg(fuzzing)]
pub use libfuzzer_sys::{fuzz_mutator, fuzz_target};
#[cfg(not(fuzzing))]
use without_fuzzer::fuzzer_mutate;

pub use stored_model::open;

/// A mutator for inputs that are JSON: changes some places of the document, or now and then some bytes of it.
pub fn change(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let document = serde_json::from_slice(&data[..size]).ok().filter(|_| !seed.is_multiple_of(16));
    let Some(mut document) = document else { return fuzzer_mutate(data, size, max_size) };
    json_changes::change(&mut document, seed.into());
    let text = document.to_string();
    match text.len() <= max_size {
        true => {
            data[..text.len()].copy_from_slice(text.as_bytes());
            text.len()
        }
        false => size,
    }
}
