//! Which sequences run in the next step, and with how many tokens.
//!
//! Sequences that decode come first, one token each, so that long prompts never stall an answer; what is left of the
//! step's room goes to prompts, in the order they came.

use crate::sequence::Sequence;

/// Tokens per running sequence (by index) for one step; sequences without any are left out.
pub(crate) fn schedule(running: &[Sequence], room: usize, into: &mut Vec<(usize, usize)>) {
    into.clear();
    let mut left = room;
    let decoding = |s: &Sequence| s.pending() == 1;
    for wanted in [true, false] {
        for (index, sequence) in running.iter().enumerate() {
            let take = if decoding(sequence) == wanted { sequence.next_chunk(left) } else { 0 };
            if take > 0 {
                into.push((index, take));
                left -= take;
            }
        }
    }
    into.sort_unstable();
}
