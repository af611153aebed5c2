//! What a model folder's JSON says about quantisation: which methods cannot be read, and MLX's groups.
//!
//! Tensors decide how a module is stored (see `storage`); nothing here changes a size.

use mambo_checkpoint::{Checkpoint, ConfigFiles, Metadata};
use mambo_tensor::Affine;
use serde_json::{Map, Value};

use crate::error::ModelError;
use crate::fields::Fields;
use crate::storage::PACKED_BITS;

/// Methods whose tensors are read, by the name in `quantization_config`.
const METHODS: [&str; 8] =
    ["modelopt", "modelopt_fp4", "modelopt_fp8", "compressed-tensors", "fp8", "mxfp4", "awq", "gptq"];
const REMEDY: &str =
    "use the bf16, NVFP4, FP8, AWQ (gemm), GPTQ or MLX release, or a GGUF file of this model";
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
        check_packed(&config)?;
        square_of(&config)?;
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

/// Refuses what AWQ and GPTQ can be besides what is read.
fn check_packed(config: &Fields) -> Result<(), ModelError> {
    let method = config.text(&["quant_method"])?.unwrap_or_default();
    if !["awq", "gptq"].contains(&method) {
        return Ok(());
    }
    let known: [(&str, &[&str]); 2] = [("version", &["gemm"]), ("checkpoint_format", &["gptq", "gptq_v2"])];
    for (name, known) in known {
        let said = config.text(&[name])?;
        if let Some(other) = said.filter(|said| !known.contains(&said.to_lowercase().as_str())) {
            let problem = format!("is `{other}`, but only `{}` can be read", known.join("` and `"));
            return Err(config.bad(&format!("quantization_config.{name}"), problem, REMEDY));
        }
    }
    match config.size(&["bits", "w_bit"])? {
        Some(bits) if !PACKED_BITS.contains(&bits) || (method == "awq" && bits != 4) => {
            let known = if method == "awq" { "4" } else { "2, 4 and 8" };
            let problem = format!("is {bits}, but {known} bits are supported");
            Err(config.bad("quantization_config.bits", problem, REMEDY))
        }
        _ => Ok(()),
    }
}

/// Rows and columns of FP8 values that share a scale, where the config says so.
fn square_of(config: &Fields) -> Result<Option<[usize; 2]>, ModelError> {
    let Some((field, list)) = config.list(&["weight_block_size"])? else { return Ok(None) };
    let sizes = list.iter().map(|size| config.as_size(&field, size)).collect::<Result<Vec<_>, _>>()?;
    match sizes[..] {
        [rows, cols] if rows > 0 && cols > 0 => Ok(Some([rows, cols])),
        _ => Err(config.bad(&field, "is not two sizes above zero", "correct the file")),
    }
}

/// The `quantization_config` of a checkpoint, wherever its config keeps it.
fn config_of(checkpoint: &Checkpoint) -> Option<&Map<String, Value>> {
    let Metadata::Config(files) = checkpoint.metadata() else { return None };
    let config = &files.config;
    let places = [Some(config), config.get("llm_config"), config.get("text_config")];
    places.into_iter().flatten().find_map(|place| place.get("quantization_config")?.as_object())
}

/// Rows and columns of FP8 values that share a scale.
pub(crate) fn square(checkpoint: &Checkpoint) -> [usize; 2] {
    const USUAL: [usize; 2] = [128, 128];
    let said = config_of(checkpoint).map(|map| square_of(&Fields::new("", "", map)));
    said.and_then(|said| said.ok().flatten()).unwrap_or(USUAL)
}

/// What config.json says about AWQ or GPTQ.
pub(crate) struct PackedSettings {
    /// `awq` or `gptq`.
    pub method: Option<&'static str>,
    /// Bits of a code.
    pub bits: Option<usize>,
    /// Columns of a group; none where one group is a whole row.
    pub group: Option<usize>,
    is_second_version: bool,
}

impl PackedSettings {
    /// What the config of a checkpoint says; what it says wrongly was refused when the model was described.
    pub fn of_checkpoint(checkpoint: &Checkpoint) -> PackedSettings {
        let map = config_of(checkpoint);
        let text = |name: &str| map.and_then(|map| map.get(name)?.as_str());
        let size = |names: [&str; 2]| {
            let value = names.iter().find_map(|name| map?.get(*name)?.as_i64());
            value.and_then(|value| usize::try_from(value).ok()).filter(|size| *size > 0)
        };
        let said = text("quant_method");
        PackedSettings {
            method: ["awq", "gptq"].into_iter().find(|method| said == Some(method)),
            bits: size(["bits", "w_bit"]),
            group: size(["group_size", "q_group_size"]),
            is_second_version: text("checkpoint_format") == Some("gptq_v2"),
        }
    }

    /// What GPTQ's files leave out of their zeros: the first version of the format stores them less one.
    pub fn zero_offset(&self) -> u32 {
        if self.is_second_version { 0 } else { 1 }
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
