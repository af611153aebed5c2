//! What configs of several families spell alike: sizes, attention, rotary positions, layer kinds.

use mambo_kernel::{Attention, AttentionDims, Rope, RopePairs, RopeScaling};
use serde_json::Value;

use crate::check::MAX_LAYERS;
use crate::error::ModelError;
use crate::fields::Fields;
use crate::spec::{AttentionSpec, LayerSpec, ModelSpec};

const REMEDY: &str = "use a checkpoint whose config does not set this";

/// A specification with the fields that everybody spells alike, and these layers.
pub(crate) fn spec(
    fields: &Fields,
    family: &'static str,
    layers: Vec<LayerSpec>,
) -> Result<ModelSpec, ModelError> {
    let sizes = Sizes {
        hidden: fields.want_size(&["hidden_size"])?,
        vocab: fields.want_size(&["vocab_size"])?,
        norm_eps: epsilon(fields, 1e-6)?,
    };
    of_sizes(fields, family, sizes, layers)
}

/// What families read from fields of their own or take as given where there are none.
pub(crate) struct Sizes {
    pub hidden: usize,
    pub vocab: usize,
    pub norm_eps: f32,
}

/// A specification of these sizes and layers, with the rest that everybody spells alike.
pub(crate) fn of_sizes(
    fields: &Fields,
    family: &'static str,
    sizes: Sizes,
    layers: Vec<LayerSpec>,
) -> Result<ModelSpec, ModelError> {
    let Sizes { hidden, vocab, norm_eps } = sizes;
    Ok(ModelSpec {
        architecture: family.to_owned(),
        hidden,
        vocab,
        norm_eps,
        mtp: None,
        tied_embeddings: fields.flag(&["tie_word_embeddings", "tie_embedding"])?.unwrap_or(false),
        factors: Vec::new(),
        logit_cap: None,
        context: fields.size(&["max_position_embeddings"])?,
        bos: fields.tokens(&["bos_token_id"])?.first().copied(),
        stop_tokens: Vec::new(),
        notes: Vec::new(),
        layers,
    })
}

/// The epsilon of norms.
pub(crate) fn epsilon(fields: &Fields, absent: f64) -> Result<f32, ModelError> {
    const NAMES: &[&str] = &["rms_norm_eps", "norm_eps", "layer_norm_epsilon", "block_norm_eps"];
    Ok(fields.float(NAMES)?.unwrap_or(absent) as f32)
}

/// How many layers there are.
pub(crate) fn depth(fields: &Fields) -> Result<usize, ModelError> {
    const NAME: &str = "num_hidden_layers";
    match fields.want_size(&[NAME])? {
        0 => Err(fields.bad(NAME, "is 0, so the model has no layers", "correct the file")),
        n if n > MAX_LAYERS => {
            Err(fields.bad(NAME, format!("is {n}, more than {MAX_LAYERS}"), "correct the file"))
        }
        n => Ok(n),
    }
}

/// The kinds of layers by name, where the file lists them: one for each.
pub(crate) fn layer_kinds<'a>(
    fields: &Fields<'a>,
    known: &[&str],
) -> Result<Option<Vec<&'a str>>, ModelError> {
    const NAMES: &[&str] = &["layer_types", "layers_block_type"];
    let Some((field, list)) = fields.list(NAMES)? else { return Ok(None) };
    let depth = depth(fields)?;
    if list.len() != depth {
        let problem = format!("lists {} layers, but num_hidden_layers is {depth}", list.len());
        return Err(fields.bad(&field, problem, "correct the file"));
    }
    let kind = |(index, value): (usize, &'a Value)| match value.as_str() {
        Some(kind) if known.contains(&kind) => Ok(kind),
        _ => {
            Err(fields.mistyped(&format!("{field}[{index}]"), &format!("one of {}", known.join(", ")), value))
        }
    };
    list.iter().enumerate().map(kind).collect::<Result<_, _>>().map(Some)
}

/// The sizes of attention.
pub(crate) fn attention_dims(fields: &Fields) -> Result<AttentionDims, ModelError> {
    const HEADS: &str = "num_attention_heads";
    let q_heads = fields.want_size(&[HEADS])?;
    let kv_heads = fields.size(&["num_key_value_heads"])?.unwrap_or(q_heads);
    check_heads(fields, q_heads, kv_heads)?;
    let head_dim = match fields.size(&["head_dim"])? {
        Some(head_dim) => head_dim,
        None => {
            let hidden = fields.want_size(&["hidden_size"])?;
            if !hidden.is_multiple_of(q_heads) {
                let problem = format!("is {q_heads}, which does not divide the hidden size {hidden}");
                return Err(fields.bad(HEADS, problem, "give head_dim"));
            }
            hidden / q_heads
        }
    };
    Ok(AttentionDims { q_heads, kv_heads, head_dim })
}

/// Refuses heads that cannot share keys and values evenly.
pub(crate) fn check_heads(fields: &Fields, q_heads: usize, kv_heads: usize) -> Result<(), ModelError> {
    if q_heads == 0 {
        return Err(fields.bad("num_attention_heads", "is 0", "correct the file"));
    }
    check_groups(fields, ("num_key_value_heads", kv_heads), ("num_attention_heads", q_heads))
}

/// Layers given by their numbers, if they are.
pub(crate) fn layer_numbers(fields: &Fields, name: &str) -> Result<Option<Vec<usize>>, ModelError> {
    let Some((field, list)) = fields.list(&[name])? else { return Ok(None) };
    let depth = depth(fields)?;
    let number = |(index, value): (usize, &Value)| match value.as_u64() {
        Some(layer) if layer < depth as u64 => Ok(layer as usize),
        _ => {
            let wanted = format!("the number of a layer, 0 to {}", depth - 1);
            Err(fields.mistyped(&format!("{field}[{index}]"), &wanted, value))
        }
    };
    list.iter().enumerate().map(number).collect::<Result<_, _>>().map(Some)
}

/// Attention with rotary positions and nothing else.
pub(crate) fn attention(fields: &Fields, kind: Option<&str>) -> Result<AttentionSpec, ModelError> {
    let dims = attention_dims(fields)?;
    let rope = rope(fields, dims.head_dim, kind, 1.0)?;
    Ok(AttentionSpec { attention: Attention::plain(dims), rope: Some(rope), ..AttentionSpec::plain(dims) })
}

/// A window that must make sense.
pub(crate) fn window(fields: &Fields) -> Result<Option<usize>, ModelError> {
    const NAME: &str = "sliding_window";
    match fields.size(&[NAME])? {
        Some(0) => Err(fields.bad(NAME, "is 0, so no token sees itself", "remove it or give a window")),
        window => Ok(window),
    }
}

/// Rotary positions of layers of a kind, from `rope_parameters` or from `rope_theta` and `rope_scaling`; `partial` is
/// the share of channels that is rotated where the file does not say.
pub(crate) fn rope(
    fields: &Fields,
    head_dim: usize,
    kind: Option<&str>,
    partial: f64,
) -> Result<Rope, ModelError> {
    let mut prefix = String::new();
    let mut own = match object(fields, "rope_parameters", &mut prefix)? {
        Some(map) => Some(map),
        None => object(fields, "rope_scaling", &mut prefix)?,
    };
    if let (Some(map), Some(kind)) = (own, kind)
        && let Some(nested) = map.get(kind).and_then(Value::as_object)
    {
        prefix += &format!("{kind}.");
        own = Some(nested);
    }
    let all = match own {
        Some(map) => fields.overridden(&prefix, map),
        None => *fields,
    };
    let base = all.float(&["rope_theta"])?.unwrap_or(10_000.0);
    if !(base.is_finite() && base > 1.0) {
        return Err(all.bad(
            "rope_theta",
            format!("is {base}, but is the base of powers"),
            "correct the file",
        ));
    }
    let share = all.float(&["partial_rotary_factor"])?.unwrap_or(partial);
    let rotary = (head_dim as f64 * share) as usize;
    if share == 1.0 && !head_dim.is_multiple_of(2) {
        let problem = format!("is {head_dim}, but rotary positions turn channels in pairs");
        return Err(fields.bad("head_dim", problem, "correct the file"));
    }
    if rotary == 0 || rotary > head_dim || !rotary.is_multiple_of(2) {
        let problem = format!("is {share}, which turns {rotary} of {head_dim} channels and cannot pair them");
        return Err(all.bad("partial_rotary_factor", problem, "correct the file"));
    }
    let scaling = match own {
        Some(_) => scaling(fields, &all, &prefix)?,
        None => RopeScaling::None,
    };
    Ok(Rope { head_dim, rotary, pairs: RopePairs::Halves, base, scaling, has_factors: false })
}

fn object<'a>(
    fields: &Fields<'a>,
    name: &str,
    prefix: &mut String,
) -> Result<Option<&'a serde_json::Map<String, Value>>, ModelError> {
    let Some((field, value)) = fields.get(&[name]) else { return Ok(None) };
    let map = value.as_object().ok_or_else(|| fields.mistyped(&field, "an object", value))?;
    *prefix = format!("{field}.");
    Ok(Some(map))
}

/// How frequencies are scaled; `prefix` is what messages put before the names of `fields`.
fn scaling(outer: &Fields, fields: &Fields, prefix: &str) -> Result<RopeScaling, ModelError> {
    let number = |name: &'static str| -> Result<f64, ModelError> {
        let missing =
            || ModelError::MissingField { file: outer.file().to_owned(), field: format!("{prefix}{name}") };
        fields.positive(&[name])?.ok_or_else(missing)
    };
    let or = |name: &'static str, absent: f64| -> Result<f64, ModelError> {
        Ok(fields.positive(&[name])?.unwrap_or(absent))
    };
    const TYPES: &[&str] = &["rope_type", "type"];
    match fields.text(TYPES)?.unwrap_or("default") {
        // Sections of positions in pictures; text has one position, which all of them take.
        "default" | "mrope" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: number("factor")? }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: number("factor")?,
            low: number("low_freq_factor")?,
            high: number("high_freq_factor")?,
            original: number("original_max_position_embeddings")?,
        }),
        "yarn" => {
            let factor = number("factor")?;
            let context = outer.float(&["max_position_embeddings"])?.unwrap_or(0.0);
            let magnitude = match (fields.float(&["attention_factor"])?, fields.float(&["mscale"])?) {
                (Some(magnitude), _) => magnitude,
                (None, Some(mscale)) => {
                    let all = fields.float(&["mscale_all_dim"])?.unwrap_or(0.0);
                    let scaled =
                        |mscale: f64| if factor > 1.0 { 0.1 * mscale * factor.ln() + 1.0 } else { 1.0 };
                    if all == 0.0 { scaled(1.0) } else { scaled(mscale) / scaled(all) }
                }
                (None, None) => Rope::yarn_magnitude(factor),
            };
            Ok(RopeScaling::Yarn {
                factor,
                original: or("original_max_position_embeddings", context)?,
                fast: or("beta_fast", 32.0)?,
                slow: or("beta_slow", 1.0)?,
                truncate: fields.flag(&["truncate"])?.unwrap_or(true),
                magnitude,
            })
        }
        other => {
            let problem = format!("is `{other}`, but only default, linear, llama3 and yarn are supported");
            let field = fields.get(TYPES).map_or_else(String::new, |(field, _)| field);
            Err(fields.bad(&field, problem, REMEDY))
        }
    }
}

/// How many experts each token gets.
pub(crate) fn experts_per_token(
    fields: &Fields,
    names: &[&str],
    experts: usize,
) -> Result<usize, ModelError> {
    let top_k = fields.want_size(names)?;
    if top_k == 0 || top_k > experts {
        let field = fields.get(names).map_or_else(String::new, |(field, _)| field);
        let problem = format!("is {top_k}, but every token takes 1 to all {experts} experts");
        return Err(fields.bad(&field, problem, "correct the file"));
    }
    Ok(top_k)
}

/// Refuses groups of heads of different sizes.
pub(crate) fn check_groups(
    fields: &Fields,
    (field, groups): (&str, usize),
    (of, heads): (&str, usize),
) -> Result<(), ModelError> {
    match groups > 0 && heads.is_multiple_of(groups) {
        true => Ok(()),
        false => {
            let problem = format!("is {groups}, which does not divide the {heads} of {of}");
            Err(fields.bad(field, problem, "correct the file"))
        }
    }
}

/// Refuses a switch that would change the mathematics.
pub(crate) fn refuse(fields: &Fields, name: &'static str, what: &str) -> Result<(), ModelError> {
    match fields.flag(&[name])? {
        Some(true) => Err(fields.bad(name, format!("is true, but {what} is not supported"), REMEDY)),
        _ => Ok(()),
    }
}

/// Refuses another activation than these.
pub(crate) fn activation(fields: &Fields, names: &[&str], wanted: &[&str]) -> Result<(), ModelError> {
    let Some(activation) = fields.text(names)?.filter(|name| !wanted.contains(name)) else { return Ok(()) };
    let problem = format!("is `{activation}`, but only `{}` is supported", wanted.join("` or `"));
    let field = fields.get(names).map_or_else(String::new, |(field, _)| field);
    Err(fields.bad(&field, problem, REMEDY))
}
