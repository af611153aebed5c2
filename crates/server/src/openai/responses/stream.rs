//! Responses as events: every item is added, filled and done, and every event is numbered.

use serde_json::{Value, json};

use super::{Response, call_item, message_item, reasoning_item};
use crate::generation::{Delta, Generation};
use crate::http::EventSender;
use crate::openai::error_body;
use crate::service::Service;

/// The item that is being filled.
enum Open {
    Reasoning { id: String, text: String },
    Message { id: String, text: String },
}

struct Events<'a> {
    service: &'a Service,
    sender: &'a EventSender,
    number: u64,
    response: Response,
    open: Option<Open>,
}

impl Events<'_> {
    async fn send(&mut self, name: &str, mut event: Value) -> bool {
        event["type"] = name.into();
        event["sequence_number"] = self.number.into();
        self.number += 1;
        self.sender.send_named(name, &event).await
    }

    /// Index of the item that is being filled.
    fn index(&self) -> usize {
        self.response.items.len()
    }

    async fn reasoning(&mut self, more: &str) -> bool {
        if !matches!(self.open, Some(Open::Reasoning { .. })) {
            let id = self.service.new_id("rs");
            let item =
                json!({"id": id, "type": "reasoning", "summary": [], "content": [], "status": "in_progress"});
            let added = json!({"output_index": self.index(), "item": item});
            if !self.close().await || !self.send("response.output_item.added", added).await {
                return false;
            }
            self.open = Some(Open::Reasoning { id, text: String::new() });
        }
        let index = self.index();
        let Some(Open::Reasoning { id, text }) = &mut self.open else { return false };
        *text += more;
        let event = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": more});
        self.send("response.reasoning_text.delta", event).await
    }

    async fn content(&mut self, more: &str) -> bool {
        if !matches!(self.open, Some(Open::Message { .. })) {
            if !self.close().await {
                return false;
            }
            let id = self.service.new_id("msg");
            let item = json!({"id": id, "type": "message", "role": "assistant", "content": [], "status": "in_progress"});
            let added = json!({"output_index": self.index(), "item": item});
            let part = json!({"type": "output_text", "text": "", "annotations": [], "logprobs": []});
            let part = json!({"item_id": id, "output_index": self.index(), "content_index": 0, "part": part});
            let sent = self.send("response.output_item.added", added).await
                && self.send("response.content_part.added", part).await;
            if !sent {
                return false;
            }
            self.open = Some(Open::Message { id, text: String::new() });
        }
        let index = self.index();
        let Some(Open::Message { id, text }) = &mut self.open else { return false };
        *text += more;
        let event = json!({
            "item_id": id, "output_index": index, "content_index": 0, "delta": more, "logprobs": [],
        });
        self.send("response.output_text.delta", event).await
    }

    async fn call(&mut self, name: &str, arguments: &Value) -> bool {
        if !self.close().await {
            return false;
        }
        let done = call_item(self.service, name, arguments);
        let mut added = done.clone();
        (added["arguments"], added["status"]) = ("".into(), "in_progress".into());
        let (id, text, index) = (done["id"].clone(), done["arguments"].clone(), self.index());
        let sent =
            self.send("response.output_item.added", json!({"output_index": index, "item": added})).await
                && self
                    .send(
                        "response.function_call_arguments.delta",
                        json!({"item_id": id, "output_index": index, "delta": text}),
                    )
                    .await
                && self
                    .send(
                        "response.function_call_arguments.done",
                        json!({"item_id": id, "output_index": index, "name": name, "arguments": text}),
                    )
                    .await;
        sent && self.done(done).await
    }

    /// Ends the item that is being filled.
    async fn close(&mut self) -> bool {
        let index = self.index();
        match self.open.take() {
            None => true,
            Some(Open::Reasoning { id, text }) => {
                let mut item = reasoning_item(self.service, &text);
                item["id"] = id.as_str().into();
                let event = json!({"item_id": id, "output_index": index, "content_index": 0, "text": text});
                self.send("response.reasoning_text.done", event).await && self.done(item).await
            }
            Some(Open::Message { id, text }) => {
                let item = message_item(&id, &text);
                let event = json!({"item_id": id, "output_index": index, "content_index": 0, "text": text, "logprobs": []});
                let part = json!({"item_id": id, "output_index": index, "content_index": 0, "part": item["content"][0]});
                self.send("response.output_text.done", event).await
                    && self.send("response.content_part.done", part).await
                    && self.done(item).await
            }
        }
    }

    async fn done(&mut self, item: Value) -> bool {
        let event = json!({"output_index": self.index(), "item": item});
        self.response.items.push(item);
        self.send("response.output_item.done", event).await
    }
}

/// Streams a response until it ends or nobody listens.
pub(super) async fn run(
    service: &Service,
    response: Response,
    mut generation: Generation,
    mut keeping: Option<Vec<Value>>,
    sender: &EventSender,
) {
    let mut events = Events { service, sender, number: 0, response, open: None };
    let begun = json!({"response": events.response.body});
    if !events.send("response.created", begun.clone()).await
        || !events.send("response.in_progress", begun).await
    {
        return;
    }
    while let Some(delta) = generation.next().await {
        let sent = match delta {
            Delta::Started | Delta::Tokens(_) => true,
            Delta::Reasoning(text) => events.reasoning(&text).await,
            Delta::Content(text) => events.content(&text).await,
            Delta::ToolCall { name, arguments } => events.call(&name, &arguments).await,
            Delta::End(end) => {
                let closed = events.close().await;
                match events.response.finish(&end, generation.usage()) {
                    Ok(name) => {
                        events.response.keep(service, keeping.take());
                        let event = json!({"response": events.response.body});
                        closed && events.send(name, event).await
                    }
                    Err(error) => {
                        events.response.body["status"] = "failed".into();
                        events.response.body["error"] = error_body(&error)["error"].clone();
                        let event = json!({"response": events.response.body});
                        events.send("response.failed", event).await
                    }
                }
            }
        };
        if !sent {
            return;
        }
    }
}
