//! The model as the page draws it: its layers with their sizes, and live what the engine does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mambo_engine::{Engine, source_bytes};
use mambo_kernel::WeightSource;
use mambo_model::Mixer;
use mambo_runtime::{Model, RuntimeError};
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::http::{Answer, EventSender};
use crate::service::Service;

/// How often somebody who watches is told.
const TICK: Duration = Duration::from_millis(500);

/// The layer that a call or weight belongs to, by its name.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("layers.")?.split('.').next()?.parse().ok()
}

/// The layers of a loaded model and the memory it takes.
pub fn model_view(model: &Model, engine: &Engine) -> Result<Value, RuntimeError> {
    let weights = model.weights()?;
    let program = engine.backend().program(engine.program_ids().0);
    let mut sizes: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
    for key in &program.weights {
        let (Some(layer), Some(weight)) = (layer_of(&key.name), weights.get(&key.name)) else { continue };
        let elems: usize = weight.shape().iter().product();
        let bytes = source_bytes(&weights, &key.name).unwrap_or(0);
        let size = sizes.entry(layer).or_default();
        *size = (size.0 + elems as u64, size.1 + bytes);
    }
    let layout = engine.cache_layout();
    let (kv_layers, state_layers) = (layout.kv_layers.len().max(1), layout.state_layers.len().max(1));
    let layers = model.spec.layers.iter().enumerate().map(|(index, layer)| {
        let (parameters, bytes) = sizes.get(&index).copied().unwrap_or_default();
        let mut view = json!({
            "index": index, "parameters": parameters, "bytes": bytes, "state_bytes": 0, "kv_bytes_per_token": 0,
            "experts": 0, "experts_used": 0,
        });
        let (kind, label) = match &layer.mixer {
            Mixer::Mamba2(dims) => {
                view["state_bytes"] = (layout.slot_bytes() / state_layers).into();
                ("mamba", format!("Mamba-2, {} heads of {}, state {}", dims.heads, dims.head_dim, dims.state))
            }
            Mixer::Attention(dims) => {
                view["kv_bytes_per_token"] = (layout.kv_bytes_per_token() / kv_layers).into();
                ("attention", format!("attention, {} heads over {}", dims.q_heads, dims.kv_heads))
            }
            Mixer::Mlp { width } => ("mlp", format!("MLP of {width}")),
            Mixer::Moe(moe) => {
                view["experts"] = moe.route.experts.into();
                view["experts_used"] = moe.route.top_k.into();
                ("moe", format!("{} of {} experts of {}", moe.route.top_k, moe.route.experts, moe.expert_width))
            }
        };
        view["kind"] = kind.into();
        view["label"] = label.into();
        view
    });
    let config = engine.config();
    let arena =
        [engine.program_ids().0, engine.program_ids().1].map(|id| engine.backend().program(id).arena_bytes);
    let states = layout.slot_bytes() as u64 * layout.slots as u64;
    Ok(json!({
        "architecture": model.spec.architecture, "parameters": model.spec.parameters().total,
        "file_bytes": file_bytes(model), "backend": engine.backend().name(),
        "context_tokens": config.context_tokens, "vocabulary": model.spec.vocab,
        "max_sequences": config.max_sequences, "layers": layers.collect::<Vec<_>>(),
        "memory": {
            "weights": engine.backend().weight_bytes(), "kv_cache": layout.kv_bytes(), "states": states,
            "activations": arena.into_iter().max(),
            "prefix_cache": config.prefix_cache.map_or(0, |cache| cache.bytes),
        },
    }))
}

/// Bytes of the tensors in a model's files.
pub fn file_bytes(model: &Model) -> u64 {
    model.checkpoint.tensors().map(|tensor| tensor.byte_len()).sum()
}

/// `/api/mambo/model`.
pub(crate) fn model(service: &Service) -> Value {
    let mut view = service.info.view.clone();
    let usual = service.text.sampling();
    view["name"] = service.model_name().into();
    view["recommended"] = json!({"temperature": usual.temperature, "top_p": usual.top_p});
    view
}

/// Counts those who watch; calls are timed while there is anybody.
#[derive(Default)]
pub(crate) struct Watchers(AtomicUsize);

/// Somebody who watches, until it is dropped: a client may go at any moment.
struct Watching(Arc<Service>);

impl Watching {
    fn begin(service: Arc<Service>) -> Watching {
        if service.watchers.0.fetch_add(1, Ordering::Relaxed) == 0 {
            service.worker.tell(|engine| measure(engine, true));
        }
        Watching(service)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if self.0.watchers.0.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.worker.tell(|engine| measure(engine, false));
        }
    }
}

/// Starts or stops all that is measured for those who watch.
fn measure(engine: &mut Engine, on: bool) {
    let _ = engine.backend_mut().set_profiling(on);
    engine.watch_experts(on);
}

/// `/api/mambo/live`: an event every so often until nobody listens.
pub(crate) async fn live(service: Arc<Service>) -> Result<Answer, ApiError> {
    Ok(Answer::stream(move |events| async move {
        let watching = Watching::begin(service);
        watch(&watching.0, &events).await;
    }))
}

async fn watch(service: &Service, events: &EventSender) {
    let mut before = (Instant::now(), service.metrics.tokens());
    loop {
        tokio::time::sleep(TICK).await;
        let Some(mut sample) = service.worker.ask(sample).await else { return };
        let now = (Instant::now(), service.metrics.tokens());
        let seconds = (now.0 - before.0).as_secs_f64();
        sample["prompt_tokens_per_second"] = ((now.1[0] - before.1[0]) as f64 / seconds).into();
        sample["tokens_per_second"] = ((now.1[1] - before.1[1]) as f64 / seconds).into();
        before = now;
        for layer in sample["layers"].as_array_mut().into_iter().flatten() {
            let index = layer["index"].as_u64().unwrap_or(0) as usize;
            layer["bytes"] = bytes_read(&service.info.view["layers"][index]).into();
        }
        if !events.send(&sample).await {
            return;
        }
    }
}

/// Bytes of a layer's weights that one token reads: of experts only those that are chosen.
fn bytes_read(layer: &Value) -> u64 {
    let number = |key: &str| layer[key].as_u64().unwrap_or(0);
    match number("experts") {
        0 => number("bytes"),
        experts => number("bytes") * number("experts_used") / experts,
    }
}

/// What the engine does now.
fn sample(engine: &mut Engine) -> Value {
    let (waiting, running) = engine.load_counts();
    let cache = engine.prefix_cache().map(|stats| {
        let rate = stats.restored_tokens as f64 / stats.prompt_tokens.max(1) as f64;
        let budget = engine.config().prefix_cache.map_or(0, |cache| cache.bytes);
        json!({"bytes": stats.bytes, "budget": budget, "snapshots": stats.snapshots, "hit_rate": rate})
    });
    let mut layers: BTreeMap<usize, f64> = BTreeMap::new();
    let (prefill, decode) = engine.program_ids();
    for id in [prefill, decode] {
        let times = engine.backend().call_times(id).unwrap_or_default();
        for (call, time) in engine.backend().program(id).calls.iter().zip(times) {
            if let Some(layer) = layer_of(&call.label) {
                *layers.entry(layer).or_default() += time.total.as_secs_f64() * 1e6;
            }
        }
    }
    // Switching it on again starts the times anew.
    let _ = engine.backend_mut().set_profiling(true);
    let layers: Vec<Value> =
        layers.into_iter().map(|(index, time)| json!({"index": index, "microseconds": time})).collect();
    let experts = engine.take_expert_counts().into_iter();
    let experts: Map<String, Value> = experts
        .filter_map(|layer| Some((layer_of(&layer.label)?.to_string(), json!(layer.counts))))
        .collect();
    json!({"running": running, "waiting": waiting, "cache": cache, "layers": layers, "experts": experts})
}
