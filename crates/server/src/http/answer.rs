//! Answers on their way out: whole, or as server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Events that wait for a client; a slower one waits itself, and is cut off if it takes none for [`SLOWEST`].
const BUFFERED: usize = 256;
/// How long a client may take to read.
const SLOWEST: Duration = Duration::from_secs(30);

/// What a dialect answers.
pub(crate) enum Answer {
    /// One object.
    Json(Value),
    /// Events as they come.
    Stream(Receiver<Bytes>),
    /// Lines of JSON as they come.
    Lines(Receiver<Bytes>),
}

impl Answer {
    /// Events that a task sends.
    pub fn stream<F: Future<Output = ()> + Send + 'static>(run: impl FnOnce(EventSender) -> F) -> Answer {
        let (sender, receiver) = channel(BUFFERED);
        let listened = sender.clone();
        let run = run(EventSender(sender));
        tokio::spawn(async move {
            // A client that goes ends its answer, also while nothing is being sent.
            tokio::select! {
                () = run => {}
                () = listened.closed() => {}
            }
        });
        Answer::Stream(receiver)
    }

    /// Lines that a task sends.
    pub fn lines<F: Future<Output = ()> + Send + 'static>(run: impl FnOnce(EventSender) -> F) -> Answer {
        match Answer::stream(run) {
            Answer::Stream(receiver) => Answer::Lines(receiver),
            other => other,
        }
    }
}

fn streamed(receiver: Receiver<Bytes>, kind: &'static str) -> Response {
    let mut response = Response::new(Body::from_stream(Events(receiver)));
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
            Answer::Stream(receiver) => streamed(receiver, "text/event-stream"),
            Answer::Lines(receiver) => streamed(receiver, "application/x-ndjson"),
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

struct Events(Receiver<Bytes>);

impl futures_util::Stream for Events {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|event| event.map(Ok))
    }
}

/// Where a task sends events; each says whether somebody still listens.
#[derive(Clone)]
pub(crate) struct EventSender(Sender<Bytes>);

impl EventSender {
    /// An event without a name.
    pub async fn send(&self, data: &Value) -> bool {
        self.send_text(&data.to_string()).await
    }

    /// The same with text.
    pub async fn send_text(&self, data: &str) -> bool {
        self.send_bytes(format!("data: {data}\n\n").into()).await
    }

    /// An event with a name.
    pub async fn send_named(&self, name: &str, data: &Value) -> bool {
        self.send_bytes(format!("event: {name}\ndata: {data}\n\n").into()).await
    }

    /// A line of JSON, for dialects without events.
    pub async fn send_line(&self, data: &Value) -> bool {
        self.send_bytes(format!("{data}\n").into()).await
    }

    async fn send_bytes(&self, bytes: Bytes) -> bool {
        // A client that reads nothing for so long is gone.
        matches!(tokio::time::timeout(SLOWEST, self.0.send(bytes)).await, Ok(Ok(())))
    }
}
