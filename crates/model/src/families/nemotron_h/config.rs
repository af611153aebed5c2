//! A config.json becomes a specification: every spelling that releases of the family use, and its traps.
//!
//! Must not know tensors. Position settings are read by nobody: the family has no position signal.

use mambo_checkpoint::json_number;
use mambo_kernel::{AttentionDims, RouteDims, Scoring, SsmDims};
use serde_json::Value;

use super::schedule::{self, Entry, Kind};
use crate::error::ModelError;
use crate::fields::Fields;
use crate::spec::{AttentionSpec, LayerSpec, Mamba2Spec, Mixer, MlpSpec, ModelSpec, MoeSpec, MtpSpec};

// Where a file has two spellings, the older one wins: so does the family's own software.
const HEAD_DIM: &[&str] = &["attention_head_dim", "head_dim"];
const STATE: &[&str] = &["mamba_state_dim", "ssm_state_size"];
const GROUPS: &[&str] = &["mamba_n_groups", "mamba_num_groups", "n_groups"];
const TAPS: &[&str] = &["mamba_d_conv", "conv_kernel"];
const CONV_BIAS: &[&str] = &["mamba_conv_bias", "use_conv_bias"];
const DT_LIMIT: &[&str] = &["mamba_dt_limit", "time_step_limit"];
const EPSILON: &[&str] = &["layer_norm_epsilon", "norm_eps", "rms_norm_eps"];

pub(super) fn config(fields: &Fields) -> Result<ModelSpec, ModelError> {
    supported(fields)?;
    let entries = schedule::read(fields, &schedule::TRUNK)?.ok_or_else(|| {
        fields.missing(&[schedule::TRUNK.names[0], schedule::TRUNK.letters, schedule::TRUNK.objects])
    })?;
    let layers = layers(fields, &entries)?;
    Ok(ModelSpec {
        architecture: super::FAMILY.name.to_owned(),
        hidden: fields.want_size(&["hidden_size"])?,
        vocab: fields.want_size(&["vocab_size"])?,
        norm_eps: epsilon(fields)?,
        mtp: mtp(fields)?,
        tied_embeddings: fields.flag(&["tie_word_embeddings"])?.unwrap_or(false),
        factors: Vec::new(),
        logit_cap: None,
        context: fields.size(&["max_position_embeddings"])?,
        bos: fields.tokens(&["bos_token_id"])?.first().copied(),
        stop_tokens: Vec::new(),
        notes: notes(fields, layers.len())?,
        layers,
    })
}

/// Refuses settings that would change the mathematics.
fn supported(fields: &Fields) -> Result<(), ModelError> {
    const REMEDY: &str = "use a checkpoint of the released family, none of which sets this";
    for name in ["use_bias", "mamba_proj_bias", "mlp_bias", "attention_bias"] {
        if fields.flag(&[name])? == Some(true) {
            let problem = "is true, but projections with a bias are not supported";
            return Err(fields.bad(name, problem, REMEDY));
        }
    }
    if fields.flag(CONV_BIAS)? == Some(false) {
        let problem = "is false, but the convolution is only supported with a bias";
        return Err(fields.bad(CONV_BIAS[1], problem, REMEDY));
    }
    for (name, wanted) in
        [("mlp_hidden_act", ["relu2", "relu_squared"]), ("mamba_hidden_act", ["silu", "swish"])]
    {
        if let Some(act) = fields.text(&[name])?.filter(|act| !wanted.contains(act)) {
            let problem = format!("is `{act}`, but only `{}` is supported", wanted[0]);
            return Err(fields.bad(name, problem, REMEDY));
        }
    }
    if let Some((field, value)) = fields.get(&["sliding_window"]) {
        let problem = format!("is {value}, but attention is only supported without a window");
        return Err(fields.bad(&field, problem, REMEDY));
    }
    unclamped(fields)
}

/// Refuses a limit on dt that would change its value; softplus is positive already.
fn unclamped(fields: &Fields) -> Result<(), ModelError> {
    let Some((field, limits)) = fields.list(DT_LIMIT)? else { return Ok(()) };
    let bound = |i: usize, absent: f64| match limits.get(i) {
        None | Some(Value::Null) => Some(absent),
        Some(value) => json_number(value),
    };
    let open = limits.len() <= 2
        && bound(0, 0.0).is_some_and(|low| low <= 0.0)
        && bound(1, f64::INFINITY).is_some_and(|high| high >= f64::from(f32::MAX));
    match open {
        true => Ok(()),
        false => Err(fields.bad(
            &field,
            format!(
                "is {}, which would clamp dt, and the family is trained without a clamp",
                Value::from(limits)
            ),
            "remove the field or set it to [0.0, Infinity]",
        )),
    }
}

fn layers(fields: &Fields, entries: &[Entry]) -> Result<Vec<LayerSpec>, ModelError> {
    let dense = entries.iter().filter(|e| e.kind == Kind::Mlp).count();
    let mut dense_index = 0;
    let mut layers = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let own = layer_fields(fields, entry);
        let mixer = match entry.kind {
            Kind::Mamba2 => Mixer::Mamba2(mamba2(&own)?),
            Kind::Attention => Mixer::Attention(AttentionSpec::plain(attention(&own)?)),
            Kind::Moe => Mixer::Moe(moe(&own)?),
            Kind::Mlp => {
                dense_index += 1;
                let place = Place { index, layers: entries.len(), dense_index: dense_index - 1, dense };
                Mixer::Mlp(MlpSpec { width: mlp_width(&own, &place)?, gate: None })
            }
        };
        layers.push(LayerSpec::of(epsilon(&own)?, mixer));
    }
    Ok(layers)
}

fn layer_fields<'a>(fields: &Fields<'a>, entry: &'a Entry<'a>) -> Fields<'a> {
    match entry.own {
        Some(own) => fields.overridden(&entry.prefix, own),
        None => *fields,
    }
}

fn mamba2(fields: &Fields) -> Result<Mamba2Spec, ModelError> {
    // `expand` is in the files too, but the inner width is heads times head size.
    let dims = SsmDims {
        heads: fields.want_size(&["mamba_num_heads"])?,
        head_dim: fields.want_size(&["mamba_head_dim"])?,
        state: fields.want_size(STATE)?,
        groups: fields.want_size(GROUPS)?,
        taps: fields.size(TAPS)?.unwrap_or(4),
    };
    Ok(Mamba2Spec { dims, norm_groups: Some(dims.groups), conv_bias: true })
}

fn attention(fields: &Fields) -> Result<AttentionDims, ModelError> {
    let q_heads = fields.want_size(&["num_attention_heads"])?;
    let head_dim = match fields.size(HEAD_DIM)? {
        Some(head_dim) => head_dim,
        // Most members have heads wider than their share, so this is right only for files that say nothing.
        None => fields.want_size(&["hidden_size"])? / q_heads.max(1),
    };
    let kv_heads = fields.size(&["num_key_value_heads"])?.unwrap_or(q_heads);
    Ok(AttentionDims { q_heads, kv_heads, head_dim })
}

/// Where a dense layer stands, to pick its width from a list.
struct Place {
    index: usize,
    layers: usize,
    dense_index: usize,
    dense: usize,
}

fn mlp_width(fields: &Fields, place: &Place) -> Result<usize, ModelError> {
    const NAMES: &[&str] = &["intermediate_size"];
    let Some((field, value)) = fields.get(NAMES) else { return Err(fields.missing(NAMES)) };
    let Some(list) = value.as_array() else { return fields.as_size(&field, value) };
    let index = match list.len() {
        1 => 0,
        n if n == place.dense => place.dense_index,
        n if n == place.layers => place.index,
        n => {
            let problem =
                format!("lists {n} widths for {} dense layers of {} layers", place.dense, place.layers);
            return Err(fields.bad(&field, problem, "give one width, or one per dense layer"));
        }
    };
    fields.as_size(&field, &list[index])
}

fn moe(fields: &Fields) -> Result<MoeSpec, ModelError> {
    let shared = fields.size(&["n_shared_experts"])?.unwrap_or(1);
    let shared_width = match shared {
        0 => None,
        // One MLP whatever the number of shared experts: the width is already theirs together.
        _ => Some(fields.want_size(&["moe_shared_expert_intermediate_size"])?),
    };
    Ok(MoeSpec {
        route: RouteDims {
            scoring: Scoring::Sigmoid,
            experts: fields.want_size(&["n_routed_experts", "num_local_experts"])?,
            top_k: fields.want_size(&["num_experts_per_tok"])?,
            groups: fields.size(&["n_group"])?.unwrap_or(1),
            top_groups: fields.size(&["topk_group"])?.unwrap_or(1),
            normalize: fields.flag(&["norm_topk_prob"])?.unwrap_or(true),
            scale: fields.float(&["routed_scaling_factor"])?.unwrap_or(1.0) as f32,
        },
        choice_bias: true,
        biases: false,
        expert_width: fields.want_size(&["moe_intermediate_size"])?,
        gate: None,
        latent: fields.size(&["moe_latent_size"])?,
        shared_width,
        shared_gate: false,
    })
}

fn mtp(fields: &Fields) -> Result<Option<MtpSpec>, ModelError> {
    const COUNT: &[&str] = &["num_nextn_predict_layers"];
    const FIELD: &str = "mtp_layers_block_type` or `mtp_hybrid_override_pattern";
    const REMEDY: &str = "set num_nextn_predict_layers to 0 to run the model without its MTP head";
    match fields.size(COUNT)?.unwrap_or(0) {
        0 => return Ok(None),
        1 => {}
        n => return Err(fields.bad(COUNT[0], format!("is {n}, but one MTP head is supported"), REMEDY)),
    }
    let entries = schedule::read(fields, &schedule::MTP)?;
    let (attention_fields, moe_fields) = match entries.as_deref() {
        None => (*fields, *fields),
        Some([a, m]) if a.kind == Kind::Attention && m.kind == Kind::Moe => {
            (layer_fields(fields, a), layer_fields(fields, m))
        }
        Some(_) => {
            let problem = "is not attention then experts (`*E`), the only MTP head that is supported";
            return Err(fields.bad(FIELD, problem, REMEDY));
        }
    };
    let (attention, moe) = (attention(&attention_fields)?, moe(&moe_fields)?);
    Ok(Some(MtpSpec { norm_eps: epsilon(fields)?, attention, moe }))
}

fn epsilon(fields: &Fields) -> Result<f32, ModelError> {
    Ok(fields.float(EPSILON)?.unwrap_or(1e-5) as f32)
}

fn notes(fields: &Fields, depth: usize) -> Result<Vec<String>, ModelError> {
    let mut notes = Vec::new();
    if let Some(n) = fields.size(&["num_hidden_layers"])?.filter(|&n| n != depth) {
        notes.push(format!(
            "num_hidden_layers is {n}, but the schedule has {depth} layers: the schedule counts"
        ));
    }
    for names in [HEAD_DIM, STATE, GROUPS, TAPS] {
        let given: Vec<_> = names.iter().filter_map(|&name| fields.get(&[name])).collect();
        if let [(first, a), rest @ ..] = &given[..]
            && let Some((other, b)) = rest.iter().find(|(_, b)| b != a)
        {
            notes.push(format!("{first} is {a} and {other} is {b}: {first} counts"));
        }
    }
    Ok(notes)
}
