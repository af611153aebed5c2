//! The schedule of a config file: which kind each layer is, in every spelling that releases use.
//!
//! Must not know sizes.

use serde_json::{Map, Value};

use crate::check::MAX_LAYERS;
use crate::error::ModelError;
use crate::fields::Fields;

/// The kind of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Mamba2,
    Attention,
    Mlp,
    Moe,
}

/// One entry of a schedule, with the layer's own sizes where the file has them.
#[derive(Clone)]
pub(crate) struct Entry<'a> {
    pub kind: Kind,
    /// How messages name the layer's own object, such as `block_configs[3].`.
    pub prefix: String,
    pub own: Option<&'a Map<String, Value>>,
}

/// Where a schedule may be: objects first, then names, then letters.
pub(crate) struct Keys {
    pub objects: &'static str,
    pub names: &'static [&'static str],
    pub letters: &'static str,
}

/// Where the trunk's schedule is.
pub(crate) const TRUNK: Keys = Keys {
    objects: "block_configs",
    names: &["layers_block_type", "layer_types"],
    letters: "hybrid_override_pattern",
};

/// Where the MTP head's schedule is.
pub(crate) const MTP: Keys = Keys {
    objects: "mtp_block_configs",
    names: &["mtp_layers_block_type"],
    letters: "mtp_hybrid_override_pattern",
};

/// Reads a schedule; `None` when the file has none.
pub(crate) fn read<'a>(fields: &Fields<'a>, keys: &Keys) -> Result<Option<Vec<Entry<'a>>>, ModelError> {
    if let Some((field, list)) = fields.list(&[keys.objects])?.filter(|(_, list)| !list.is_empty()) {
        return objects(fields, &field, list).map(Some);
    }
    if let Some((field, list)) = fields.list(keys.names)? {
        bounded(fields, &field, list.len())?;
        let kind = |(index, value): (usize, &Value)| match value.as_str().and_then(named) {
            Some(kind) => Ok(plain(kind)),
            None => Err(unknown(fields, &format!("{field}[{index}]"), value)),
        };
        return list.iter().enumerate().map(kind).collect::<Result<_, _>>().map(Some);
    }
    let Some(letters) = fields.text(&[keys.letters])? else { return Ok(None) };
    bounded(fields, keys.letters, letters.chars().count())?;
    let kind = |letter: char| match lettered(letter) {
        Some(kind) => Ok(plain(kind)),
        None => {
            let problem = format!("holds the letter `{letter}`, but layers are M, *, - or E");
            Err(fields.bad(keys.letters, problem, "use a model of those four kinds"))
        }
    };
    letters.chars().map(kind).collect::<Result<_, _>>().map(Some)
}

fn objects<'a>(fields: &Fields<'a>, field: &str, list: &'a [Value]) -> Result<Vec<Entry<'a>>, ModelError> {
    bounded(fields, field, list.len())?;
    let entry = |(index, value): (usize, &'a Value)| {
        let name = format!("{field}[{index}]");
        let own = value.as_object().ok_or_else(|| fields.mistyped(&name, "an object", value))?;
        let block_type = own.get("block_type").unwrap_or(&Value::Null);
        match block_type.as_str().and_then(named) {
            Some(kind) => Ok(Entry { kind, prefix: format!("{name}."), own: Some(own) }),
            None => Err(unknown(fields, &format!("{name}.block_type"), block_type)),
        }
    };
    list.iter().enumerate().map(entry).collect()
}

fn plain<'a>(kind: Kind) -> Entry<'a> {
    Entry { kind, prefix: String::new(), own: None }
}

fn bounded(fields: &Fields, field: &str, layers: usize) -> Result<(), ModelError> {
    match layers {
        0 => Err(fields.bad(field, "is empty, so the model has no layers", "correct the file")),
        n if n > MAX_LAYERS => {
            Err(fields.bad(field, format!("lists {n} layers, more than {MAX_LAYERS}"), "correct the file"))
        }
        _ => Ok(()),
    }
}

fn unknown(fields: &Fields, field: &str, value: &Value) -> ModelError {
    fields.mistyped(field, "one of mamba, linear_attention, attention, full_attention, mlp, moe", value)
}

fn named(name: &str) -> Option<Kind> {
    match name {
        "mamba" | "mamba2" | "linear_attention" => Some(Kind::Mamba2),
        "attention" | "full_attention" => Some(Kind::Attention),
        "mlp" => Some(Kind::Mlp),
        "moe" => Some(Kind::Moe),
        _ => None,
    }
}

fn lettered(letter: char) -> Option<Kind> {
    match letter {
        'M' => Some(Kind::Mamba2),
        '*' => Some(Kind::Attention),
        '-' => Some(Kind::Mlp),
        'E' => Some(Kind::Moe),
        _ => None,
    }
}
