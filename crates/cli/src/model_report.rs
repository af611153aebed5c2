//! Everything `inspect` knows about a model, as data: layers, parameters, types, memory, tokenizer, notes. Knows
//! nothing of tables and columns.

use mambo_checkpoint::{Checkpoint, TensorInfo};
use mambo_kernel::{CacheLayout, KvGroup, Rollback, SSM_CHUNK, SlotLayout, SsmDims, WeightSource};
use mambo_model::{AttentionSpec, LayerSpec, Mamba2Spec, Mixer, ModelSpec, MoeSpec, Place};
use mambo_runtime::{Described, Model};
use mambo_tensor::DType;
use mambo_text::Tokenizer;
use serde_json::{Value, json};

use crate::amounts::ranges;
use crate::args::CacheArgs;
use crate::kv_windows::windows;

/// A described model, with a list of its tensors if that is wanted.
pub fn report(described: &Described, cache: &CacheArgs, tensors: bool) -> Value {
    let spec = &described.spec;
    let p = spec.parameters();
    let checkpoint = described.model.as_ref().map(|m| &m.checkpoint);
    let mut report = json!({
        "model": described.name,
        "format": checkpoint.map_or("preset".to_owned(), |c| c.format().to_string()),
        "has_weights": described.has_weights(),
        "architecture": spec.architecture,
        "hidden": spec.hidden,
        "vocab": spec.vocab,
        "tied_embeddings": spec.tied_embeddings,
        "schedule": spec.pattern(),
        "layers": layers(spec),
        "mtp": spec.mtp.map(|m| json!({
            "attention": mixer_sizes(&Mixer::Attention(AttentionSpec::plain(m.attention))),
            "moe": mixer_sizes(&Mixer::Moe(m.moe)),
        })),
        "parameters": {"total": p.total, "trunk": p.trunk, "mtp": p.mtp, "active": p.active},
        "types": described.model.as_ref().map(types),
        "memory": memory(described, cache),
        "context": spec.context,
        "stop_tokens": spec.stop_tokens,
        "tokenizer": described.model.as_ref().map(tokenizer),
        "problems": problems(described),
        "notes": notes(described),
    });
    if tensors {
        report["tensors"] = checkpoint.map(|c| c.tensors().map(tensor).collect()).unwrap_or_default();
    }
    report
}

/// What the metadata and the weights give reason to say.
fn notes(described: &Described) -> Vec<String> {
    // Files whose weights mambo cannot bind are shown all the same.
    let weights = described.model.as_ref().filter(|_| described.has_weights()).and_then(|m| m.weights().ok());
    let held = weights.map(|weights| weights.notes()).unwrap_or_default();
    described.spec.notes.iter().cloned().chain(held).collect()
}

/// Everything that keeps the weights from being loaded.
fn problems(described: &Described) -> Vec<String> {
    let model = described.model.as_ref().filter(|_| described.has_weights());
    let found = model.map(|model| mambo_model::problems(&model.checkpoint, &model.spec)).unwrap_or_default();
    found.iter().map(ToString::to_string).collect()
}

/// One row of the list of tensors.
pub fn tensor(t: &TensorInfo) -> Value {
    json!({"name": t.name, "type": t.dtype.name(), "shape": t.shape.dims(), "bytes": t.byte_len()})
}

/// Equal layers together, in order of first appearance.
fn layers(spec: &ModelSpec) -> Vec<Value> {
    let weights = spec.weights();
    let parameters = |layer: usize| -> u64 {
        let own = weights.iter().filter(|w| w.place == Place::Layer(layer));
        own.map(|w| w.shape.iter().product::<usize>() as u64).sum()
    };
    let row = |(layer, indices): (&LayerSpec, Vec<usize>)| {
        let sizes: Vec<Value> = layer.mixers().map(mixer_sizes).collect();
        json!({
            "kind": layer.name(),
            "count": indices.len(),
            "at": ranges(&indices),
            "parameters_each": parameters(indices[0]),
            "sizes": match &sizes[..] {
                [one] => one.clone(),
                _ => sizes.into(),
            },
        })
    };
    spec.distinct_layers().into_iter().map(row).collect()
}

fn mixer_sizes(mixer: &Mixer) -> Value {
    match mixer {
        Mixer::Mamba2(Mamba2Spec { dims: d, .. }) | Mixer::DeltaNet(d) => json!({
            "heads": d.heads, "head_dim": d.head_dim, "state": d.state, "groups": d.groups, "taps": d.taps,
        }),
        Mixer::Attention(a) => {
            let (dims, window) = (a.dims(), a.attention.window);
            let mut sizes =
                json!({"heads": dims.q_heads, "head_dim": dims.head_dim, "kv_heads": dims.kv_heads});
            if let Some(rope) = a.rope {
                sizes["rope"] = json!({"rotary": rope.rotary, "base": rope.base});
            }
            if let Some(window) = window {
                sizes["window"] = window.into();
            }
            sizes
        }
        Mixer::ShortConv { taps, .. } => json!({"taps": taps}),
        Mixer::Mlp(m) => json!({"width": m.width}),
        Mixer::Moe(MoeSpec { route, expert_width, latent, shared_width, .. }) => json!({
            "experts": route.experts, "top_k": route.top_k, "width": expert_width, "latent": latent,
            "shared": shared_width, "groups": route.groups, "scale": route.scale,
        }),
    }
}

/// The element types of the weights, most bytes first. What a quantised weight is made of (codes, scales)
/// counts as its type; only where weights cannot be bound are the tensors counted as they lie in the files.
fn types(model: &Model) -> Value {
    match model.weights() {
        Ok(weights) => histogram(weights.iter().map(|w| {
            (w.dtype(), w.tensor_names().len(), w.shape().iter().product::<usize>() as u64, w.stored_bytes())
        })),
        Err(_) => histogram(model.checkpoint.tensors().map(stored_type)),
    }
}

/// Type, tensors, values and bytes.
pub type TypeRow = (DType, usize, u64, u64);

/// A tensor as it lies in the files.
pub fn stored_type(t: &TensorInfo) -> TypeRow {
    (t.dtype, 1, t.shape.elems() as u64, t.byte_len())
}

/// One row for each type, most bytes first.
pub fn histogram(counts: impl Iterator<Item = TypeRow>) -> Value {
    let mut rows: Vec<TypeRow> = Vec::new();
    for (dtype, tensors, values, bytes) in counts {
        match rows.iter_mut().find(|row| row.0 == dtype) {
            Some(row) => (row.1, row.2, row.3) = (row.1 + tensors, row.2 + values, row.3 + bytes),
            None => rows.push((dtype, tensors, values, bytes)),
        }
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.3));
    let row = |(dtype, tensors, values, bytes): TypeRow| {
        let bits = bytes as f64 * 8.0 / (values as f64).max(1.0);
        json!({"type": dtype.name(), "tensors": tensors, "values": values, "bytes": bytes, "bits_per_weight": bits})
    };
    rows.into_iter().map(row).collect()
}

/// What running it takes, beside the arena.
fn memory(described: &Described, cache: &CacheArgs) -> Value {
    let spec = &described.spec;
    let checkpoint = described.model.as_ref().map(|m| &m.checkpoint);
    // Files whose weights mambo cannot bind are shown all the same.
    let embedding = described.types().ok().and_then(|types| types.dtype("embed"));
    let options = cache.load_options();
    let (kv_types, state_elem) = (options.kv_types_for(embedding), options.state_elem);
    let layers = spec.cache_layers();
    let trunk = spec.trunk_kv_layers();
    let layout = |kv_layers: Vec<_>| CacheLayout {
        kv_layers,
        kv_types,
        state_layers: layers.state_layers.clone(),
        state_elem,
        ..Default::default()
    };
    // The rings of the current chunk come last in a slot's part of a layer.
    let ring = |d: &SsmDims| {
        let slot = SlotLayout::new(*d, Rollback::None, state_elem, 0);
        4 * (slot.len - slot.ring_x)
    };
    let ring: usize = layers.state_layers.iter().map(ring).sum();
    let slot = layout(trunk.clone()).slot_bytes();
    let kv_groups = KvGroup::by_window(spec.trunk_kv_windows());
    let kv_windows = windows(&CacheLayout { kv_groups, ..layout(trunk.clone()) });
    json!({
        "weight_bytes": checkpoint.filter(|c| c.tensors().next().is_some()).map(Checkpoint::total_bytes),
        "kv_bytes_per_token": layout(trunk).kv_bytes_per_token(),
        "kv_bytes_per_token_with_mtp": layout(layers.kv_layers.clone()).kv_bytes_per_token(),
        "kv_windows": kv_windows,
        "kv_type": kv_types.to_string(),
        "state_type": state_elem.name(),
        "state_bytes_per_sequence": slot - ring,
        "ring_bytes_per_sequence": ring,
        "ring_positions": SSM_CHUNK,
    })
}

fn tokenizer(model: &Model) -> Value {
    let has_template = model.chat_template().is_ok_and(|template| template.is_some());
    let text = model.text();
    match text.as_ref().map(|text| (text.tokenizer(), text.stop_tokens())) {
        Ok((t, stops)) => json!({
            "tokens": t.vocab_size(),
            "special": (0..t.vocab_size() as u32).filter(|id| t.is_special(*id)).count(),
            "bos": special(t, t.bos()),
            "eos": special(t, t.eos()),
            "adds_bos": t.adds_bos(),
            "stop": stops.iter().map(|id| special(t, Some(*id))).collect::<Vec<_>>(),
            "chat_template": has_template,
        }),
        Err(error) => json!({"problem": error.to_string(), "chat_template": has_template}),
    }
}

fn special(tokenizer: &Tokenizer, id: Option<u32>) -> Option<Value> {
    id.map(|id| json!({"id": id, "text": tokenizer.decode(&[id], false)}))
}
