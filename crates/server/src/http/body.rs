//! Bodies of requests: JSON whose mistakes are named by field.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{ApiError, Kind};

/// How long a client may take to send its body.
const SLOWEST: Duration = Duration::from_secs(30);
/// Bodies of more bytes or fields than this are not searched for the field that is wrong: each is tried without.
const SEARCHED_BYTES: usize = 1 << 18;
const SEARCHED_FIELDS: usize = 48;

/// A request whose body has arrived, and is not too large.
pub(super) async fn read(request: Request, most: usize) -> Result<Request, ApiError> {
    let (parts, body) = request.into_parts();
    let too_large = || ApiError::new(Kind::TooLarge, format!("the body is larger than {most} bytes"));
    if body.size_hint().lower() > most as u64 {
        return Err(too_large());
    }
    match tokio::time::timeout(SLOWEST, axum::body::to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(Request::from_parts(parts, Body::from(bytes))),
        Ok(Err(_)) => Err(too_large()),
        Err(_) => Err(ApiError::new(Kind::Timeout, "the body did not arrive in time; send it again")),
    }
}

/// Parses a body, whatever it calls itself; a mistake names the field.
pub(crate) fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, ApiError> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let problem = error.inner();
        if !problem.is_data() {
            ApiError::new(Kind::Invalid, format!("the body is not JSON: {problem}"))
        } else if path != "." {
            ApiError::field(path, problem)
        } else if let Some(field) = culprit::<T>(body, problem) {
            ApiError::field(field, problem)
        } else {
            ApiError::new(Kind::Invalid, format!("the body is not what this endpoint takes: {problem}"))
        }
    })?;
    reader
        .end()
        .map_err(|error| ApiError::new(Kind::Invalid, format!("after the JSON comes more: {error}")))?;
    Ok(value)
}

/// The field without which the mistake is gone, where the path to it was lost in fields that are read together. The
/// message names a field that is missing.
fn culprit<T: DeserializeOwned>(body: &Bytes, problem: &serde_json::Error) -> Option<String> {
    if body.len() > SEARCHED_BYTES || problem.to_string().starts_with("missing field") {
        return None;
    }
    let object: Map<String, Value> = serde_json::from_slice(body).ok()?;
    if object.len() > SEARCHED_FIELDS {
        return None;
    }
    let is_cured = |key: &&String| {
        let mut without = object.clone();
        without.remove(*key);
        serde_json::from_value::<T>(without.into()).is_ok()
    };
    object.keys().find(is_cured).cloned()
}
