//! A tokenizer from `tokenizer.json` and `tokenizer_config.json`. Knows those two formats; checks what the
//! BPE library takes for granted, so that a broken file is an error and not a panic.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use super::alphabet::Alphabet;
use super::gguf::check_merge;
use super::spelling::Spelling;
use super::{Facts, MAX_TOKENS, Tokenizer};
use crate::error::{Result, TextError};

/// The fields of `tokenizer.json` that are checked here.
#[derive(Deserialize)]
struct File {
    model: Model,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    added_tokens: Vec<Added>,
}

#[derive(Deserialize)]
struct Model {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    vocab: Value,
    #[serde(default)]
    merges: Vec<Merge>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    dropout: Option<f64>,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
}

/// Older files write a merge as one string.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Joined(String),
}

/// The fields of `tokenizer_config.json` that matter for ids.
#[derive(Default, Deserialize)]
struct Config {
    #[serde(default)]
    bos_token: Option<Named>,
    #[serde(default)]
    eos_token: Option<Named>,
    #[serde(default)]
    add_bos_token: Option<bool>,
}

/// A token named by its text, alone or inside a description.
#[derive(Deserialize)]
#[serde(untagged)]
enum Named {
    Text(String),
    Described { content: String },
}

pub(super) fn load(text: &str, config: Option<&str>) -> Result<Tokenizer> {
    let file: File = serde_json::from_str(text).map_err(broken)?;
    let spelling = spelling(&file)?;
    let prefixes_space = strips_space(&file.decoder);
    check(file)?;
    let mut bpe: tokenizers::Tokenizer = text.parse().map_err(broken)?;
    // A training-time length limit would silently cut prompts.
    bpe.with_truncation(None).map_err(broken)?;
    bpe.with_padding(None);
    let config: Config = match config {
        Some(text) => serde_json::from_str(text)
            .map_err(|error| TextError::TokenizerConfig { detail: error.to_string() })?,
        None => Config::default(),
    };
    let (prefix, suffix) = surroundings(&bpe)?;
    let bos = named_id(&bpe, "bos_token", config.bos_token)?.or(prefix.first().copied());
    let eos = named_id(&bpe, "eos_token", config.eos_token)?;
    let tokenizer = Tokenizer::assemble(bpe, &spelling, Facts { bos, eos, prefix, suffix, prefixes_space });
    // The post-processor is what other programs obey, so the configuration can add BOS but not remove it.
    Ok(if config.add_bos_token == Some(true) { tokenizer.with_add_bos(true) } else { tokenizer })
}

fn broken(error: impl std::fmt::Display) -> TextError {
    TextError::TokenizerJson { detail: error.to_string() }
}

fn check(file: File) -> Result<()> {
    // Files without a model type are as old as byte-level BPE itself.
    if let Some(kind) = file.model.kind.filter(|kind| kind != "BPE") {
        return Err(TextError::UnsupportedTokenizer { field: "model.type", found: kind });
    }
    if let Some(found) = file.model.continuing_subword_prefix.filter(|prefix| !prefix.is_empty()) {
        return Err(TextError::UnsupportedTokenizer { field: "model.continuing_subword_prefix", found });
    }
    // Training left out merges at random; the same text would have other tokens each time.
    if let Some(dropout) = file.model.dropout.filter(|dropout| *dropout != 0.0) {
        return Err(broken(format!(
            "`model.dropout` is {dropout}, which only training uses: set it to null"
        )));
    }
    check_template(&file.post_processor)?;
    let vocab: HashMap<String, u32> = serde_json::from_value(file.model.vocab)
        .map_err(|error| broken(format!("`model.vocab` must map tokens to ids: {error}")))?;
    let ids = vocab.values().copied().chain(file.added_tokens.iter().map(|token| token.id));
    if let Some(id) = ids.max().filter(|&id| id as usize >= MAX_TOKENS) {
        return Err(broken(format!("token id {id} is beyond the limit of {MAX_TOKENS}")));
    }
    for (rank, merge) in file.model.merges.iter().enumerate() {
        let (left, right) = match merge {
            Merge::Pair(left, right) => (left.as_str(), right.as_str()),
            Merge::Joined(both) => both
                .split_once(' ')
                .ok_or_else(|| broken(format!("`model.merges[{rank}]` '{both}' is not two tokens")))?,
        };
        check_merge(&vocab, rank, left, right).map_err(broken)?;
    }
    if let Some(unk) = file.model.unk_token
        && !vocab.contains_key(&unk)
        && !file.added_tokens.iter().any(|token| token.content == unk)
    {
        return Err(broken(format!("`model.unk_token` '{unk}' is not a token")));
    }
    Ok(())
}

/// The library looks tokens of a template up without asking whether they are there, and takes the second text of a
/// pair where there is one text only.
fn check_template(processor: &Value) -> Result<()> {
    let Some(template) = part_of(processor, "TemplateProcessing") else { return Ok(()) };
    for piece in template["single"].as_array().into_iter().flatten() {
        let token = piece["SpecialToken"]["id"].as_str();
        if let Some(token) = token.filter(|token| template["special_tokens"].get(token).is_none()) {
            return Err(broken(format!(
                "`post_processor.single` names '{token}', which is no special token"
            )));
        }
        if let Some(text) = piece["Sequence"]["id"].as_str().filter(|text| *text != "A") {
            return Err(broken(format!(
                "`post_processor.single` names text '{text}', but there is only 'A'"
            )));
        }
    }
    Ok(())
}

/// How the tokens are spelled: the decoder says it, or what cuts the text.
fn spelling(file: &File) -> Result<Spelling> {
    let (decoder, cut) = (&file.decoder, &file.pre_tokenizer);
    if part_of(decoder, "ByteLevel").or(part_of(cut, "ByteLevel")).is_some() {
        return Ok(Spelling::ByteLevel(Alphabet::new()));
    }
    let is_marked = part_of(decoder, "Metaspace").or(part_of(cut, "Metaspace")).is_some();
    if is_marked || file.model.byte_fallback {
        return Ok(Spelling::SentencePiece);
    }
    let found = match decoder {
        Value::Null => "missing".to_owned(),
        other => other["type"].as_str().unwrap_or("of an unknown type").to_owned(),
    };
    Err(TextError::UnsupportedTokenizer { field: "decoder", found })
}

/// Whether decoding takes a space from the front of a text, which encoding has put there.
fn strips_space(decoder: &Value) -> bool {
    let cuts = part_of(decoder, "Strip").is_some_and(|strip| strip["start"].as_u64() > Some(0));
    let unmarks = part_of(decoder, "Metaspace").is_some_and(|marks| {
        marks["prepend_scheme"] != "never" && marks["add_prefix_space"] != Value::Bool(false)
    });
    cuts || unmarks
}

/// A pre-tokenizer or decoder of a type, alone or among others.
fn part_of<'a>(part: &'a Value, kind: &str) -> Option<&'a Value> {
    match part {
        Value::Object(fields) if fields.get("type").and_then(Value::as_str) == Some(kind) => Some(part),
        Value::Object(fields) => fields.values().find_map(|inner| part_of(inner, kind)),
        Value::Array(items) => items.iter().find_map(|inner| part_of(inner, kind)),
        _ => None,
    }
}

/// The ids the post-processor puts around a text, found by encoding with and without it.
fn surroundings(bpe: &tokenizers::Tokenizer) -> Result<(Vec<u32>, Vec<u32>)> {
    let bare = bpe.encode_fast("a", false).map_err(broken)?;
    let full = bpe.encode_fast("a", true).map_err(broken)?;
    let (bare, full) = (bare.get_ids(), full.get_ids());
    let at = full.windows(bare.len().max(1)).position(|window| window == bare).unwrap_or(0);
    Ok((full[..at].to_vec(), full[(at + bare.len()).min(full.len())..].to_vec()))
}

fn named_id(bpe: &tokenizers::Tokenizer, field: &str, named: Option<Named>) -> Result<Option<u32>> {
    let text = match named {
        None => return Ok(None),
        Some(Named::Text(text) | Named::Described { content: text }) => text,
    };
    bpe.token_to_id(&text).map(Some).ok_or_else(|| TextError::TokenizerConfig {
        detail: format!("`{field}` is '{text}', which tokenizer.json does not have"),
    })
}
