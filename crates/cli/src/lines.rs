//! Lines a person or a pipe gives: with editing and history on a terminal, plain otherwise.

use std::io::{BufRead, IsTerminal};

use anyhow::{Context, Result};
use rustyline::error::ReadlineError;

/// What came in.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// A line without its end.
    Text(String),
    /// Ctrl-C at the prompt.
    Interrupted,
    /// Ctrl-D, or the end of the pipe.
    End,
}

/// Where lines come from.
pub enum Lines {
    /// A person.
    Terminal(Box<rustyline::DefaultEditor>),
    /// A pipe or a file.
    Pipe,
}

impl Lines {
    /// Lines from standard input.
    pub fn new() -> Result<Lines> {
        let watched = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        if !watched {
            return Ok(Lines::Pipe);
        }
        let editor = rustyline::DefaultEditor::new().context("cannot set up the terminal")?;
        Ok(Lines::Terminal(Box::new(editor)))
    }

    /// Whether a person is there.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Lines::Terminal(_))
    }

    /// The next text; a line that ends in a backslash goes on in the next.
    pub fn next(&mut self) -> Result<Line> {
        let mut text = String::new();
        loop {
            let prompt = if text.is_empty() { "> " } else { ". " };
            match self.read(prompt)? {
                Line::Text(line) => match line.strip_suffix('\\') {
                    Some(start) => text = text + start + "\n",
                    None => {
                        text += &line;
                        break;
                    }
                },
                Line::End if !text.is_empty() => break,
                other => return Ok(other),
            }
        }
        if let Lines::Terminal(editor) = self
            && !text.trim().is_empty()
        {
            editor.add_history_entry(&text).context("cannot remember the line")?;
        }
        Ok(Line::Text(text))
    }

    fn read(&mut self, prompt: &str) -> Result<Line> {
        match self {
            Lines::Terminal(editor) => match editor.readline(prompt) {
                Ok(text) => Ok(Line::Text(text)),
                Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(error) => Err(error).context("cannot read from the terminal"),
            },
            Lines::Pipe => {
                let mut bytes = Vec::new();
                let mut input = std::io::stdin().lock();
                let count = input.read_until(b'\n', &mut bytes).context("cannot read from standard input")?;
                if count == 0 {
                    return Ok(Line::End);
                }
                let text = String::from_utf8_lossy(&bytes);
                Ok(Line::Text(text.trim_end_matches(['\n', '\r']).to_owned()))
            }
        }
    }
}
