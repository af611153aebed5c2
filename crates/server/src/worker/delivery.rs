//! Tokens on their way to who asked for them. Where they come faster than anybody can read, several are handed over
//! together: waking the task that turns them into text, and a write to its client, cost more than the text itself. All
//! answers hand over after the same step, because whatever runs then takes cores from the threads of the next one, which
//! wait for each other.

use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;

use crate::job::{Said, Update};

/// How often anything is handed over, by all answers together.
const PACE: Duration = Duration::from_millis(2);
/// How long a token waits at most for those after it: what a screen takes to draw itself anew.
const LONGEST_WAIT: Duration = Duration::from_millis(16);

/// How long a token may wait for those after it while so many answers run.
pub(super) fn wait_among(answers: usize) -> Duration {
    LONGEST_WAIT.min(PACE * u32::try_from(answers).unwrap_or(u32::MAX))
}

/// When answers hand over what they have gathered.
#[derive(Debug)]
pub(super) struct Turns {
    /// When the oldest token that is not handed over yet has waited long enough.
    until: Instant,
}

impl Turns {
    pub fn new(now: Instant) -> Turns {
        Turns { until: now }
    }

    /// Whether everything is handed over after the step that ended now, because the next one, which takes as long, would
    /// end too late.
    pub fn is_due(&mut self, now: Instant, step: Duration, wait: Duration) -> bool {
        let is_due = now + step > self.until;
        if is_due {
            self.until = now + step + wait;
        }
        is_due
    }
}

/// The way back to who asked.
#[derive(Debug)]
pub(super) struct Delivery {
    updates: UnboundedSender<Update>,
    gathered: Vec<Said>,
    /// Whether a token has been handed over.
    began: bool,
}

impl Delivery {
    pub fn new(updates: UnboundedSender<Update>) -> Delivery {
        Delivery { updates, gathered: Vec::new(), began: false }
    }

    /// Takes a token. It is handed over at once if it is the first, or if it is time.
    pub fn token(&mut self, said: Said, is_due: bool) {
        self.gathered.push(said);
        if !self.began || is_due {
            self.hand_over();
        }
    }

    /// Sends something else, after the tokens that came before it.
    pub fn send(&mut self, update: Update) {
        self.hand_over();
        // Whether anybody listens is asked of `is_closed`.
        let _ = self.updates.send(update);
    }

    /// Whether who asked has gone.
    pub fn is_closed(&self) -> bool {
        self.updates.is_closed()
    }

    fn hand_over(&mut self) {
        if self.gathered.is_empty() {
            return;
        }
        self.began = true;
        let _ = self.updates.send(Update::Tokens(std::mem::take(&mut self.gathered)));
    }
}

#[cfg(test)]
mod tests {
    use mambo_engine::{Choice, FinishReason};
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    /// What a stream of ten tokens, one every `step`, gives in each update.
    fn handed_over(step: Duration, answers: usize) -> Vec<Vec<u32>> {
        let (sender, mut receiver) = unbounded_channel();
        let (mut delivery, begin) = (Delivery::new(sender), Instant::now());
        let mut turns = Turns::new(begin);
        for token in 0..10 {
            let at = begin + step * token;
            let is_due = turns.is_due(at, step, wait_among(answers));
            delivery.token(Said { choice: Choice { token, logprobs: None }, at }, is_due);
        }
        delivery.send(Update::Finished(FinishReason::Stop));
        let updates = std::iter::from_fn(|| receiver.try_recv().ok());
        let tokens = |update| match update {
            Update::Tokens(said) => said.iter().map(|said: &Said| said.choice.token).collect(),
            _ => Vec::new(),
        };
        updates.map(tokens).collect()
    }

    #[test]
    fn the_first_token_goes_at_once_and_fast_ones_together() {
        let fast = handed_over(Duration::from_millis(4), 100);
        assert_eq!(fast, [vec![0], vec![1, 2, 3, 4, 5], vec![6, 7, 8, 9], vec![]]);
    }

    #[test]
    fn slow_tokens_and_those_of_a_lone_answer_hardly_wait() {
        let each = (0..10).map(|token| vec![token]).chain([vec![]]).collect::<Vec<_>>();
        assert_eq!(handed_over(Duration::from_millis(17), 100), each);
        assert_eq!(handed_over(Duration::from_millis(3), 1), each);
        assert_eq!(handed_over(Duration::from_millis(1), 1)[1], [1, 2, 3]);
    }

    #[test]
    fn who_has_gone_is_known() {
        let (sender, receiver) = unbounded_channel();
        let delivery = Delivery::new(sender);
        assert!(!delivery.is_closed());
        drop(receiver);
        assert!(delivery.is_closed());
    }
}
