//! Who is let in: requests for this host, from pages of this host, with a key where keys are asked for.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, header};

use crate::config::ServerConfig;
use crate::error::{ApiError, Kind};

/// Refuses what a page elsewhere, or somebody without a key, must not do.
pub(super) fn check(config: &ServerConfig, headers: &HeaderMap, is_open: bool) -> Result<(), ApiError> {
    check_host(config, headers)?;
    check_origin(config, headers)?;
    if is_open { Ok(()) } else { check_key(config, headers) }
}

/// A name that leads here by DNS alone is refused: a page elsewhere can point its own name at this machine and would
/// then count as this server's own page.
fn check_host(config: &ServerConfig, headers: &HeaderMap) -> Result<(), ApiError> {
    if headers.get_all(header::HOST).iter().count() > 1 {
        return Err(ApiError::new(Kind::Invalid, "the request names several hosts; send one `Host`"));
    }
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or("");
    let name = host_name(host);
    let known = name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok()
        || config.host_names.iter().any(|own| own.eq_ignore_ascii_case(name));
    if known {
        return Ok(());
    }
    if name.is_empty() {
        return Err(ApiError::new(Kind::Invalid, "the request names no host; send a `Host`"));
    }
    let message =
        format!("this server does not answer to the host `{name}`; allow it with `--host-name {name}`");
    Err(ApiError::new(Kind::Forbidden, message))
}

/// The name or address in `name:port`, `[address]:port` or a bare name.
fn host_name(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or("");
    }
    host.split(':').next().unwrap_or("")
}

fn check_origin(config: &ServerConfig, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(given) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = given.to_str().unwrap_or("");
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or("");
    let own = origin.split_once("://").is_some_and(|(_, origin_host)| origin_host.eq_ignore_ascii_case(host));
    if own || is_allowed(config, given) {
        return Ok(());
    }
    let message = format!("pages of `{origin}` may not use this server; allow them with `--cors {origin}`");
    Err(ApiError::new(Kind::Forbidden, message))
}

/// Whether pages of an origin elsewhere may use the server.
pub(super) fn is_allowed(config: &ServerConfig, origin: &HeaderValue) -> bool {
    let origin = origin.to_str().unwrap_or("");
    config.cors_origins.iter().any(|allowed| allowed == "*" || allowed == origin)
}

fn check_key(config: &ServerConfig, headers: &HeaderMap) -> Result<(), ApiError> {
    if config.api_keys.is_empty() {
        return Ok(());
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text("authorization").and_then(|value| value.strip_prefix("Bearer "));
    let given = bearer.or(text("x-api-key")).unwrap_or("").trim();
    // Every key is compared, so that the time tells nothing.
    let known =
        config.api_keys.iter().fold(false, |known, key| known | same(key.as_bytes(), given.as_bytes()));
    if known {
        return Ok(());
    }
    Err(ApiError::new(
        Kind::Unauthorized,
        "the API key is missing or wrong; send `Authorization: Bearer KEY`",
    ))
}

/// Compares in a time that depends on the lengths alone.
fn same(a: &[u8], b: &[u8]) -> bool {
    let differs = a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b));
    a.len() == b.len() && std::hint::black_box(differs) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (axum::http::HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn pages_elsewhere_stay_out() {
        let mut config = ServerConfig::new("127.0.0.1:8080".parse().unwrap(), "m");
        let check = |config: &ServerConfig, pairs: &[(&'static str, &str)]| {
            check(config, &headers(pairs), false).map_err(|error| error.kind)
        };
        assert_eq!(check(&config, &[("host", "localhost:8080")]), Ok(()));
        assert_eq!(check(&config, &[("host", "[::1]:8080")]), Ok(()));
        assert_eq!(check(&config, &[("host", "evil.example:8080")]), Err(Kind::Forbidden));
        let own = [("host", "127.0.0.1:8080"), ("origin", "http://127.0.0.1:8080")];
        assert_eq!(check(&config, &own), Ok(()));
        let other = [("host", "127.0.0.1:8080"), ("origin", "https://evil.example")];
        assert_eq!(check(&config, &other), Err(Kind::Forbidden));
        config.cors_origins.push("https://evil.example".into());
        assert_eq!(check(&config, &other), Ok(()));
        config.api_keys = vec!["sesame".into(), "other".into()];
        assert_eq!(check(&config, &own), Err(Kind::Unauthorized));
        let with = |key: &'static str| [("host", "127.0.0.1"), ("authorization", key)];
        assert_eq!(check(&config, &with("Bearer sesame")), Ok(()));
        assert_eq!(check(&config, &with("Bearer sesam")), Err(Kind::Unauthorized));
        assert_eq!(check(&config, &[("host", "127.0.0.1"), ("x-api-key", "other")]), Ok(()));
    }
}
