//! The form of a model's answers, read off its chat template and the prompt: no flags. Knows which tags go
//! together; not how calls are written inside them.

use super::tags::{THINK_CLOSE, THINK_OPEN};

/// How an answer relates to thoughts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThoughtStart {
    /// The prompt ended in `<think>`: the answer begins inside the thought.
    Open,
    /// The prompt ended in `</think>`: thinking is off, all is content.
    Closed,
    /// The prompt does not say: a `<think>` at the very beginning opens a thought.
    Unknown,
}

/// The tags around tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallTags {
    /// The opening tag.
    pub open: &'static str,
    /// The closing tag.
    pub close: &'static str,
}

/// The `<tool_call>` pair.
const TOOL_CALL: CallTags = CallTags { open: "<tool_call>", close: "</tool_call>" };
/// The `<TOOLCALL>` pair.
const TOOLCALL: CallTags = CallTags { open: "<TOOLCALL>", close: "</TOOLCALL>" };

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputStyle {
    /// `None` when the model does not mark thoughts.
    pub thought: Option<ThoughtStart>,
    /// `None` when the model does not mark calls.
    pub calls: Option<CallTags>,
}

impl OutputStyle {
    /// Everything is content, as for plain completion.
    pub const PLAIN: Self = Self { thought: None, calls: None };

    /// The style of answers to `prompt`, rendered by the template with this source.
    pub fn detect(template_source: &str, prompt: &str) -> Self {
        let knows_thoughts = template_source.contains(THINK_OPEN) || template_source.contains(THINK_CLOSE);
        let end = prompt.trim_end();
        let thought = if end.ends_with(THINK_OPEN) {
            Some(ThoughtStart::Open)
        } else if !knows_thoughts {
            None
        } else if end.ends_with(THINK_CLOSE) {
            Some(ThoughtStart::Closed)
        } else {
            Some(ThoughtStart::Unknown)
        };
        let calls = [TOOL_CALL, TOOLCALL].into_iter().find(|tags| template_source.contains(tags.open));
        Self { thought, calls }
    }

    /// The tags to look for outside calls.
    pub(super) fn tags(&self) -> Vec<&'static str> {
        let mut tags = Vec::with_capacity(3);
        if self.thought.is_some() {
            tags.push(THINK_CLOSE);
            tags.push(THINK_OPEN);
        }
        tags.extend(self.calls.map(|calls| calls.open));
        tags
    }

    /// Every tag that must reach the parser: where they are special tokens, the detokenizer has to keep
    /// them.
    pub fn markers(&self) -> Vec<&'static str> {
        let mut tags = self.tags();
        tags.extend(self.calls.map(|calls| calls.close));
        tags
    }
}
