//! Answers on their way out: whole, or as server-sent events.
//!
//! A stream is made by the task of its connection, as the connection takes it: a token wakes one task, what has gathered
//! meanwhile goes out in one write, and a client that reads slowly or has gone stops or drops what makes its answer.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;

/// What a dialect answers.
pub(crate) enum Answer {
    /// One object.
    Json(Value),
    /// Events as they come.
    Stream(Events),
    /// Lines of JSON as they come.
    Lines(Events),
}

impl Answer {
    /// Events that a future sends.
    pub fn stream<F: Future<Output = ()> + Send + 'static>(run: impl FnOnce(EventSender) -> F) -> Answer {
        Answer::Stream(Events::new(run))
    }

    /// Lines that a future sends.
    pub fn lines<F: Future<Output = ()> + Send + 'static>(run: impl FnOnce(EventSender) -> F) -> Answer {
        Answer::Lines(Events::new(run))
    }
}

fn streamed(events: Events, kind: &'static str) -> Response {
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that collect whole answers would hold every token back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        match self {
            Answer::Json(value) => json_response(StatusCode::OK, &value),
            Answer::Stream(events) => streamed(events, "text/event-stream"),
            Answer::Lines(events) => streamed(events, "application/x-ndjson"),
        }
    }
}

/// A JSON body.
pub(super) fn json_response(status: StatusCode, value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// What a future sends, as the body of an answer.
pub(crate) struct Events {
    /// Sends events; nothing once it has sent all.
    run: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    sent: EventSender,
}

impl Events {
    fn new<F: Future<Output = ()> + Send + 'static>(run: impl FnOnce(EventSender) -> F) -> Events {
        let sent = EventSender::default();
        Events { run: Some(Box::pin(run(sent.clone()))), sent }
    }
}

impl futures_util::Stream for Events {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.run.as_mut().is_some_and(|run| run.as_mut().poll(context).is_ready()) {
            self.run = None;
        }
        let sent = std::mem::take(&mut *self.sent.buffer());
        match (sent.is_empty(), &self.run) {
            (false, _) => Poll::Ready(Some(Ok(sent.into()))),
            (true, Some(_)) => Poll::Pending,
            (true, None) => Poll::Ready(None),
        }
    }
}

/// Where a future puts events for its client. If that one goes, the future is dropped.
#[derive(Clone, Default)]
pub(crate) struct EventSender(Arc<Mutex<Vec<u8>>>);

impl EventSender {
    fn buffer(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// An event without a name.
    pub fn send(&self, data: &impl Serialize) {
        self.put(b"data: ", data, b"\n\n");
    }

    /// The mark of the end in OpenAI's streams.
    pub fn send_done(&self) {
        self.buffer().extend(b"data: [DONE]\n\n");
    }

    /// An event with a name.
    pub fn send_named(&self, name: &str, data: &impl Serialize) {
        self.put(format!("event: {name}\ndata: ").as_bytes(), data, b"\n\n");
    }

    /// A line of JSON, for dialects without events.
    pub fn send_line(&self, data: &impl Serialize) {
        self.put(b"", data, b"\n");
    }

    fn put(&self, before: &[u8], data: &impl Serialize, after: &[u8]) {
        let mut buffer = self.buffer();
        buffer.extend(before);
        serde_json::to_writer(&mut *buffer, data).expect("memory takes what JSON can say");
        buffer.extend(after);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use futures_util::Stream;

    use super::*;

    #[test]
    fn what_has_gathered_is_one_write() {
        let (sender, mut tokens) = tokio::sync::mpsc::unbounded_channel::<u32>();
        let mut events = pin!(Events::new(|events| async move {
            while let Some(token) = tokens.recv().await {
                events.send(&token);
            }
            events.send_done();
        }));
        let mut context = Context::from_waker(Waker::noop());
        let mut poll = || {
            let polled = events.as_mut().poll_next(&mut context);
            polled.map(|event| event.map(|Ok(bytes)| String::from_utf8(bytes.to_vec()).unwrap()))
        };
        assert_eq!(poll(), Poll::Pending);
        sender.send(1).unwrap();
        sender.send(2).unwrap();
        assert_eq!(poll(), Poll::Ready(Some("data: 1\n\ndata: 2\n\n".to_owned())));
        assert_eq!(poll(), Poll::Pending);
        drop(sender);
        assert_eq!(poll(), Poll::Ready(Some("data: [DONE]\n\n".to_owned())));
        assert_eq!(poll(), Poll::Ready(None));
    }
}
