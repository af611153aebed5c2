//! The form of a model's answers, read off its chat template and the prompt: no flags. Knows which tags go
//! together; not how calls are written inside them.

use super::dialects::CallDialect;
use super::harmony;

/// Whether an answer starts with reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningStart {
    /// The prompt ended in the opening tag: the answer begins inside the reasoning.
    Open,
    /// The prompt ended in the closing tag: thinking is off, all is content.
    Closed,
    /// The prompt does not say: an opening tag at the very beginning opens the reasoning.
    Unknown,
}

/// What stands around reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThinkTags {
    /// Before it.
    pub open: &'static str,
    /// After it.
    pub close: &'static str,
}

const THINK: ThinkTags = ThinkTags { open: "<think>", close: "</think>" };
/// Mistral's.
const BRACKETED: ThinkTags = ThinkTags { open: "[THINK]", close: "[/THINK]" };

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputStyle {
    /// `None` when the model does not mark reasoning.
    pub reasoning: Option<ReasoningStart>,
    /// The marks, where it does.
    pub think: ThinkTags,
    /// `None` when the model does not mark calls.
    pub calls: Option<CallDialect>,
    /// The answer is messages in channels instead of text with tags.
    pub channels: bool,
    /// The answer is a turn of its own. Otherwise it goes on with the prompt's text, and its first space is
    /// part of it.
    pub is_turn: bool,
}

impl OutputStyle {
    /// Everything is content, as for plain completion.
    pub const PLAIN: Self =
        Self { reasoning: None, think: THINK, calls: None, channels: false, is_turn: false };

    /// Whether the answer begins inside the reasoning.
    pub fn starts_in_reasoning(&self) -> bool {
        self.reasoning == Some(ReasoningStart::Open)
    }

    /// The style of answers to `prompt`, rendered by the template with this source.
    pub fn detect(template_source: &str, prompt: &str) -> Self {
        let calls = CallDialect::of_template(template_source);
        let channels = calls == Some(CallDialect::Harmony);
        let (think, knows_reasoning) = match channels {
            true => (harmony::ANALYSIS, true),
            false => {
                let written = |tags: &ThinkTags| {
                    template_source.contains(tags.open) || template_source.contains(tags.close)
                };
                let found = [THINK, BRACKETED].into_iter().find(written);
                (found.unwrap_or(THINK), found.is_some())
            }
        };
        let end = prompt.trim_end();
        let is_said = channels && end.ends_with(harmony::MESSAGE);
        let reasoning = if end.ends_with(think.open) {
            Some(ReasoningStart::Open)
        } else if !knows_reasoning {
            None
        } else if end.ends_with(think.close) && !channels || is_said {
            Some(ReasoningStart::Closed)
        } else {
            Some(ReasoningStart::Unknown)
        };
        Self { reasoning, think, calls, channels, is_turn: true }
    }

    /// The tags to look for outside calls.
    pub(super) fn tags(&self) -> Vec<&'static str> {
        let mut tags = Vec::with_capacity(3);
        if self.reasoning.is_some() {
            tags.push(self.think.close);
            tags.push(self.think.open);
        }
        tags.extend(self.calls.and_then(CallDialect::open));
        tags
    }

    /// Every tag that must reach the parser: where they are special tokens, the detokenizer has to keep
    /// them.
    pub fn markers(&self) -> Vec<&'static str> {
        if self.channels {
            return harmony::TAGS.to_vec();
        }
        let mut tags = self.tags();
        for tag in self.calls.map_or_else(Vec::new, CallDialect::tags) {
            if !tags.contains(&tag) {
                tags.push(tag);
            }
        }
        tags
    }
}
