//! SentencePiece BPE as GGUF files carry it: a score for each token instead of merges. Knows scores, the
//! space mark and byte tokens; not which tokens are special.
//!
//! Of all neighbours that together are a token, those with the highest score are joined first, the leftmost
//! of equals before the others. A character that is no token is written as its bytes.

use std::collections::{BinaryHeap, HashMap};

use serde_json::{Value, json};

use super::spelling::{SPACE_MARK, byte_token};

/// The tokens by text, with their scores.
pub(super) struct SentencePiece {
    ids: HashMap<String, u32>,
    scores: Vec<f32>,
    /// The token of each byte.
    byte_ids: Vec<Option<u32>>,
    unknown: Option<u32>,
    /// Whether a text, and text after a special token, begins with a space.
    pub(super) prefixes_space: bool,
}

/// Two neighbours that could be joined.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// The bytes of both: a pair whose parts have changed since is stale.
    len: usize,
    id: u32,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Pair {}

/// A part of the text, in a list that shrinks from the right of each joined pair.
struct Symbol {
    start: usize,
    /// 0 when it was joined to its left neighbour.
    len: usize,
    previous: Option<usize>,
    next: Option<usize>,
    id: Option<u32>,
}

impl SentencePiece {
    /// `scores` may be missing: then all are equal.
    pub(super) fn new(tokens: &[String], scores: &[f32], unknown: Option<u32>, prefixes_space: bool) -> Self {
        let ids: HashMap<String, u32> = tokens.iter().cloned().zip(0..).collect();
        let byte_id = |byte: u8| {
            let as_text = || char::from_u32(byte.into()).filter(char::is_ascii).map(String::from);
            let by_number = ids.get(&byte_token(byte));
            by_number.or_else(|| ids.get(&as_text()?)).copied()
        };
        let byte_ids = (0..=255).map(byte_id).collect();
        // Zero has two signs, which the order of pairs must not see.
        let scores = scores.iter().map(|score| score + 0.0).collect();
        Self { ids, scores, byte_ids, unknown, prefixes_space }
    }

    pub(super) fn id_of(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    /// Appends the ids of a text between special tokens; `begins` says whether it is the first one or comes
    /// after a special token.
    pub(super) fn encode(&self, text: &str, begins: bool, output: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let prefix = if begins && self.prefixes_space { " " } else { "" };
        let text = [prefix, text].concat().replace(' ', SPACE_MARK);
        let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
        for (start, c) in text.char_indices() {
            let (at, len) = (symbols.len(), c.len_utf8());
            let id = self.id_of(&text[start..start + len]);
            symbols.push(Symbol { start, len, previous: at.checked_sub(1), next: Some(at + 1), id });
        }
        if let Some(last) = symbols.last_mut() {
            last.next = None;
        }
        self.join(&text, &mut symbols);
        for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
            match symbol.id {
                Some(id) => output.push(id),
                None => {
                    let bytes = text[symbol.start..symbol.start + symbol.len].bytes();
                    output.extend(bytes.filter_map(|b| self.byte_ids[usize::from(b)].or(self.unknown)));
                }
            }
        }
    }

    fn join(&self, text: &str, symbols: &mut [Symbol]) {
        let mut pairs = BinaryHeap::new();
        let pair = |symbols: &[Symbol], left: Option<usize>, right: Option<usize>| {
            let (left, right) = (left?, right?);
            let len = symbols[left].len + symbols[right].len;
            let id = self.id_of(&text[symbols[left].start..symbols[left].start + len])?;
            let score = self.scores.get(id as usize).copied().unwrap_or(0.0);
            Some(Pair { score, left, right, len, id })
        };
        for right in 1..symbols.len() {
            pairs.extend(pair(symbols, Some(right - 1), Some(right)));
        }
        while let Some(Pair { left, right, len, id, .. }) = pairs.pop() {
            let (left_len, right_len) = (symbols[left].len, symbols[right].len);
            if left_len == 0 || right_len == 0 || left_len + right_len != len {
                continue;
            }
            let next = symbols[right].next;
            symbols[right].len = 0;
            (symbols[left].len, symbols[left].id, symbols[left].next) = (len, Some(id), next);
            if let Some(next) = next {
                symbols[next].previous = Some(left);
            }
            pairs.extend(pair(symbols, symbols[left].previous, Some(left)));
            pairs.extend(pair(symbols, Some(left), next));
        }
    }

    /// The `model` part of a tokenizer.json: every way to put a token together from two is a merge, those of
    /// high scores first.
    pub(super) fn to_json(&self) -> Value {
        let mut whole: Vec<(&String, u32)> = self.ids.iter().map(|(token, &id)| (token, id)).collect();
        let score = |id: u32| self.scores.get(id as usize).copied().unwrap_or(0.0);
        whole.sort_by(|a, b| score(b.1).total_cmp(&score(a.1)).then(a.1.cmp(&b.1)));
        let mut merges = Vec::new();
        for (token, _) in whole {
            for (at, _) in token.char_indices().skip(1) {
                let (left, right) = token.split_at(at);
                if self.ids.contains_key(left) && self.ids.contains_key(right) {
                    merges.push(json!([left, right]));
                }
            }
        }
        let unknown = self.unknown.and_then(|unk| self.ids.iter().find(|(_, id)| **id == unk));
        json!({
            "type": "BPE",
            "byte_fallback": true,
            "fuse_unk": true,
            "unk_token": unknown.map(|(token, _)| token),
            "vocab": self.ids,
            "merges": merges,
        })
    }
}
