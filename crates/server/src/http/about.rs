//! What headers say about a request: its id, and its priority.

use axum::http::HeaderMap;

use crate::error::ApiError;

/// The header that names a request, in both directions.
pub(super) const REQUEST_ID: &str = "x-request-id";
/// The header that says what goes first.
const PRIORITY: &str = "x-priority";
/// Longest id that is taken from a client.
const LONGEST_ID: usize = 64;

/// The id that a client gave its request, if it is short and plain.
pub(super) fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let is_plain = !id.is_empty() && id.len() <= LONGEST_ID && id.bytes().all(|byte| byte.is_ascii_graphic());
    is_plain.then(|| id.to_owned())
}

/// The priority that a request asks for, higher first.
pub(super) fn priority(headers: &HeaderMap) -> Result<Option<i32>, ApiError> {
    let Some(value) = headers.get(PRIORITY) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    number.map(Some).ok_or_else(|| {
        ApiError::field(PRIORITY, "is not a whole number; send one such as 5, of which higher ones go first")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        [(axum::http::HeaderName::from_static(name), value.parse().unwrap())].into_iter().collect()
    }

    #[test]
    fn ids_are_short_and_plain() {
        let id = |value: &str| request_id(&headers(REQUEST_ID, value));
        assert_eq!(id("trace-7/a").as_deref(), Some("trace-7/a"));
        for wrong in ["", "two words", "käse", &"x".repeat(65)] {
            assert_eq!(id(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn priorities_are_whole_numbers() {
        let priority = |value: &str| priority(&headers(PRIORITY, value)).map_err(|error| error.field);
        assert_eq!((priority("7"), priority(" -3 ")), (Ok(Some(7)), Ok(Some(-3))));
        for wrong in ["high", "", "1.5", "99999999999"] {
            assert_eq!(priority(wrong), Err(Some(PRIORITY.to_owned())), "{wrong}");
        }
    }
}
