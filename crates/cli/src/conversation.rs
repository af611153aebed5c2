//! A conversation: its messages, how they become a prompt, and which earlier work a turn can reuse.

use std::sync::Arc;

use anyhow::Result;
use mambo_engine::{FinishReason, Snapshot};
use mambo_text::{ChatRequest, ChatTemplate, OutputStyle, Tokenizer};
use serde_json::{Value, json};

use crate::reply::Reply;

/// Snapshots kept: the last turn's, and the one before for a turn that was stopped early.
const KEPT_SNAPSHOTS: usize = 2;

/// Messages and what the model remembers of them.
#[derive(Default)]
pub struct Conversation {
    system: Option<String>,
    /// Users and assistants in turn.
    messages: Vec<Value>,
    /// Whether the model is to think; `None` leaves it to the template.
    pub thinking: Option<bool>,
    snapshots: Vec<Arc<Snapshot>>,
}

/// One turn, ready to run.
pub struct Turn {
    /// The whole conversation as tokens, with the start of the answer.
    pub prompt: Vec<u32>,
    /// The form of the answer.
    pub style: OutputStyle,
    /// Where the work of earlier turns can be taken up.
    pub resume: Option<Arc<Snapshot>>,
    /// Tokens after which memory is worth keeping: they come again in the next turn.
    pub snapshot_at: Option<usize>,
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
    fn request(&self, template: &ChatTemplate, user: &str) -> ChatRequest {
        let mut messages = self.messages();
        messages.push(json!({"role": "user", "content": user}));
        let mut request = ChatRequest::new(messages);
        request.enable_thinking = self.thinking;
        say_thinking(template, &mut request);
        request
    }

    /// Renders the conversation with a new question.
    pub fn turn(&self, template: &ChatTemplate, tokenizer: &Tokenizer, user: &str) -> Result<Turn> {
        let mut request = self.request(template, user);
        let text = template.render(&request)?;
        let prompt = tokenizer.encode(&text, false);
        request.add_generation_prompt = false;
        // The start of an answer may be written otherwise once the answer is history, so the next turn
        // shares what stands before it.
        let history = template.render(&request).map(|text| tokenizer.encode(&text, false));
        let shared = history.map_or(0, |ids| common_prefix(&ids, &prompt));
        let resume =
            self.snapshots.iter().filter(|s| s.begins(&prompt)).max_by_key(|s| s.tokens().len()).cloned();
        let have = resume.as_ref().map_or(0, |s| s.tokens().len());
        Ok(Turn {
            style: OutputStyle::detect(template.source(), &text),
            snapshot_at: (shared > have).then_some(shared),
            prompt,
            resume,
        })
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

/// Says in words whether to think, where the template knows no variable for it: older ones look for a word
/// in the messages instead.
pub fn say_thinking(template: &ChatTemplate, request: &mut ChatRequest) {
    let by_word = !template.source().contains("enable_thinking") && template.source().contains("/no_think");
    let Some(thinking) = request.enable_thinking.filter(|_| by_word) else { return };
    let word = if thinking { "/think" } else { "/no_think" };
    let system = request.messages.first_mut().filter(|first| first["role"] == "system");
    match system.map(|first| &mut first["content"]) {
        Some(Value::String(text)) => *text = format!("{text} {word}"),
        Some(Value::Array(parts)) => parts.push(json!({"type": "text", "text": format!(" {word}")})),
        Some(other) => *other = json!(word),
        None => request.messages.insert(0, json!({"role": "system", "content": word})),
    }
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mambo_engine::Request;

    fn system_of(source: &str, thinking: Option<bool>, system: Option<&str>) -> Option<String> {
        let template = ChatTemplate::new("test", source).unwrap();
        let conversation = Conversation::new(system.map(str::to_owned), thinking);
        let request = conversation.request(&template, "hi");
        let first = &request.messages[0];
        (first["role"] == "system").then(|| first["content"].as_str().unwrap().to_owned())
    }

    #[test]
    fn thinking_is_a_variable_or_a_word_as_the_template_has_it() {
        let word = "{{ '/no_think' in messages[0].content }}";
        let variable = "{{ enable_thinking }} /no_think";
        assert_eq!(system_of(word, Some(false), None).as_deref(), Some("/no_think"));
        assert_eq!(system_of(word, Some(true), Some("Be brief.")).as_deref(), Some("Be brief. /think"));
        assert_eq!(system_of(word, None, None), None);
        assert_eq!(system_of(variable, Some(false), Some("Be brief.")).as_deref(), Some("Be brief."));
    }

    #[test]
    fn a_turn_stopped_before_its_answer_is_forgotten() {
        let mut conversation = Conversation::new(None, None);
        let mut reply = Reply::new(&Request::default());
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
