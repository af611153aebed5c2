//! A conversation: its messages, how they become a prompt, and which earlier work a turn can reuse.

use std::sync::Arc;

use mambo_engine::{FinishReason, Snapshot};
use mambo_text::ChatRequest;
use serde_json::{Value, json};

use crate::{ModelText, Prompt, Reply, RuntimeError};

/// Snapshots kept: the last turn's, and the one before for a turn that was stopped early.
const KEPT_SNAPSHOTS: usize = 2;

/// Messages, and snapshots of the sequences that ran them.
#[derive(Default)]
pub struct Conversation {
    system: Option<String>,
    /// Users and assistants in turn.
    messages: Vec<Value>,
    /// Whether the model is to think; `None` leaves it to the template.
    pub thinking: Option<bool>,
    snapshots: Vec<Arc<Snapshot>>,
}

impl Conversation {
    /// An empty conversation.
    pub fn new(system: Option<String>, thinking: Option<bool>) -> Self {
        Conversation { system, thinking, ..Default::default() }
    }

    /// Replaces the system message; an empty one is none.
    pub fn set_system(&mut self, text: &str) {
        self.system = (!text.is_empty()).then(|| text.to_owned());
    }

    /// Forgets every turn, keeps the system message.
    pub fn reset(&mut self) {
        self.messages.clear();
    }

    /// Answered questions.
    pub fn turns(&self) -> usize {
        self.messages.len() / 2
    }

    /// Every message, the system's first.
    pub fn messages(&self) -> Vec<Value> {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        system.chain(self.messages.iter().cloned()).collect()
    }

    /// The request for an answer to `user`.
    pub fn request(&self, user: &str) -> ChatRequest {
        let mut messages = self.messages();
        messages.push(json!({"role": "user", "content": user}));
        ChatRequest { enable_thinking: self.thinking, ..ChatRequest::new(messages) }
    }

    /// The prompt of a new question: it resumes where earlier turns share its beginning, and asks for a snapshot
    /// of what the next turn will share. Snapshots of another beginning are dropped: an engine with room for one
    /// conversation has no room for the pages of two.
    pub fn ask(&mut self, text: &ModelText, user: &str) -> Result<Prompt, RuntimeError> {
        let request = self.request(user);
        let (prompt, shared) = text.chat_with_history(request)?;
        let shared = shared.unwrap_or(0);
        self.snapshots.retain(|s| s.begins(&prompt.tokens));
        let resume = self.snapshots.iter().max_by_key(|s| s.tokens().len()).cloned();
        let have = resume.as_ref().map_or(0, |s| s.tokens().len());
        Ok(Prompt { snapshot_at: (shared > have).then_some(shared), resume, ..prompt })
    }

    /// Adds a question and what came of it. What was stopped before it said anything is no turn: the next
    /// question would follow an empty answer, which no model has seen.
    pub fn keep(&mut self, user: &str, reply: &Reply) {
        if let Some(snapshot) = &reply.snapshot {
            self.snapshots.push(snapshot.clone());
            let extra = self.snapshots.len().saturating_sub(KEPT_SNAPSHOTS);
            self.snapshots.drain(..extra);
        }
        if reply.finish == FinishReason::Cancelled && reply.content.is_empty() {
            return;
        }
        self.messages.push(json!({"role": "user", "content": user}));
        let mut answer = json!({"role": "assistant", "content": reply.content});
        if !reply.reasoning.is_empty() {
            answer["reasoning_content"] = json!(reply.reasoning);
        }
        self.messages.push(answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_stopped_before_its_answer_is_forgotten() {
        let mut conversation = Conversation::new(None, None);
        let mut reply = Reply::default();
        reply.reasoning.push_str("hm");
        conversation.keep("hi", &reply);
        assert_eq!(conversation.turns(), 0);
        reply.content.push_str("Hel");
        conversation.keep("hi", &reply);
        assert_eq!(conversation.turns(), 1);
    }

    #[test]
    fn reset_keeps_the_system_message() {
        let mut conversation = Conversation::new(None, None);
        conversation.set_system("Be brief.");
        conversation.messages.push(json!({"role": "user", "content": "hi"}));
        conversation.reset();
        assert_eq!(conversation.messages().len(), 1);
        conversation.set_system("");
        assert!(conversation.messages().is_empty());
    }
}
