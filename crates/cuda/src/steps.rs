//! Steps between being submitted and being collected: the pinned memory each needs, and its event.

use std::collections::VecDeque;
use std::sync::Arc;

use mambo_kernel::{BackendError, CHOICES_KEPT, Elem, Operand, Place, StepInputs, StepResults, Ticket, Wait};

use crate::driver::{Context, Event, Stream};
use crate::memory::{DeviceBuffer, PinnedBuffer, Strided};
use crate::params::Ptr;

/// Rows of choices that the device keeps: those of the step that runs, and of the ones before it.
const CHOICE_ROWS: usize = CHOICES_KEPT + 1;

/// Pinned memory of one step, used again when the step has been collected.
pub(crate) struct Entry {
    /// The step's block on its way to the device.
    pub block: PinnedBuffer,
    /// Hidden rows on their way to the device.
    pub hidden: PinnedBuffer,
    /// Chosen tokens, then fetched rows.
    pub results: PinnedBuffer,
    done: Event,
}

impl Entry {
    fn new(context: &Arc<Context>) -> Result<Entry, BackendError> {
        let empty = || PinnedBuffer::new(context, 0, "a step");
        Ok(Entry { block: empty()?, hidden: empty()?, results: empty()?, done: Event::new(context, false)? })
    }

    /// Grows what is too small for a step.
    pub fn reserve(
        &mut self,
        context: &Arc<Context>,
        [block, hidden, results]: [usize; 3],
    ) -> Result<(), BackendError> {
        for (buffer, bytes) in
            [(&mut self.block, block), (&mut self.hidden, hidden), (&mut self.results, results)]
        {
            if buffer.bytes() < bytes {
                *buffer = PinnedBuffer::new(context, bytes.next_power_of_two(), "a step's arrays")?;
            }
        }
        Ok(())
    }
}

/// Rows that come back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetched {
    /// Where they are among the results.
    at: usize,
    rows: usize,
    elem: Elem,
    cols: usize,
}

/// A step that was submitted.
struct InFlight {
    ticket: Ticket,
    entry: Entry,
    /// Chosen tokens.
    tokens: usize,
    fetched: Vec<Fetched>,
}

/// All of them.
pub(crate) struct Steps {
    next_ticket: u64,
    in_flight: Vec<InFlight>,
    spare: Vec<Entry>,
    /// Choices of the last steps, a row each.
    choices: DeviceBuffer,
    choice_row_bytes: usize,
    /// Steps whose choices are kept, newest last, with their rows.
    kept: VecDeque<(Ticket, usize)>,
    next_row: usize,
}

/// What a step's results will take.
pub(crate) struct ResultsPlan {
    pub tokens: usize,
    pub fetched: Vec<Fetched>,
    pub bytes: usize,
}

impl ResultsPlan {
    /// The results of a step, whose program's outputs these are.
    pub fn of(step: &StepInputs, chooses: bool, output: impl Fn(usize) -> Operand) -> ResultsPlan {
        let tokens = if chooses { step.wanted.len() } else { 0 };
        let mut bytes = (tokens * 4).next_multiple_of(16);
        let mut fetched = Vec::with_capacity(step.fetch.len());
        for fetch in step.fetch {
            let operand = output(fetch.output);
            let rows = (fetch.rows.end - fetch.rows.start) as usize;
            fetched.push(Fetched { at: bytes, rows, elem: operand.elem, cols: operand.cols });
            bytes += (rows * operand.elem.packed_bytes(operand.cols)).next_multiple_of(16);
        }
        ResultsPlan { tokens, fetched, bytes }
    }
}

impl Steps {
    pub fn new(context: &Arc<Context>) -> Result<Steps, BackendError> {
        Ok(Steps {
            next_ticket: 0,
            in_flight: Vec::new(),
            spare: Vec::new(),
            choices: DeviceBuffer::new(context, 0, "choices")?,
            choice_row_bytes: 0,
            kept: VecDeque::new(),
            next_row: 0,
        })
    }

    /// Makes room for the choices of steps with so many wanted rows; forgets what was kept if it has to grow.
    pub fn reserve_choices(&mut self, context: &Arc<Context>, wanted: usize) -> Result<(), BackendError> {
        let bytes = (wanted * 4).next_multiple_of(256);
        if bytes > self.choice_row_bytes {
            self.choices = DeviceBuffer::new(context, bytes * CHOICE_ROWS, "choices")?;
            self.choice_row_bytes = bytes;
            self.kept.clear();
        }
        Ok(())
    }

    /// A ticket.
    pub fn next_ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    /// Where the choices of a step are, if it is one of the last.
    pub fn choices_of(&self, ticket: Option<Ticket>) -> Option<Ptr<u32>> {
        let (_, row) = self.kept.iter().find(|(own, _)| Some(*own) == ticket)?;
        Some(self.choices.ptr().plus_bytes(row * self.choice_row_bytes))
    }

    /// Where a new step's choices go, for later steps.
    pub fn keep_choices(&mut self, ticket: Ticket) -> Ptr<u32> {
        // Round by round, so that this row is none of those that the last steps have.
        let row = self.next_row;
        self.next_row = (row + 1) % CHOICE_ROWS;
        if self.kept.len() == CHOICES_KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back((ticket, row));
        self.choices.ptr().plus_bytes(row * self.choice_row_bytes)
    }

    /// Pinned memory for a step.
    pub fn entry(&mut self, context: &Arc<Context>) -> Result<Entry, BackendError> {
        self.spare.pop().map_or_else(|| Entry::new(context), Ok)
    }

    /// Queues copying the fetched rows, and keeps the step until it is collected.
    pub fn submit(
        &mut self,
        stream: &Stream,
        ticket: Ticket,
        entry: Entry,
        step: &StepInputs,
        plan: ResultsPlan,
        (arena, output): (&DeviceBuffer, &dyn Fn(usize) -> Operand),
    ) -> Result<(), BackendError> {
        for (fetch, fetched) in step.fetch.iter().zip(&plan.fetched) {
            let operand = output(fetch.output);
            let Place::Arena(offset) = operand.place else { unreachable!("outputs live in the arena") };
            let rows = Strided {
                at: offset + fetch.rows.start as usize * operand.stride_bytes,
                stride: operand.stride_bytes,
                width: operand.elem.packed_bytes(operand.cols),
                rows: fetched.rows,
            };
            arena.copy_rows_to_pinned(stream, rows, &entry.results, fetched.at)?;
        }
        entry.done.record(stream)?;
        let (tokens, fetched) = (plan.tokens, plan.fetched);
        self.in_flight.push(InFlight { ticket, entry, tokens, fetched });
        Ok(())
    }

    /// Hands the results of a step over if it has ended.
    pub fn collect(
        &mut self,
        ticket: Ticket,
        wait: Wait,
        into: &mut StepResults,
    ) -> Result<bool, BackendError> {
        let index = self.in_flight.iter().position(|step| step.ticket == ticket);
        let index = index.expect("a step is collected once");
        let done = &self.in_flight[index].entry.done;
        let ended = match wait {
            Wait::Block => done.wait("a step").map(|()| true),
            Wait::Poll => done.has_passed(),
        };
        match ended {
            Ok(false) => return Ok(false),
            Ok(true) => {}
            Err(error) => {
                self.in_flight.swap_remove(index);
                return Err(error);
            }
        }
        let step = self.in_flight.swap_remove(index);
        let bytes = step.entry.results.as_slice();
        into.tokens.clear();
        into.tokens.extend(words(&bytes[..step.tokens * 4]));
        into.rows.resize_with(step.fetched.len(), Vec::new);
        for (fetched, into) in step.fetched.iter().zip(&mut into.rows) {
            into.clear();
            let width = fetched.elem.packed_bytes(fetched.cols);
            let rows = &bytes[fetched.at..][..fetched.rows * width];
            match fetched.elem {
                Elem::F32 => into.extend(words(rows).map(f32::from_bits)),
                Elem::I32 => into.extend(words(rows).map(|word| word as i32 as f32)),
                Elem::Private(elem) => {
                    rows.chunks_exact(width).for_each(|row| into.extend((elem.decode)(row, fetched.cols)));
                }
            }
        }
        self.spare.push(step.entry);
        Ok(true)
    }
}

/// Little-endian words.
fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word))
}
