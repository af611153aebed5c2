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
    async fn close(&mut self) -> bool {
        if self.open.take().is_none() {
            return true;
        }
        let event = json!({"type": "content_block_stop", "index": self.index});
        self.index += 1;
        self.events.send_named("content_block_stop", &event).await
    }

    async fn start(&mut self, block: Value) -> bool {
        let event = json!({"type": "content_block_start", "index": self.index, "content_block": block});
        self.events.send_named("content_block_start", &event).await
    }

    async fn delta(&mut self, delta: Value) -> bool {
        let event = json!({"type": "content_block_delta", "index": self.index, "delta": delta});
        self.events.send_named("content_block_delta", &event).await
    }

    /// Adds text to a block of this kind, which is opened if another is open.
    async fn add(&mut self, kind: Block, text: &str) -> bool {
        let (empty, delta) = match kind {
            Block::Thinking => (
                json!({"type": "thinking", "thinking": "", "signature": ""}),
                json!({"type": "thinking_delta", "thinking": text}),
            ),
            Block::Text => (json!({"type": "text", "text": ""}), json!({"type": "text_delta", "text": text})),
        };
        if self.open != Some(kind) {
            if !self.close().await || !self.start(empty).await {
                return false;
            }
            self.open = Some(kind);
        }
        self.delta(delta).await
    }

    async fn call(&mut self, id: String, name: &str, arguments: &Value) -> bool {
        let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
        let delta = json!({"type": "input_json_delta", "partial_json": arguments.to_string()});
        let sent = self.close().await && self.start(block).await && self.delta(delta).await;
        self.open = Some(Block::Text);
        let closed = self.close().await;
        sent && closed
    }
}

/// Streams an answer until it ends or nobody listens.
pub(super) async fn run(service: &Service, mut generation: Generation, events: &EventSender) {
    let mut blocks = Blocks { events, index: 0, open: None };
    while let Some(delta) = generation.next().await {
        let sent = match delta {
            Delta::Started => {
                let start = json!({
                    "type": "message_start", "message": message(service, Vec::new(), generation.usage()),
                });
                events.send_named("message_start", &start).await
            }
            Delta::Tokens(_) => true,
            Delta::Reasoning(text) => blocks.add(Block::Thinking, &text).await,
            Delta::Content(text) => blocks.add(Block::Text, &text).await,
            Delta::ToolCall { name, arguments } => {
                blocks.call(service.new_id("toolu"), &name, &arguments).await
            }
            Delta::End(end) => match stop_reason(&end) {
                Ok((reason, sequence)) => {
                    let end = json!({
                        "type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": sequence},
                        "usage": usage_of(generation.usage()),
                    });
                    blocks.close().await
                        && events.send_named("message_delta", &end).await
                        && events.send_named("message_stop", &json!({"type": "message_stop"})).await
                }
                Err(error) => events.send_named("error", &error_body(&error)).await,
            },
        };
        if !sent {
            return;
        }
    }
}
