//! Text to token ids and back, byte-level BPE and SentencePiece. Hides what does the BPE; knows vocabularies
//! and special tokens, not chat templates and not what a model does with ids.

mod alphabet;
mod gguf;
mod json;
mod pre;
mod sentencepiece;
mod specials;
mod spelling;

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::{Result, TextError};
pub use gguf::GgufVocabulary;
use sentencepiece::SentencePiece;
use specials::{Part, Specials};
use spelling::Spelling;

/// A tokenizer. Cloning shares the vocabulary.
#[derive(Clone)]
pub struct Tokenizer {
    vocabulary: Arc<Vocabulary>,
    /// Ids put before and after a text that is encoded with `add_special`.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
}

/// The parts that do not change between clones.
struct Vocabulary {
    encoder: Encoder,
    pieces: Pieces,
    special: Vec<bool>,
    /// The token of each single byte, for the text that BPE refuses.
    byte_ids: Vec<Option<u32>>,
    /// A text begins with a space that is not part of it.
    prefixes_space: bool,
}

/// What turns text into ids.
enum Encoder {
    /// The BPE library: all that comes from tokenizer.json, and byte-level vocabularies from GGUF.
    Merges(Box<tokenizers::Tokenizer>),
    /// SentencePiece with scores, from GGUF.
    Scores { model: SentencePiece, specials: Specials },
}

impl Encoder {
    /// The ids of a text; `None` should BPE ever refuse.
    fn encode(&self, text: &str) -> Option<Vec<u32>> {
        match self {
            Encoder::Merges(bpe) => bpe.encode_fast(text, false).ok().map(|all| all.get_ids().to_vec()),
            Encoder::Scores { model, specials } => {
                let mut ids = Vec::new();
                let mut begins = true;
                for part in specials.split(text) {
                    match part {
                        Part::Token(id) => ids.push(id),
                        Part::Text(text) => model.encode(text, begins, &mut ids),
                    }
                    begins = matches!(part, Part::Token(_));
                }
                Some(ids)
            }
        }
    }
}

/// The raw bytes of every token, in one block.
struct Pieces {
    bytes: Vec<u8>,
    /// Where each token's bytes end.
    ends: Vec<usize>,
}

impl Pieces {
    fn new(tokens: Vec<Vec<u8>>) -> Self {
        let mut block = Self { bytes: Vec::new(), ends: Vec::with_capacity(tokens.len()) };
        for token in tokens {
            block.bytes.extend_from_slice(&token);
            block.ends.push(block.bytes.len());
        }
        block
    }

    fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..end]
    }
}

/// A vocabulary larger than this is a broken file: ids index tables, so they must be bounded.
const MAX_TOKENS: usize = 1 << 24;

/// What a loader found out about a vocabulary beside the BPE itself.
#[derive(Default)]
struct Facts {
    bos: Option<u32>,
    eos: Option<u32>,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    prefixes_space: bool,
}

impl Tokenizer {
    /// Reads the text of a `tokenizer.json` and, where the model has one, of its `tokenizer_config.json`,
    /// which names the BOS and EOS tokens.
    ///
    /// BOS is added where the file's post-processor adds it or the configuration asks for it.
    pub fn from_json(tokenizer_json: &str, tokenizer_config_json: Option<&str>) -> Result<Self> {
        json::load(tokenizer_json, tokenizer_config_json)
    }

    /// Builds the tokenizer from a vocabulary read from GGUF metadata.
    pub fn from_gguf(vocabulary: &GgufVocabulary) -> Result<Self> {
        gguf::load(vocabulary)
    }

    /// Puts together what the BPE library encodes, spelled in one way.
    fn assemble(bpe: tokenizers::Tokenizer, spelling: &Spelling, facts: Facts) -> Self {
        let added = bpe.get_added_tokens_decoder();
        let vocab: HashMap<String, u32> = bpe.get_vocab(true);
        let count = vocab.values().max().map_or(0, |&id| id as usize + 1);
        let mut pieces = vec![Vec::new(); count];
        let mut byte_ids = vec![None; 256];
        // An added token is plain text, even where its letters happen to be in the byte alphabet; only the
        // space mark is a space in all of them.
        let is_plain = |id: u32| added.contains_key(&id) && matches!(spelling, Spelling::ByteLevel(_));
        for (token, id) in vocab {
            let id_index = id as usize;
            let mapped = if is_plain(id) { None } else { spelling.bytes_of(&token) };
            pieces[id_index] = mapped.unwrap_or_else(|| token.into_bytes());
            if let ([byte], false) = (pieces[id_index].as_slice(), added.contains_key(&id)) {
                byte_ids[usize::from(*byte)] = Some(id);
            }
        }
        for (&id, token) in added.iter().filter(|(id, _)| is_plain(**id)) {
            pieces[id as usize] = token.content.as_bytes().to_vec();
        }
        let special =
            (0..count).map(|id| added.get(&(id as u32)).is_some_and(|token| token.special)).collect();
        let encoder = Encoder::Merges(Box::new(bpe));
        Self::with(encoder, pieces, special, byte_ids, facts)
    }

    fn with(
        encoder: Encoder,
        pieces: Vec<Vec<u8>>,
        special: Vec<bool>,
        byte_ids: Vec<Option<u32>>,
        facts: Facts,
    ) -> Self {
        let Facts { bos, eos, prefix, suffix, prefixes_space } = facts;
        let pieces = Pieces::new(pieces);
        let vocabulary = Arc::new(Vocabulary { encoder, pieces, special, byte_ids, prefixes_space });
        Self { vocabulary, prefix, suffix, bos, eos }
    }

    /// The ids of `text`. Special tokens written in the text are recognised. With `add_special` the model's
    /// own prefix (usually BOS) is put in front unless the text already starts with it.
    ///
    /// Rendered chat prompts carry their special tokens already: encode them with `add_special` off.
    pub fn encode(&self, text: &str, add_special: bool) -> Vec<u32> {
        let mut ids = self.vocabulary.encoder.encode(text).unwrap_or_else(|| self.encode_bytes(text));
        if add_special {
            if !ids.starts_with(&self.prefix) {
                ids.splice(0..0, self.prefix.iter().copied());
            }
            ids.extend_from_slice(&self.suffix);
        }
        ids
    }

    /// One token per byte. Encoding must work for every string, so this stands in should BPE ever refuse.
    fn encode_bytes(&self, text: &str) -> Vec<u32> {
        text.bytes().filter_map(|byte| self.vocabulary.byte_ids[usize::from(byte)]).collect()
    }

    /// The text of `ids`, without the special tokens if `skip_special`. Bytes that are not UTF-8 become
    /// U+FFFD; ids beyond the vocabulary are nothing; a space that encoding puts before every text goes.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut bytes = Vec::new();
        for &id in ids {
            if !(skip_special && self.is_special(id)) {
                bytes.extend_from_slice(self.token_bytes(id));
            }
        }
        let bytes = bytes.strip_prefix(b" ").filter(|_| self.prefixes_space()).unwrap_or(&bytes);
        String::from_utf8_lossy(bytes).into_owned()
    }

    /// Whether encoding puts a space before a text, which is then part of its first token.
    pub fn prefixes_space(&self) -> bool {
        self.vocabulary.prefixes_space
    }

    /// The text of a tokenizer.json with this vocabulary; which tokens go around a text is not in it.
    pub fn to_json(&self) -> Result<String> {
        let failed = |error: tokenizers::Error| TextError::TokenizerJson { detail: error.to_string() };
        match &self.vocabulary.encoder {
            Encoder::Merges(bpe) => bpe.to_string(true).map_err(failed),
            Encoder::Scores { model, specials } => {
                Ok(gguf::to_json(model, specials, |id| self.is_special(id)))
            }
        }
    }

    /// The raw bytes a token stands for: perhaps part of a character, empty for an unknown id.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocabulary.pieces.get(id)
    }

    /// The number of token ids, added tokens included. A model's embedding may be padded beyond it.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.pieces.ends.len()
    }

    /// The id of a token given as the vocabulary writes it, such as `<|im_end|>`.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        match &self.vocabulary.encoder {
            Encoder::Merges(bpe) => bpe.token_to_id(token),
            Encoder::Scores { model, .. } => model.id_of(token),
        }
    }

    /// Whether a token is a control token, hidden from readers by default.
    pub fn is_special(&self, id: u32) -> bool {
        self.vocabulary.special.get(id as usize).copied().unwrap_or(false)
    }

    /// The beginning-of-sequence token.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The end-of-sequence token the tokenizer names. A model may stop at others as well.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether `encode` with `add_special` puts BOS in front.
    pub fn adds_bos(&self) -> bool {
        self.bos.is_some() && self.prefix.first() == self.bos.as_ref()
    }

    /// Overrides whether `encode` with `add_special` puts BOS in front; no effect without a BOS token.
    pub fn with_add_bos(mut self, add_bos: bool) -> Self {
        match (self.bos, self.adds_bos(), add_bos) {
            (Some(bos), false, true) => self.prefix.insert(0, bos),
            (Some(_), true, false) => {
                self.prefix.remove(0);
            }
            _ => {}
        }
        self
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("bos", &self.bos)
            .field("eos", &self.eos)
            .field("adds_bos", &self.adds_bos())
            .finish_non_exhaustive()
    }
}
