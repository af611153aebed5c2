//! What a hostile hub can send: a listing, an index of shards, headers of an answer. Nothing leaves the cache, and no
//! sum of sizes wraps.
//!
//! The input is `{"listing": .., "index": .., "asked": .., "headers": {"location": .., "etag": .., ..}}`.
#![cfg_attr(fuzzing, no_main)]

use mambo_fuzz::{fuzz_mutator, fuzz_target};
use mambo_hub::fuzzing;
use serde_json::Value;

fuzz_target!(|text: &str| {
    let Ok(document) = serde_json::from_str::<Value>(text) else { return };
    let text = |key: &str| document[key].as_str().unwrap_or_default();
    fuzzing::listing(&document["listing"].to_string(), &document["index"].to_string(), text("asked"));
    let headers = document["headers"].as_object().into_iter().flatten();
    fuzzing::headers(headers.filter_map(|(name, value)| Some((name.as_str(), value.as_str()?))));
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mambo_fuzz::change(data, size, max_size, seed)
});
