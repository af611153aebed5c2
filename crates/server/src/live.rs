//! What the engine does at this moment, told to everybody who watches. Calls are timed while somebody does, and the
//! times are taken once for all: taking them starts them anew.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use mambo_engine::Engine;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::http::Answer;
use crate::openapi::Operation;
use crate::service::Service;
use crate::view::layer_of;

/// How often those who watch are told.
const TICK: Duration = Duration::from_millis(500);

/// Where samples are told, while somebody watches.
#[derive(Default)]
pub(crate) struct Watchers(Mutex<Option<watch::Sender<Value>>>);

impl Watchers {
    fn lock(&self) -> MutexGuard<'_, Option<watch::Sender<Value>>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Samples from now on; the first who watches has them taken.
    fn watch(&self, service: &Arc<Service>) -> watch::Receiver<Value> {
        let mut samples = self.lock();
        if let Some(samples) = &*samples {
            return samples.subscribe();
        }
        let (sender, receiver) = watch::channel(Value::Null);
        *samples = Some(sender);
        service.worker.tell(|engine| measure(engine, true));
        tokio::spawn(take_samples(Arc::clone(service)));
        receiver
    }

    /// Whether nobody watches any more, in which case the next one begins anew.
    fn end_if_alone(&self, service: &Service) -> bool {
        let mut samples = self.lock();
        if samples.as_ref().is_some_and(|samples| samples.receiver_count() > 0) {
            return false;
        }
        *samples = None;
        service.worker.tell(|engine| measure(engine, false));
        true
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
        let mut samples = service.watchers.watch(&service);
        while samples.changed().await.is_ok() {
            let sample = samples.borrow_and_update().clone();
            events.send(&sample);
        }
    }))
}

/// Takes a sample every so often until nobody watches or the engine has ended.
async fn take_samples(service: Arc<Service>) {
    let mut before = (Instant::now(), service.metrics.tokens());
    loop {
        tokio::time::sleep(TICK).await;
        if service.watchers.end_if_alone(&service) {
            return;
        }
        let Some(mut sample) = service.worker.ask(sample).await else { break };
        let now = (Instant::now(), service.metrics.tokens());
        let seconds = (now.0 - before.0).as_secs_f64();
        sample["prompt_tokens_per_second"] = ((now.1[0] - before.1[0]) as f64 / seconds).into();
        sample["tokens_per_second"] = ((now.1[1] - before.1[1]) as f64 / seconds).into();
        before = now;
        for layer in sample["layers"].as_array_mut().into_iter().flatten() {
            let index = layer["index"].as_u64().unwrap_or(0) as usize;
            layer["bytes"] = bytes_read(&service.info.view["layers"][index]).into();
        }
        if let Some(samples) = &*service.watchers.lock() {
            samples.send_replace(sample);
        }
    }
    // Ends the streams of those who watch.
    *service.watchers.lock() = None;
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

/// The model that is served.
#[derive(ToSchema)]
#[allow(dead_code, reason = "describes JSON")]
struct ModelView {
    /// Its name.
    name: String,
    /// Its layers with their sizes.
    #[serde(default)]
    layers: Vec<Map<String, Value>>,
    /// Bytes by what they are for.
    #[serde(default)]
    memory: Map<String, Value>,
    /// Its own settings of sampling.
    recommended: Map<String, Value>,
}

/// What the engine does at this moment.
#[derive(ToSchema)]
#[allow(dead_code, reason = "describes JSON")]
struct LiveSample {
    /// Sequences that are answered.
    running: usize,
    /// Requests that wait.
    waiting: usize,
    /// Speed of reading.
    prompt_tokens_per_second: f64,
    /// Speed of answering.
    tokens_per_second: f64,
    /// The prefix cache.
    cache: Option<Map<String, Value>>,
    /// Microseconds that each layer took since the last event.
    layers: Vec<Map<String, Value>>,
    /// How often each expert of a layer was chosen since the last event, by the layer's number.
    experts: Map<String, Value>,
}

/// These paths for the OpenAPI document.
pub(crate) fn operations() -> Vec<Operation> {
    vec![
        Operation::get("/api/mambo/model", "The model's layers and memory").answers::<ModelView>(),
        Operation::get("/api/mambo/live", "What the engine does, twice a second")
            .streams::<LiveSample>("text/event-stream"),
    ]
}
