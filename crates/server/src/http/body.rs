//! Bodies of requests: JSON whose mistakes are named by field.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{ApiError, Kind};

/// How long a client may take to send its body.
const SLOWEST: Duration = Duration::from_secs(30);

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

/// Parses a body; a mistake names the field.
pub(super) fn parse<T: DeserializeOwned>(headers: &HeaderMap, body: &Bytes) -> Result<T, ApiError> {
    let kind =
        headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("application/json");
    // A page elsewhere can send other types without asking first, so only JSON is taken.
    if !kind.split(';').next().unwrap_or("").trim().eq_ignore_ascii_case("application/json") {
        let message = format!("the body is `{kind}`; send `application/json`");
        return Err(ApiError::new(Kind::MediaType, message));
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let problem = error.inner();
        if !problem.is_data() {
            ApiError::new(Kind::Invalid, format!("the body is not JSON: {problem}"))
        } else if path != "." {
            ApiError::field(path, problem)
        } else if let Some(field) = culprit::<T>(body) {
            ApiError::field(field, problem)
        } else {
            ApiError::new(
                Kind::Invalid,
                format!("the body is not the JSON that this endpoint takes: {problem}"),
            )
        }
    })?;
    reader
        .end()
        .map_err(|error| ApiError::new(Kind::Invalid, format!("after the JSON comes more: {error}")))?;
    Ok(value)
}

/// Bodies above this size are not searched for the field that is wrong.
const SEARCHED: usize = 1 << 20;

/// The field without which the mistake is gone, where the path to it was lost in fields that are read together.
fn culprit<T: DeserializeOwned>(body: &Bytes) -> Option<String> {
    let object: Map<String, Value> =
        serde_json::from_slice(Some(body).filter(|body| body.len() <= SEARCHED)?).ok()?;
    let problem =
        |object: Map<String, Value>| serde_json::from_value::<T>(object.into()).err().map(|e| e.to_string());
    let without = |key: &String| {
        let mut without = object.clone();
        without.remove(key);
        problem(without)
    };
    object.keys().find(|key| without(key).is_none()).cloned()
}
