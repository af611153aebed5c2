//! The text side of a model, wherever its files keep it: tokenizer, chat template, stop tokens, recommended
//! sampling; and how requests become prompts.

use mambo_checkpoint::{ConfigFiles, Metadata};
use mambo_engine::{SamplingParams, common_prefix};
use mambo_text::{CallDialect, ChatRequest, ChatTemplate, OutputStyle, TextError, Tokenizer};
use serde_json::{Value, json};

use crate::{Model, Prompt, RuntimeError, gguf_text};

/// What stands between strings and token ids for one model.
pub struct ModelText {
    model_name: String,
    tokenizer: Tokenizer,
    /// A model without a usable template still continues plain text.
    template: Result<ChatTemplate, TextError>,
    stop_tokens: Vec<u32>,
    sampling: SamplingParams,
}

impl ModelText {
    pub(crate) fn of(model: &Model) -> Result<ModelText, RuntimeError> {
        let tokenizer = tokenizer(model)?;
        let token = |id: Option<u32>| id.map(|id| tokenizer.decode(&[id], false));
        let template = ChatTemplate::require(model.name(), model.chat_template()?)
            .map(|t| t.with_tokens(token(tokenizer.bos()).as_deref(), token(tokenizer.eos()).as_deref()));
        let mut stop_tokens = model.spec.stop_tokens.clone();
        stop_tokens.extend(tokenizer.eos());
        let dialect = template.as_ref().ok().and_then(|t| CallDialect::of_template(t.source()));
        let names = model.spec.stop_names().iter().chain(dialect.map_or(&[][..], CallDialect::stops));
        stop_tokens.extend(names.filter_map(|name| tokenizer.id_of(name)));
        stop_tokens.sort_unstable();
        stop_tokens.dedup();
        let model_name = model.name().to_owned();
        Ok(ModelText { model_name, template, stop_tokens, sampling: model.sampling(), tokenizer })
    }

    /// What messages call the model.
    pub fn model_name(&self) -> &str {
        &self.model_name
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The chat template; an error with the remedy if the model has none that works.
    pub fn template(&self) -> Result<&ChatTemplate, RuntimeError> {
        self.template.as_ref().map_err(|error| error.clone().into())
    }

    /// Every token that ends an answer: from the metadata and by the names that the family and its template use.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.stop_tokens
    }

    /// The sampling the model's authors recommend; greedy where they say nothing.
    pub fn sampling(&self) -> &SamplingParams {
        &self.sampling
    }

    /// A prompt that continues plain text.
    pub fn plain(&self, text: &str) -> Prompt {
        Prompt::new(self.tokenizer.encode(text, true), OutputStyle::PLAIN)
    }

    /// The prompt of a chat request.
    pub fn chat(&self, mut request: ChatRequest) -> Result<Prompt, RuntimeError> {
        let template = self.template()?;
        request.check()?;
        say_thinking(template, &mut request);
        let text = template.render(&request)?;
        let style = OutputStyle::detect(template.source(), &text);
        let prompt = Prompt::new(self.tokenizer.encode(&text, false), style);
        Ok(Prompt { tools: request.tools, ..prompt })
    }

    /// The prompt of a chat request, and how many of its tokens come before the start of the answer: that may be
    /// written otherwise once the answer is history, so later prompts share what stands before it.
    pub fn chat_with_history(&self, request: ChatRequest) -> Result<(Prompt, Option<usize>), RuntimeError> {
        // A template may refuse a conversation that does not go on; then nothing is known to be shared.
        let history = self.history(&request).ok();
        let prompt = self.chat(request)?;
        let shared = history.map(|ids| common_prefix(&ids, &prompt.tokens)).filter(|shared| *shared > 0);
        Ok((prompt, shared))
    }

    /// The tokens of a request without the start of an answer.
    fn history(&self, request: &ChatRequest) -> Result<Vec<u32>, RuntimeError> {
        let template = self.template()?;
        let mut request = ChatRequest { add_generation_prompt: false, ..request.clone() };
        say_thinking(template, &mut request);
        Ok(self.tokenizer.encode(&template.render(&request)?, false))
    }
}

impl Model {
    /// The source of the chat template, if the files have one.
    pub fn chat_template(&self) -> Result<Option<&str>, RuntimeError> {
        match self.checkpoint.metadata() {
            Metadata::Gguf(metadata) => Ok(gguf_text::chat_template(metadata)?),
            Metadata::Config(files) => Ok(files.chat_template.as_deref()),
        }
    }

    /// The sampling the model's authors recommend; greedy where they say nothing.
    pub fn sampling(&self) -> SamplingParams {
        match self.checkpoint.metadata() {
            Metadata::Gguf(metadata) => gguf_text::sampling(metadata),
            Metadata::Config(files) => recommended(files),
        }
    }
}

/// The tokenizer beside or inside the weights.
fn tokenizer(model: &Model) -> Result<Tokenizer, RuntimeError> {
    match model.checkpoint.metadata() {
        Metadata::Gguf(metadata) => Ok(Tokenizer::from_gguf(&gguf_text::vocabulary(metadata)?)?),
        Metadata::Config(files) => {
            let Some(json) = &files.tokenizer_json else {
                return Err(RuntimeError::NoTokenizer { model: model.name().to_owned() });
            };
            let config = files.tokenizer_config.as_ref().map(ToString::to_string);
            Ok(Tokenizer::from_json(json, config.as_deref())?)
        }
    }
}

/// The sampling of a generation_config.json.
fn recommended(files: &ConfigFiles) -> SamplingParams {
    let usual = SamplingParams::default();
    let field = |key: &str| files.generation_config.as_ref()?.get(key);
    if field("do_sample").and_then(Value::as_bool) != Some(true) {
        return usual;
    }
    let number = |key: &str| field(key).and_then(Value::as_f64).map(|value| value as f32);
    SamplingParams {
        temperature: number("temperature").unwrap_or(1.0),
        top_p: number("top_p").unwrap_or(usual.top_p),
        top_k: number("top_k").map_or(usual.top_k, |k| k as usize),
        ..usual
    }
}

/// Says in words whether to think, where the template knows no variable for it: older ones look for a word
/// in the messages instead.
fn say_thinking(template: &ChatTemplate, request: &mut ChatRequest) {
    let by_word = !template.source().contains("enable_thinking") && template.source().contains("/no_think");
    let Some(thinking) = request.enable_thinking.filter(|_| by_word) else { return };
    let word = if thinking { "/think" } else { "/no_think" };
    let system = request.messages.first_mut().filter(|first| first["role"] == "system");
    match system.map(|first| &mut first["content"]) {
        Some(Value::String(text)) => *text = format!("{text} {word}"),
        Some(Value::Array(parts)) => parts.push(json!({"type": "text", "text": format!(" {word}")})),
        Some(other) => *other = json!(word),
        None => request.messages.insert(0, json!({"role": "system", "content": word})),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system_of(source: &str, thinking: Option<bool>, system: Option<&str>) -> Option<String> {
        let template = ChatTemplate::new("test", source).unwrap();
        let system = system.map(|text| json!({"role": "system", "content": text}));
        let messages = system.into_iter().chain([json!({"role": "user", "content": "hi"})]);
        let mut request = ChatRequest { enable_thinking: thinking, ..ChatRequest::new(messages.collect()) };
        say_thinking(&template, &mut request);
        let first = &request.messages[0];
        (first["role"] == "system").then(|| first["content"].as_str().unwrap().to_owned())
    }

    #[test]
    fn thinking_is_a_variable_or_a_word_as_the_template_has_it() {
        let word = "{{ '/no_think' in messages[0].content }}";
        let variable = "{{ enable_thinking }} /no_think";
        assert_eq!(system_of(word, Some(false), None).as_deref(), Some("/no_think"));
        assert_eq!(system_of(word, Some(true), Some("Be brief.")).as_deref(), Some("Be brief. /think"));
        assert_eq!(system_of(word, None, None), None);
        assert_eq!(system_of(variable, Some(false), Some("Be brief.")).as_deref(), Some("Be brief."));
    }
}
