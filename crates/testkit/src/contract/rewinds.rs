//! Rollback: a sequence that ran ahead, was rolled back and continued must give the bits of one that never ran ahead.

use mambo_kernel::case::Case;
use mambo_kernel::{Backend, Rollback};

use super::RowCase;
use super::cut::Pace;
use super::judge::difference;
use super::sizes::resized;
use super::trial::{OutputRows, Trial};

/// Tokens that run, tokens rolled back, and whether other tokens follow than before: to the start,
/// over the edge of a chunk and as far as a slot can.
const REWINDS: [(usize, usize, bool); 4] = [(5, 5, true), (36, 5, true), (64, 32, true), (40, 8, false)];
/// Tokens that follow beyond the furthest that ran.
const MORE: usize = 3;

/// Rewinds a row's case in every phase.
pub(super) fn check(backend: &mut dyn Backend, row: &RowCase) -> Result<(), String> {
    for &phase in row.phases {
        for (ran, back, other) in REWINDS {
            let case = spliced(row.case, ran, back, other);
            let row = RowCase { case: &case, ..*row };
            let setup = row.setup(phase);
            let mut trial = Trial::new(backend, &setup).map_err(|error| error.to_string())?;
            // Sequence 1 never runs ahead; the other is sequence 0 until it is rolled back.
            let pace = Pace::largest(phase);
            let straight = trial.span(1, 1, 0..ran + MORE, pace)?;
            trial.span(0, 0, 0..ran, pace)?;
            let again = trial.span(1, 0, ran - back..ran + MORE, pace)?;
            if let Some(at) = tail_difference(&straight, &again) {
                let what = if other { "other tokens" } else { "the same tokens" };
                let phase = phase.name();
                return Err(format!(
                    "value {at} differs in {phase} when {back} of {ran} tokens are rolled back and {what} follow"
                ));
            }
        }
    }
    Ok(())
}

/// Two sequences that share all but the last `back` of `ran` tokens and what follows.
fn spliced(case: &Case, ran: usize, back: usize, other: bool) -> Case {
    let mut case = resized(case, &[ran + MORE; 2]);
    case.rollback = Rollback::OneChunk;
    for input in &mut case.inputs {
        let shared = if other { ran - back } else { ran + MORE };
        let shared = shared * input.ty.rows.times * input.ty.cols;
        let (first, rest) = input.sequences.split_at_mut(1);
        rest[0][..shared].copy_from_slice(&first[0][..shared]);
    }
    case
}

/// The first value of `tail` that differs from the end of `all`.
fn tail_difference(all: &OutputRows, tail: &OutputRows) -> Option<usize> {
    let mut outputs = all.iter().zip(tail);
    outputs.find_map(|(all, tail)| difference(&all[all.len() - tail.len()..], tail))
}
