//! A session over a file whose bytes are there only once they were fetched, on this machine.

use std::ops::Range;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use mambo_cpu::{CpuBackend, CpuOptions};
use mambo_web::{OpenEvent, OpenSettings, RemoteError, RemoteFile, Session, WebError, load, open};
use serde_json::{Map, Value, json};

/// Bytes of what was fetched last; nothing else can be read.
#[derive(Default)]
struct Fetched {
    ranges: Vec<Range<u64>>,
    largest: u64,
}

struct Remote {
    bytes: Vec<u8>,
    /// What may stay readable: a reader in a browser keeps a few blocks.
    kept: usize,
    fetched: Arc<Mutex<Fetched>>,
}

impl RemoteFile for Remote {
    fn name(&self) -> String {
        "remote.gguf".to_owned()
    }

    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&self, start: u64, into: &mut [u8]) -> Result<(), RemoteError> {
        let end = start + into.len() as u64;
        let is_there = |range: &Range<u64>| range.start <= start && end <= range.end;
        if !self.fetched.lock().unwrap().ranges.iter().any(is_there) {
            return Err(RemoteError::Missing);
        }
        let bytes = self.bytes.get(start as usize..end as usize);
        into.copy_from_slice(bytes.ok_or(RemoteError::Failed("beyond the end".to_owned()))?);
        Ok(())
    }

    async fn fetch(&self, range: Range<u64>) -> Result<(), String> {
        if range.end > self.size() {
            return Err("beyond the end".to_owned());
        }
        let mut fetched = self.fetched.lock().unwrap();
        fetched.largest = fetched.largest.max(range.end - range.start);
        fetched.ranges.push(range);
        let extra = fetched.ranges.len().saturating_sub(self.kept);
        fetched.ranges.drain(..extra);
        Ok(())
    }

    fn release(&self, _range: Range<u64>) {}
}

/// Runs what never really waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
}

fn built_in() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/assets/tiny-hybrid.gguf");
    std::fs::read(path).expect("the built-in model is in the repository")
}

fn session(bytes: Vec<u8>, settings: &OpenSettings) -> Result<(Session, u64, Vec<OpenEvent>), WebError> {
    let fetched = Arc::new(Mutex::new(Fetched::default()));
    let file = Remote { bytes, kept: 8, fetched: Arc::clone(&fetched) };
    let opened = now(open("remote.gguf", vec![file], Map::new()))?;
    let mut events = Vec::new();
    let backend = CpuBackend::new(CpuOptions { threads: 2, ..CpuOptions::default() })?;
    let session = now(load(
        opened,
        Box::new(backend),
        settings,
        || 0.0,
        &mut |event| events.push(event),
        async || Ok(()),
    ))?;
    let largest = fetched.lock().unwrap().largest;
    Ok((session, largest, events))
}

/// Steps until nothing runs, and gives all events.
fn run(session: &mut Session) -> Vec<Value> {
    let mut all = Vec::new();
    while !session.is_idle() {
        all.extend(session.step().unwrap_or_default());
    }
    all
}

fn content(events: &[Value]) -> String {
    let texts = events.iter().filter(|event| event["type"] == "content");
    texts.filter_map(|event| event["text"].as_str()).collect()
}

fn question(text: &str) -> String {
    let messages = json!([{"role": "user", "content": text}]);
    json!({"messages": messages, "thinking": false, "common": {"sampling": {"temperature": 0.0}}}).to_string()
}

#[test]
fn a_weight_at_a_time_is_fetched_and_the_model_adds() {
    let (mut session, largest, events) = session(built_in(), &OpenSettings::default()).unwrap();
    assert!(largest < built_in().len() as u64 / 2, "{largest} bytes were fetched at once");
    let Some(OpenEvent::Loaded(done, total)) = events.last() else { panic!("{events:?}") };
    assert_eq!(done, total);
    let id = session.chat(&question("What is 17 + 25?")).unwrap();
    let events = run(&mut session);
    assert!(content(&events).contains("42"), "{events:?}");
    let last = events.last().unwrap();
    assert_eq!(
        (&last["id"], &last["type"], &last["reason"]),
        (&json!(id), &json!("finished"), &json!("stop"))
    );
}

#[test]
fn snapshots_are_taken_exported_and_adopted() {
    let (mut first, _, _) = session(built_in(), &OpenSettings::default()).unwrap();
    let (mut second, _, _) = session(built_in(), &OpenSettings::default()).unwrap();
    let text = question(&"Seventeen and twenty-five are two numbers. ".repeat(12));
    for _ in 0..2 {
        // The second time it is in the prefix cache.
        let id = first.snapshot(&text).unwrap();
        let events = run(&mut first);
        assert!(events.iter().any(|event| event["type"] == "snapshot"), "{events:?}");
        assert_eq!(events.last().unwrap()["type"], "finished");
        let bytes = first.export(id).unwrap().expect("a CPU reads at once");
        let tokens = second.restore(&bytes).unwrap();
        assert!(tokens > 64);
        assert!(matches!(first.export(id), Err(WebError::NoSnapshot)));
    }
    second.chat(&text).unwrap();
    let events = run(&mut second);
    let started = events.iter().find(|event| event["type"] == "started").unwrap();
    assert!(started["reused_tokens"].as_u64().unwrap() > 64, "{started}");
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let (mut session, _, _) = session(built_in(), &OpenSettings::default()).unwrap();
    for request in ["", "{", "[]", r#"{"messages": 1}"#, r#"{"message": []}"#, r#"{"messages": []}"#] {
        assert!(session.chat(request).is_err(), "{request}");
        assert!(session.snapshot(request).is_err(), "{request}");
    }
    let stop: Vec<String> = (0..99).map(|n| n.to_string()).collect();
    let request = json!({"prompt": "x", "common": {"stop": stop}}).to_string();
    assert!(session.complete(&request).unwrap_err().to_string().contains("stop"));
    assert!(session.embed("").is_err() || !run(&mut session).is_empty());
    session.cancel(12345);
    run(&mut session);
    assert!(session.is_idle());
}

#[test]
fn what_does_not_fit_is_refused_with_the_arithmetic() {
    let settings = OpenSettings { memory_bytes: Some(1 << 20), ..OpenSettings::default() };
    let problem = session(built_in(), &settings).err().unwrap().to_string();
    assert!(problem.contains("the model needs") && problem.contains("1.0 MiB"), "{problem}");
}

#[test]
fn files_that_are_cut_short_are_refused() {
    let whole = built_in();
    for length in [0, 3, 24, 4000, whole.len() / 2, whole.len() - 1] {
        let problem = session(whole[..length].to_vec(), &OpenSettings::default()).err().unwrap().to_string();
        assert!(problem.contains("remote.gguf"), "{length}: {problem}");
    }
}
