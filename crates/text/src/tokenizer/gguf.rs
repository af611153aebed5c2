//! A tokenizer from the vocabulary inside a GGUF file. Knows the tokenizer keys of GGUF metadata as plain
//! values; reading files is the caller's work.

use std::collections::HashMap;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

use super::pre::{self, PreTokenizer};
use super::{Facts, MAX_TOKENS, Tokenizer};
use crate::error::{Result, TextError};

/// The tokenizer keys of GGUF metadata.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct GgufVocabulary {
    /// `tokenizer.ggml.model`: `gpt2` means byte-level BPE.
    pub model: String,
    /// `tokenizer.ggml.pre`: the name of the pre-tokenizer; empty when the key is missing.
    pub pre: String,
    /// `tokenizer.ggml.tokens`, in id order.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte. Empty
    /// when the key is missing: then all are normal.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.merges`, best first: two entries with a space between.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unk: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub pad: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
}

const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

pub(super) fn load(source: &GgufVocabulary) -> Result<Tokenizer> {
    if source.model != "gpt2" {
        return Err(TextError::UnsupportedGguf {
            key: "tokenizer.ggml.model",
            value: source.model.clone(),
            supported: "gpt2 (byte-level BPE)".into(),
        });
    }
    let row = pre::find(&source.pre).ok_or_else(|| TextError::UnsupportedGguf {
        key: "tokenizer.ggml.pre",
        value: source.pre.clone(),
        supported: pre::supported(),
    })?;
    check_sizes(source)?;
    let mut bpe = tokenizers::Tokenizer::new(model(source, row)?);
    bpe.with_pre_tokenizer(Some(pre_tokenizer(row)?));
    bpe.with_decoder(Some(ByteLevel::default()));
    let added = source.tokens.iter().zip(&source.token_types).filter_map(|(token, kind)| match *kind {
        UNKNOWN | CONTROL => Some(AddedToken::from(token.as_str(), true)),
        USER_DEFINED => Some(AddedToken::from(token.as_str(), false).normalized(false)),
        _ => None,
    });
    bpe.add_tokens(added).map_err(|error| TextError::GgufVocabulary {
        key: "tokenizer.ggml.token_type",
        detail: error.to_string(),
    })?;
    let add_bos = source.add_bos.unwrap_or(row.add_bos);
    let prefix = if add_bos { source.bos.into_iter().collect() } else { Vec::new() };
    let facts = Facts { bos: source.bos, eos: source.eos, prefix, suffix: Vec::new() };
    Ok(Tokenizer::assemble(bpe, facts))
}

/// Lengths and ids that must agree before anything is indexed by them.
fn check_sizes(source: &GgufVocabulary) -> Result<()> {
    let count = source.tokens.len();
    let fail = |key, detail| Err(TextError::GgufVocabulary { key, detail });
    if count == 0 || count > MAX_TOKENS {
        return fail("tokenizer.ggml.tokens", format!("{count} tokens, expected 1 to {MAX_TOKENS}"));
    }
    if !source.token_types.is_empty() && source.token_types.len() != count {
        let detail = format!("{} entries for {count} tokens", source.token_types.len());
        return fail("tokenizer.ggml.token_type", detail);
    }
    let ids = [
        ("tokenizer.ggml.bos_token_id", source.bos),
        ("tokenizer.ggml.eos_token_id", source.eos),
        ("tokenizer.ggml.unknown_token_id", source.unk),
        ("tokenizer.ggml.padding_token_id", source.pad),
    ];
    for (key, id) in ids {
        if let Some(id) = id
            && id as usize >= count
        {
            return fail(key, format!("id {id} is beyond the {count} tokens"));
        }
    }
    Ok(())
}

fn model(source: &GgufVocabulary, row: &PreTokenizer) -> Result<BPE> {
    let mut vocab: HashMap<String, u32> = HashMap::with_capacity(source.tokens.len());
    for (id, token) in source.tokens.iter().enumerate() {
        // Padding rows must never be produced by encoding.
        if source.token_types.get(id) != Some(&UNUSED) {
            vocab.entry(token.clone()).or_insert(id as u32);
        }
    }
    let fail = |detail| TextError::GgufVocabulary { key: "tokenizer.ggml.merges", detail };
    let mut merges = Vec::with_capacity(source.merges.len());
    for (rank, merge) in source.merges.iter().enumerate() {
        // The first part may itself start with a space in vocabularies that keep raw spaces.
        let split = merge.char_indices().skip(1).find(|&(_, c)| c == ' ').map(|(at, _)| at);
        let (left, right) = split
            .map(|at| (&merge[..at], &merge[at + 1..]))
            .ok_or_else(|| fail(format!("entry {rank} '{merge}' is not two tokens")))?;
        check_merge(&vocab, rank, left, right).map_err(fail)?;
        merges.push((left.to_owned(), right.to_owned()));
    }
    BPE::builder()
        .vocab_and_merges(vocab.into_iter().collect::<Vocab>(), merges)
        .ignore_merges(row.ignore_merges)
        .build()
        .map_err(|error| fail(error.to_string()))
}

/// The BPE builder takes it for granted that both halves and the whole of a merge are tokens.
pub(super) fn check_merge(
    vocab: &HashMap<String, u32>,
    rank: usize,
    left: &str,
    right: &str,
) -> std::result::Result<(), String> {
    let whole = format!("{left}{right}");
    for part in [left, right, &whole] {
        if !vocab.contains_key(part) {
            return Err(format!("merge {rank} '{left} {right}' needs '{part}', which is not a token"));
        }
    }
    Ok(())
}

fn pre_tokenizer(row: &PreTokenizer) -> Result<PreTokenizerWrapper> {
    let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
    for pattern in row.patterns {
        let pattern = SplitPattern::Regex((*pattern).to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(|error| {
            TextError::GgufVocabulary { key: "tokenizer.ggml.pre", detail: error.to_string() }
        })?;
        steps.push(split.into());
    }
    steps.push(ByteLevel::new(false, true, false).into());
    Ok(Sequence::new(steps).into())
}
