//! The tokens that a grammar allows as an answer grows. A thought before the answer is free, where there is one.

use std::fmt;
use std::sync::Mutex;

use llguidance::Matcher;
use mambo_engine::TokenMask;
use mambo_text::{OutputStyle, ReasoningStart, ThinkTags, Tokenizer};

/// Whether a thought comes before what the grammar describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thought {
    /// No.
    None,
    /// The prompt has opened it.
    Open(ThinkTags),
    /// As the model likes: an opening tag at the very beginning opens it.
    Optional(ThinkTags),
}

impl Thought {
    /// What a prompt leaves open.
    pub fn of(style: &OutputStyle) -> Thought {
        match style.reasoning {
            Some(ReasoningStart::Open) => Thought::Open(style.think),
            Some(ReasoningStart::Unknown) => Thought::Optional(style.think),
            Some(ReasoningStart::Closed) | None => Thought::None,
        }
    }
}

/// Where an answer is.
enum Phase {
    /// It may become a thought: the bytes so far begin an opening tag. `fits` says whether they fit the grammar too.
    Undecided { bytes: Vec<u8>, fits: bool },
    /// In the thought; its last bytes.
    Thinking(Vec<u8>),
    /// In what the grammar describes.
    Answer,
}

struct State {
    matcher: Matcher,
    /// Around a thought; empty where there is none.
    open: &'static [u8],
    close: &'static [u8],
    /// Generated tokens that were looked at.
    seen: usize,
    phase: Phase,
}

/// The tokens a grammar allows, as the answer grows.
pub(crate) struct GrammarMask {
    tokenizer: Tokenizer,
    state: Mutex<State>,
}

impl GrammarMask {
    pub fn new(tokenizer: Tokenizer, matcher: Matcher, thought: Thought) -> GrammarMask {
        let (phase, tags) = match thought {
            Thought::None => (Phase::Answer, None),
            Thought::Open(tags) => (Phase::Thinking(Vec::new()), Some(tags)),
            Thought::Optional(tags) => (Phase::Undecided { bytes: Vec::new(), fits: true }, Some(tags)),
        };
        let open = tags.map_or(&b""[..], |tags| tags.open.as_bytes());
        let close = tags.map_or(&b""[..], |tags| tags.close.as_bytes());
        GrammarMask { tokenizer, state: Mutex::new(State { matcher, open, close, seen: 0, phase }) }
    }
}

impl fmt::Debug for GrammarMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GrammarMask")
    }
}

/// Whether bytes begin an opening tag, or begin with one.
fn may_open(open: &[u8], bytes: &[u8]) -> bool {
    open.starts_with(bytes) || bytes.starts_with(open)
}

impl State {
    fn take(&mut self, token: u32, word: &[u8]) {
        match &mut self.phase {
            // What the grammar refuses cannot have been chosen; an error shows in the mask.
            Phase::Answer => _ = self.matcher.consume_token(token),
            Phase::Thinking(bytes) => {
                bytes.extend_from_slice(word);
                self.look_for_close();
            }
            Phase::Undecided { bytes, fits } => {
                bytes.extend_from_slice(word);
                if bytes.starts_with(self.open) {
                    let rest = bytes[self.open.len()..].to_vec();
                    // The grammar begins anew after the thought.
                    let _ = self.matcher.reset();
                    self.phase = Phase::Thinking(rest);
                    self.look_for_close();
                    return;
                }
                *fits = *fits && self.matcher.validate_tokens(&[token]).is_ok_and(|valid| valid == 1);
                if *fits {
                    let _ = self.matcher.consume_token(token);
                }
                if !self.open.starts_with(bytes) {
                    self.phase = Phase::Answer;
                }
            }
        }
    }

    fn look_for_close(&mut self) {
        let Phase::Thinking(bytes) = &mut self.phase else { return };
        if bytes.windows(self.close.len()).any(|window| window == self.close) {
            self.phase = Phase::Answer;
        } else {
            // The tag may end in a later token.
            let excess = bytes.len().saturating_sub(self.close.len());
            bytes.drain(..excess);
        }
    }
}

impl TokenMask for GrammarMask {
    fn allow(&self, generated: &[u32], mask: &mut [u32]) {
        let mut state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let unseen = state.seen.min(generated.len());
        for &token in &generated[unseen..] {
            state.take(token, self.tokenizer.token_bytes(token));
        }
        state.seen = generated.len();
        let State { matcher, phase, open, .. } = &mut *state;
        match phase {
            Phase::Thinking(_) => return mask.fill(u32::MAX),
            Phase::Undecided { fits: false, .. } => mask.fill(0),
            Phase::Undecided { .. } | Phase::Answer => {
                if let Ok(allowed) = matcher.compute_mask_or_eos() {
                    for (word, allowed) in mask.iter_mut().zip(allowed.as_slice()) {
                        *word = *allowed;
                    }
                }
            }
        }
        if let Phase::Undecided { bytes, .. } = phase {
            for token in 0..self.tokenizer.vocab_size().min(mask.len() * 32) as u32 {
                let word = self.tokenizer.token_bytes(token);
                if !word.is_empty() && may_open(open, &[bytes.as_slice(), word].concat()) {
                    mask[token as usize / 32] |= 1 << (token % 32);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grammar::Grammars;
    use mambo_runtime::{Model, OpenOptions};

    const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-hybrid-Q4_K_M.gguf");

    /// How many of these tokens a mask allows, one after the other.
    fn allowed(mask: &dyn TokenMask, tokens: &[u32], vocabulary: usize) -> usize {
        let is_allowed = |count: &usize| {
            let mut words = vec![0; vocabulary.div_ceil(32)];
            mask.allow(&tokens[..*count], &mut words);
            words[tokens[*count] as usize / 32] >> (tokens[*count] % 32) & 1 == 1
        };
        (0..tokens.len()).take_while(is_allowed).count()
    }

    #[test]
    fn a_thought_may_come_first_where_the_prompt_does_not_say() {
        let model = Model::open(MODEL, &OpenOptions::default()).unwrap();
        let text = model.text().unwrap();
        let (tokenizer, vocabulary) = (text.tokenizer(), model.spec.vocab);
        let grammars = Grammars::new(tokenizer, text.stop_tokens(), vocabulary);
        let answers = ["<b>7", "<thin>7", "7"];
        let thoughts = ["<think></think>", "<think>so, < 7 <think> 7\n</think>", "<think>é</thin></think>"];
        for thought in [Thought::None, Thought::Optional(OutputStyle::PLAIN.think)] {
            // The grammar's own beginning is that of the tag, so that both stay possible for a while.
            let check = |text: &str| {
                // Whole tokens, and one token for each byte: tags may come in pieces.
                let bytes = text.bytes().map(|byte| tokenizer.encode(&char::from(byte).to_string(), false));
                let pieces: Vec<u32> = bytes.flatten().collect();
                [tokenizer.encode(text, false), pieces].map(|tokens| {
                    let mask = grammars.mask_of_regex("(<b>|<thin>)?[0-9]", thought);
                    allowed(&*mask, &tokens, vocabulary) == tokens.len()
                })
            };
            for answer in answers {
                assert_eq!(check(answer), [true; 2], "{thought:?} {answer}");
                for before in thoughts.iter().filter(|before| before.is_ascii()) {
                    let may = thought != Thought::None;
                    assert_eq!(check(&format!("{before}{answer}")), [may; 2], "{thought:?} {before}{answer}");
                }
            }
            assert_eq!(check("<thinx"), [false; 2]);
            assert_eq!(check("hello"), [false; 2]);
            assert_eq!(check("<think>so</think>hello"), [false; 2]);
        }
    }
}
