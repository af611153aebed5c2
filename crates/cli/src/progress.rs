//! Progress bars on standard error; nothing where nobody watches.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};

/// A bar that counts bytes, with speed and time left.
pub struct ByteBar(ProgressBar);

impl ByteBar {
    /// A bar for something that takes `total` bytes.
    pub fn new(what: &str, total: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), target());
        let template = "{msg} {bar:32} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}";
        bar.set_style(ProgressStyle::with_template(template).expect("the template is valid"));
        bar.set_message(what.to_owned());
        ByteBar(bar)
    }

    /// Begins with what was done before, which says nothing about speed.
    pub fn starts_at(&self, done: u64) {
        self.0.set_position(done);
        self.0.reset_eta();
    }

    /// Says what comes now.
    pub fn now(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    /// Moves the bar.
    pub fn at(&self, done: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(done);
    }

    /// Takes the bar away.
    pub fn done(self) {
        self.0.finish_and_clear();
    }
}

/// A bar that counts things.
pub struct CountBar(ProgressBar);

impl CountBar {
    /// A bar for `total` things.
    pub fn new(what: &str, total: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), target());
        let template = "{msg} {bar:32} {pos}/{len} {eta}";
        bar.set_style(ProgressStyle::with_template(template).expect("the template is valid"));
        bar.set_message(what.to_owned());
        CountBar(bar)
    }

    /// So many are done.
    pub fn at(&self, count: usize) {
        self.0.set_position(count as u64);
    }

    /// So many more are done.
    pub fn step(&self, count: usize) {
        self.0.inc(count as u64);
    }

    /// Takes the bar away.
    pub fn done(self) {
        self.0.finish_and_clear();
    }
}

/// A dim line that says how much of a prompt was read; dropping it takes it away.
pub struct PromptBar(ProgressBar);

impl PromptBar {
    /// A line for a prompt of so many tokens.
    pub fn new(tokens: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(tokens as u64), target());
        let style = ProgressStyle::with_template("{msg:.dim} {percent:.dim}{prefix:.dim}");
        bar.set_style(style.expect("the template is valid"));
        bar.set_message("reading prompt");
        bar.set_prefix("%");
        PromptBar(bar.with_finish(ProgressFinish::AndClear))
    }

    /// Moves it to so many tokens, or to the end.
    pub fn at(&self, tokens: usize) {
        self.0.set_position((tokens as u64).min(self.0.length().unwrap_or(0)));
    }
}

/// Where bars are drawn: on standard error if a person watches it.
fn target() -> ProgressDrawTarget {
    if std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}
