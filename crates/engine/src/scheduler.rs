//! Which sequences run in the next step, and with how many tokens.
//!
//! Sequences that decode come first, one token each, so that long prompts never stall an answer. What is left of the
//! step's room goes to prompts, by priority and within one priority in equal shares, so that a short prompt never waits
//! for a long one.

use crate::sequence::Sequence;

/// Room of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Tokens.
    pub tokens: usize,
    /// Of those, tokens of prompts while any sequence decodes.
    pub beside_answers: usize,
}

/// What a step holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepLoad {
    /// Sequences that answer, one token each.
    pub answers: usize,
    /// Tokens of prompts.
    pub prompt_tokens: usize,
}

/// Tokens per running sequence (by index) for one step; sequences without any are left out.
pub(crate) fn schedule(running: &[Sequence], room: Room, into: &mut Vec<(usize, usize)>) {
    into.clear();
    let mut left = room.tokens;
    let mut prompts: Vec<usize> = Vec::new();
    for (index, sequence) in running.iter().enumerate() {
        let take = sequence.next_chunk(left);
        match (take, sequence.pending()) {
            (0, _) => {}
            (_, 1) => {
                into.push((index, 1));
                left -= 1;
            }
            _ => prompts.push(index),
        }
    }
    if !into.is_empty() {
        left = left.min(room.beside_answers);
    }
    // Within a priority the oldest first, so that it always moves, then the shortest: what they leave of their share
    // goes to the longer ones.
    let priority = |index: usize| std::cmp::Reverse(running[index].request.priority);
    let is_oldest =
        |index: usize| prompts.iter().all(|other| priority(*other) != priority(index) || *other >= index);
    let key =
        |index: usize| (priority(index), !is_oldest(index), running[index].next_chunk(usize::MAX), index);
    let mut order: Vec<_> = prompts.iter().map(|index| key(*index)).collect();
    order.sort_unstable();
    let prompts: Vec<usize> = order.into_iter().map(|(.., index)| index).collect();
    for at in 0..prompts.len() {
        let index = prompts[at];
        let same = |other: &&usize| priority(**other) == priority(index);
        let share = left.div_ceil(prompts[at..].iter().filter(same).count());
        let take = running[index].next_chunk(share.min(left));
        if take > 0 {
            into.push((index, take));
            left -= take;
        }
    }
    into.sort_unstable();
}
