//! The page that runs a model in the browser's tab, under `/local`: files that are read once when the server starts, so
//! that no path of a request reaches the file system.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// What that page may do: run its own module, and fetch models from wherever its user says.
const POLICY: &str = "default-src 'self'; style-src 'self'; script-src 'self' 'wasm-unsafe-eval'; \
    worker-src 'self'; connect-src 'self' https: http://localhost:* http://127.0.0.1:*; img-src 'self' data:; \
    object-src 'none'; base-uri 'none'; frame-ancestors 'none'";
/// More than the page has, and less than would hurt.
const MOST_FILES: usize = 256;
const MOST_BYTES: u64 = 256 << 20;

/// What a server without the page says.
const MISSING: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>mambo in a tab</title>\
    <body><h1>The page for this tab is not here</h1><p>It runs a model in the browser itself. Build it with \
    <code>cargo xtask web</code>, which puts it beside the program, or start the server with \
    <code>--local-page DIR</code>.</p><p><a href=\"/\">The page of this server</a> works without it.</p>";

/// The files of the page by their names.
#[derive(Clone, Debug, Default)]
pub struct LocalPage(BTreeMap<String, Bytes>);

impl LocalPage {
    /// Reads a folder as `cargo xtask web` makes it.
    pub fn read(folder: &Path) -> io::Result<LocalPage> {
        let (mut files, mut bytes) = (BTreeMap::new(), 0);
        read_below(folder, "", &mut files, &mut bytes)?;
        if !files.contains_key("index.html") {
            let problem = "there is no index.html; `cargo xtask web` makes such a folder in target/web/site";
            return Err(io::Error::new(io::ErrorKind::NotFound, problem));
        }
        Ok(LocalPage(files))
    }

    /// The answer to a request for a file: all of it, or the range that is asked for.
    pub(crate) fn answer(&self, name: &str, asked: &HeaderMap) -> Option<Response> {
        let name = if name.is_empty() { "index.html" } else { name };
        if self.0.is_empty() && name == "index.html" {
            let kind = HeaderValue::from_static("text/html; charset=utf-8");
            return Some((StatusCode::NOT_FOUND, [(header::CONTENT_TYPE, kind)], MISSING).into_response());
        }
        let bytes = self.0.get(name)?;
        let range = asked.get(header::RANGE).and_then(|range| range.to_str().ok());
        let mut response = match range.and_then(|range| byte_range(range, bytes.len())) {
            None => (StatusCode::OK, Body::from(bytes.clone())).into_response(),
            Some(range) => {
                let said = format!("bytes {}-{}/{}", range.start(), range.end(), bytes.len());
                let part = Body::from(bytes.slice(range));
                (StatusCode::PARTIAL_CONTENT, [(header::CONTENT_RANGE, said)], part).into_response()
            }
        };
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind_of(name)));
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
        headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        // A new version must show at once; the page's own worker keeps what it needs offline.
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        Some(response)
    }
}

fn read_below(
    folder: &Path,
    prefix: &str,
    into: &mut BTreeMap<String, Bytes>,
    bytes: &mut u64,
) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let (about, name) = (entry.metadata()?, entry.file_name());
        let Some(name) = name.to_str().map(|name| format!("{prefix}{name}")) else { continue };
        if about.is_dir() {
            read_below(&entry.path(), &format!("{name}/"), into, bytes)?;
        } else if about.is_file() {
            *bytes += about.len();
            if *bytes > MOST_BYTES || into.len() >= MOST_FILES {
                return Err(io::Error::other(
                    "it holds more than a page does; name the folder of the page alone",
                ));
            }
            into.insert(name, std::fs::read(entry.path())?.into());
        }
    }
    Ok(())
}

/// The bytes that a header such as `bytes=0-99` asks for; none where it asks for several parts or for what is not there,
/// which may be answered with everything.
fn byte_range(header: &str, len: usize) -> Option<RangeInclusive<usize>> {
    let (start, end) = header.strip_prefix("bytes=")?.split_once('-')?;
    let start: usize = start.parse().ok()?;
    let last = len.checked_sub(1)?;
    let end = if end.is_empty() { last } else { end.parse::<usize>().ok()?.min(last) };
    (start <= end).then_some(start..=end)
}

fn kind_of(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("wasm") => "application/wasm",
        Some("svg") => "image/svg+xml",
        Some("webmanifest") => "application/manifest+json",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_to_what_is_there() {
        assert_eq!(byte_range("bytes=0-3", 10), Some(0..=3));
        assert_eq!(byte_range("bytes=4-", 10), Some(4..=9));
        assert_eq!(byte_range("bytes=4-99", 10), Some(4..=9));
        for other in ["bytes=10-", "bytes=5-4", "bytes=-3", "bytes=0-1,4-5", "items=0-1", "bytes=x-"] {
            assert_eq!(byte_range(other, 10), None, "{other}");
        }
        assert_eq!(byte_range("bytes=0-", 0), None);
    }

    #[test]
    fn without_files_the_page_says_what_to_do() {
        let page = LocalPage::default();
        let response = page.answer("", &HeaderMap::new()).unwrap();
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        assert!(page.answer("api.js", &HeaderMap::new()).is_none());
        assert!(MISSING.contains("cargo xtask web"));
    }

    #[test]
    fn a_folder_without_a_page_is_refused() {
        let problem = LocalPage::read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))).unwrap_err();
        assert!(problem.to_string().contains("index.html"), "{problem}");
    }

    #[test]
    fn parts_of_files_are_given() {
        let page = LocalPage([("a/b.wasm".to_owned(), Bytes::from_static(b"0123456789"))].into());
        let asked: HeaderMap = [(header::RANGE, HeaderValue::from_static("bytes=2-4"))].into_iter().collect();
        let response = page.answer("a/b.wasm", &asked).unwrap();
        assert_eq!(response.status(), StatusCode::PARTIAL_CONTENT);
        assert_eq!(response.headers()[header::CONTENT_RANGE], "bytes 2-4/10");
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/wasm");
        assert_eq!(page.answer("a/b.wasm", &HeaderMap::new()).unwrap().status(), StatusCode::OK);
    }
}
