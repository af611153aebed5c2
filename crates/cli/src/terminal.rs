//! What goes to the screen: answer text plain, reasoning dim, notes on standard error.

use std::fmt::Display;
use std::io::{IsTerminal, Write};

/// Writes text to standard output; a closed pipe is an error and not a panic.
pub fn put(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes one JSON object on a line of its own.
pub fn put_json(object: &serde_json::Value) -> std::io::Result<()> {
    put(&format!("{object}\n"))
}

/// Writes a line to standard error. A standard error that is full or that nobody reads is no reason to stop: what
/// was asked for goes elsewhere, and there is no other place to complain.
pub fn put_note(line: impl Display) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Streams an answer to standard output.
pub struct Screen {
    colour: bool,
    dim: bool,
    empty: bool,
}

const DIM: &str = "\x1b[2m";
/// Ends every colour.
pub const RESET: &str = "\x1b[0m";

impl Screen {
    /// A screen that uses colour if a person is watching.
    pub fn new() -> Self {
        Screen { colour: std::io::stdout().is_terminal(), dim: false, empty: true }
    }

    fn write(&mut self, text: &str, dim: bool) -> std::io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let mut out = std::io::stdout().lock();
        if dim != self.dim {
            if !self.empty {
                out.write_all(b"\n\n")?;
            }
            if self.colour {
                out.write_all(if dim { DIM } else { RESET }.as_bytes())?;
            }
            self.dim = dim;
        }
        self.empty = false;
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// More of the answer.
    pub fn content(&mut self, text: &str) -> std::io::Result<()> {
        self.write(text, false)
    }

    /// More of the thought.
    pub fn reasoning(&mut self, text: &str) -> std::io::Result<()> {
        self.write(text, true)
    }

    /// Ends the answer's line and the colour.
    pub fn end(&mut self) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        if self.colour && self.dim {
            out.write_all(RESET.as_bytes())?;
        }
        self.dim = false;
        if !self.empty {
            out.write_all(b"\n")?;
        }
        self.empty = true;
        out.flush()
    }
}
