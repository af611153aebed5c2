//! Any change to a vocabulary of GGUF metadata or to a tokenizer.json: refused, or it encodes and decodes every text.
//!
//! The input is `{"gguf": VOCABULARY, "texts": [..]}` or `{"json": TOKENIZER, "config": .., "texts": [..]}`.
#![cfg_attr(fuzzing, no_main)]

use mambo_fuzz::{fuzz_mutator, fuzz_target};
use mambo_text::{Detokenizer, Specials, Tokenizer};
use serde_json::Value;

fuzz_target!(|text: &str| {
    let Ok(document) = serde_json::from_str::<Value>(text) else { return };
    let Some(tokenizer) = read(&document) else { return };
    for text in document["texts"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        for add_special in [false, true] {
            let ids = tokenizer.encode(text, add_special);
            let whole = tokenizer.decode(&ids, false);
            let mut stream = Detokenizer::new(&tokenizer, Specials::Show).beginning();
            let mut pieces: String = ids.iter().map(|id| stream.push(*id)).collect();
            pieces += &stream.finish();
            assert_eq!(pieces, whole, "{ids:?}");
        }
    }
    let size = tokenizer.vocab_size() as u32;
    for id in (0..size.min(300)).chain([size, u32::MAX]) {
        let _ = (tokenizer.token_bytes(id), tokenizer.is_special(id));
    }
    let _ = tokenizer.to_json();
});

fn read(document: &Value) -> Option<Tokenizer> {
    if let Some(vocabulary) = document.get("gguf") {
        let vocabulary = serde_json::from_value(vocabulary.clone()).ok()?;
        return Tokenizer::from_gguf(&vocabulary).ok();
    }
    let config = document.get("config").map(Value::to_string);
    Tokenizer::from_json(&document.get("json")?.to_string(), config.as_deref()).ok()
}

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mambo_fuzz::change(data, size, max_size, seed)
});
