//! A text file to measure on, cut into windows of a model's tokens.

use std::path::Path;

use anyhow::{Context, Result};
use mambo_runtime::Model;
use mambo_runtime::quality::Windows;

/// A text file and how it is cut.
#[derive(Clone, Copy, Debug)]
pub struct TextFile<'a> {
    /// The file.
    pub path: &'a Path,
    /// Tokens of a window.
    pub window: usize,
    /// Most windows.
    pub windows: Option<usize>,
}

impl TextFile<'_> {
    /// The text as a model reads it.
    pub fn windows(&self, model: &Model) -> Result<Windows> {
        let text = std::fs::read_to_string(self.path)
            .with_context(|| format!("cannot read the text in {}", self.path.display()))?;
        Windows::new(model.text()?.tokenizer().encode(&text, true), self.window, self.windows)
            .with_context(|| format!("cannot use the text in {}", self.path.display()))
    }
}
