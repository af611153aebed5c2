//! The JSON and text files beside safetensors weights. Reads them; knows no configuration keys but the
//! chat template's.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::Value;

use crate::{CheckpointError, parse_json};

/// What a model folder says about itself, apart from the weights.
#[derive(Debug, Clone, Default)]
pub struct ConfigFiles {
    /// `config.json`; null for weights without a folder.
    pub config: Value,
    /// `generation_config.json`
    pub generation_config: Option<Value>,
    /// `tokenizer_config.json`
    pub tokenizer_config: Option<Value>,
    /// `hf_quant_config.json`: which modules are quantised, and how.
    pub quant_config: Option<Value>,
    /// `tokenizer.json`, as text: another crate parses it.
    pub tokenizer_json: Option<String>,
    /// `chat_template.jinja`, else the default template of `tokenizer_config.json`.
    pub chat_template: Option<String>,
}

impl ConfigFiles {
    /// A configuration alone, whatever its file is called.
    pub(crate) fn read_alone(file: &Path) -> Result<ConfigFiles, CheckpointError> {
        Ok(ConfigFiles { config: read_json(file)?.unwrap_or_default(), ..Default::default() })
    }

    /// Reads the files of a folder; only `config.json` has to be there.
    pub(crate) fn read(folder: &Path) -> Result<ConfigFiles, CheckpointError> {
        let Some(config) = read_json(&folder.join("config.json"))? else {
            return Err(CheckpointError::NotACheckpoint {
                path: folder.to_path_buf(),
                problem: "there is no config.json".to_string(),
                remedy: "download the model's JSON files into the same folder as its weights".to_string(),
            });
        };
        let tokenizer_config = read_json(&folder.join("tokenizer_config.json"))?;
        let chat_template = match read_text(&folder.join("chat_template.jinja"))? {
            Some(template) => Some(template),
            None => tokenizer_config.as_ref().and_then(default_template),
        };
        Ok(ConfigFiles {
            config,
            generation_config: read_json(&folder.join("generation_config.json"))?,
            quant_config: read_json(&folder.join("hf_quant_config.json"))?,
            tokenizer_json: read_text(&folder.join("tokenizer.json"))?,
            tokenizer_config,
            chat_template,
        })
    }
}

/// The template in a tokenizer configuration: a string, or the one named `default` in a list.
fn default_template(tokenizer_config: &Value) -> Option<String> {
    let template = match tokenizer_config.get("chat_template")? {
        Value::Array(list) => list.iter().find(|t| t["name"] == "default")?.get("template")?,
        single => single,
    };
    template.as_str().map(str::to_string)
}

fn read_json(path: &Path) -> Result<Option<Value>, CheckpointError> {
    let Some(text) = read_text(path)? else { return Ok(None) };
    let bad = |reason| CheckpointError::Json { file: path.display().to_string(), reason };
    parse_json(&text).map(Some).map_err(bad)
}

/// The file's text, or `None` when there is no such file.
pub(crate) fn read_text(path: &Path) -> Result<Option<String>, CheckpointError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(CheckpointError::io("read", path)(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn template_as_string_or_list() {
        assert_eq!(default_template(&json!({"chat_template": "a"})).as_deref(), Some("a"));
        let list = json!({"chat_template": [
            {"name": "tool_use", "template": "t"},
            {"name": "default", "template": "d"},
        ]});
        assert_eq!(default_template(&list).as_deref(), Some("d"));
        assert_eq!(default_template(&json!({"chat_template": [{"name": "rag"}]})), None);
        assert_eq!(default_template(&json!({"chat_template": 3})), None);
        assert_eq!(default_template(&json!({})), None);
    }
}
