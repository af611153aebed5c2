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
    fn send(&mut self, name: &str, mut event: Value) {
        event["type"] = name.into();
        event["sequence_number"] = self.number.into();
        self.number += 1;
        self.sender.send_named(name, &event);
    }

    /// Index of the item that is being filled.
    fn index(&self) -> usize {
        self.response.items.len()
    }

    fn reasoning(&mut self, more: &str) {
        if !matches!(self.open, Some(Open::Reasoning { .. })) {
            let id = self.service.new_id("rs");
            let item =
                json!({"id": id, "type": "reasoning", "summary": [], "content": [], "status": "in_progress"});
            let added = json!({"output_index": self.index(), "item": item});
            self.close();
            self.send("response.output_item.added", added);
            self.open = Some(Open::Reasoning { id, text: String::new() });
        }
        let index = self.index();
        let Some(Open::Reasoning { id, text }) = &mut self.open else { return };
        *text += more;
        let event = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": more});
        self.send("response.reasoning_text.delta", event);
    }

    fn content(&mut self, more: &str) {
        if !matches!(self.open, Some(Open::Message { .. })) {
            self.close();
            let id = self.service.new_id("msg");
            let item = json!({"id": id, "type": "message", "role": "assistant", "content": [], "status": "in_progress"});
            let added = json!({"output_index": self.index(), "item": item});
            let part = json!({"type": "output_text", "text": "", "annotations": [], "logprobs": []});
            let part = json!({"item_id": id, "output_index": self.index(), "content_index": 0, "part": part});
            self.send("response.output_item.added", added);
            self.send("response.content_part.added", part);
            self.open = Some(Open::Message { id, text: String::new() });
        }
        let index = self.index();
        let Some(Open::Message { id, text }) = &mut self.open else { return };
        *text += more;
        let event = json!({
            "item_id": id, "output_index": index, "content_index": 0, "delta": more, "logprobs": [],
        });
        self.send("response.output_text.delta", event);
    }

    fn call(&mut self, name: &str, arguments: &Value) {
        self.close();
        let done = call_item(self.service, name, arguments);
        let mut added = done.clone();
        (added["arguments"], added["status"]) = ("".into(), "in_progress".into());
        let (id, text, index) = (done["id"].clone(), done["arguments"].clone(), self.index());
        self.send("response.output_item.added", json!({"output_index": index, "item": added}));
        let delta = json!({"item_id": id, "output_index": index, "delta": text});
        self.send("response.function_call_arguments.delta", delta);
        let whole = json!({"item_id": id, "output_index": index, "name": name, "arguments": text});
        self.send("response.function_call_arguments.done", whole);
        self.done(done);
    }

    /// Ends the item that is being filled.
    fn close(&mut self) {
        let index = self.index();
        match self.open.take() {
            None => {}
            Some(Open::Reasoning { id, text }) => {
                let mut item = reasoning_item(self.service, &text);
                item["id"] = id.as_str().into();
                let event = json!({"item_id": id, "output_index": index, "content_index": 0, "text": text});
                self.send("response.reasoning_text.done", event);
                self.done(item);
            }
            Some(Open::Message { id, text }) => {
                let item = message_item(&id, &text);
                let event = json!({"item_id": id, "output_index": index, "content_index": 0, "text": text, "logprobs": []});
                let part = json!({"item_id": id, "output_index": index, "content_index": 0, "part": item["content"][0]});
                self.send("response.output_text.done", event);
                self.send("response.content_part.done", part);
                self.done(item);
            }
        }
    }

    fn done(&mut self, item: Value) {
        let event = json!({"output_index": self.index(), "item": item});
        self.response.items.push(item);
        self.send("response.output_item.done", event);
    }
}

/// Streams a response to its end.
pub(super) async fn run(
    service: &Service,
    response: Response,
    mut generation: Generation,
    mut keeping: Option<Vec<Value>>,
    sender: &EventSender,
) {
    let mut events = Events { service, sender, number: 0, response, open: None };
    let begun = json!({"response": events.response.body});
    events.send("response.created", begun.clone());
    events.send("response.in_progress", begun);
    while let Some(delta) = generation.next().await {
        match delta {
            Delta::Started | Delta::Tokens(_) => {}
            Delta::Reasoning(text) => events.reasoning(&text),
            Delta::Content(text) => events.content(&text),
            Delta::ToolCall { name, arguments } => events.call(&name, &arguments),
            Delta::End(end) => {
                events.close();
                match events.response.finish(&end, generation.usage()) {
                    Ok(name) => {
                        events.response.keep(service, keeping.take());
                        let event = json!({"response": events.response.body});
                        events.send(name, event);
                    }
                    Err(error) => {
                        events.response.body["status"] = "failed".into();
                        events.response.body["error"] = error_body(&error)["error"].clone();
                        let event = json!({"response": events.response.body});
                        events.send("response.failed", event);
                    }
                }
            }
        }
    }
}
