//! Grammars as masks of tokens: what an answer may go on with. The grammar starts where the thought ends.

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use mambo_engine::TokenMask;
use mambo_runtime::Prompt;
use mambo_text::Tokenizer;
use serde_json::{Value, json};
use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use crate::chat::{Format, ToolChoice};
use crate::error::{ApiError, Kind};
use crate::grammar_calls::{Calls, json_answer};
use crate::grammar_mask::{GrammarMask, Thought};

/// What an answer must look like.
#[derive(Clone, Debug)]
pub(crate) struct Constraint {
    grammar: TopLevelGrammar,
    /// The field that asked for it.
    field: &'static str,
    /// Whether a thought comes first.
    thought: Thought,
}

impl Constraint {
    /// The constraint that a request asks for, if it does.
    pub fn of(
        choice: &ToolChoice,
        parallel: bool,
        format: &Format,
        prompt: &Prompt,
        tokenizer: &Tokenizer,
    ) -> Result<Option<Constraint>, ApiError> {
        let thought = Thought::of(&prompt.style);
        let constraint = |grammar, field| Ok(Some(Constraint { grammar, field, thought }));
        let names = tool_names(&prompt.tools);
        match choice {
            ToolChoice::Named(name) if !names.contains(&name.as_str()) => {
                let known = match names.is_empty() {
                    true => "`tools` names none".to_owned(),
                    false => format!("there are `{}`", names.join("`, `")),
                };
                return Err(ApiError::field("tool_choice", format!("there is no tool `{name}`; {known}")));
            }
            ToolChoice::Named(name) => {
                let calls = Calls::of(prompt, &[name], false, tokenizer)?;
                return constraint(TopLevelGrammar::from_lark(calls.alone()), "tool_choice");
            }
            ToolChoice::Required if names.is_empty() => {
                return Err(ApiError::field("tool_choice", "is `required`, but `tools` names none"));
            }
            ToolChoice::Required => {
                let calls = Calls::of(prompt, &names, parallel, tokenizer)?;
                return constraint(TopLevelGrammar::from_lark(calls.alone()), "tool_choice");
            }
            ToolChoice::Auto | ToolChoice::None => {}
        }
        let object = json!({"type": "object"});
        let grammar = match format {
            Format::Text => return Ok(None),
            // A model that may call tools does either.
            Format::JsonObject | Format::JsonSchema(_)
                if !names.is_empty() && prompt.style.calls.is_some() =>
            {
                let schema = if let Format::JsonSchema(schema) = format { schema } else { &object };
                let calls = Calls::of(prompt, &names, parallel, tokenizer)?;
                TopLevelGrammar::from_lark(calls.or_json(schema))
            }
            Format::JsonObject => json_answer(&object, &prompt.style, tokenizer),
            Format::JsonSchema(schema) => json_answer(schema, &prompt.style, tokenizer),
            Format::Regex(_) | Format::Lark(_) if !names.is_empty() => {
                let problem =
                    "a regex or a grammar leaves no room for `tools`; use `json_schema`, or leave them out";
                return Err(ApiError::field("response_format", problem));
            }
            Format::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Format::Lark(lark) => TopLevelGrammar::from_lark(lark.clone()),
        };
        constraint(grammar, "response_format")
    }
}

fn tool_names(tools: &[Value]) -> Vec<&str> {
    tools.iter().filter_map(|tool| tool.pointer("/function/name")?.as_str()).collect()
}

/// A grammar that is ready, at its start.
pub(crate) struct CompiledGrammar {
    matcher: Matcher,
    thought: Thought,
}

/// Compiles grammars for one vocabulary.
pub(crate) struct Grammars {
    factory: Result<ParserFactory, String>,
    tokenizer: Tokenizer,
}

impl Grammars {
    /// For a tokenizer and the tokens that end an answer.
    pub fn new(tokenizer: &Tokenizer, stop_tokens: &[u32], vocabulary: usize) -> Grammars {
        let factory = environment(tokenizer, stop_tokens, vocabulary)
            .and_then(|env| ParserFactory::new_simple(&env).map_err(|error| error.to_string()));
        let factory = factory.map(|mut factory| {
            factory.quiet();
            factory
        });
        Grammars { factory, tokenizer: tokenizer.clone() }
    }

    /// Compiles a grammar, or says what is wrong with it.
    pub fn compile(&self, constraint: Constraint) -> Result<CompiledGrammar, ApiError> {
        let factory = self.factory.as_ref().map_err(|error| ApiError::new(Kind::Internal, error.clone()))?;
        let Constraint { grammar, field, thought } = constraint;
        let parser = factory.create_parser(grammar).map_err(|error| ApiError::field(field, error))?;
        let matcher = Matcher::new(Ok(parser));
        let first = matcher.deep_clone().compute_mask_or_eos();
        if first.map_err(|error| ApiError::field(field, error))?.is_zero() {
            return Err(ApiError::field(field, "allows no text at all, not even none"));
        }
        Ok(CompiledGrammar { matcher, thought })
    }

    /// A mask for one answer after a grammar.
    pub fn mask(&self, grammar: &CompiledGrammar) -> Arc<dyn TokenMask> {
        Arc::new(GrammarMask::new(self.tokenizer.clone(), grammar.matcher.deep_clone(), grammar.thought))
    }
}

#[cfg(test)]
impl Grammars {
    /// A mask after an expression.
    pub fn mask_of_regex(&self, regex: &str, thought: Thought) -> Arc<dyn TokenMask> {
        let grammar = TopLevelGrammar::from_regex(regex);
        self.mask(&self.compile(Constraint { grammar, field: "response_format", thought }).unwrap())
    }
}

fn environment(tokenizer: &Tokenizer, stop_tokens: &[u32], vocabulary: usize) -> Result<TokEnv, String> {
    let words: Vec<Vec<u8>> = (0..vocabulary as u32)
        .map(|id| {
            let mut word = tokenizer.token_bytes(id).to_vec();
            if tokenizer.is_special(id) {
                // How the library tells special tokens from text that looks like them.
                word.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
            }
            word
        })
        .collect();
    let end = stop_tokens
        .first()
        .copied()
        .or(tokenizer.eos())
        .ok_or("the model has no token that ends an answer")?;
    let mut info = TokRxInfo::new(vocabulary as u32, end);
    info.tok_end_of_turn = stop_tokens.get(1).copied();
    let trie = TokTrie::from(&info, &words);
    Ok(Arc::new(ApproximateTokEnv::new(trie)))
}
