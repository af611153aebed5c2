//! What the time is, for measurements. Browsers have no clock that the standard library knows: there it is the
//! caller's to give.

use std::time::{Duration, Instant};

/// A clock that never goes back, read from a start of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    /// The system's.
    System(Instant),
    /// The caller's.
    Given(fn() -> Duration),
    /// None: everything takes no time.
    Absent,
}

impl Clock {
    /// The caller's clock, or else the system's where there is one.
    pub fn new(given: Option<fn() -> Duration>) -> Clock {
        match given {
            Some(read) => Clock::Given(read),
            None if cfg!(target_family = "wasm") => Clock::Absent,
            None => Clock::System(Instant::now()),
        }
    }

    /// The time since the clock's start.
    pub fn now(self) -> Duration {
        match self {
            Clock::System(start) => start.elapsed(),
            Clock::Given(read) => read(),
            Clock::Absent => Duration::ZERO,
        }
    }

    /// The time since an earlier reading.
    pub fn since(self, begin: Duration) -> Duration {
        self.now().saturating_sub(begin)
    }
}
