//! HTTP towards a hub: who is asked, who gets the token, which answers are worth another attempt.
//!
//! Written on `ureq` and not on `hf-hub`: that crate downloads without checking what came, starts again from the first
//! byte after a break, and brings 139 crates that we do not have, an async client among them; this brings 20.
//!
//! Redirects are followed here, because the checksum of a large file stands in the answer that redirects, and because
//! the token must go to the hub and to nobody it sends us to.

use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ureq::http::{HeaderMap, Uri};
use ureq::{Agent, Body};

use crate::checksum::Checksum;
use crate::listing::is_plausible;
use crate::{HubError, PullEvent};

/// Attempts after one that failed, once the hub has answered at all.
const RETRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// A longer wait is the user's decision.
const LONGEST_WAIT_SECONDS: u64 = 300;
const MOST_REDIRECTS: usize = 8;
/// Silence after which a connection is given up.
const SILENCE: Duration = Duration::from_secs(60);

/// What a caller hears, and whether to go on.
pub type OnEvent<'e> = dyn FnMut(PullEvent<'_>) -> ControlFlow<()> + 'e;

/// A hub.
pub struct Client {
    agent: Agent,
    endpoint: String,
    origin: Origin,
    token: Option<String>,
    has_answered: AtomicBool,
}

/// Scheme, host and port: whom a token may be given to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    https: bool,
    host: String,
    port: u16,
}

/// What is asked for: an address, and names for messages.
#[derive(Clone, Debug)]
pub struct Target {
    pub url: String,
    /// `FILE of ORG/NAME`, or the repository.
    pub what: String,
    /// The repository's page, where conditions are accepted.
    pub page: String,
    /// Whether bytes of the file are kept when it fails.
    pub resumable: bool,
}

/// Which bytes of a file.
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    pub from: u64,
    /// The end; none for all the rest.
    pub to: Option<u64>,
}

/// An answer with a body.
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Body,
}

/// What the hub says about a file without sending it.
#[derive(Debug, Default)]
pub struct FileFacts {
    pub checksum: Option<Checksum>,
    pub size: Option<u64>,
}

/// Attempts that failed in a row.
pub struct Patience {
    failures: u32,
    allowed: u32,
}

impl Patience {
    pub fn new() -> Patience {
        Patience { failures: 0, allowed: RETRIES }
    }

    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Something came: failures before it do not count.
    pub fn renew(&mut self) {
        self.failures = 0;
    }

    /// Waits before another attempt; says no if there were enough.
    pub fn wait(
        &mut self,
        why: &str,
        at_least: Option<u64>,
        what: &str,
        on_event: &mut OnEvent,
    ) -> Result<bool, HubError> {
        self.failures += 1;
        if self.failures > self.allowed {
            return Ok(false);
        }
        let grown = FIRST_PAUSE * 2u32.pow(self.failures - 1);
        let pause = at_least.map_or(grown, |seconds| Duration::from_secs(seconds).max(grown));
        let seconds = pause.as_secs_f64().ceil() as u64;
        let stopped = || HubError::Stopped { what: what.to_owned() };
        if on_event(PullEvent::Waiting { why: why.to_owned(), seconds }).is_break() {
            return Err(stopped());
        }
        sleep(pause, on_event).then_some(true).ok_or_else(stopped)
    }
}

/// Sleeps unless somebody ends it.
pub fn sleep(pause: Duration, on_event: &mut OnEvent) -> bool {
    let end = Instant::now() + pause;
    while Instant::now() < end {
        if on_event(PullEvent::Idle).is_break() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50).min(end.saturating_duration_since(Instant::now())));
    }
    true
}

impl Client {
    /// A client of the hub at an address such as `https://huggingface.co`.
    pub fn new(endpoint: &str, token: Option<String>) -> Result<Client, HubError> {
        let bad = |problem: &'static str| HubError::BadEndpoint { address: endpoint.to_owned(), problem };
        let endpoint = endpoint.trim_end_matches('/');
        let origin = origin(endpoint).ok_or_else(|| bad("is no http or https address"))?;
        if token.as_ref().is_some_and(|token| !token.bytes().all(|b| b.is_ascii_graphic())) {
            return Err(HubError::BadToken);
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .accept_encoding("identity")
            .user_agent(concat!("mambo/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(Duration::from_secs(20)))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE));
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        let config = config.tls_config(tls());
        let agent = Agent::new_with_config(config.build());
        Ok(Client { agent, endpoint: endpoint.to_owned(), origin, token, has_answered: false.into() })
    }

    /// The hub's address.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Asks until there is an answer that can be used: the body, or a refusal that another attempt would not change.
    pub fn get(
        &self,
        target: &Target,
        bytes: Option<Bytes>,
        on_event: &mut OnEvent,
    ) -> Result<Answer, HubError> {
        let mut patience = Patience::new();
        loop {
            // Whoever has no network wants to hear it soon; a hub that has answered before will do so again.
            patience.allowed = if self.has_answered.load(Ordering::Relaxed) { RETRIES } else { 1 };
            let (why, at_least, error) = match self.follow(target, bytes) {
                Ok(answer) if matches!(answer.status, 200 | 206 | 416) => return Ok(answer),
                Ok(answer) if is_passing(answer.status) => {
                    patience.allowed = RETRIES;
                    let seconds = retry_after(&answer.headers);
                    let error = self.refusal(target, &answer);
                    if seconds.is_some_and(|seconds| seconds > LONGEST_WAIT_SECONDS) {
                        return Err(error);
                    }
                    (format!("the hub answered with status {}", answer.status), seconds, error)
                }
                Ok(answer) => return Err(self.refusal(target, &answer)),
                Err(error @ HubError::Unreachable { .. }) => (error.to_string(), None, error),
                Err(error) => return Err(error),
            };
            if !patience.wait(&why, at_least, &target.what, on_event)? {
                return Err(error);
            }
        }
    }

    /// Asks, and takes what the answer brings; an answer that breaks off is asked for again.
    pub fn read<T>(
        &self,
        target: &Target,
        bytes: Option<Bytes>,
        on_event: &mut OnEvent,
        take: impl Fn(Answer) -> io::Result<T>,
    ) -> Result<T, HubError> {
        let mut patience = Patience::new();
        loop {
            let reason = match take(self.get(target, bytes, on_event)?) {
                Ok(taken) => return Ok(taken),
                Err(error) => error.to_string(),
            };
            let why = format!("{}: the answer broke off ({reason})", target.what);
            if !patience.wait(&why, None, &target.what, on_event)? {
                return Err(self.unreachable(target, &self.origin, reason));
            }
        }
    }

    /// Checksum and size of a file, from headers alone.
    pub fn file_facts(&self, target: &Target) -> Result<FileFacts, HubError> {
        let mut url = target.url.clone();
        for _ in 0..MOST_REDIRECTS {
            let answer = self.once(target, &url, true, None)?;
            let header = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok());
            let linked = header("x-linked-etag").and_then(Checksum::parse);
            match next_hop(&url, &answer) {
                // The storage that a large file is in has its own checksum, which is not the file's.
                Some(next) if linked.is_none() => url = next.ok_or_else(|| bad_redirect(target))?,
                _ if answer.status >= 400 => return Err(self.refusal(target, &answer)),
                _ => {
                    let checksum = linked.or_else(|| header("etag").and_then(Checksum::parse));
                    let size = header("x-linked-size").or(header("content-length"));
                    let size = size.and_then(|size| size.parse().ok()).filter(|size| is_plausible(*size));
                    return Ok(FileFacts { checksum, size });
                }
            }
        }
        Err(bad_redirect(target))
    }

    /// One attempt, to wherever the hub sends us.
    fn follow(&self, target: &Target, bytes: Option<Bytes>) -> Result<Answer, HubError> {
        let mut url = target.url.clone();
        for _ in 0..MOST_REDIRECTS {
            let answer = self.once(target, &url, false, bytes)?;
            match next_hop(&url, &answer) {
                Some(next) => url = next.ok_or_else(|| bad_redirect(target))?,
                None => return Ok(answer),
            }
        }
        Err(bad_redirect(target))
    }

    /// One request.
    fn once(&self, target: &Target, url: &str, head: bool, bytes: Option<Bytes>) -> Result<Answer, HubError> {
        let whom = origin(url).ok_or_else(|| bad_redirect(target))?;
        if whom.https && !can_encrypt() {
            let problem = "this processor lacks instructions that encryption needs here (AES, carry-less \
                           multiplication, on x86-64 also AVX2 and ADX); download on another machine";
            return Err(HubError::BadAnswer { what: target.what.clone(), problem: problem.to_owned() });
        }
        let mut request = if head { self.agent.head(url) } else { self.agent.get(url) };
        if let Some(token) = self.token.as_ref().filter(|_| whom == self.origin) {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if let Some(Bytes { from, to }) = bytes {
            let end = to.map_or(String::new(), |to| (to - 1).to_string());
            request = request.header("range", format!("bytes={from}-{end}"));
        }
        let answer = request.call().map_err(|error| self.unreachable(target, &whom, error.to_string()))?;
        self.has_answered.store(true, Ordering::Relaxed);
        let (parts, body) = answer.into_parts();
        Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body })
    }

    fn unreachable(&self, target: &Target, whom: &Origin, reason: String) -> HubError {
        let Target { what, resumable, .. } = target.clone();
        HubError::Unreachable { what, host: whom.host.clone(), reason, resumable }
    }

    /// The error for an answer that is not the one that was hoped for.
    fn refusal(&self, target: &Target, answer: &Answer) -> HubError {
        let Target { what, page, resumable, .. } = target.clone();
        let has_token = self.token.is_some();
        match answer.status {
            status @ (401 | 403) => HubError::NoAccess { what, page, status, has_token },
            404 | 410 => HubError::Missing { what, page },
            429 => HubError::RateLimited { what, seconds: retry_after(&answer.headers), has_token },
            status => HubError::Status { what, status, resumable },
        }
    }
}

/// Statuses that pass by themselves.
fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504)
}

/// Seconds to wait, in the standard's words or in the hub's own: `RateLimit: "api";r=0;t=57`.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<u64> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    let standard = text("retry-after").and_then(|text| text.trim().parse().ok());
    let own = || text("ratelimit")?.split(';').find_map(|part| part.trim().strip_prefix("t=")?.parse().ok());
    standard.or_else(own)
}

/// Where a redirect leads: outer none where there is no redirect, inner none where it leads nowhere.
fn next_hop(url: &str, answer: &Answer) -> Option<Option<String>> {
    if !matches!(answer.status, 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = answer.headers.get("location").and_then(|value| value.to_str().ok());
    Some(location.and_then(|location| join(url, location)))
}

/// The address that a redirect at `url` means; none for one that would give up encryption.
pub(crate) fn join(url: &str, location: &str) -> Option<String> {
    let here = origin(url)?;
    let start = url.find("://")? + 3;
    let root = url[start..].find('/').map_or(url, |end| &url[..start + end]);
    let next = if location.starts_with("//") {
        format!("{}{location}", &url[..start - 2])
    } else if location.starts_with('/') {
        format!("{root}{location}")
    } else {
        location.to_owned()
    };
    let there = origin(&next)?;
    (there.https || !here.https).then_some(next)
}

pub(crate) fn origin(url: &str) -> Option<Origin> {
    let uri: Uri = url.parse().ok()?;
    let https = match uri.scheme_str()? {
        "https" => true,
        "http" => false,
        _ => return None,
    };
    // Names and passwords in an address would be sent to whoever it names.
    let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
    let port = authority.port_u16().unwrap_or(if https { 443 } else { 80 });
    Some(Origin { https, host: authority.host().to_ascii_lowercase(), port })
}

fn bad_redirect(target: &Target) -> HubError {
    let problem = "the hub redirects in circles or to an address that must not be followed".to_owned();
    HubError::BadAnswer { what: target.what.clone(), problem }
}

/// Encryption without a C compiler: the provider is Rust and inline assembly, so that every target can be checked on
/// every machine. Certificates are the system's, as for every other program on it.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn tls() -> ureq::tls::TlsConfig {
    let system = rustls_native_certs::load_native_certs().certs;
    let roots = system.iter().map(|found| ureq::tls::Certificate::from_der(found).to_owned());
    ureq::tls::TlsConfig::builder()
        .root_certs(roots.into())
        .unversioned_rustls_crypto_provider(std::sync::Arc::new(rustls_graviola::default_provider()))
        .build()
}

/// Whether the processor has what the provider needs; it would panic.
fn can_encrypt() -> bool {
    #[cfg(target_arch = "x86_64")]
    let can = is_x86_feature_detected!("aes")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("adx")
        && is_x86_feature_detected!("avx2");
    #[cfg(target_arch = "aarch64")]
    let can = std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull")
        && std::arch::is_aarch64_feature_detected!("sha2");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let can = false;
    can
}

/// A path in an address.
pub fn encoded(path: &str) -> String {
    let mut text = String::new();
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                text.push(byte.into())
            }
            _ => text += &format!("%{byte:02X}"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_scheme_host_and_port() {
        assert_eq!(origin("https://Hub.example/a"), origin("https://hub.example:443/b"));
        for other in ["http://hub.example", "https://hub.example:444", "https://a.hub.example"] {
            assert_ne!(origin("https://hub.example"), origin(other), "{other}");
        }
        for none in ["", "hub.example", "ftp://a", "file:///etc/passwd", "https://me:secret@hub.example"] {
            assert_eq!(origin(none), None, "{none}");
        }
    }

    #[test]
    fn redirects_lead_where_they_say_but_never_out_of_encryption() {
        let url = "https://hub.example:8/org/name/resolve/x";
        assert_eq!(join(url, "/api/y?z").as_deref(), Some("https://hub.example:8/api/y?z"));
        assert_eq!(join(url, "//cdn.example/y").as_deref(), Some("https://cdn.example/y"));
        assert_eq!(join(url, "https://cdn.example/y").as_deref(), Some("https://cdn.example/y"));
        assert_eq!(join("http://a/b", "https://cdn.example/y").as_deref(), Some("https://cdn.example/y"));
        for refused in ["http://hub.example/y", "y", "ftp://x", "https://a@b/c", ""] {
            assert_eq!(join(url, refused), None, "{refused}");
        }
    }

    #[test]
    fn waits_are_read_in_both_spellings() {
        let headers = |name: &'static str, value: &'static str| {
            HeaderMap::from_iter([(
                ureq::http::HeaderName::from_static(name),
                ureq::http::HeaderValue::from_static(value),
            )])
        };
        assert_eq!(retry_after(&headers("retry-after", " 7 ")), Some(7));
        assert_eq!(retry_after(&headers("ratelimit", "\"api\";r=0;t=57")), Some(57));
        assert_eq!(retry_after(&headers("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT")), None);
    }

    #[test]
    fn paths_are_encoded() {
        assert_eq!(encoded("a b/ü?#.gguf"), "a%20b/%C3%BC%3F%23.gguf");
    }
}
