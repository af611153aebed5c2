//! The tokens of a sequence, counted, for penalties: adding one costs the same however long the sequence is.

use std::collections::BTreeMap;

use crate::sequence::Request;

/// Which tokens a sequence holds, and how often each was generated. Empty where no penalty asks for it.
#[derive(Debug, Default)]
pub(crate) struct History {
    counts: Option<BTreeMap<u32, Count>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    in_prompt: bool,
    generated: u32,
}

impl History {
    /// The prompt of a request, if its penalties need it.
    pub fn of(request: &Request) -> History {
        if request.sampling.needs_history() {
            Self::counting(&request.prompt, &[])
        } else {
            History::default()
        }
    }

    /// These tokens.
    pub fn counting(prompt: &[u32], generated: &[u32]) -> History {
        let in_prompt = Count { in_prompt: true, generated: 0 };
        let mut history = History { counts: Some(prompt.iter().map(|token| (*token, in_prompt)).collect()) };
        generated.iter().for_each(|token| history.add(*token));
        history
    }

    /// Counts a generated token.
    pub fn add(&mut self, token: u32) {
        if let Some(counts) = &mut self.counts {
            counts.entry(token).or_default().generated += 1;
        }
    }

    /// Takes a generated token back.
    pub fn remove(&mut self, token: u32) {
        let Some(counts) = &mut self.counts else { return };
        let count = counts.get_mut(&token).expect("a token that was generated is counted");
        count.generated -= 1;
        if count.generated == 0 && !count.in_prompt {
            counts.remove(&token);
        }
    }

    /// Every token of the sequence once, ascending, with how often it was generated.
    pub fn seen(&self) -> impl Iterator<Item = (u32, u32)> {
        self.counts.iter().flatten().map(|(token, count)| (*token, count.generated))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_back_was_never_there() {
        let mut history = History::counting(&[7, 3], &[3, 9]);
        assert_eq!(history.seen().collect::<Vec<_>>(), [(3, 1), (7, 0), (9, 1)]);
        history.remove(9);
        history.remove(3);
        assert_eq!(history.seen().collect::<Vec<_>>(), [(3, 0), (7, 0)]);
    }
}
