//! Ctrl-C: the first stops the answer or the file being written, a second within it ends the program.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::terminal::RESET;

/// Counts interrupts since they were last cleared.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// Takes over Ctrl-C for the rest of the program.
    pub fn install() -> anyhow::Result<Interrupt> {
        let count = Arc::new(AtomicUsize::new(0));
        let seen = count.clone();
        ctrlc::set_handler(move || {
            if seen.fetch_add(1, Ordering::SeqCst) > 0 {
                // The answer did not stop in time: whoever presses twice means it.
                // Standard error, because whoever writes to standard output may hold it.
                if std::io::stderr().is_terminal() {
                    let _ = std::io::stderr().write_all(RESET.as_bytes());
                }
                std::process::exit(130);
            }
        })?;
        Ok(Interrupt(count))
    }

    /// Whether Ctrl-C was pressed since the last [`Interrupt::clear`].
    pub fn pressed(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }

    /// Whether work goes on, as the library's callbacks say it.
    pub fn flow(&self) -> ControlFlow<()> {
        if self.pressed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// The result of work that Ctrl-C may have stopped, with what that means for it.
    pub fn or_stopped<T, E>(&self, result: Result<T, E>, consequence: &str) -> anyhow::Result<T>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        match result {
            Err(_) if self.pressed() => anyhow::bail!("stopped by Ctrl-C; {consequence}"),
            result => Ok(result?),
        }
    }

    /// Forgets what was pressed.
    pub fn clear(&self) {
        self.0.store(0, Ordering::SeqCst);
    }
}

/// Makes Ctrl-C end the program at once, without the unfinished file.
pub fn remove_on_ctrl_c(unfinished: &Path) -> anyhow::Result<()> {
    let unfinished = unfinished.to_owned();
    ctrlc::set_handler(move || {
        let _ = std::fs::remove_file(&unfinished);
        std::process::exit(130);
    })?;
    Ok(())
}
