//! A tokenizer.json as the tokenizer keys of a GGUF file. Knows both formats; no model sizes but the
//! vocabulary's.
//!
//! GGUF names the way text is cut into words instead of spelling it out. The name is found by trying: the
//! first pre-tokenizer that cuts a set of hard texts, and every token's own text, as tokenizer.json does.

use mambo_checkpoint::{ConfigFiles, GgufMetadata};
use mambo_runtime::{Model, gguf_text};
use mambo_text::{GgufVocabulary, Tokenizer};
use serde_json::Value;

use crate::ConvertError;

/// Pre-tokenizers to try: the family's own first.
const CANDIDATES: [&str; 8] = ["pixtral", "qwen2", "tekken", "dbrx", "gpt-4o", "gpt-2", "smollm", "default"];

/// Texts on which the candidates differ: digits, case changes, contractions, punctuation, white space.
const PROBES: [&str; 6] = [
    "Hello World, it's 12345 o'clock; I'LL see 3.14159e10 & 007!",
    "camelCase HTTPServer fooBar_baz snake_case x86_64 don't DON'T",
    "a  b   c\n\n\n  d\t\te \r\n\r\n f   ",
    "/path/to//file.rs:42 --flag=value {\"key\": [1, 22, 333]} <a href='#'>",
    "naïve café Ünïcode 日本語 кириллица ١٢٣ 🦊🦊 e\u{301}",
    "!!!??? ... ,,, == != <= >= ## $$ 50% (x+y)*z\n/ ~^|`",
];

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// Adds the tokenizer of a model folder to the metadata.
pub fn add(model: &Model, files: &ConfigFiles, metadata: &mut GgufMetadata) -> Result<(), ConvertError> {
    let text = model.text()?;
    let reference = text.tokenizer();
    let json = files.tokenizer_json.as_deref().unwrap_or_default();
    let json: Value = serde_json::from_str(json)
        .map_err(|error| ConvertError::vocabulary(format!("tokenizer.json is not JSON: {error}")))?;
    let mut vocabulary = tokens(&json, model.spec.vocab)?;
    let config = |key: &str| {
        let named = files.tokenizer_config.as_ref()?.get(key)?;
        reference.id_of(named.as_str().or_else(|| named.get("content")?.as_str())?)
    };
    vocabulary.bos = reference.bos().or(model.spec.bos);
    vocabulary.eos = reference.eos().or_else(|| model.spec.stop_tokens.last().copied());
    vocabulary.unk = config("unk_token");
    vocabulary.pad = config("pad_token");
    vocabulary.add_bos = Some(reference.adds_bos());
    vocabulary.pre = pre_tokenizer(&vocabulary, reference)?.to_owned();
    gguf_text::set_vocabulary(metadata, vocabulary);
    Ok(())
}

/// Tokens, their kinds and the merges. Ids without a token become padding that no text produces.
fn tokens(json: &Value, size: usize) -> Result<GgufVocabulary, ConvertError> {
    let mut tokens: Vec<Option<(String, i32)>> = vec![None; size];
    let mut put = |id: Option<u64>, token: &str, kind: i32| -> Result<(), ConvertError> {
        let slot = id.and_then(|id| tokens.get_mut(id as usize));
        let Some(slot) = slot else {
            let problem = format!("token '{token}' of tokenizer.json is beyond the model's {size} tokens");
            return Err(ConvertError::vocabulary(problem));
        };
        *slot = Some((token.to_owned(), kind));
        Ok(())
    };
    for (token, id) in json["model"]["vocab"].as_object().into_iter().flatten() {
        put(id.as_u64(), token, NORMAL)?;
    }
    for added in json["added_tokens"].as_array().into_iter().flatten() {
        let kind = if added["special"].as_bool() == Some(true) { CONTROL } else { USER_DEFINED };
        put(added["id"].as_u64(), added["content"].as_str().unwrap_or_default(), kind)?;
    }
    let padded = tokens.into_iter().enumerate();
    let (tokens, token_types) =
        padded.map(|(id, token)| token.unwrap_or_else(|| (format!("[PAD{id}]"), UNUSED))).unzip();
    let merges = json["model"]["merges"].as_array().into_iter().flatten().map(merge);
    Ok(GgufVocabulary {
        model: "gpt2".to_owned(),
        tokens,
        token_types,
        merges: merges.collect::<Result<_, _>>()?,
        ..Default::default()
    })
}

/// A merge as one string; newer files write a pair.
fn merge(value: &Value) -> Result<String, ConvertError> {
    let pair = value.as_array().and_then(|pair| Some((pair.first()?.as_str()?, pair.get(1)?.as_str()?)));
    match (value.as_str(), pair) {
        (Some(joined), _) => Ok(joined.to_owned()),
        (None, Some((left, right))) => Ok(format!("{left} {right}")),
        (None, None) => Err(ConvertError::vocabulary(format!(
            "a merge in tokenizer.json is {value}, which is not two tokens"
        ))),
    }
}

/// The first candidate that agrees with the reference on everything tried.
fn pre_tokenizer(vocabulary: &GgufVocabulary, reference: &Tokenizer) -> Result<&'static str, ConvertError> {
    for pre in CANDIDATES {
        let candidate = GgufVocabulary { pre: pre.to_owned(), ..vocabulary.clone() };
        let Ok(tokenizer) = Tokenizer::from_gguf(&candidate) else { continue };
        let same = |text: &str| tokenizer.encode(text, true) == reference.encode(text, true);
        let ids = 0..reference.vocab_size() as u32;
        if PROBES.iter().all(|text| same(text))
            && ids.into_iter().all(|id| same(&reference.decode(&[id], false)))
        {
            return Ok(pre);
        }
    }
    Err(ConvertError::vocabulary(format!(
        "the tokenizer cuts text into words in a way GGUF has no name for (tried {}); keep the model as safetensors",
        CANDIDATES.join(", ")
    )))
}
