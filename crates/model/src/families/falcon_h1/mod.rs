//! Falcon-H1: Mamba-2 and attention side by side in every layer, then an MLP; fourteen multipliers.

use mambo_kernel::Activation;

use super::Family;
use super::gguf;
use super::granite::mamba;
use super::reading::{activation, attention, depth, epsilon, refuse, spec};
use super::spelling::{MAMBA, TRANSFORMER, Table, names};
use crate::error::ModelError;
use crate::fields::Fields;
use crate::names::Part;
use crate::spec::{Factor, Half, LayerSpec, Mamba2Spec, Mixer, MlpSpec, ModelSpec};

/// Names of the feed-forward part that Bamba shares.
pub(super) static TENSORS: Table = names! {
    FinalNorm: "final_layernorm.weight";
    MlpNorm: "pre_ff_layernorm.weight";
    Up: "feed_forward.up_proj.weight";
    Gate: "feed_forward.gate_proj.weight";
    Down: "feed_forward.down_proj.weight";
};

pub(super) static FAMILY: Family = Family {
    model_types: &["falcon_h1"],
    classes: &["FalconH1ForCausalLM"],
    gguf: &["falcon-h1"],
    stop_names: &["<|im_end|>", "<|end_of_text|>"],
    tensors: &[TENSORS, MAMBA, TRANSFORMER],
    gguf_tensors: names! { MlpNorm: "ffn_norm" | "ffn_norm.weight"; },
    config,
    read_gguf: Some(|reader| gguf::read(reader, &gguf::PLAIN)),
    write_gguf: Some(|spec| ("falcon-h1", gguf::keys(spec, &gguf::PLAIN))),
    ..Family::named("falcon_h1")
};

fn config(fields: &Fields) -> Result<ModelSpec, ModelError> {
    activation(fields, &["hidden_act"], &["silu", "swish"])?;
    for name in ["attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias"] {
        refuse(fields, name, "a bias in projections")?;
    }
    refuse(fields, "mamba_norm_before_gate", "a norm before the gate")?;
    let has_norm = fields.flag(&["mamba_rms_norm"])?.unwrap_or(false);
    let mut mixer = mamba(fields)?;
    if !has_norm {
        mixer = Mamba2Spec { norm_groups: None, ..mixer };
    }
    let attention = attention(fields, None)?;
    let mlp = MlpSpec { width: fields.want_size(&["intermediate_size"])?, gate: Some(Activation::Silu) };
    let half = |mixers| Half { mixers, post_norm: false };
    let layer = LayerSpec {
        norm_eps: epsilon(fields, 1e-5)?,
        halves: vec![
            half(vec![Mixer::Mamba2(mixer), Mixer::Attention(attention)]),
            half(vec![Mixer::Mlp(mlp)]),
        ],
    };
    let mut spec = spec(fields, FAMILY.name, vec![layer; depth(fields)?])?;
    spec.factors = factors(fields, &mixer)?;
    Ok(spec)
}

fn factors(fields: &Fields, mixer: &Mamba2Spec) -> Result<Vec<Factor>, ModelError> {
    let one = |name: &str| Ok::<_, ModelError>(fields.float(&[name])?.unwrap_or(1.0) as f32);
    let attention_in = one("attention_in_multiplier")?;
    let ssm = numbers::<5>(fields, "ssm_multipliers")?;
    let [gate, down] = numbers::<2>(fields, "mlp_multipliers")?;
    let ssm_in = one("ssm_in_multiplier")?;
    let d = mixer.dims;
    // The input projection gives z, x, B, C and dt.
    // What no number holds is refused with all sizes beyond reason.
    let group_state = d.groups.saturating_mul(d.state);
    let rows = [d.inner(), d.inner(), group_state, group_state, usize::MAX];
    let in_proj = rows.into_iter().zip(ssm).map(|(rows, factor)| (rows, factor * ssm_in)).collect();
    Ok(vec![
        Factor::all(Part::Embed, one("embedding_multiplier")?),
        Factor { part: Part::InProj, rows: in_proj },
        Factor::all(Part::OutProj, one("ssm_out_multiplier")?),
        Factor::all(Part::Q, attention_in),
        Factor::all(Part::K, attention_in * one("key_multiplier")?),
        Factor::all(Part::V, attention_in),
        Factor::all(Part::O, one("attention_out_multiplier")?),
        Factor::all(Part::Gate, gate),
        Factor::all(Part::Down, down),
        Factor::all(Part::Head, one("lm_head_multiplier")?),
    ])
}

/// A list of so many numbers; ones where there is none.
fn numbers<const N: usize>(fields: &Fields, name: &str) -> Result<[f32; N], ModelError> {
    let Some((field, list)) = fields.list(&[name])? else { return Ok([1.0; N]) };
    let values: Option<Vec<f32>> = list.iter().map(|value| value.as_f64().map(|v| v as f32)).collect();
    values.and_then(|values| values.try_into().ok()).ok_or_else(|| {
        fields.bad(&field, format!("is not a list of {N} numbers"), "take the file from the original release")
    })
}
