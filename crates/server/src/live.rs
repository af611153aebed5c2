//! What the engine does at this moment, told to everybody who watches. Calls are timed while somebody does, and the
//! times are taken once for all: taking them starts them anew.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use mambo_runtime::{live_view, watch_engine};
use serde_json::{Map, Value};
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::http::Answer;
use crate::openapi::Operation;
use crate::service::Service;

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
        service.worker.tell(|engine| watch_engine(engine, true));
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
        service.worker.tell(|engine| watch_engine(engine, false));
        true
    }
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
        let view = Arc::clone(&service);
        let sample = service.worker.ask(move |engine| live_view(engine, &view.info.view)).await;
        let Some(mut sample) = sample else { break };
        let now = (Instant::now(), service.metrics.tokens());
        let seconds = (now.0 - before.0).as_secs_f64();
        sample["prompt_tokens_per_second"] = ((now.1[0] - before.1[0]) as f64 / seconds).into();
        sample["tokens_per_second"] = ((now.1[1] - before.1[1]) as f64 / seconds).into();
        before = now;
        if let Some(samples) = &*service.watchers.lock() {
            samples.send_replace(sample);
        }
    }
    // Ends the streams of those who watch.
    *service.watchers.lock() = None;
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
