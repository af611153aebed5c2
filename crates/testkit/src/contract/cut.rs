//! How a case's sequences are cut into steps. No cut may change a bit of the result.

use std::ops::Range;

use mambo_kernel::{Phase, SSM_CHUNK};

use super::trial::{OutputRows, Piece, Trial};

/// Rows of a sequence in each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Pace {
    /// All of them at once.
    Whole,
    /// One.
    Single,
    /// Uneven counts; sequences start at different times.
    Ragged,
    /// Up to a chunk, as drafts are verified.
    Drafts,
}

impl Pace {
    /// The largest steps that a phase allows.
    pub fn largest(phase: Phase) -> Pace {
        match phase {
            Phase::Prefill => Pace::Whole,
            Phase::Decode => Pace::Single,
            Phase::Verify => Pace::Drafts,
        }
    }

    /// Rows of sequence `s` in step number `step` when it has `left` more.
    fn take(self, step: usize, s: usize, left: usize) -> usize {
        match self {
            Pace::Whole => left,
            Pace::Single => left.min(1),
            Pace::Ragged => left.min([0, 1, 3, 7, 30][(step + s) % 5]),
            Pace::Drafts => left.min([SSM_CHUNK, 5, 1, 17][(step + s) % 4]),
        }
    }
}

/// A cut of all sequences, or of one alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cut {
    pub pace: Pace,
    pub only: Option<usize>,
}

impl Cut {
    pub fn all(pace: Pace) -> Cut {
        Cut { pace, only: None }
    }

    /// Whether a sequence is left out.
    pub fn skips(self, sequence: usize) -> bool {
        self.only.is_some_and(|only| only != sequence)
    }

    /// The cuts that a phase is tried with. In the first phase of a row one is run twice and one sequence alone.
    pub fn of_phase(phase: Phase, is_first: bool, sequences: usize) -> Vec<Cut> {
        let pace = Pace::largest(phase);
        let mut cuts = vec![Cut::all(pace)];
        if is_first {
            cuts.push(Cut::all(pace));
            cuts.push(Cut { pace, only: Some(2.min(sequences - 1)) });
        }
        if phase == Phase::Prefill {
            cuts.extend([Pace::Single, Pace::Ragged].map(Cut::all));
        }
        cuts
    }
}

impl Trial<'_> {
    /// Runs sequences of these lengths, each in its own seat, and returns the rows of each.
    pub fn run(&mut self, lengths: &[usize], cut: Cut) -> Result<Vec<OutputRows>, String> {
        let mut collected: Vec<OutputRows> = vec![OutputRows::new(); lengths.len()];
        let mut done = vec![0; lengths.len()];
        for step in 0.. {
            let mut pieces = Vec::new();
            let mut is_over = true;
            for (s, &length) in lengths.iter().enumerate().filter(|(s, _)| !cut.skips(*s)) {
                let rows = cut.pace.take(step, s, length - done[s]);
                is_over &= done[s] == length;
                if rows > 0 {
                    pieces.push(Piece { sequence: s, seat: s, position: done[s], rows });
                }
            }
            if is_over {
                break;
            }
            if pieces.is_empty() {
                continue;
            }
            for (piece, rows) in pieces.iter().zip(self.step(&pieces)?) {
                append(&mut collected[piece.sequence], rows);
                done[piece.sequence] += piece.rows;
            }
        }
        Ok(collected)
    }

    /// Runs some positions of one sequence alone in a seat.
    pub fn span(
        &mut self,
        sequence: usize,
        seat: usize,
        positions: Range<usize>,
        pace: Pace,
    ) -> Result<OutputRows, String> {
        let (mut collected, mut position, mut step) = (OutputRows::new(), positions.start, 0);
        while position < positions.end {
            let rows = pace.take(step, sequence, positions.end - position);
            step += 1;
            if rows > 0 {
                let piece = Piece { sequence, seat, position, rows };
                append(&mut collected, self.step(&[piece])?.remove(0));
                position += rows;
            }
        }
        Ok(collected)
    }
}

fn append(collected: &mut OutputRows, rows: OutputRows) {
    collected.resize(rows.len(), Vec::new());
    collected.iter_mut().zip(rows).for_each(|(all, rows)| all.extend(rows));
}
