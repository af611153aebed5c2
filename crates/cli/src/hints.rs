//! Errors as one sentence: the chain of causes on one line, and the flag that does what a library error advises.

use std::fmt::{self, Display, Formatter};

use anyhow::Result;
use mambo_convert::ConvertError;
use mambo_engine::EngineError;
use mambo_hub::HubError;
use mambo_model::ModelError;
use mambo_runtime::RuntimeError;
use mambo_text::TextError;

/// One error of a chain.
type Cause = dyn std::error::Error + 'static;

/// The chain of causes on one line, without repeating what a cause already says.
pub fn one_sentence(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if !parts.last().is_some_and(|last| last.contains(&text)) {
            parts.push(text);
        }
    }
    let sentence = parts.join(": ");
    match error.chain().find_map(hint) {
        Some(hint) => format!("{sentence}; {hint}"),
        None => sentence,
    }
}

/// An error whose flag is not the usual one, because a command asks for the same thing in its own words.
#[derive(Debug)]
struct Hinted {
    error: anyhow::Error,
    hint: String,
}

impl Display for Hinted {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Hinted {
    fn source(&self) -> Option<&Cause> {
        self.error.source()
    }
}

/// Gives errors of one kind a command's own hint, if it has one.
pub fn with_hint<T, E: Into<anyhow::Error>>(
    result: Result<T, E>,
    concerns: fn(&Cause) -> bool,
    hint: impl FnOnce() -> Option<String>,
) -> Result<T> {
    result.map_err(|error| {
        let error = error.into();
        match error.chain().any(concerns).then(hint).flatten() {
            Some(hint) => Hinted { error, hint }.into(),
            None => error,
        }
    })
}

/// Whether an error says that there is no room for so many tokens or sequences.
pub fn about_room(cause: &Cause) -> bool {
    let engine = |error: &EngineError| {
        use EngineError::{DoesNotFit, TooManyCompanions, TooManyPages};
        matches!(error, DoesNotFit { .. } | TooManyPages { .. } | TooManyCompanions { .. })
    };
    match cause.downcast_ref() {
        Some(
            RuntimeError::ContextTooLong { .. }
            | RuntimeError::CacheTooLarge { .. }
            | RuntimeError::TooManySequences { .. },
        ) => true,
        Some(RuntimeError::Engine(error)) => engine(error),
        _ => cause.downcast_ref().is_some_and(engine),
    }
}

/// Whether an error is about the name of a type, or about a type that the output cannot hold.
pub fn about_types(cause: &Cause) -> bool {
    use ConvertError::{NotInFolder, NotInGguf, NotOneType, UnknownType};
    matches!(
        cause.downcast_ref(),
        Some(UnknownType { .. } | NotOneType { .. } | NotInGguf { .. } | NotInFolder { .. })
    )
}

/// Whether an error is about a rule for some weights.
pub fn about_rules(cause: &Cause) -> bool {
    use ConvertError::{BadRule, NoSuchMatrix, UnknownType};
    matches!(cause.downcast_ref(), Some(BadRule { .. } | NoSuchMatrix { .. } | UnknownType { .. }))
}

/// Whether an error is about a token that the vocabulary does not have.
pub fn about_tokens(cause: &Cause) -> bool {
    let engine = |error: &EngineError| matches!(error, EngineError::TokenOutOfRange { .. });
    match cause.downcast_ref() {
        Some(RuntimeError::Engine(error)) => engine(error),
        _ => cause.downcast_ref().is_some_and(engine),
    }
}

/// The flag behind an error of a library.
fn hint(cause: &Cause) -> Option<&str> {
    let own = || cause.downcast_ref::<Hinted>().map(|error| error.hint.as_str());
    let runtime = || cause.downcast_ref().and_then(runtime_hint);
    let engine = || cause.downcast_ref().and_then(engine_hint);
    let convert = || cause.downcast_ref().and_then(convert_hint);
    let hub = || cause.downcast_ref().and_then(hub_hint);
    own().or_else(runtime).or_else(engine).or_else(convert).or_else(hub)
}

fn runtime_hint(error: &RuntimeError) -> Option<&'static str> {
    match error {
        RuntimeError::NoContext
        | RuntimeError::ContextTooLong { .. }
        | RuntimeError::CacheTooLarge { .. } => Some("--context sets the length"),
        RuntimeError::NoStepTokens => Some("--chunk sets the tokens of a step"),
        RuntimeError::WindowTooShort { .. } => Some("--window sets the length"),
        RuntimeError::NoWindows => Some("--windows sets the number"),
        RuntimeError::Text(TextError::NoTemplate { .. }) => Some("--raw completes plain text"),
        RuntimeError::Model(error) => model_hint(error),
        RuntimeError::Engine(error) => engine_hint(error),
        RuntimeError::Failed { why, .. } => engine_hint(why),
        _ => None,
    }
}

/// The command that shows more than the first thing that is wrong.
fn model_hint(error: &ModelError) -> Option<&'static str> {
    use ModelError::{Contradiction, MissingTensor, UnknownArchitecture, WrongShape};
    match error {
        UnknownArchitecture { .. } => Some("`mambo inspect` says which family it is nearest to"),
        MissingTensor { .. } | WrongShape { .. } | Contradiction { .. } => {
            Some("`mambo inspect` lists all that is wrong")
        }
        _ => None,
    }
}

fn engine_hint(error: &EngineError) -> Option<&'static str> {
    match error {
        EngineError::PromptTooLong { .. }
        | EngineError::NoRoom { .. }
        | EngineError::DoesNotFit { .. }
        | EngineError::TooManyPages { .. } => Some("--context sets the length"),
        EngineError::TooManyCompanions { .. } => Some("--beside sets the number"),
        EngineError::Request(problem) => request_hint(problem),
        _ => None,
    }
}

/// The flag behind the field of a request that a sentence begins with.
fn request_hint(problem: &str) -> Option<&'static str> {
    const FLAGS: [(&str, &str); 8] = [
        ("max_tokens ", "--tokens sets it"),
        ("temperature ", "--temp sets it"),
        ("top_p ", "--top-p sets it"),
        ("min_p ", "--min-p sets it"),
        ("repetition_penalty ", "--repetition-penalty sets it"),
        ("presence_penalty ", "--presence-penalty sets it"),
        ("frequency_penalty ", "--frequency-penalty sets it"),
        ("logit_bias ", "--logit-bias sets it"),
    ];
    FLAGS.iter().find(|(field, _)| problem.starts_with(field)).map(|(_, flag)| *flag)
}

fn convert_hint(error: &ConvertError) -> Option<&'static str> {
    match error {
        ConvertError::Exists { .. } => Some("--force replaces it"),
        ConvertError::DiskFull { .. } => Some("--output says where it goes"),
        ConvertError::Runtime(error) => runtime_hint(error),
        ConvertError::Engine(error) => engine_hint(error),
        _ => None,
    }
}

fn hub_hint(error: &HubError) -> Option<&'static str> {
    match error {
        HubError::BadToken | HubError::NoAccess { .. } | HubError::RateLimited { has_token: false, .. } => {
            Some("HF_TOKEN, or the file that `hf auth login` writes, holds the token")
        }
        HubError::BadEndpoint { .. } | HubError::BadAnswer { .. } => Some("HF_ENDPOINT sets the address"),
        HubError::DiskFull { .. } => Some("HF_HUB_CACHE says where models go"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;
    use mambo_runtime::SamplingParams;

    #[test]
    fn a_library_error_gets_its_flag_wherever_it_stands_in_the_chain() {
        let full = || EngineError::NoRoom { context: 8 };
        let plain = one_sentence(&full().into());
        assert!(plain.ends_with("raise the context length; --context sets the length"), "{plain}");
        let loaded = RuntimeError::Load { model: "m".to_owned(), source: full() };
        let chained: anyhow::Error = Err::<(), _>(loaded).context("no").unwrap_err();
        assert_eq!(one_sentence(&chained), format!("no: cannot load m: {plain}"));
        let wrapped = ConvertError::from(RuntimeError::from(full()));
        assert_eq!(one_sentence(&wrapped.into()), plain);
        assert_eq!(one_sentence(&anyhow::anyhow!("x").context("y")), "y: x");
    }

    #[test]
    fn a_command_names_its_own_flags() {
        let large = || -> anyhow::Error { RuntimeError::TooManySequences { sequences: 9, most: 8 }.into() };
        let lower = || Some("lower --batch 9".to_owned());
        let hinted = with_hint(Err::<(), _>(large().context("no")), about_room, lower).unwrap_err();
        assert_eq!(one_sentence(&hinted), format!("no: {}; lower --batch 9", large()));
        let other = with_hint(Err::<(), _>(large()), about_types, lower).unwrap_err();
        assert_eq!(one_sentence(&other), large().to_string());
        let silent = with_hint(Err::<(), _>(large()), about_room, || None).unwrap_err();
        assert_eq!(one_sentence(&silent), large().to_string());
    }

    /// The engine names fields of a request; if it renames one, its flag must follow.
    #[test]
    fn every_field_of_sampling_has_its_flag() {
        let usual = SamplingParams::default;
        let cases = [
            (SamplingParams { temperature: -1.0, ..usual() }, "--temp"),
            (SamplingParams { top_p: 7.0, ..usual() }, "--top-p"),
            (SamplingParams { min_p: 7.0, ..usual() }, "--min-p"),
            (SamplingParams { repetition_penalty: 0.0, ..usual() }, "--repetition-penalty"),
            (SamplingParams { presence_penalty: f32::NAN, ..usual() }, "--presence-penalty"),
            (SamplingParams { frequency_penalty: f32::NAN, ..usual() }, "--frequency-penalty"),
            (SamplingParams { logit_bias: vec![(1, f32::NAN)], ..usual() }, "--logit-bias"),
        ];
        for (sampling, flag) in cases {
            let error = EngineError::Request(sampling.problem().unwrap());
            let sentence = one_sentence(&error.into());
            assert!(sentence.ends_with(&format!("; {flag} sets it")), "{sentence}");
        }
    }
}
