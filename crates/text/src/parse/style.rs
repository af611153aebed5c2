//! The form of a model's answers, read off its chat template and the prompt: no flags. Knows which tags go
//! together; not how calls are written inside them.

use super::tags::{THINK_CLOSE, THINK_OPEN};

/// Whether an answer starts with reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningStart {
    /// The prompt ended in `<think>`: the answer begins inside the reasoning.
    Open,
    /// The prompt ended in `</think>`: thinking is off, all is content.
    Closed,
    /// The prompt does not say: a `<think>` at the very beginning opens the reasoning.
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
    /// `None` when the model does not mark reasoning.
    pub reasoning: Option<ReasoningStart>,
    /// `None` when the model does not mark calls.
    pub calls: Option<CallTags>,
    /// Whether calls are written as tagged parameters instead of JSON.
    pub tagged_parameters: bool,
}

impl OutputStyle {
    /// Everything is content, as for plain completion.
    pub const PLAIN: Self = Self { reasoning: None, calls: None, tagged_parameters: false };

    /// Whether the answer begins inside the reasoning.
    pub fn starts_in_reasoning(&self) -> bool {
        self.reasoning == Some(ReasoningStart::Open)
    }

    /// The style of answers to `prompt`, rendered by the template with this source.
    pub fn detect(template_source: &str, prompt: &str) -> Self {
        let knows_reasoning = template_source.contains(THINK_OPEN) || template_source.contains(THINK_CLOSE);
        let end = prompt.trim_end();
        let reasoning = if end.ends_with(THINK_OPEN) {
            Some(ReasoningStart::Open)
        } else if !knows_reasoning {
            None
        } else if end.ends_with(THINK_CLOSE) {
            Some(ReasoningStart::Closed)
        } else {
            Some(ReasoningStart::Unknown)
        };
        let calls = [TOOL_CALL, TOOLCALL].into_iter().find(|tags| template_source.contains(tags.open));
        Self { reasoning, calls, tagged_parameters: template_source.contains("<parameter=") }
    }

    /// The tags to look for outside calls.
    pub(super) fn tags(&self) -> Vec<&'static str> {
        let mut tags = Vec::with_capacity(3);
        if self.reasoning.is_some() {
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
