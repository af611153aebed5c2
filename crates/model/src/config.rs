//! A config.json becomes a specification: finds the text model's own fields and the family that reads them.
//!
//! Must not know tensors, nor what the fields of a family mean.

use serde_json::Value;

use crate::error::ModelError;
use crate::families::Family;
use crate::fields::Fields;
use crate::quantization;
use crate::spec::ModelSpec;

/// Wrappers for other senses, which hold the text model's fields.
const WRAPPED: [(&str, &str); 2] = [("llm_config", "llm_config."), ("text_config", "text_config.")];

impl ModelSpec {
    /// Reads a config.json and, where there is one, a generation_config.json; `file` names the first in
    /// messages.
    pub fn from_config(
        file: &str,
        config: &Value,
        generation: Option<&Value>,
    ) -> Result<ModelSpec, ModelError> {
        let outer = object(file, "config.json", config)?;
        let fields = unwrapped(outer);
        let family = Family::of_config(&fields, &names(&[outer, fields])?)?;
        quantization::check_config(&outer)?;
        quantization::check_config(&fields)?;
        let mut spec = (family.config)(&fields)?;
        spec.stop_tokens = stop_tokens(&[outer, fields], generation)?;
        spec.stop_tokens.extend(family.stop_tokens);
        spec.bos = spec.bos.or(outer.tokens(&["bos_token_id"])?.first().copied());
        spec.settle_tokens();
        spec.check(file)?;
        Ok(spec)
    }

    /// What a config says to a family, whatever it calls itself.
    pub(crate) fn config_of(file: &str, config: &Value, family: &Family) -> Result<ModelSpec, ModelError> {
        let outer = object(file, "config.json", config)?;
        let fields = unwrapped(outer);
        quantization::check_config(&outer)?;
        quantization::check_config(&fields)?;
        let spec = (family.config)(&fields)?;
        spec.check(file)?;
        Ok(spec)
    }

    /// Sorts the stop tokens and drops those outside the vocabulary.
    pub(crate) fn settle_tokens(&mut self) {
        let vocab = self.vocab;
        self.stop_tokens.sort_unstable();
        self.stop_tokens.dedup();
        self.stop_tokens.retain(|&t| (t as usize) < vocab);
        self.bos = self.bos.filter(|&t| (t as usize) < vocab);
    }
}

fn object<'a>(file: &'a str, what: &str, value: &'a Value) -> Result<Fields<'a>, ModelError> {
    let map = value.as_object().ok_or_else(|| ModelError::BadField {
        file: file.to_owned(),
        field: what.to_owned(),
        problem: "is not a JSON object".to_owned(),
        remedy: "take the file from the model's original release".to_owned(),
    })?;
    Ok(Fields::new(file, "", map))
}

/// The text model's own fields, inside a wrapper for other senses or not.
fn unwrapped<'a>(outer: Fields<'a>) -> Fields<'a> {
    let inner = WRAPPED.iter().find_map(|(key, prefix)| {
        let map = outer.get(&[key])?.1.as_object()?;
        Some(Fields::new(outer.file(), prefix, map))
    });
    inner.unwrap_or(outer)
}

/// What the file calls its architecture, most telling name first.
fn names(sources: &[Fields]) -> Result<Vec<String>, ModelError> {
    let mut names = Vec::new();
    for fields in sources.iter().rev() {
        names.extend(fields.text(&["model_type"])?.map(str::to_owned));
        if let Some((_, classes)) = fields.list(&["architectures"])? {
            names.extend(classes.iter().filter_map(Value::as_str).map(str::to_owned));
        }
    }
    Ok(names)
}

fn stop_tokens(sources: &[Fields], generation: Option<&Value>) -> Result<Vec<u32>, ModelError> {
    let mut tokens = Vec::new();
    for fields in sources {
        tokens.extend(fields.tokens(&["eos_token_id"])?);
    }
    if let Some(map) = generation.and_then(Value::as_object) {
        tokens.extend(Fields::new("generation_config.json", "", map).tokens(&["eos_token_id"])?);
    }
    Ok(tokens)
}
