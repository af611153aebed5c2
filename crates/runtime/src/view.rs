//! A loaded model as pages draw it: its layers with their sizes, and what the engine does at this moment.

use std::collections::BTreeMap;

use mambo_engine::{Engine, source_bytes};
use mambo_kernel::WeightSource;
use mambo_model::Mixer;
use serde_json::{Map, Value, json};

use crate::{Model, RuntimeError};

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
        let mut labels = Vec::new();
        for mixer in layer.mixers() {
            let (kind, label) = kind_and_label(mixer);
            match mixer {
                Mixer::Attention(_) => {
                    view["kv_bytes_per_token"] = (layout.kv_bytes_per_token() / kv_layers).into();
                }
                Mixer::Moe(moe) => {
                    view["experts"] = moe.route.experts.into();
                    view["experts_used"] = moe.route.top_k.into();
                }
                mixer if mixer.state(model.spec.hidden).is_some() => {
                    view["state_bytes"] = (layout.slot_bytes() / state_layers).into();
                }
                _ => {}
            }
            // A layer is drawn as its first mixer.
            if labels.is_empty() {
                view["kind"] = kind.into();
            }
            labels.push(label);
        }
        view["label"] = labels.join("; ").into();
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

/// Starts or stops timing every call and counting the experts that are chosen.
pub fn watch_engine(engine: &mut Engine, on: bool) {
    let _ = engine.backend_mut().set_profiling(on);
    engine.watch_experts(on);
}

/// What the engine does now, and what it did since this was asked before; `view` is what [`model_view`] told.
pub fn live_view(engine: &mut Engine, view: &Value) -> Value {
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
    let layer = |(index, time): (usize, f64)| {
        let bytes = bytes_read(&view["layers"][index]);
        json!({"index": index, "microseconds": time, "bytes": bytes})
    };
    let layers: Vec<Value> = layers.into_iter().map(layer).collect();
    let experts = engine.take_expert_counts().into_iter();
    let experts: Map<String, Value> = experts
        .filter_map(|layer| Some((layer_of(&layer.label)?.to_string(), json!(layer.counts))))
        .collect();
    json!({"running": running, "waiting": waiting, "cache": cache, "layers": layers, "experts": experts})
}

/// Bytes of a layer's weights that one token reads: of experts only those that are chosen.
fn bytes_read(layer: &Value) -> u64 {
    let number = |key: &str| layer[key].as_u64().unwrap_or(0);
    match number("experts") {
        0 => number("bytes"),
        experts => number("bytes") * number("experts_used") / experts,
    }
}

/// How a mixer is drawn and what it is called.
fn kind_and_label(mixer: &Mixer) -> (&'static str, String) {
    match mixer {
        Mixer::Mamba2(mamba) => {
            let dims = mamba.dims;
            ("mamba", format!("Mamba-2, {} heads of {}, state {}", dims.heads, dims.head_dim, dims.state))
        }
        Mixer::DeltaNet(dims) => {
            ("mamba", format!("delta net, {} heads of {}, state {}", dims.heads, dims.head_dim, dims.state))
        }
        Mixer::ShortConv { taps, .. } => ("mamba", format!("convolution of {taps} taps")),
        Mixer::Attention(attention) => {
            let dims = attention.dims();
            ("attention", format!("attention, {} heads over {}", dims.q_heads, dims.kv_heads))
        }
        Mixer::Mlp(mlp) => ("mlp", format!("MLP of {}", mlp.width)),
        Mixer::Moe(moe) => {
            ("moe", format!("{} of {} experts of {}", moe.route.top_k, moe.route.experts, moe.expert_width))
        }
    }
}
