//! Ctrl-C: the first stops the answer, a second within it ends the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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
                std::process::exit(130);
            }
        })?;
        Ok(Interrupt(count))
    }

    /// Whether Ctrl-C was pressed since the last [`Interrupt::clear`].
    pub fn pressed(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }

    /// Forgets what was pressed.
    pub fn clear(&self) {
        self.0.store(0, Ordering::SeqCst);
    }
}
