//! Counters for Prometheus, under the names that vLLM uses, so that routers and dashboards for it can read them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mambo_engine::{Engine, FinishReason, PrefixCacheStats};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

type Labels = Vec<(String, String)>;

/// What the server counts.
pub(crate) struct Metrics {
    registry: Registry,
    running: Gauge,
    connections: Gauge,
    waiting: Gauge,
    cache_bytes: Gauge,
    cache_queries: Counter,
    cache_hits: Counter,
    prompt_tokens: Counter,
    generated_tokens: Counter,
    finished: Family<Labels, Counter>,
    refused: Counter,
    queue_time: Histogram,
    first_token: Histogram,
    between_tokens: Histogram,
    whole: Histogram,
    lost: AtomicBool,
    /// What the cache's counters were last.
    cache_before: Mutex<PrefixCacheStats>,
}

impl Metrics {
    pub fn new() -> Metrics {
        let seconds = || Histogram::new(exponential_buckets(0.001, 2.0, 18));
        let mut metrics = Metrics {
            registry: Registry::default(),
            running: Gauge::default(),
            connections: Gauge::default(),
            waiting: Gauge::default(),
            cache_bytes: Gauge::default(),
            cache_queries: Counter::default(),
            cache_hits: Counter::default(),
            prompt_tokens: Counter::default(),
            generated_tokens: Counter::default(),
            finished: Family::default(),
            refused: Counter::default(),
            queue_time: seconds(),
            first_token: seconds(),
            between_tokens: seconds(),
            whole: seconds(),
            lost: AtomicBool::new(false),
            cache_before: Mutex::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register("vllm:num_requests_running", "Sequences that hold a slot", self.running.clone());
        registry.register("vllm:num_requests_waiting", "Requests that wait for a slot", self.waiting.clone());
        registry.register("mambo:connections", "Connections that are open", self.connections.clone());
        let text = "Prompt tokens that were looked up in the prefix cache";
        registry.register("vllm:prefix_cache_queries", text, self.cache_queries.clone());
        let text = "Prompt tokens that the prefix cache restored";
        registry.register("vllm:prefix_cache_hits", text, self.cache_hits.clone());
        registry.register(
            "mambo:prefix_cache_bytes",
            "Bytes that the prefix cache holds",
            self.cache_bytes.clone(),
        );
        registry.register("vllm:prompt_tokens", "Prompt tokens of requests", self.prompt_tokens.clone());
        registry.register(
            "vllm:generation_tokens",
            "Tokens that were generated",
            self.generated_tokens.clone(),
        );
        registry.register(
            "vllm:request_success",
            "Requests that ended, by the reason",
            self.finished.clone(),
        );
        registry.register(
            "mambo:requests_refused",
            "Requests refused because too many waited",
            self.refused.clone(),
        );
        let text = "Seconds from arrival to a slot";
        registry.register("vllm:request_queue_time_seconds", text, self.queue_time.clone());
        let text = "Seconds from arrival to the first token";
        registry.register("vllm:time_to_first_token_seconds", text, self.first_token.clone());
        let text = "Seconds between two tokens of a request";
        registry.register("vllm:inter_token_latency_seconds", text, self.between_tokens.clone());
        let text = "Seconds from arrival to the last token";
        registry.register("vllm:e2e_request_latency_seconds", text, self.whole.clone());
    }

    /// Everything in Prometheus' text form.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    /// Prompt tokens and generated tokens so far.
    pub fn tokens(&self) -> [u64; 2] {
        [self.prompt_tokens.get(), self.generated_tokens.get()]
    }

    /// Counts connections: 1 more, or 1 less.
    pub fn note_connection(&self, change: i64) {
        self.connections.inc_by(change);
    }

    pub fn note_refusal(&self) {
        self.refused.inc();
    }

    pub fn note_prompt(&self, tokens: usize) {
        self.prompt_tokens.inc_by(tokens as u64);
    }

    pub fn note_start(&self, waited: Duration) {
        self.queue_time.observe(waited.as_secs_f64());
    }

    pub fn note_token(&self, since_last: Option<Duration>, since_arrival: Duration) {
        self.generated_tokens.inc();
        match since_last {
            Some(gap) => self.between_tokens.observe(gap.as_secs_f64()),
            None => self.first_token.observe(since_arrival.as_secs_f64()),
        }
    }

    pub fn note_finish(&self, reason: &FinishReason, since_arrival: Duration) {
        let name = match reason {
            FinishReason::Stop => "stop",
            FinishReason::Length | FinishReason::Context => "length",
            FinishReason::Cancelled => "abort",
            FinishReason::Failed(_) => "error",
        };
        self.finished.get_or_create(&vec![("finished_reason".to_owned(), name.to_owned())]).inc();
        self.whole.observe(since_arrival.as_secs_f64());
    }

    /// Whether the engine has lost its device.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    pub fn note_engine(&self, engine: &Engine) {
        self.lost.store(engine.is_lost(), Ordering::Relaxed);
        let (waiting, running) = engine.load_counts();
        self.running.set(running as i64);
        self.waiting.set(waiting as i64);
        if let Some(stats) = engine.prefix_cache() {
            let mut before = self.cache_before.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            self.cache_queries.inc_by(stats.prompt_tokens.saturating_sub(before.prompt_tokens));
            self.cache_hits.inc_by(stats.restored_tokens.saturating_sub(before.restored_tokens));
            self.cache_bytes.set(stats.bytes as i64);
            *before = stats;
        }
    }
}
