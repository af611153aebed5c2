//! Anthropic's streams: every block of the answer is opened, filled and closed.

use serde_json::{Value, json};

use super::{error_body, message, stop_reason, usage_of};
use crate::generation::{Delta, Generation};
use crate::http::EventSender;
use crate::service::Service;

/// The block that is open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
}

struct Blocks<'a> {
    events: &'a EventSender,
    index: usize,
    open: Option<Block>,
}

impl Blocks<'_> {
    fn close(&mut self) {
        if self.open.take().is_none() {
            return;
        }
        let event = json!({"type": "content_block_stop", "index": self.index});
        self.index += 1;
        self.events.send_named("content_block_stop", &event);
    }

    fn start(&mut self, block: Value) {
        let event = json!({"type": "content_block_start", "index": self.index, "content_block": block});
        self.events.send_named("content_block_start", &event);
    }

    fn delta(&mut self, delta: Value) {
        let event = json!({"type": "content_block_delta", "index": self.index, "delta": delta});
        self.events.send_named("content_block_delta", &event);
    }

    /// Adds text to a block of this kind, which is opened if another is open.
    fn add(&mut self, kind: Block, text: &str) {
        let (empty, delta) = match kind {
            Block::Thinking => (
                json!({"type": "thinking", "thinking": "", "signature": ""}),
                json!({"type": "thinking_delta", "thinking": text}),
            ),
            Block::Text => (json!({"type": "text", "text": ""}), json!({"type": "text_delta", "text": text})),
        };
        if self.open != Some(kind) {
            self.close();
            self.start(empty);
            self.open = Some(kind);
        }
        self.delta(delta);
    }

    fn call(&mut self, id: String, name: &str, arguments: &Value) {
        let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
        let delta = json!({"type": "input_json_delta", "partial_json": arguments.to_string()});
        self.close();
        self.start(block);
        self.delta(delta);
        self.open = Some(Block::Text);
        self.close();
    }
}

/// Streams an answer to its end.
pub(super) async fn run(service: &Service, mut generation: Generation, events: &EventSender) {
    let mut blocks = Blocks { events, index: 0, open: None };
    while let Some(delta) = generation.next().await {
        match delta {
            Delta::Started => {
                let start = json!({
                    "type": "message_start", "message": message(service, Vec::new(), generation.usage()),
                });
                events.send_named("message_start", &start);
            }
            Delta::Tokens(_) => {}
            Delta::Reasoning(text) => blocks.add(Block::Thinking, &text),
            Delta::Content(text) => blocks.add(Block::Text, &text),
            Delta::ToolCall { name, arguments } => blocks.call(service.new_id("toolu"), &name, &arguments),
            Delta::End(end) => match stop_reason(&end) {
                Ok((reason, sequence)) => {
                    let end = json!({
                        "type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": sequence},
                        "usage": usage_of(generation.usage()),
                    });
                    blocks.close();
                    events.send_named("message_delta", &end);
                    events.send_named("message_stop", &json!({"type": "message_stop"}));
                }
                Err(error) => events.send_named("error", &error_body(&error)),
            },
        }
    }
}
