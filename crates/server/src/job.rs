//! A request on its way to the engine, and what comes back: token ids only. Dialects turn requests into jobs, and
//! `Generation` turns what comes back into text.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mambo_engine::{Choice, FinishReason, Request, Reuse, Snapshot, TokenMask};
use tokio::sync::mpsc::UnboundedSender;

/// Time enough for a request whose limit the clock cannot count.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A request with the way back to who asked.
#[derive(Debug)]
pub(crate) struct Job {
    pub request: Request,
    pub updates: UnboundedSender<Update>,
    /// When the time it may take is over.
    pub deadline: Instant,
    pub arrived: Instant,
}

impl Job {
    pub fn new(request: Request, updates: UnboundedSender<Update>, limit: Duration) -> Job {
        let arrived = Instant::now();
        let deadline = arrived.checked_add(limit).unwrap_or_else(|| arrived + LONGEST);
        Job { request, updates, deadline, arrived }
    }

    /// The same with a grammar.
    pub fn masked(mut self, mask: Option<Arc<dyn TokenMask>>) -> Job {
        self.request.mask = mask;
        self
    }
}

/// A token, and when the engine gave it.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub choice: Choice,
    pub at: Instant,
}

/// What happens to a job.
#[derive(Clone, Debug)]
pub(crate) enum Update {
    /// Its prompt is being read.
    Started(Reuse),
    /// The memory that was asked for.
    Snapshot(Arc<Snapshot>),
    /// Tokens were chosen.
    Tokens(Vec<Said>),
    /// The embedding that was asked for.
    Embedding(Vec<f32>),
    /// It ended; nothing comes after.
    Finished(FinishReason),
    /// Its time was over; nothing comes after.
    TimedOut,
    /// The server stops; nothing comes after.
    ShuttingDown,
}
