//! The page, which is part of the program: nothing is read from disk, nothing comes from elsewhere.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// What the page may do: load what this server sends, and talk to it.
const POLICY: &str = "default-src 'self'; style-src 'self'; script-src 'self'; connect-src 'self'; \
    img-src 'self' data:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'";

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/page/", $name)) as &[u8])),*]
    };
}

/// The files of the page by their names.
const FILES: [(&str, &[u8]); 32] = files!(
    "announcer.js",
    "api.js",
    "app.js",
    "chat-view.js",
    "chat.css",
    "composer.js",
    "conversation.js",
    "docs.css",
    "docs.html",
    "docs.js",
    "dom.js",
    "format.js",
    "frame.js",
    "generation.js",
    "highlight.js",
    "index.html",
    "instructions.js",
    "layer-kinds.js",
    "markdown-blocks.js",
    "markdown-inline.js",
    "markdown.js",
    "message-view.js",
    "model-charts.js",
    "model-view.js",
    "model.css",
    "settings-dialog.js",
    "settings.js",
    "sidebar.js",
    "sse.js",
    "store.js",
    "style.css",
    "theme.js",
);

/// Whether there is a file of that name.
pub(crate) fn has(name: &str) -> bool {
    name.is_empty() || FILES.iter().any(|(own, _)| *own == name)
}

/// A file of the page, if there is one of that name; the page itself for an empty one.
pub(crate) fn file(name: &str) -> Option<Response> {
    let name = if name.is_empty() { "index.html" } else { name };
    let (_, bytes) = FILES.iter().find(|(own, _)| *own == name)?;
    let kind = match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        _ => "text/javascript; charset=utf-8",
    };
    let mut response = (StatusCode::OK, Body::from(*bytes)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // A new version of the program must show at once.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_page_is_served() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/page");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        let mut names: Vec<String> = files
            .filter(|entry| entry.file_type().unwrap().is_file())
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, FILES.map(|(name, _)| name));
    }
}
