//! The model as the page draws it: its layers with their sizes.

use std::collections::BTreeMap;

use mambo_engine::{Engine, source_bytes};
use mambo_kernel::WeightSource;
use mambo_model::Mixer;
use mambo_runtime::{Model, RuntimeError};
use serde_json::{Value, json};

use crate::service::Service;

/// The layer that a call or weight belongs to, by its name.
pub(crate) fn layer_of(name: &str) -> Option<usize> {
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

/// `/api/mambo/model`.
pub(crate) fn model(service: &Service) -> Value {
    let mut view = service.info.view.clone();
    let usual = service.text.sampling();
    view["name"] = service.model_name().into();
    view["recommended"] = json!({"temperature": usual.temperature, "top_p": usual.top_p});
    view
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
