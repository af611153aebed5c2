//! A tokenizer from the vocabulary inside a GGUF file. Knows the tokenizer keys of GGUF metadata as plain
//! values; reading files is the caller's work.

use std::collections::HashMap;

use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

use super::alphabet::Alphabet;
use super::pre::{self, PreTokenizer};
use super::sentencepiece::SentencePiece;
use super::specials::Specials;
use super::spelling::{SPACE_MARK, Spelling};
use super::{Encoder, Facts, MAX_TOKENS, Tokenizer};
use crate::error::{Result, TextError};

/// The tokenizer keys of GGUF metadata.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct GgufVocabulary {
    /// `tokenizer.ggml.model`: `gpt2` means byte-level BPE, `llama` SentencePiece.
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
    /// `tokenizer.ggml.scores`, of SentencePiece: the highest is joined first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scores: Vec<f32>,
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
    /// `tokenizer.ggml.add_eos_token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`, of SentencePiece.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub add_space_prefix: Option<bool>,
}

const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

pub(super) fn load(source: &GgufVocabulary) -> Result<Tokenizer> {
    check_sizes(source)?;
    match source.model.as_str() {
        "gpt2" => byte_level(source),
        "llama" => sentencepiece(source),
        _ => Err(TextError::UnsupportedGguf {
            key: "tokenizer.ggml.model",
            value: source.model.clone(),
            supported: "gpt2 (byte-level BPE), llama (SentencePiece)".into(),
        }),
    }
}

fn byte_level(source: &GgufVocabulary) -> Result<Tokenizer> {
    let row = pre::find(&source.pre).ok_or_else(|| TextError::UnsupportedGguf {
        key: "tokenizer.ggml.pre",
        value: source.pre.clone(),
        supported: pre::supported(),
    })?;
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
    let spelling = Spelling::ByteLevel(Alphabet::new());
    Ok(Tokenizer::assemble(bpe, &spelling, facts(source, row.add_bos)))
}

/// Which tokens go around a text; `add_bos` where the file does not say.
fn facts(source: &GgufVocabulary, add_bos: bool) -> Facts {
    let around = |add: bool, id: Option<u32>| id.filter(|_| add).into_iter().collect();
    Facts {
        bos: source.bos,
        eos: source.eos,
        prefix: around(source.add_bos.unwrap_or(add_bos), source.bos),
        suffix: around(source.add_eos.unwrap_or(false), source.eos),
        prefixes_space: false,
    }
}

/// A file that names no special tokens means the first three: unknown, BOS, EOS.
fn sentencepiece(source: &GgufVocabulary) -> Result<Tokenizer> {
    let count = source.tokens.len();
    if source.scores.len() != count {
        let detail = format!("{} entries for {count} tokens", source.scores.len());
        return Err(TextError::GgufVocabulary { key: "tokenizer.ggml.scores", detail });
    }
    if let Some(at) = source.scores.iter().position(|score| score.is_nan()) {
        let detail = format!("entry {at} is not a number");
        return Err(TextError::GgufVocabulary { key: "tokenizer.ggml.scores", detail });
    }
    let usual = |id: u32| Some(id).filter(|id| (*id as usize) < count);
    let source = GgufVocabulary {
        bos: source.bos.or(usual(1)),
        eos: source.eos.or(usual(2)),
        unk: source.unk.or(usual(0)),
        ..source.clone()
    };
    let kind = |id: usize| source.token_types.get(id).copied();
    let is_matched = |id: usize| matches!(kind(id), Some(UNKNOWN | CONTROL | USER_DEFINED));
    let pieces = source.tokens.iter().enumerate().map(|(id, token)| {
        let spelled = Spelling::SentencePiece.bytes_of(token).filter(|_| !is_matched(id));
        spelled.unwrap_or_else(|| token.as_bytes().to_vec())
    });
    let special = (0..count).map(|id| matches!(kind(id), Some(UNKNOWN | CONTROL))).collect();
    let matched = source.tokens.iter().cloned().zip(0..).filter(|(_, id)| is_matched(*id as usize));
    let prefixes_space = source.add_space_prefix.unwrap_or(true);
    let encoder = Encoder::Scores {
        model: SentencePiece::new(&source.tokens, &source.scores, source.unk, prefixes_space),
        specials: Specials::new(matched),
    };
    let facts = Facts { prefixes_space, ..facts(&source, true) };
    Ok(Tokenizer::with(encoder, pieces.collect(), special, vec![None; 256], facts))
}

/// A SentencePiece vocabulary as a tokenizer.json.
pub(super) fn to_json(
    model: &SentencePiece,
    specials: &Specials,
    is_special: impl Fn(u32) -> bool,
) -> String {
    let added = specials.iter().map(|(content, id)| {
        json!({"id": id, "content": content, "special": is_special(id), "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false})
    });
    let mut added: Vec<Value> = added.collect();
    added.sort_by_key(|token| token["id"].as_u64());
    let mark = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK});
    let unmark = json!({"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "});
    let mut normalizers = vec![mark];
    let mut decoders = vec![unmark, json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    if model.prefixes_space {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": SPACE_MARK}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let file = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model.to_json(),
    });
    format!("{file:#}")
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
