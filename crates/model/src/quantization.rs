//! What a model folder's JSON says about quantisation: which methods cannot be read, and MLX's groups.
//!
//! Tensors decide how a module is stored (see `storage`); nothing here changes a size.

use mambo_checkpoint::{Checkpoint, ConfigFiles, Metadata};
use mambo_tensor::Affine;
use serde_json::{Map, Value};

use crate::error::ModelError;
use crate::fields::Fields;

/// Methods whose tensors are read, by the name in `quantization_config`.
const METHODS: [&str; 6] = ["modelopt", "modelopt_fp4", "modelopt_fp8", "compressed-tensors", "fp8", "mxfp4"];
const REMEDY: &str =
    "use the bf16, NVFP4, FP8 (ModelOpt or compressed-tensors) or MLX release, or a GGUF file of this model";
/// Kinds of codes that MLX packs.
const MLX_MODES: [&str; 3] = ["affine", "mxfp4", "nvfp4"];

/// Refuses a config.json whose tensors could not be read.
pub(crate) fn check_config(fields: &Fields) -> Result<(), ModelError> {
    if let Some(config) = inner(fields, "quantization_config")? {
        let config = config.fields(fields.file());
        if let Some(method) = config.text(&["quant_method"])?.filter(|m| !METHODS.contains(m)) {
            let problem = format!("is `{method}`, which is not supported");
            return Err(config.bad("quantization_config.quant_method", problem, REMEDY));
        }
        check_algorithm(&config, "quantization_config.quant_algo")?;
    }
    let Some(mlx) = inner(fields, "quantization")? else { return Ok(()) };
    let mlx = mlx.fields(fields.file());
    let mode = mlx.text(&["mode"])?.unwrap_or("affine");
    if !MLX_MODES.contains(&mode) {
        let problem = format!("is `{mode}`, but {} are supported", MLX_MODES.join(", "));
        return Err(mlx.bad("quantization.mode", problem, REMEDY));
    }
    mlx.size(&["group_size"])?;
    match mlx.size(&["bits"])? {
        Some(bits) if !Affine::BITS.contains(&bits) => {
            let problem = format!("is {bits}, but {:?} bits are supported", Affine::BITS);
            Err(mlx.bad("quantization.bits", problem, REMEDY))
        }
        _ => Ok(()),
    }
}

/// Refuses a hf_quant_config.json whose tensors could not be read.
///
/// `config` is the path of the config.json beside it.
pub(crate) fn check_sidecar(config: &str, files: &ConfigFiles) -> Result<(), ModelError> {
    let Some(quantization) = files.quant_config.as_ref().and_then(|c| c.get("quantization")) else {
        return Ok(());
    };
    let folder = config.rfind('/').map_or("", |slash| &config[..=slash]);
    let file = format!("{folder}hf_quant_config.json");
    let Some(map) = quantization.as_object() else { return Ok(()) };
    let fields = Fields::new(&file, "quantization.", map);
    check_algorithm(&fields, "quantization.quant_algo")?;
    let layers = map.get("quantized_layers").and_then(Value::as_object);
    for (module, layer) in layers.into_iter().flatten() {
        if let Some(map) = layer.as_object() {
            check_algorithm(&Fields::new(&file, "", map), &format!("quantized_layers.{module}.quant_algo"))?;
        }
    }
    Ok(())
}

/// Tensors of FP8 and NVFP4 are read whatever else the algorithm does with activations.
fn check_algorithm(fields: &Fields, name: &str) -> Result<(), ModelError> {
    let Some(algorithm) = fields.text(&["quant_algo"])? else { return Ok(()) };
    let known = algorithm.contains("NVFP4") || algorithm.starts_with("FP8") || algorithm == "MIXED_PRECISION";
    match known {
        true => Ok(()),
        false => Err(fields.bad(name, format!("is `{algorithm}`, which is not supported"), REMEDY)),
    }
}

/// An object inside a config, with what to call it.
struct Inner<'a> {
    prefix: String,
    map: &'a Map<String, Value>,
}

impl Inner<'_> {
    fn fields<'s>(&'s self, file: &'s str) -> Fields<'s> {
        Fields::new(file, &self.prefix, self.map)
    }
}

fn inner<'a>(fields: &Fields<'a>, name: &str) -> Result<Option<Inner<'a>>, ModelError> {
    let Some((field, value)) = fields.get(&[name]) else { return Ok(None) };
    match value.as_object() {
        Some(map) => Ok(Some(Inner { prefix: format!("{field}."), map })),
        None => Err(fields.mistyped(&field, "an object", value)),
    }
}

/// Bits and groups of MLX modules, as far as config.json gives them.
pub(crate) struct MlxSettings<'c> {
    quantization: Option<&'c Map<String, Value>>,
}

impl<'c> MlxSettings<'c> {
    /// What the config of a checkpoint says.
    pub fn of_checkpoint(checkpoint: &'c Checkpoint) -> MlxSettings<'c> {
        let Metadata::Config(files) = checkpoint.metadata() else {
            return MlxSettings { quantization: None };
        };
        let config = &files.config;
        let places = [Some(config), config.get("llm_config"), config.get("text_config")];
        let found = places.into_iter().flatten().find_map(|place| place.get("quantization")?.as_object());
        MlxSettings { quantization: found }
    }

    /// Bits and group of a module: its own, else those of all.
    pub fn of(&self, module: &str) -> (Option<usize>, Option<usize>) {
        let Some(all) = self.quantization else { return (None, None) };
        let own = all.iter().find(|(name, value)| value.is_object() && is_same_module(name, module));
        let own = own.and_then(|(_, value)| value.as_object());
        let size = |name: &str| {
            let value = own.and_then(|own| own.get(name)).or_else(|| all.get(name))?;
            usize::try_from(value.as_u64()?).ok()
        };
        (size("bits"), size("group_size"))
    }
}

/// Whether two paths mean one module: converters add and drop prefixes.
fn is_same_module(a: &str, b: &str) -> bool {
    let ends = |long: &str, short: &str| {
        long.strip_suffix(short).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    ends(a, b) || ends(b, a)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_module_has_its_own_settings() {
        let config = json!({
            "group_size": 64, "bits": 4, "mode": "affine",
            "backbone.layers.0.mixer.in_proj": {"group_size": 32, "bits": 8},
            "lm_head": {"bits": 6},
            "backbone.layers.1.mixer.gate": false,
        });
        let settings = MlxSettings { quantization: config.as_object() };
        assert_eq!(settings.of("backbone.layers.2.mixer.q_proj"), (Some(4), Some(64)));
        assert_eq!(settings.of("backbone.layers.0.mixer.in_proj"), (Some(8), Some(32)));
        assert_eq!(settings.of("language_model.backbone.layers.0.mixer.in_proj"), (Some(8), Some(32)));
        assert_eq!(settings.of("lm_head"), (Some(6), Some(64)));
        assert_eq!(settings.of("backbone.layers.1.mixer.gate"), (Some(4), Some(64)));
        assert_eq!(MlxSettings { quantization: None }.of("lm_head"), (None, None));
    }
}
