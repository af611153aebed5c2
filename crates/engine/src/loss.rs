//! A device that is gone: every sequence ends, every later request is refused, and snapshots that share its memory
//! belong to no engine any more.

use std::sync::Arc;

use mambo_kernel::BackendError;

use crate::engine::{Engine, Event};
use crate::error::EngineError;
use crate::sequence::FinishReason;

impl Engine {
    /// Whether the device is gone; the model has to be loaded again.
    pub fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Refuses what needs a device that is gone.
    pub(crate) fn check_alive(&self) -> Result<(), EngineError> {
        self.lost.as_ref().map_or(Ok(()), |why| Err(EngineError::Lost(Arc::clone(why))))
    }

    /// Passes a result on, after noting that its error is the loss of the device.
    pub(crate) fn noting_loss<T>(&mut self, result: Result<T, EngineError>) -> Result<T, EngineError> {
        if let Err(error) = &result {
            self.note_loss(error);
        }
        result
    }

    /// Ends everything if an error is the loss of the device.
    pub(crate) fn note_loss(&mut self, error: &EngineError) {
        match error {
            EngineError::Backend(BackendError::Lost { backend, reason }) => {
                let (backend, reason) = (backend.clone(), reason.clone());
                self.lose(Arc::new(BackendError::Lost { backend, reason }));
            }
            EngineError::Step(error) if matches!(**error, BackendError::Lost { .. }) => {
                self.lose(Arc::clone(error));
            }
            _ => {}
        }
    }

    fn lose(&mut self, why: Arc<BackendError>) {
        if self.lost.is_some() {
            return;
        }
        self.lost = Some(Arc::clone(&why));
        // Steps in flight end with their sequences: there is nothing to collect them from.
        self.in_flight.clear();
        self.ended.clear();
        let running = std::mem::take(&mut self.running).into_iter().map(|sequence| sequence.id);
        let waiting = std::mem::take(&mut self.waiting).into_iter().map(|(id, _)| id);
        for id in running.chain(waiting) {
            let reason = FinishReason::Failed(EngineError::Lost(Arc::clone(&why)).into());
            self.events.push(Event::Finished { id, reason });
        }
        self.replace_pools();
    }
}
