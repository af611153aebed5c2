//! Errors as one sentence: the chain of causes on one line, and the flag that does what a library error advises.

use mambo_convert::ConvertError;
use mambo_engine::EngineError;
use mambo_runtime::RuntimeError;
use mambo_text::TextError;

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
        Some(hint) => format!("{sentence} ({hint})"),
        None => sentence,
    }
}

/// The flag behind an error of a library.
fn hint(cause: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    let runtime = || cause.downcast_ref().and_then(runtime_hint);
    let engine = || cause.downcast_ref().and_then(engine_hint);
    let convert = || cause.downcast_ref().and_then(convert_hint);
    runtime().or_else(engine).or_else(convert)
}

fn runtime_hint(error: &RuntimeError) -> Option<&'static str> {
    match error {
        RuntimeError::NoContext
        | RuntimeError::ContextTooLong { .. }
        | RuntimeError::CacheTooLarge { .. } => Some("--context sets the length"),
        RuntimeError::NoStepTokens => Some("--chunk sets them"),
        RuntimeError::WindowTooShort { .. } => Some("--window sets the length"),
        RuntimeError::NoWindows => Some("--windows sets the number"),
        RuntimeError::Text(TextError::NoTemplate { .. }) => Some("--raw completes plain text"),
        RuntimeError::Engine(error) => engine_hint(error),
        _ => None,
    }
}

fn engine_hint(error: &EngineError) -> Option<&'static str> {
    match error {
        EngineError::PromptTooLong { .. } | EngineError::NoRoom { .. } | EngineError::DoesNotFit { .. } => {
            Some("--context sets the length")
        }
        _ => None,
    }
}

fn convert_hint(error: &ConvertError) -> Option<&'static str> {
    match error {
        ConvertError::Exists { .. } => Some("--force replaces it"),
        ConvertError::Runtime(error) => runtime_hint(error),
        ConvertError::Engine(error) => engine_hint(error),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn a_library_error_gets_its_flag_wherever_it_stands_in_the_chain() {
        let full = || EngineError::NoRoom { context: 8 };
        let plain = one_sentence(&full().into());
        assert!(plain.ends_with("raise the context length (--context sets the length)"), "{plain}");
        let loaded = RuntimeError::Load { model: "m".to_owned(), source: full() };
        let chained: anyhow::Error = Err::<(), _>(loaded).context("no").unwrap_err();
        assert_eq!(one_sentence(&chained), format!("no: cannot load m: {plain}"));
        let wrapped = ConvertError::from(RuntimeError::from(full()));
        assert_eq!(one_sentence(&wrapped.into()), plain);
        assert_eq!(one_sentence(&anyhow::anyhow!("x").context("y")), "y: x");
    }
}
