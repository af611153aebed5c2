//! Where a sequence leaves snapshots on its way through its prompt.

use std::collections::BTreeSet;

use super::Reuse;

/// Fewer tokens are run again rather than waited for.
pub(crate) const WORTH_WAITING: usize = 32;

/// Fewer tokens are run again rather than kept a state for.
const NEAR: usize = 64;

/// Positions at which a sequence stops for a snapshot, ascending.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks(BTreeSet<usize>);

impl Marks {
    /// Those of a prompt of `length` tokens: where it leaves what is known, at the ends of turns, before its last token
    /// and at every multiple of `every`.
    pub fn of(length: usize, turn_ends: &[usize], reuse: Reuse, every: usize) -> Marks {
        let mut marks = Marks::default();
        let last = length - 1;
        // A prompt that is asked again goes on before its last token, unless a turn ends close by.
        let near = last.saturating_sub(NEAR)..last;
        let again =
            Some(last).filter(|_| !turn_ends.iter().any(|end| near.contains(end) && *end > reuse.tokens));
        let wanted = again.into_iter().chain([reuse.known]).chain(turn_ends.iter().copied());
        for position in wanted.filter(|position| *position > reuse.tokens && *position <= last) {
            marks.add(position);
        }
        let multiples = (1..).map(|n| n * every).skip_while(|position| *position <= reuse.tokens);
        for position in multiples.take_while(|position| *position < last) {
            // Another one close by serves as well.
            let near = position.saturating_sub(every / 2)..position + every / 2;
            if marks.0.range(near).next().is_none() {
                marks.add(position);
            }
        }
        marks
    }

    /// Adds a position.
    pub fn add(&mut self, position: usize) {
        self.0.insert(position);
    }

    /// Whether a position is one of them.
    pub fn has(&self, position: usize) -> bool {
        self.0.contains(&position)
    }

    /// The first one that has not been passed.
    pub fn next(&self) -> Option<usize> {
        self.0.first().copied()
    }

    /// Takes a position out; says whether it was one.
    pub fn take(&mut self, position: usize) -> bool {
        self.0.remove(&position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(length: usize, turn_ends: &[usize], tokens: usize, known: usize) -> Vec<usize> {
        let reuse = Reuse { tokens, known, ..Reuse::default() };
        Marks::of(length, turn_ends, reuse, 100).0.into_iter().collect()
    }

    #[test]
    fn branches_turns_and_distances_are_marked() {
        assert_eq!(marks(350, &[], 0, 0), [100, 200, 349]);
        assert_eq!(marks(350, &[330], 120, 170), [170, 330], "what is near serves as well");
        assert_eq!(marks(350, &[240], 120, 170), [170, 240, 349]);
        assert_eq!(
            marks(10, &[40, 3], 5, 10),
            [9],
            "nothing lies beyond the prompt or before what was restored"
        );
        assert!(marks(1, &[], 0, 0).is_empty());
    }
}
