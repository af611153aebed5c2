//! The JSON and text files beside safetensors weights. Parses them; knows no configuration keys but the chat
//! template's, and not where the texts come from.

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
    /// Every file that is asked for.
    pub const NAMES: [&str; 6] = [
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
        "hf_quant_config.json",
        "tokenizer.json",
        "chat_template.jinja",
    ];

    /// Parses the files of a folder: `text` gives a file's text by its name, `None` where there is no such file.
    /// Only `config.json` has to be there; `folder` is its name in messages.
    pub fn from_texts(
        folder: &Path,
        mut text: impl FnMut(&str) -> Result<Option<String>, CheckpointError>,
    ) -> Result<ConfigFiles, CheckpointError> {
        let mut json = |name: &str| text(name)?.map(|text| parse_file(&folder.join(name), &text)).transpose();
        let Some(config) = json("config.json")? else {
            return Err(CheckpointError::NotACheckpoint {
                path: folder.to_path_buf(),
                problem: "there is no config.json".to_string(),
                remedy: "download the model's JSON files into the same folder as its weights".to_string(),
            });
        };
        let tokenizer_config = json("tokenizer_config.json")?;
        let generation_config = json("generation_config.json")?;
        let quant_config = json("hf_quant_config.json")?;
        let chat_template = match text("chat_template.jinja")? {
            Some(template) => Some(template),
            None => tokenizer_config.as_ref().and_then(default_template),
        };
        let tokenizer_json = text("tokenizer.json")?;
        Ok(ConfigFiles {
            config,
            generation_config,
            tokenizer_config,
            quant_config,
            tokenizer_json,
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

/// The JSON of a file, or an error that names it.
pub(crate) fn parse_file(path: &Path, text: &str) -> Result<Value, CheckpointError> {
    parse_json(text).map_err(|reason| CheckpointError::Json { file: path.display().to_string(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn no_other_file_is_asked_for() {
        let mut asked = Vec::new();
        ConfigFiles::from_texts(Path::new("folder"), |name| {
            asked.push(name.to_owned());
            Ok((name == "config.json").then(|| "{}".to_owned()))
        })
        .unwrap();
        asked.sort();
        let mut names = ConfigFiles::NAMES;
        names.sort();
        assert_eq!(asked, names);
    }

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
