//! What a step leaves for later: choices that the steps after it may read, and results nobody has collected. Steps run
//! as they are submitted, so everything here has ended.

use std::collections::VecDeque;

use mambo_kernel::{CHOICES_KEPT, ProgramId, StepResults, Ticket};

/// Steps that have run, and buffers of those that were collected.
#[derive(Default)]
pub(crate) struct Steps {
    next_ticket: u64,
    /// The program that ran last, which the next step may take rows from.
    pub last: Option<ProgramId>,
    /// Tokens that the last steps chose, newest last.
    chosen: VecDeque<(Ticket, Vec<u32>)>,
    /// Results nobody has collected.
    done: Vec<(Ticket, StepResults)>,
    /// Cells nobody has collected.
    cells: Vec<(Ticket, Vec<u8>)>,
    spare: Vec<StepResults>,
    pub token_ids: Vec<u32>,
    pub hidden: Vec<f32>,
}

impl Steps {
    fn next_ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    /// The tokens that a step chose, if it is one of the last.
    pub fn chosen_by(&self, ticket: Option<Ticket>) -> &[u32] {
        let found = self.chosen.iter().find(|(own, _)| Some(*own) == ticket);
        found.map_or(&[], |(_, tokens)| tokens)
    }

    /// Empty results for so many fetches.
    pub fn empty_results(&mut self, fetches: usize) -> StepResults {
        let mut results = self.spare.pop().unwrap_or_default();
        results.tokens.clear();
        results.rows.iter_mut().for_each(Vec::clear);
        results.rows.resize_with(fetches, Vec::new);
        results
    }

    /// Keeps the results of a step, and its choices for the steps after it.
    pub fn keep(&mut self, results: StepResults) -> Ticket {
        let ticket = self.next_ticket();
        let mut tokens = match self.chosen.len() {
            CHOICES_KEPT.. => self.chosen.pop_front().map(|(_, tokens)| tokens).unwrap_or_default(),
            _ => Vec::new(),
        };
        tokens.clear();
        tokens.extend_from_slice(&results.tokens);
        self.chosen.push_back((ticket, tokens));
        self.done.push((ticket, results));
        ticket
    }

    /// Hands the results of a step over.
    pub fn collect(&mut self, ticket: Ticket, into: &mut StepResults) {
        let index = self.done.iter().position(|(done, _)| *done == ticket);
        let (_, results) = self.done.swap_remove(index.expect("a step is collected once"));
        self.spare.push(std::mem::replace(into, results));
    }

    /// Keeps the bytes of a cell.
    pub fn keep_cell(&mut self, bytes: Vec<u8>) -> Ticket {
        let ticket = self.next_ticket();
        self.cells.push((ticket, bytes));
        ticket
    }

    /// Hands the bytes of a cell over.
    pub fn collect_cell(&mut self, ticket: Ticket, into: &mut Vec<u8>) {
        let index = self.cells.iter().position(|(own, _)| *own == ticket);
        let (_, bytes) = self.cells.swap_remove(index.expect("a cell is collected once"));
        if into.is_empty() { *into = bytes } else { into.extend(bytes) }
    }
}
