//! The keys of GGUF metadata that are about text: vocabulary, chat template, sampling. Their one home, for readers
//! and for writers; which values they get is decided elsewhere.

use mambo_checkpoint::{CheckpointError, GgufMetadata};
use mambo_engine::SamplingParams;
use mambo_text::GgufVocabulary;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const SCORES: &str = "tokenizer.ggml.scores";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
const PADDING: &str = "tokenizer.ggml.padding_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
const CHAT_TEMPLATE: &str = "tokenizer.chat_template";
const TEMPERATURE: &str = "general.sampling.temp";
const TOP_P: &str = "general.sampling.top_p";

/// Whether there is a vocabulary: a file may hold weights alone.
pub fn has_vocabulary(metadata: &GgufMetadata) -> bool {
    metadata.get(TOKENS).is_some()
}

/// Says that there is none, which other programs ask to be told.
pub fn set_no_vocabulary(metadata: &mut GgufMetadata) {
    metadata.set(MODEL, "no_vocab");
}

/// The vocabulary as the tokenizer takes it.
pub fn vocabulary(metadata: &GgufMetadata) -> Result<GgufVocabulary, CheckpointError> {
    let strings = |key: &str| Ok::<_, CheckpointError>(metadata.strings(key)?.unwrap_or_default().to_vec());
    let text = |key: &str| Ok::<_, CheckpointError>(metadata.str(key)?.unwrap_or_default().to_owned());
    let types = metadata.i64s(TOKEN_TYPES)?.unwrap_or_default();
    Ok(GgufVocabulary {
        model: text(MODEL)?,
        pre: text(PRE)?,
        tokens: strings(TOKENS)?,
        token_types: types.into_iter().map(|t| t as i32).collect(),
        merges: strings(MERGES)?,
        scores: metadata.f32s(SCORES)?.unwrap_or_default().to_vec(),
        bos: metadata.u32(BOS)?,
        eos: metadata.u32(EOS)?,
        unk: metadata.u32(UNKNOWN)?,
        pad: metadata.u32(PADDING)?,
        add_bos: metadata.bool(ADD_BOS)?,
        add_eos: metadata.bool(ADD_EOS)?,
        add_space_prefix: metadata.bool(ADD_SPACE_PREFIX)?,
    })
}

/// The source of the chat template.
pub fn chat_template(metadata: &GgufMetadata) -> Result<Option<&str>, CheckpointError> {
    metadata.str(CHAT_TEMPLATE)
}

/// The sampling the model's authors recommend; greedy where they say nothing.
pub fn sampling(metadata: &GgufMetadata) -> SamplingParams {
    let usual = SamplingParams::default();
    let number = |key: &str| metadata.f32(key).ok().flatten();
    SamplingParams {
        temperature: number(TEMPERATURE).unwrap_or(usual.temperature),
        top_p: number(TOP_P).unwrap_or(usual.top_p),
        ..usual
    }
}

/// Sets the vocabulary.
pub fn set_vocabulary(metadata: &mut GgufMetadata, vocabulary: GgufVocabulary) {
    metadata.set(MODEL, vocabulary.model);
    if !vocabulary.pre.is_empty() {
        metadata.set(PRE, vocabulary.pre);
    }
    metadata.set(TOKENS, vocabulary.tokens);
    metadata.set(TOKEN_TYPES, vocabulary.token_types);
    if !vocabulary.merges.is_empty() {
        metadata.set(MERGES, vocabulary.merges);
    }
    if !vocabulary.scores.is_empty() {
        metadata.set(SCORES, vocabulary.scores);
    }
    let ids =
        [(BOS, vocabulary.bos), (EOS, vocabulary.eos), (UNKNOWN, vocabulary.unk), (PADDING, vocabulary.pad)];
    for (key, id) in ids {
        if let Some(id) = id {
            metadata.set(key, id);
        }
    }
    let flags = [
        (ADD_BOS, vocabulary.add_bos),
        (ADD_EOS, vocabulary.add_eos),
        (ADD_SPACE_PREFIX, vocabulary.add_space_prefix),
    ];
    for (key, flag) in flags {
        if let Some(flag) = flag {
            metadata.set(key, flag);
        }
    }
}

/// Sets the source of the chat template.
pub fn set_chat_template(metadata: &mut GgufMetadata, source: &str) {
    metadata.set(CHAT_TEMPLATE, source);
}

/// Sets the recommended sampling; greedy is said by saying nothing.
pub fn set_sampling(metadata: &mut GgufMetadata, sampling: &SamplingParams) {
    if sampling.temperature > 0.0 {
        metadata.set(TEMPERATURE, sampling.temperature);
        metadata.set(TOP_P, sampling.top_p);
    }
}

/// Takes over everything another file says about text, keys this engine does not read included.
pub fn copy_text(metadata: &mut GgufMetadata, from: &GgufMetadata) {
    let text = |key: &str| key.starts_with("tokenizer.") || key.starts_with("general.sampling.");
    for (key, value) in from.iter().filter(|(key, _)| text(key)) {
        metadata.set(key, value.clone());
    }
}
