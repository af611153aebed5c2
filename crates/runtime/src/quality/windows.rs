//! A text cut into windows that are scored one by one, each from an empty context.

use mambo_engine::{Engine, SCORE_TOKENS, ScoreOptions};

use super::check_logits;
use crate::{Model, RuntimeError};

/// Tokens of a window unless the caller says otherwise.
pub const DEFAULT_WINDOW: usize = 512;

/// Equal pieces of a text's tokens; what is left over at the end is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    tokens: Vec<u32>,
    length: usize,
}

impl Windows {
    /// Cuts `tokens` into windows of `length`, at most `limit` of them; a short text is one window.
    pub fn new(mut tokens: Vec<u32>, length: usize, limit: Option<usize>) -> Result<Windows, RuntimeError> {
        if length < 2 {
            return Err(RuntimeError::WindowTooShort { tokens: length });
        }
        if tokens.len() < 2 {
            return Err(RuntimeError::TextTooShort { tokens: tokens.len() });
        }
        let length = length.min(tokens.len());
        let count = (tokens.len() / length).min(limit.unwrap_or(usize::MAX));
        if count == 0 {
            return Err(RuntimeError::NoWindows);
        }
        tokens.truncate(count * length);
        Ok(Windows { tokens, length })
    }

    /// The windows.
    pub fn iter(&self) -> impl Iterator<Item = &[u32]> {
        self.tokens.chunks_exact(self.length)
    }

    /// How many windows there are.
    pub fn count(&self) -> usize {
        self.tokens.len() / self.length
    }

    /// Tokens of a window.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Tokens that are predicted, over all windows.
    pub fn predicted(&self) -> usize {
        self.count() * (self.length - 1)
    }
}

/// Logits of a window, row t for the token at t+1; the last row predicts nothing known and is left out. `first` is
/// the window's place in the text, for the error where they are not numbers.
pub fn score_window(
    model: &Model,
    engine: &mut Engine,
    window: &[u32],
    first: usize,
) -> Result<Vec<f32>, RuntimeError> {
    let vocab = model.spec.vocab;
    let mut logits = Vec::with_capacity(window.len() * vocab);
    let options = ScoreOptions { chunk: SCORE_TOKENS, ..Default::default() };
    engine.score(window, options, &mut |rows| logits.extend_from_slice(rows.logits))?;
    logits.truncate((window.len() - 1) * vocab);
    check_logits(model, first, &logits)?;
    Ok(logits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_equal_and_bounded() {
        let cut = |n: u32, length, limit| Windows::new((0..n).collect(), length, limit);
        let windows = cut(10, 4, None).unwrap();
        assert_eq!((windows.count(), windows.length(), windows.predicted()), (2, 4, 6));
        assert_eq!(windows.iter().nth(1).unwrap(), [4, 5, 6, 7]);
        assert_eq!(cut(10, 4, Some(1)).unwrap().count(), 1);
        assert_eq!(cut(3, 512, None).unwrap().length(), 3);
        assert!(cut(1, 4, None).is_err() && cut(9, 1, None).is_err() && cut(9, 4, Some(0)).is_err());
    }
}
