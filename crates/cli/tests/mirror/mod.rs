//! A small hub on loopback: one repository, a second address that large files are redirected to, faults on demand, and
//! a record of everything that was asked and sent.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::program::scratch;

/// The repository.
pub const REPO: &str = "org/tiny";
/// Its one commit.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What goes wrong with the next answer for a file.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The connection is cut after so many bytes.
    CutAfter(usize),
    /// Another status.
    Status(u16),
    /// Too many requests, for so many seconds.
    RateLimit(u64),
    /// Other bytes, as many.
    WrongBytes,
    /// An answer that says it is shorter than it should be.
    Short(usize),
}

/// How the mirror behaves all the time.
#[derive(Clone, Debug, Default)]
pub struct Habits {
    /// Every answer is the whole file.
    pub ignores_ranges: bool,
    /// The listing has names alone.
    pub lists_names_only: bool,
    /// Nobody gets in without this.
    pub wants_token: Option<String>,
    /// A pause after every 64 KiB.
    pub pause: Option<Duration>,
    /// What the listing says instead.
    pub listing: Option<Value>,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub range: Option<String>,
    pub token: Option<String>,
    pub from_storage: bool,
    pub sent: usize,
}

struct Shared {
    files: BTreeMap<String, Vec<u8>>,
    habits: Habits,
    storage: String,
    faults: Mutex<Vec<(String, Fault)>>,
    asked: Mutex<Vec<Asked>>,
}

/// The mirror, and a home folder for programs that use it.
pub struct Mirror {
    pub address: String,
    pub home: PathBuf,
    shared: Arc<Shared>,
}

impl Mirror {
    /// A repository of these files.
    pub fn new(files: &[(&str, &[u8])]) -> Mirror {
        Mirror::with(files, Habits::default())
    }

    /// The same with habits.
    pub fn with(files: &[(&str, &[u8])], habits: Habits) -> Mirror {
        let (hub, storage) = (listener(), listener());
        let address_of = |l: &TcpListener| format!("http://{}", l.local_addr().unwrap());
        let address = address_of(&hub);
        let shared = Arc::new(Shared {
            files: files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect(),
            habits,
            storage: address_of(&storage),
            faults: Mutex::default(),
            asked: Mutex::default(),
        });
        for (listener, is_storage) in [(hub, false), (storage, true)] {
            let shared = shared.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let shared = shared.clone();
                    std::thread::spawn(move || shared.answer(stream, is_storage));
                }
            });
        }
        Mirror { address, home: scratch("hub-home"), shared }
    }

    /// The next answers that bring a file go wrong in this order.
    pub fn fails(&self, file: &str, faults: &[Fault]) {
        let mut all = self.shared.faults.lock().unwrap();
        all.extend(faults.iter().map(|fault| (file.to_owned(), fault.clone())));
    }

    /// Everything that was asked for.
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }

    /// Bytes of a file that were sent.
    pub fn sent(&self, file: &str) -> usize {
        self.asked().iter().filter(|asked| asked.path.ends_with(file)).map(|asked| asked.sent).sum()
    }

    /// The program, with this mirror as its hub and nothing of the user's own settings.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mambo"));
        for name in ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "XDG_CACHE_HOME"] {
            command.env_remove(name);
        }
        command.env("HF_ENDPOINT", &self.address).env("HF_HOME", &self.home).env("NO_PROXY", "*");
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the program to its end.
    pub fn mambo(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the program starts")
    }

    /// The same without any hub to ask.
    pub fn offline(&self, arguments: &[&str]) -> Output {
        // Nothing listens on the port of a listener that is gone.
        let gone = format!("http://{}", listener().local_addr().unwrap());
        self.command(arguments).env("HF_ENDPOINT", gone).output().expect("the program starts")
    }

    /// The repository's folder in the cache.
    pub fn cached(&self) -> PathBuf {
        self.home.join("hub/models--org--tiny")
    }

    /// A file of the snapshot.
    pub fn snapshot(&self, file: &str) -> PathBuf {
        self.cached().join("snapshots").join(COMMIT).join(file)
    }

    /// Names in the folder of blobs.
    pub fn blobs(&self) -> Vec<String> {
        names(&self.cached().join("blobs"))
    }
}

/// Names in a folder, in order.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|e| e.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a port is free")
}

fn is_large(name: &str) -> bool {
    name.ends_with(".gguf") || name.ends_with(".safetensors") || name.ends_with(".bin")
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The SHA-256 of a large file, the id of git of a small one.
pub fn checksum(name: &str, bytes: &[u8]) -> String {
    match is_large(name) {
        true => digits(&Sha256::digest(bytes)),
        false => digits(&Sha1::digest([format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat())),
    }
}

impl Shared {
    fn answer(&self, stream: TcpStream, is_storage: bool) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            match reader.read_line(&mut line) {
                Ok(count) if count > 0 && line.trim_end().is_empty() => break,
                Ok(count) if count > 0 => lines.push(line.trim_end().to_owned()),
                _ => return,
            }
        }
        let header = |name: &str| {
            let found = lines.iter().skip(1).filter_map(|line| line.split_once(": "));
            found.filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.to_owned()).next()
        };
        let mut words = lines[0].split(' ');
        let mut asked = Asked {
            method: words.next().unwrap_or_default().to_owned(),
            path: words.next().unwrap_or_default().to_owned(),
            range: header("range"),
            token: header("authorization"),
            from_storage: is_storage,
            sent: 0,
        };
        let wanted = self.habits.wants_token.as_ref().map(|token| format!("Bearer {token}"));
        let path = asked.path.clone();
        let (listing, resolve) =
            (format!("/api/models/{REPO}/revision/main?"), format!("/{REPO}/resolve/{COMMIT}/"));
        if !is_storage && wanted.is_some() && wanted != asked.token {
            let status = if asked.token.is_some() { 403 } else { 401 };
            self.send(stream, &mut asked, status, &[], &[]);
        } else if path.starts_with(&listing) {
            let body = self.habits.listing.clone().unwrap_or_else(|| self.listing()).to_string();
            self.send(stream, &mut asked, 200, &[], body.as_bytes());
        } else if let Some((name, bytes)) = path
            .strip_prefix(&resolve)
            .or(path.strip_prefix("/storage/"))
            .and_then(|n| self.files.get_key_value(n))
        {
            let (sum, size) = (checksum(name, bytes), bytes.len());
            if is_large(name) && !is_storage {
                let headers = [
                    format!("X-Linked-Etag: \"{sum}\""),
                    format!("X-Linked-Size: {size}"),
                    format!("X-Repo-Commit: {COMMIT}"),
                    "ETag: \"not-the-checksum\"".to_owned(),
                    format!("Location: {}/storage/{name}", self.storage),
                ];
                self.send(stream, &mut asked, 302, &headers, b"moved");
            } else {
                self.send_file(stream, &mut asked, name, bytes, &sum);
            }
        } else {
            self.send(stream, &mut asked, 404, &[], b"no such thing");
        }
    }

    fn listing(&self) -> Value {
        let sibling = |(name, bytes): (&String, &Vec<u8>)| {
            let sum = checksum(name, bytes);
            match (self.habits.lists_names_only, is_large(name)) {
                (true, _) => json!({"rfilename": name}),
                (_, true) => json!({"rfilename": name, "size": bytes.len(), "blobId": "0".repeat(40),
                    "lfs": {"sha256": sum, "size": bytes.len(), "pointerSize": 134}}),
                (_, false) => json!({"rfilename": name, "size": bytes.len(), "blobId": sum}),
            }
        };
        let siblings: Vec<Value> = self.files.iter().map(sibling).collect();
        json!({"id": REPO, "sha": COMMIT, "siblings": siblings})
    }

    fn send_file(&self, stream: TcpStream, asked: &mut Asked, name: &str, bytes: &[u8], sum: &str) {
        let fault = {
            let mut faults = self.faults.lock().unwrap();
            faults.iter().position(|(file, _)| file == name).map(|at| faults.remove(at).1)
        };
        let from = asked.range.as_ref().filter(|_| !self.habits.ignores_ranges).map(|range| {
            let (from, to) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
            (from.parse::<usize>().unwrap(), to.parse().map_or(bytes.len(), |last: usize| last + 1))
        });
        let mut headers = vec![format!("ETag: \"{sum}\""), format!("X-Repo-Commit: {COMMIT}")];
        let (status, body) = match from {
            Some((from, _)) if from >= bytes.len() => (416, &bytes[..0]),
            Some((from, to)) => {
                headers.push(format!("Content-Range: bytes {from}-{}/{}", to - 1, bytes.len()));
                (206, &bytes[from..to])
            }
            None => (200, bytes),
        };
        match fault {
            None => self.send(stream, asked, status, &headers, body),
            Some(Fault::Status(other)) => self.send(stream, asked, other, &[], b"failed"),
            Some(Fault::RateLimit(seconds)) => {
                self.send(stream, asked, 429, &[format!("Retry-After: {seconds}")], b"slow down");
            }
            Some(Fault::WrongBytes) => {
                let wrong: Vec<u8> = body.iter().map(|byte| byte ^ 1).collect();
                self.send(stream, asked, status, &headers, &wrong);
            }
            Some(Fault::Short(count)) => self.send(stream, asked, status, &headers, &body[..count]),
            Some(Fault::CutAfter(count)) => {
                self.send_part(stream, asked, (status, &headers), &body[..count], body.len());
            }
        }
    }

    fn send(&self, stream: TcpStream, asked: &mut Asked, status: u16, headers: &[String], body: &[u8]) {
        self.send_part(stream, asked, (status, headers), body, body.len());
    }

    /// Sends some of what it says it sends, and hangs up. What was sent is on record before the last byte goes out, so
    /// that a client that is done finds it there.
    fn send_part(
        &self,
        mut stream: TcpStream,
        asked: &mut Asked,
        (status, headers): (u16, &[String]),
        body: &[u8],
        announced: usize,
    ) {
        let mut head =
            format!("HTTP/1.1 {status} Something\r\nContent-Length: {announced}\r\nConnection: close\r\n");
        for header in headers {
            head += &format!("{header}\r\n");
        }
        head += "\r\n";
        let body = if asked.method == "HEAD" { &[] } else { body };
        let at = {
            let mut all = self.asked.lock().unwrap();
            all.push(asked.clone());
            all.len() - 1
        };
        if stream.write_all(head.as_bytes()).is_err() {
            return;
        }
        for chunk in body.chunks(64 << 10) {
            self.asked.lock().unwrap()[at].sent += chunk.len();
            if stream.write_all(chunk).is_err() {
                return;
            }
            if let Some(pause) = self.habits.pause {
                std::thread::sleep(pause);
            }
        }
    }
}
