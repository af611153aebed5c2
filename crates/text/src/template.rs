//! A conversation to the prompt text, by the model's own Jinja chat template. Knows Jinja as published
//! templates use it (Python's dialect); not tokens, and not what a model will answer.

mod bounds;
pub mod clock;
mod growing;
mod messages;
mod methods;
mod tojson;
mod tools;
mod value;

use std::collections::BTreeMap;

use minijinja::machinery::{self, CodeGenerator, Instructions};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value as JinjaValue;
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use self_cell::self_cell;
use serde_json::{Map, Value};

use crate::error::{Result, TextError};

/// Steps of the template engine that one prompt may take: templates come with models from anywhere, and a
/// loop in a loop must end. Conversations of two thousand messages stay below it, as a test shows.
const MAX_STEPS: u64 = 20_000_000;
/// Most macros and includes inside each other; published templates nest a handful.
const MAX_NESTING: usize = 64;

/// What to render.
#[derive(Clone, Debug)]
pub struct ChatRequest {
    /// The conversation: objects with `role`, `content` and, for assistants, perhaps `reasoning_content`
    /// (or `reasoning`) and `tool_calls`.
    pub messages: Vec<Value>,
    /// The tools on offer, as JSON schemas.
    pub tools: Vec<Value>,
    /// Whether the model is to think; `None` leaves it to the template.
    pub enable_thinking: Option<bool>,
    /// Whether to end with the start of an assistant turn.
    pub add_generation_prompt: bool,
    /// Further template variables, such as `truncate_history_thinking` or `low_effort`.
    pub kwargs: Map<String, Value>,
    /// The time `strftime_now` tells, in seconds since 1970 (UTC); `None` asks the template's clock.
    pub now_unix_s: Option<i64>,
}

impl ChatRequest {
    /// A request for an answer to `messages`, everything else at its default.
    pub fn new(messages: Vec<Value>) -> Self {
        Self {
            messages,
            tools: Vec::new(),
            enable_thinking: None,
            add_generation_prompt: true,
            kwargs: Map::new(),
            now_unix_s: None,
        }
    }

    /// Refuses a request that no model can answer: without messages, or with messages or tools that are none. Many
    /// templates would render them all the same, as nothing or as garbage.
    pub fn check(&self) -> Result<()> {
        if self.messages.is_empty() {
            let detail = r#"expected at least one message, such as {"role": "user", "content": "Hello"}"#;
            return Err(TextError::Request { field: "messages".to_owned(), detail: detail.to_owned() });
        }
        messages::normalise(&self.messages)?;
        tools::check(&self.tools)
    }
}

/// What is compiled: the template's name and its source without marks for training and without products of constants.
struct Source {
    name: String,
    text: String,
}

/// The instructions of a template and of its blocks, which borrow from its source.
struct Compiled<'source> {
    main: Instructions<'source>,
    blocks: BTreeMap<&'source str, Instructions<'source>>,
}

self_cell!(
    struct Program {
        owner: Source,
        #[covariant]
        dependent: Compiled,
    }
);

impl<'source> Compiled<'source> {
    /// Compiles a template once for all prompts: that takes about as long as rendering a short one.
    fn of(source: &'source Source, syntax: SyntaxConfig) -> std::result::Result<Self, Error> {
        let Source { name, text } = source;
        let mut generator = CodeGenerator::new(name, text);
        generator.compile_stmt(&machinery::parse(text, name, syntax)?);
        let (plain, blocks) = generator.finish();
        let bounded = |plain| bounds::bounded(name, text, plain);
        let blocks = blocks.iter().map(|(block, plain)| (*block, bounded(plain))).collect();
        Ok(Compiled { main: bounded(&plain), blocks })
    }
}

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    program: Program,
    name: String,
    source: String,
    tokens: Vec<(&'static str, String)>,
    clock: Option<fn() -> i64>,
}

impl ChatTemplate {
    /// Compiles `source`; `name` is the file or key it came from, for error messages.
    pub fn new(name: &str, source: &str) -> Result<Self> {
        let mut environment = Environment::new();
        // Chat templates are written for these two settings.
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .expect("the default delimiters are valid");
        environment.set_fuel(Some(MAX_STEPS));
        environment.set_recursion_limit(MAX_NESTING);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(methods::call);
        environment.add_filter("tojson", tojson::filter);
        environment.add_function("raise_exception", raise_exception);
        bounds::install(&mut environment);
        growing::install(&mut environment);
        let text = bounds::unfolded(&without_masks(source), syntax.clone());
        let compiled =
            Program::try_new(Source { name: name.to_owned(), text }, |source| Compiled::of(source, syntax));
        let program = compiled.map_err(|error| TextError::TemplateSyntax {
            template: name.to_owned(),
            line: error.line().unwrap_or(1),
            detail: describe(&error),
        })?;
        Ok(Self {
            environment,
            program,
            name: name.to_owned(),
            source: source.to_owned(),
            tokens: Vec::new(),
            clock: None,
        })
    }

    /// Compiles the template a model may or may not have; `origin` is the model, for the error.
    pub fn require(origin: &str, source: Option<&str>) -> Result<Self> {
        match source {
            Some(source) => Self::new(origin, source),
            None => Err(TextError::NoTemplate { origin: origin.to_owned() }),
        }
    }

    /// Gives the template the text of the model's special tokens, as `bos_token` and `eos_token`.
    pub fn with_tokens(mut self, bos_token: Option<&str>, eos_token: Option<&str>) -> Self {
        let tokens = [("bos_token", bos_token), ("eos_token", eos_token)];
        self.tokens = tokens.into_iter().filter_map(|(name, text)| Some((name, text?.to_owned()))).collect();
        self
    }

    /// Gives the template a clock: seconds since 1970 (UTC), for requests that do not set the time themselves.
    /// Without a time a template has no `strftime_now`.
    pub fn with_clock(mut self, clock: fn() -> i64) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The template's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The template's text, from which the form of the model's answers is derived.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The prompt for `request`. It carries its special tokens as text: encode it without adding more.
    pub fn render(&self, request: &ChatRequest) -> Result<String> {
        let messages = messages::normalise(&request.messages)?;
        let mut variables: Vec<(String, JinjaValue)> = vec![
            ("messages".into(), messages.iter().map(value::to_jinja).collect()),
            ("documents".into(), JinjaValue::from(())),
            ("add_generation_prompt".into(), request.add_generation_prompt.into()),
        ];
        if let Some(now_unix_s) = request.now_unix_s.or_else(|| self.clock.map(|clock| clock())) {
            let tell = move |format: &str| clock::format(now_unix_s, format);
            variables.push(("strftime_now".into(), JinjaValue::from_function(tell)));
        }
        // Templates ask `if tools`, `is defined` and `is not none`: no tools must be none, not an empty list.
        let tools = match request.tools.as_slice() {
            [] => JinjaValue::from(()),
            tools => tools.iter().map(value::to_jinja).collect(),
        };
        variables.push(("tools".into(), tools));
        for (name, text) in &self.tokens {
            variables.push(((*name).into(), text.as_str().into()));
        }
        if let Some(thinking) = request.enable_thinking {
            variables.push(("enable_thinking".into(), thinking.into()));
        }
        for (name, argument) in &request.kwargs {
            variables.push((name.clone(), value::to_jinja(argument)));
        }
        self.run(JinjaValue::from_pairs(variables)).map_err(|error| self.failed(&error))
    }

    fn run(&self, variables: JinjaValue) -> std::result::Result<String, Error> {
        let Compiled { main, blocks } = self.program.borrow_dependent();
        let mut text = String::new();
        let mut output = machinery::make_string_output(&mut text);
        machinery::eval(&self.environment, main, variables, blocks, &mut output, AutoEscape::None)?;
        Ok(text)
    }

    fn failed(&self, error: &Error) -> TextError {
        let template = self.name.clone();
        let line = error.line().unwrap_or(1);
        match std::error::Error::source(error).and_then(|source| source.downcast_ref::<Refusal>()) {
            Some(refusal) => TextError::TemplateRefused { template, line, message: refusal.0.clone() },
            None => TextError::TemplateRender { template, line, detail: describe(error) },
        }
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a template said with `raise_exception`, to be told from the errors of the engine.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

fn raise_exception(message: &str) -> std::result::Result<JinjaValue, Error> {
    let error = Error::new(ErrorKind::InvalidOperation, message.to_owned());
    Err(error.with_source(Refusal(message.to_owned())))
}

fn describe(error: &Error) -> String {
    if error.kind() == ErrorKind::OutOfFuel {
        return format!("does not end within {MAX_STEPS} steps");
    }
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// `{% generation %}` only marks text for training; a block that always holds takes its place, so that
/// whitespace control and line numbers stay as they are.
fn without_masks(source: &str) -> String {
    let mut output = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        // In `{%}` the sign belongs to the beginning alone.
        let inside = start + 2;
        let Some(end) = rest[inside..].find("%}").map(|at| inside + at) else { break };
        let tag = &rest[start..end];
        let word = tag[2..].trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        output.push_str(&rest[..start]);
        match word {
            "generation" => output.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => output.push_str(&tag.replace("endgeneration", "endif")),
            _ => output.push_str(tag),
        }
        rest = &rest[end..];
    }
    output.push_str(rest);
    output
}
