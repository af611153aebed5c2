//! The surface that JavaScript sees, for the package's worker alone: strings of JSON in and out, errors with the
//! sentences of the program.
#![allow(unsafe_code, reason = "what wasm-bindgen generates")]

use std::ops::Range;
use std::time::Duration;

use js_sys::{Function, Promise};
use mambo_cpu::{CpuBackend, CpuOptions, Isa};
use mambo_kernel::{Backend, BackendError};
use mambo_webgpu::Watcher;
use serde_json::{Map, Value, json};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::future_to_promise;

use crate::gpu::Gpu;
use crate::open::{OpenEvent, OpenSettings, load, open};
use crate::request::read;
use crate::{RemoteError, RemoteFile, Session, WebError};

#[wasm_bindgen]
extern "C" {
    /// A file as the package gives it.
    pub type RangeFile;
    #[wasm_bindgen(method, getter)]
    fn name(this: &RangeFile) -> String;
    #[wasm_bindgen(method, getter)]
    fn size(this: &RangeFile) -> f64;
    /// Makes bytes readable.
    #[wasm_bindgen(method, catch)]
    async fn fetch(this: &RangeFile, start: f64, end: f64) -> Result<JsValue, JsValue>;
    /// Copies bytes; false if they have to be fetched first.
    #[wasm_bindgen(method, catch)]
    fn read(this: &RangeFile, start: f64, into: &mut [u8]) -> Result<bool, JsValue>;
    #[wasm_bindgen(method)]
    fn release(this: &RangeFile, start: f64, end: f64);

    #[wasm_bindgen(js_namespace = performance, js_name = now)]
    fn performance_now() -> f64;
    #[wasm_bindgen(js_namespace = console, js_name = error)]
    fn console_error(text: &str);
}

/// Numbers in JavaScript are exact up to here, and no file is as large.
const EXACT: f64 = 9_007_199_254_740_992.0;

impl RemoteFile for RangeFile {
    fn name(&self) -> String {
        RangeFile::name(self)
    }

    fn size(&self) -> u64 {
        let size = RangeFile::size(self);
        if (0.0..EXACT).contains(&size) { size as u64 } else { 0 }
    }

    fn read(&self, start: u64, into: &mut [u8]) -> Result<(), RemoteError> {
        match RangeFile::read(self, start as f64, into) {
            Ok(true) => Ok(()),
            Ok(false) => Err(RemoteError::Missing),
            Err(problem) => Err(RemoteError::Failed(message(&problem))),
        }
    }

    async fn fetch(&self, range: Range<u64>) -> Result<(), String> {
        let fetched = RangeFile::fetch(self, range.start as f64, range.end as f64).await;
        fetched.map(|_| ()).map_err(|problem| message(&problem))
    }

    fn release(&self, range: Range<u64>) {
        RangeFile::release(self, range.start as f64, range.end as f64);
    }
}

/// What JavaScript says about a failure.
fn message(problem: &JsValue) -> String {
    let text = js_sys::Reflect::get(problem, &JsValue::from_str("message")).ok();
    text.and_then(|text| text.as_string()).or_else(|| problem.as_string()).unwrap_or("it failed".to_owned())
}

fn failed(error: WebError) -> JsError {
    JsError::new(&error.to_string())
}

fn milliseconds() -> f64 {
    performance_now()
}

fn clock() -> Duration {
    Duration::from_secs_f64(performance_now().max(0.0) / 1000.0)
}

/// A panic is a bug; its sentence belongs where bugs are looked for.
#[wasm_bindgen(start)]
fn start() {
    std::panic::set_hook(Box::new(|panic| console_error(&panic.to_string())));
}

/// What this module was compiled for.
#[wasm_bindgen]
pub fn about() -> String {
    let sets: Vec<&str> = Isa::available().iter().map(|isa| isa.name()).collect();
    json!({"version": env!("CARGO_PKG_VERSION"), "instruction_sets": sets}).to_string()
}

/// GB/s at which one thread reads memory in a plain loop.
#[wasm_bindgen(js_name = readBandwidth)]
pub fn read_bandwidth(bytes: u32) -> Result<f64, JsError> {
    let mut backend = cpu()?;
    backend.read_bandwidth(bytes as usize).map_err(|error| JsError::new(&error.to_string()))
}

/// What WebAssembly's addresses leave, less what tokenizers and requests take.
fn free_memory() -> u64 {
    const ALL: u64 = 4 << 30;
    const RESERVED: u64 = 128 << 20;
    const PAGE: u64 = 64 << 10;
    ALL - RESERVED - (PAGE * core::arch::wasm32::memory_size(0) as u64).min(ALL - RESERVED)
}

fn cpu() -> Result<CpuBackend, JsError> {
    CpuBackend::new(CpuOptions { threads: 1, clock: Some(clock), ..CpuOptions::default() })
        .map_err(|error| failed(error.into()))
}

/// Opens and loads a model, on a GPU or on the processor. `beside` has the texts of the files beside safetensors weights
/// by name, `settings` is JSON, and `on_event` is told of notes and of bytes.
#[wasm_bindgen(js_name = openModel)]
pub async fn open_model(
    name: String,
    files: Vec<RangeFile>,
    beside: String,
    settings: String,
    gpu: Option<Gpu>,
    on_event: Function,
) -> Result<Core, JsError> {
    let beside: Map<String, Value> = read(&beside).map_err(failed)?;
    let mut settings: OpenSettings = read(&settings).map_err(failed)?;
    let watcher = gpu.as_ref().map(|gpu| gpu.backend.watcher());
    let backend: Box<dyn Backend> = match gpu {
        Some(gpu) => Box::new(gpu.backend),
        None => {
            settings.memory_bytes.get_or_insert_with(free_memory);
            Box::new(cpu()?)
        }
    };
    let opened = open(&name, files, beside).await.map_err(failed)?;
    let mut tell = |event: OpenEvent| {
        let event = match event {
            OpenEvent::Note(text) => json!({"type": "note", "text": text}),
            OpenEvent::Loaded(done, total) => json!({"type": "loaded", "done": done, "total": total}),
        };
        // Whoever listens badly is not to break the loading.
        let _ = on_event.call1(&JsValue::NULL, &JsValue::from_str(&event.to_string()));
    };
    let settled = async || settle(watcher.as_ref()).await;
    let loaded = load(opened, backend, &settings, milliseconds, &mut tell, settled).await;
    Ok(Core { session: loaded.map_err(failed)?, watcher })
}

/// Waits until the device has taken in what it was given.
async fn settle(watcher: Option<&Watcher>) -> Result<(), BackendError> {
    match watcher {
        Some(watcher) => watcher.settled("loading the model").await,
        None => Ok(()),
    }
}

/// A loaded model.
#[wasm_bindgen]
pub struct Core {
    session: Session,
    /// None on the processor, which has done all when it returns.
    watcher: Option<Watcher>,
}

#[wasm_bindgen]
impl Core {
    /// The model with its layers and memory, as JSON.
    pub fn view(&self) -> String {
        self.session.view().to_string()
    }

    /// What the engine does now, as JSON.
    pub fn live(&mut self) -> String {
        self.session.live().to_string()
    }

    /// Starts or stops measuring.
    pub fn watch(&mut self, on: bool) {
        self.session.watch(on);
    }

    /// Starts an answer to a conversation; returns its number.
    pub fn chat(&mut self, request: &str) -> Result<u32, JsError> {
        self.session.chat(request).map_err(failed)
    }

    /// Starts to go on with a text.
    pub fn complete(&mut self, request: &str) -> Result<u32, JsError> {
        self.session.complete(request).map_err(failed)
    }

    /// Starts to compute an embedding.
    pub fn embed(&mut self, text: &str) -> Result<u32, JsError> {
        self.session.embed(text).map_err(failed)
    }

    /// Starts to read a conversation for a snapshot.
    pub fn snapshot(&mut self, request: &str) -> Result<u32, JsError> {
        self.session.snapshot(request).map_err(failed)
    }

    /// The bytes of a snapshot, once they have arrived.
    pub fn export(&mut self, id: u32) -> Result<Option<Vec<u8>>, JsError> {
        self.session.export(id).map_err(failed)
    }

    /// Takes a snapshot; returns its tokens.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<u32, JsError> {
        self.session.restore(bytes).map(|tokens| tokens as u32).map_err(failed)
    }

    /// The tokens of a text.
    pub fn tokens(&self, text: &str) -> Result<Vec<u32>, JsError> {
        self.session.tokens(text).map_err(failed)
    }

    /// The logits after each token.
    pub fn logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, JsError> {
        self.session.logits(tokens).map_err(failed)
    }

    /// Ends an answer.
    pub fn cancel(&mut self, id: u32) {
        self.session.cancel(id);
    }

    /// Whether nothing runs.
    #[wasm_bindgen(js_name = isIdle)]
    pub fn is_idle(&self) -> bool {
        self.session.is_idle()
    }

    /// Fulfilled when a device has more to give, after a step or an export that gave nothing.
    pub fn arrival(&self) -> Promise {
        let arrival = self.watcher.as_ref().map(Watcher::arrival);
        future_to_promise(async move {
            if let Some(arrival) = arrival {
                arrival.await;
            }
            Ok(JsValue::UNDEFINED)
        })
    }

    /// Fulfilled with the reason when the device is lost; never on the processor.
    pub fn loss(&self) -> Promise {
        let watcher = self.watcher.clone();
        future_to_promise(async move {
            let Some(watcher) = watcher else { return std::future::pending().await };
            Ok(JsValue::from_str(&watcher.loss().await))
        })
    }

    /// Runs a step; the events are JSON, and nothing if a device still runs it.
    pub fn step(&mut self) -> Option<String> {
        self.session.step().map(|events| Value::Array(events).to_string())
    }
}
