//! A GPU as JavaScript holds it: opened before a model is, tried by the diagnostics, then the model's backend.
#![allow(unsafe_code, reason = "what wasm-bindgen generates")]

use mambo_webgpu::{WebGpuBackend, WebGpuOptions};
use serde_json::{Value, json};
use wasm_bindgen::prelude::*;

/// An open GPU.
#[wasm_bindgen]
pub struct Gpu {
    pub(crate) backend: WebGpuBackend,
}

/// Opens the GPU that the browser gives; `name` is what it calls it.
#[wasm_bindgen(js_name = openGpu)]
pub async fn open_gpu(name: String) -> Result<Gpu, JsError> {
    let options = WebGpuOptions { name: Some(name), ..WebGpuOptions::default() };
    let backend = WebGpuBackend::open(&options).await;
    backend.map(|backend| Gpu { backend }).map_err(|error| JsError::new(&error.to_string()))
}

/// Tries a GPU with tasks whose results are known; the checks as JSON, up to the first that failed.
#[wasm_bindgen(js_name = diagnoseGpu)]
pub async fn diagnose_gpu(mut gpu: Gpu) -> String {
    let checks = gpu.backend.diagnose().await;
    let checks = checks.into_iter().map(|check| json!({"name": check.name, "problem": check.result.err()}));
    Value::Array(checks.collect()).to_string()
}
