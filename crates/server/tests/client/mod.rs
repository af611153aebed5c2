//! A server with the small model, and a plain HTTP client for it.
#![allow(dead_code, reason = "each test program uses its part")]

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use mambo_cpu::{CpuBackend, CpuOptions};
use mambo_engine::PrefixCacheConfig;
use mambo_runtime::{LoadOptions, Model, OpenOptions};
use mambo_server::{ModelInfo, Server, ServerConfig};
use serde_json::{Value, json};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-hybrid-Q4_K_M.gguf");
/// What the model is called.
pub const NAME: &str = "tiny";

/// A running server; it stops when it is dropped.
pub struct Running {
    pub address: SocketAddr,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server ends without a panic");
        }
    }
}

/// Starts a server; `change` adjusts its settings.
pub fn serve(sequences: usize, change: impl FnOnce(&mut ServerConfig) + Send + 'static) -> Running {
    serve_with(LoadOptions { sequences, ..options() }, change)
}

/// What engines are loaded with.
pub fn options() -> LoadOptions {
    let prefix_cache = Some(PrefixCacheConfig { bytes: 64 << 20, every: None, spills: false });
    LoadOptions {
        sequences: 4,
        context_tokens: Some(2048),
        prefix_cache,
        embeddings: true,
        expert_counts: true,
        ..LoadOptions::default()
    }
}

/// The same with an engine of these options.
pub fn serve_with(options: LoadOptions, change: impl FnOnce(&mut ServerConfig) + Send + 'static) -> Running {
    let (sender, receiver) = mpsc::channel();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        let model = Model::open(MODEL, &OpenOptions::default()).unwrap();
        let backend = Box::new(CpuBackend::new(CpuOptions::default()).unwrap());
        let engine = model.load(backend, &options, &mut |_| {}).unwrap();
        let mut config = ServerConfig::new("127.0.0.1:0".parse().unwrap(), NAME);
        config.grace = Duration::from_secs(2);
        change(&mut config);
        let info = ModelInfo { vocabulary: model.spec.vocab, ..ModelInfo::default() };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let server = Server::bind(config, engine, model.text().unwrap(), info).await.unwrap();
            sender.send(server.address()).unwrap();
            let stop = async move {
                let _ = stopped.await;
            };
            server.run(stop).await.unwrap();
        });
    });
    let address = receiver.recv().expect("the server starts");
    Running { address, stop: Some(stop), thread: Some(thread) }
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// The data of every event, the last `[DONE]` left out.
    pub fn events(&self) -> Vec<Value> {
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

impl Running {
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Sends bytes as they are and reads the answer.
    pub fn send_raw(&self, request: &[u8]) -> Reply {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        read_reply(&mut BufReader::new(stream))
    }

    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        self.send_raw(&self.bytes(method, path, headers, body))
    }

    pub fn bytes(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
        let mut text =
            format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in [("host", "localhost"), ("content-type", "application/json")] {
            if !headers.iter().any(|(own, _)| *own == name) {
                text += &format!("{name}: {value}\r\n");
            }
        }
        headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
        (text + "\r\n" + body).into_bytes()
    }

    pub fn get(&self, path: &str) -> Reply {
        self.request("GET", path, &[], "")
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.request("POST", path, &[], &body.to_string())
    }

    /// A whole chat answer to a question, the most likely tokens only.
    pub fn ask(&self, question: &str, more: Value) -> Value {
        let reply = self.post("/v1/chat/completions", &chat(question, more));
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()
    }
}

/// A chat request for the most likely answer.
pub fn chat(question: &str, more: Value) -> Value {
    let mut request = json!({
        "model": NAME, "messages": [{"role": "user", "content": question}], "temperature": 0,
        "reasoning_effort": "none",
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        request[key] = value.clone();
    }
    request
}

/// A `logit_bias` with which no answer ends by itself.
pub fn never_ending() -> Value {
    json!({"2": -100, "11": -100})
}

/// Reads one answer; the connection may go on.
pub fn read_reply(reader: &mut impl BufRead) -> Reply {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status =
        line.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{line}"));
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let is_chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let mut bytes = Vec::new();
    if is_chunked {
        loop {
            line.clear();
            reader.read_line(&mut line).unwrap();
            let size = usize::from_str_radix(line.trim_end(), 16).unwrap_or(0);
            let mut chunk = vec![0; size + 2];
            reader.read_exact(&mut chunk).unwrap();
            if size == 0 {
                break;
            }
            bytes.extend_from_slice(&chunk[..size]);
        }
    } else {
        let length = headers.iter().find(|(name, _)| name == "content-length");
        bytes.resize(length.and_then(|(_, value)| value.parse().ok()).unwrap_or(0), 0);
        reader.read_exact(&mut bytes).unwrap();
    }
    Reply { status, headers, body: String::from_utf8(bytes).unwrap() }
}
