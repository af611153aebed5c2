//! What a request can do wrong, before a dialect dresses it.

use mambo_engine::EngineError;
use mambo_kernel::BackendError;
use mambo_runtime::RuntimeError;

use crate::worker::Refusal;

/// The kind of a mistake, which decides the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The request is wrong: 400.
    Invalid,
    /// No key, or a wrong one: 401.
    Unauthorized,
    /// Not from here: 403.
    Forbidden,
    /// There is no such thing: 404.
    NotFound,
    /// There is, but not by this method: 405.
    Method,
    /// It does not go with what is there: 409.
    Conflict,
    /// The body is too large: 413.
    TooLarge,
    /// Too many wait: 429.
    Busy,
    /// The server's own fault: 500.
    Internal,
    /// The server stops or has lost its device: 503.
    Unavailable,
    /// The disk took no more: 507.
    Storage,
    /// The time was over: 504.
    Timeout,
}

impl Kind {
    pub fn status(self) -> u16 {
        match self {
            Kind::Invalid => 400,
            Kind::Unauthorized => 401,
            Kind::Forbidden => 403,
            Kind::NotFound => 404,
            Kind::Method => 405,
            Kind::Conflict => 409,
            Kind::TooLarge => 413,
            Kind::Busy => 429,
            Kind::Internal => 500,
            Kind::Unavailable => 503,
            Kind::Timeout => 504,
            Kind::Storage => 507,
        }
    }
}

/// A refused request.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ApiError {
    pub kind: Kind,
    pub message: String,
    /// The field that is wrong.
    pub field: Option<String>,
    /// Seconds after which to try again.
    pub retry_after: Option<u64>,
}

impl ApiError {
    pub fn new(kind: Kind, message: impl Into<String>) -> ApiError {
        ApiError { kind, message: message.into(), field: None, retry_after: None }
    }

    /// The server's own fault.
    pub fn internal(message: &str) -> ApiError {
        ApiError::new(Kind::Internal, message)
    }

    /// It does not go with the model or the settings.
    pub fn conflict(message: String) -> ApiError {
        ApiError::new(Kind::Conflict, message)
    }

    /// No more is done.
    pub fn stopping() -> ApiError {
        Refusal::Stopping.into()
    }

    /// A field whose value is wrong.
    pub fn field(name: impl Into<String>, problem: impl std::fmt::Display) -> ApiError {
        let name = name.into();
        let message = format!("`{name}`: {problem}");
        ApiError { field: Some(name), ..ApiError::new(Kind::Invalid, message) }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> ApiError {
        match refusal {
            Refusal::Full(waiting) => {
                let message = format!("{waiting} requests wait already; try again in a few seconds");
                ApiError { retry_after: Some(2), ..ApiError::new(Kind::Busy, message) }
            }
            Refusal::Stopping => ApiError::new(Kind::Unavailable, "the server is stopping; try another one"),
        }
    }
}

impl From<&EngineError> for ApiError {
    fn from(error: &EngineError) -> ApiError {
        let kind = match error {
            EngineError::EmptyPrompt
            | EngineError::PromptTooLong { .. }
            | EngineError::NoRoom { .. }
            | EngineError::TokenOutOfRange { .. }
            | EngineError::Request(_) => Kind::Invalid,
            EngineError::Lost(_) | EngineError::Busy { .. } => Kind::Unavailable,
            // The device may have room again when the next request comes.
            EngineError::Step(error) if matches!(**error, BackendError::OutOfMemory { .. }) => {
                Kind::Unavailable
            }
            EngineError::Backend(BackendError::OutOfMemory { .. }) => Kind::Unavailable,
            _ => Kind::Internal,
        };
        ApiError::new(kind, error.to_string())
    }
}

impl From<RuntimeError> for ApiError {
    fn from(error: RuntimeError) -> ApiError {
        match &error {
            RuntimeError::Failed { why, .. } => (&**why).into(),
            // A template refuses messages that its model has never seen.
            RuntimeError::Snapshot { .. } => ApiError::conflict(error.to_string()),
            RuntimeError::Text(_) => named_by_place(&error.to_string()),
            _ => ApiError::new(Kind::Internal, error.to_string()),
        }
    }
}

/// What is wrong with a conversation; its text begins with the place where one is known.
fn named_by_place(text: &str) -> ApiError {
    match text.split_once(": ") {
        Some((place, problem)) if place.starts_with("messages[") || place.starts_with("tools[") => {
            ApiError::field(place, problem)
        }
        _ => ApiError::field("messages", text),
    }
}
