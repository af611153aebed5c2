//! Conversations that outlive the server: named sessions, and the disk tier of the prefix cache.

mod client;

use std::path::{Path, PathBuf};

use client::{Running, chat, options, serve_with};
use mambo_engine::PrefixCacheConfig;
use mambo_runtime::LoadOptions;
use serde_json::{Value, json};

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("mambo-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Folder(path)
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.0).map(|entries| entries.flatten().map(|entry| entry.path()));
        entries.map(Iterator::collect).unwrap_or_default()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn with_sessions(folder: &Path) -> Running {
    let folder = folder.to_path_buf();
    serve_with(options(), move |config| config.sessions = Some(folder))
}

/// A system prompt that is worth keeping.
fn rules(seed: usize) -> String {
    (0..60).map(|n| format!("Rule {n}: the number {} is lucky. ", n * seed)).collect()
}

fn question(rules: &str) -> Value {
    let messages =
        json!([{"role": "system", "content": rules}, {"role": "user", "content": "What is 2 + 3?"}]);
    chat("", json!({"messages": messages, "max_tokens": 8}))
}

/// The answer's text and how many prompt tokens were restored.
fn ask(server: &Running, rules: &str) -> (String, u64) {
    let reply = server.post("/v1/chat/completions", &question(rules));
    assert_eq!(reply.status, 200, "{}", reply.body);
    let reply = reply.json();
    let text = reply["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    (text, reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap())
}

#[test]
fn a_session_is_ready_after_a_restart() {
    let folder = Folder::new("sessions");
    let body = json!({"name": "lucky", "messages": [{"role": "system", "content": rules(3)}]});
    let (want, tokens) = {
        let server = with_sessions(&folder.0);
        let saved = server.post("/sessions", &body);
        assert_eq!(saved.status, 200, "{}", saved.body);
        let tokens = saved.json()["tokens"].as_u64().unwrap();
        assert!(tokens > 300, "{tokens}");
        // The same again comes from the cache, and replaces the file.
        assert_eq!(server.post("/sessions", &body).json()["tokens"], tokens);
        (ask(&server, &rules(3)).0, tokens)
    };
    assert_eq!(folder.files().len(), 1, "no more than the session is there");
    let server = with_sessions(&folder.0);
    let listed = server.get("/sessions").json();
    assert_eq!(
        (&listed["sessions"][0]["name"], &listed["sessions"][0]["tokens"]),
        (&json!("lucky"), &json!(tokens))
    );
    let (text, cached) = ask(&server, &rules(3));
    assert_eq!(text, want);
    assert!(cached >= tokens, "{cached} of {tokens} tokens were restored");
    assert_eq!(server.post("/sessions/lucky/load", &json!({})).json()["tokens"], tokens);
    assert_eq!(server.request("DELETE", "/sessions/lucky", &[], "").status, 200);
    assert_eq!(server.request("DELETE", "/sessions/lucky", &[], "").status, 404);
    assert!(folder.files().is_empty());
}

#[test]
fn damaged_and_foreign_sessions_are_refused() {
    let folder = Folder::new("damaged");
    {
        let server = with_sessions(&folder.0);
        for name in ["whole", "bit", "cut", "version", "model"] {
            let body = json!({"name": name, "prompt": format!("{} {}", name, rules(5))});
            assert_eq!(server.post("/sessions", &body).status, 200);
        }
    }
    let change = |name: &str, change: fn(&mut Vec<u8>)| {
        let path = folder.0.join(format!("{name}.snapshot"));
        let mut bytes = std::fs::read(&path).unwrap();
        change(&mut bytes);
        std::fs::write(path, bytes).unwrap();
    };
    change("bit", |bytes| *bytes.last_mut().unwrap() ^= 1);
    change("cut", |bytes| bytes.truncate(bytes.len() - 1));
    change("version", |bytes| bytes[8] += 1);
    change("model", |bytes| bytes[12] += 1);
    std::fs::write(folder.0.join("left.snapshot.0.partial"), "half").unwrap();
    let server = with_sessions(&folder.0);
    assert!(!folder.0.join("left.snapshot.0.partial").exists(), "what a crash left is removed");
    let listed = server.get("/sessions").json();
    let names: Vec<&str> =
        listed["sessions"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["bit", "whole"], "the length tells some, the checksum the others");
    assert_eq!(server.post("/sessions/bit/load", &json!({})).status, 409);
    assert_eq!(server.post("/sessions/bit/load", &json!({})).status, 404, "it is not offered again");
    assert_eq!(server.post("/sessions/whole/load", &json!({})).status, 200);
}

#[test]
fn no_path_reaches_the_file_system() {
    let folder = Folder::new("paths");
    let server = with_sessions(&folder.0);
    for name in ["../up", "a/b", "", ".", "..", "a.b", "ä", "a b", "a\u{0}", &"x".repeat(65)] {
        let reply = server.post("/sessions", &json!({"name": name, "prompt": "hello"}));
        assert_eq!(reply.status, 400, "{name}: {}", reply.body);
        assert_eq!(reply.json()["error"]["param"], "name");
    }
    for path in ["/sessions/..%2Fup", "/sessions/%2e%2e", "/sessions/a%00"] {
        let status = server.request("DELETE", path, &[], "").status;
        assert!(matches!(status, 400 | 404), "{path}: {status}");
    }
    assert!(folder.files().is_empty());
    assert_eq!(server.post("/sessions", &json!({"name": "a"})).status, 400);
    assert_eq!(server.post("/sessions", &json!({"name": "a", "prompt": ""})).status, 400);
    let plain = client::serve(1, |_| {});
    assert_eq!(plain.get("/sessions").status, 404);
}

#[test]
fn a_folder_that_takes_nothing_ends_that_request_alone() {
    let folder = Folder::new("full");
    let server = with_sessions(&folder.0);
    // The name is taken by a folder, so that the file cannot be put in its place.
    std::fs::create_dir_all(folder.0.join("taken.snapshot")).unwrap();
    let reply = server.post("/sessions", &json!({"name": "taken", "prompt": "hello there"}));
    assert_eq!(reply.status, 507, "{}", reply.body);
    assert!(reply.body.contains("taken.snapshot"), "{}", reply.body);
    assert_eq!(server.ask("What is 2 + 3?", json!({}))["choices"][0]["finish_reason"], "stop");
}

/// A server whose prefix cache holds few prompts, and puts the others on disk.
fn with_disk(folder: &Path) -> Running {
    let folder = folder.to_path_buf();
    let prefix_cache = Some(PrefixCacheConfig { bytes: 3 << 20, every: None, spills: true });
    let options = LoadOptions { prefix_cache, ..options() };
    serve_with(options, move |config| config.disk_cache = Some((folder, 64 << 20)))
}

#[test]
fn the_disk_keeps_what_memory_drops_and_what_a_stop_would_lose() {
    let folder = Folder::new("disk");
    let mut want = Vec::new();
    {
        let server = with_disk(&folder.0);
        want.extend((2..8).map(|seed| ask(&server, &rules(seed)).0));
    }
    assert!(folder.files().len() >= 6, "{:?}", folder.files());
    let server = with_disk(&folder.0);
    for (seed, want) in (2..8).zip(want) {
        let (text, cached) = ask(&server, &rules(seed));
        assert_eq!(text, want, "prompt {seed}");
        assert!(cached > 256, "prompt {seed}: {cached} tokens");
    }
}

#[test]
fn embeddings_go_on_from_what_the_disk_holds() {
    let folder = Folder::new("embedded");
    let restored = |server: &Running| {
        let metrics = server.get("/metrics").body;
        let line = metrics.lines().find(|line| line.starts_with("vllm:prefix_cache_hits_total ")).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let embed = |server: &Running| {
        let reply = server.post("/v1/embeddings", &json!({"input": rules(3)}));
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()["data"][0]["embedding"].clone()
    };
    let want = embed(&with_disk(&folder.0));
    let server = with_disk(&folder.0);
    assert_eq!(embed(&server), want);
    assert!(restored(&server) > 256.0, "{} tokens", restored(&server));
}

#[test]
fn the_disk_keeps_its_budget() {
    let folder = Folder::new("budget");
    let path = folder.0.clone();
    let prefix_cache = Some(PrefixCacheConfig { bytes: 3 << 20, every: None, spills: true });
    let options = LoadOptions { prefix_cache, ..options() };
    let server = serve_with(options, move |config| config.disk_cache = Some((path, 4 << 20)));
    (2..8).for_each(|seed| _ = ask(&server, &rules(seed)));
    drop(server);
    let held: u64 = folder.files().iter().map(|path| path.metadata().unwrap().len()).sum();
    assert!(held > 0 && held <= 4 << 20, "{held}");
}
