//! Steps between being submitted and being collected: the buffers that the host reads, and whose choices are kept.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use mambo_kernel::{BackendError, CHOICES_KEPT, Elem, Operand, Place, StepInputs, StepResults, Ticket, Wait};

use crate::device::Device;
use crate::faults::failed;
use crate::watcher::Watcher;

/// Rows of choices that the device keeps: those of the step that runs, and of the ones before it.
pub(crate) const CHOICE_ROWS: usize = CHOICES_KEPT + 1;

const PENDING: u8 = 0;
const ARRIVED: u8 = 1;
const FAILED: u8 = 2;

/// A buffer that is being mapped for the host.
pub(crate) struct ReadBack {
    buffer: wgpu::Buffer,
    state: Arc<AtomicU8>,
    #[cfg_attr(target_family = "wasm", expect(dead_code, reason = "nothing waits in a browser"))]
    submission: wgpu::SubmissionIndex,
}

impl ReadBack {
    /// Asks for a buffer that this submission, or one before it, filled.
    pub fn of(device: &Device, buffer: wgpu::Buffer, submission: wgpu::SubmissionIndex) -> ReadBack {
        let state = Arc::new(AtomicU8::new(PENDING));
        let (own, arrivals) = (Arc::clone(&state), device.arrivals.clone());
        buffer.slice(..).map_async(wgpu::MapMode::Read, move |result| {
            own.store(if result.is_ok() { ARRIVED } else { FAILED }, Ordering::Release);
            arrivals.tell();
        });
        ReadBack { buffer, state, submission }
    }

    /// Waits until it has arrived; natively whoever waits has to ask again and again.
    pub async fn arrival(&self, device: &Device, what: &str) -> Result<(), BackendError> {
        let watcher = Watcher::of(device);
        loop {
            let arrival = watcher.arrival();
            if self.has_arrived(device, Wait::Poll, what)? {
                return Ok(());
            }
            arrival.await;
        }
    }

    /// Whether it has arrived; in a browser nothing waits.
    pub fn has_arrived(&self, device: &Device, wait: Wait, what: &str) -> Result<bool, BackendError> {
        let polled = match wait {
            #[cfg(not(target_family = "wasm"))]
            Wait::Block if self.state.load(Ordering::Acquire) == PENDING => {
                device.device.poll(wgpu::PollType::Wait {
                    submission_index: Some(self.submission.clone()),
                    timeout: None,
                })
            }
            _ => device.device.poll(wgpu::PollType::Poll),
        };
        device.faults.check(what)?;
        if let Err(error) = polled {
            return Err(failed(what, error.to_string()));
        }
        match self.state.load(Ordering::Acquire) {
            PENDING => Ok(false),
            ARRIVED => Ok(true),
            _ => Err(failed(what, "the results could not be mapped".into())),
        }
    }

    /// Reads the first bytes and gives the buffer back.
    pub fn take(&self, bytes: usize, read: impl FnOnce(&[u8])) -> Result<wgpu::Buffer, BackendError> {
        {
            let range = self.buffer.slice(..bytes as u64).get_mapped_range();
            let view = range.map_err(|error| failed("reading results", error.to_string()))?;
            read(&view);
        }
        self.buffer.unmap();
        Ok(self.buffer.clone())
    }
}

/// Rows that come back.
#[derive(Clone, Copy, Debug)]
struct Fetched {
    /// Where they are among the results.
    at: usize,
    rows: usize,
    elem: Elem,
    cols: usize,
    stride: usize,
}

impl Fetched {
    /// Bytes from the first row's start to the last one's end.
    fn bytes(&self) -> usize {
        match self.rows {
            0 => 0,
            rows => (rows - 1) * self.stride + self.elem.packed_bytes(self.cols).next_multiple_of(4),
        }
    }
}

/// A step that was submitted.
struct InFlight {
    ticket: Ticket,
    /// None where nothing comes back.
    read: Option<ReadBack>,
    bytes: usize,
    tokens: usize,
    fetched: Vec<Fetched>,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Steps {
    next_ticket: u64,
    in_flight: Vec<InFlight>,
    spare: Vec<wgpu::Buffer>,
    /// Steps whose choices are kept, newest last, with their rows.
    kept: VecDeque<(Ticket, usize)>,
    next_row: usize,
}

impl Steps {
    /// A ticket.
    pub fn next_ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    /// Forgets all choices: their memory is gone.
    pub fn forget_choices(&mut self) {
        self.kept.clear();
    }

    /// Forgets all steps.
    pub fn clear(&mut self) {
        self.in_flight.clear();
        self.kept.clear();
    }

    /// The row of the choices of a step, if it is one of the last.
    pub fn choices_of(&self, ticket: Option<Ticket>) -> Option<usize> {
        self.kept.iter().find(|(own, _)| Some(*own) == ticket).map(|(_, row)| *row)
    }

    /// The row for a new step's choices.
    pub fn keep_choices(&mut self, ticket: Ticket) -> usize {
        // Round by round, so that this row is none of those that the last steps have.
        let row = self.next_row;
        self.next_row = (row + 1) % CHOICE_ROWS;
        if self.kept.len() == CHOICES_KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back((ticket, row));
        row
    }

    /// Queues copying choices and fetched rows, sends the step on its way and keeps it until it is collected.
    pub fn submit(
        &mut self,
        device: &Device,
        ticket: Ticket,
        mut encoder: wgpu::CommandEncoder,
        step: &StepInputs,
        results: &Results,
    ) -> Result<(), BackendError> {
        let tokens = if results.chosen_at.is_some() { step.wanted.len() } else { 0 };
        let mut bytes = tokens * 4;
        let mut fetched = Vec::with_capacity(step.fetch.len());
        for fetch in step.fetch {
            let operand = (results.output)(fetch.output);
            let rows = (fetch.rows.end - fetch.rows.start) as usize;
            let own = Fetched {
                at: bytes,
                rows,
                elem: operand.elem,
                cols: operand.cols,
                stride: operand.stride_bytes,
            };
            bytes += own.bytes();
            fetched.push(own);
        }
        let buffer = if bytes > 0 { Some(self.buffer(device, bytes)?) } else { None };
        if let Some(buffer) = &buffer {
            if let Some(chosen_at) = results.chosen_at.filter(|_| tokens > 0) {
                encoder.copy_buffer_to_buffer(results.arena, chosen_at, buffer, 0, Some(tokens as u64 * 4));
            }
            for (fetch, own) in step.fetch.iter().zip(&fetched).filter(|(_, own)| own.bytes() > 0) {
                let operand = (results.output)(fetch.output);
                let Place::Arena(offset) = operand.place else { unreachable!("outputs live in the arena") };
                let from = offset + fetch.rows.start as usize * operand.stride_bytes;
                let len = Some(own.bytes() as u64);
                encoder.copy_buffer_to_buffer(results.arena, from as u64, buffer, own.at as u64, len);
            }
        }
        let submission = device.queue.submit([encoder.finish()]);
        let read = buffer.map(|buffer| ReadBack::of(device, buffer, submission));
        self.in_flight.push(InFlight { ticket, read, bytes, tokens, fetched });
        device.faults.check("submitting a step")
    }

    fn buffer(&mut self, device: &Device, bytes: usize) -> Result<wgpu::Buffer, BackendError> {
        let fitting = self.spare.iter().position(|buffer| buffer.size() >= bytes as u64);
        match fitting {
            Some(index) => Ok(self.spare.swap_remove(index)),
            None => {
                // Smaller ones have had their time.
                self.spare.clear();
                device.read_back(bytes.next_power_of_two(), "a step's results")
            }
        }
    }

    /// Hands the results of a step over if it has ended.
    pub fn collect(
        &mut self,
        device: &Device,
        ticket: Ticket,
        wait: Wait,
        into: &mut StepResults,
    ) -> Result<bool, BackendError> {
        let index = self.in_flight.iter().position(|step| step.ticket == ticket);
        let index = index.expect("a step is collected once");
        let arrived = match &self.in_flight[index].read {
            Some(read) => read.has_arrived(device, wait, "a step"),
            None => device.faults.check("a step").map(|()| true),
        };
        match arrived {
            Ok(false) => return Ok(false),
            Ok(true) => {}
            Err(error) => {
                self.in_flight.swap_remove(index);
                return Err(error);
            }
        }
        let step = self.in_flight.swap_remove(index);
        into.tokens.clear();
        into.rows.resize_with(step.fetched.len(), Vec::new);
        into.rows.iter_mut().for_each(Vec::clear);
        if let Some(read) = &step.read {
            let buffer = read.take(step.bytes, |bytes| unpack(&step, bytes, into))?;
            self.spare.push(buffer);
        }
        Ok(true)
    }
}

/// What a step's results are copied from.
pub(crate) struct Results<'a> {
    pub arena: &'a wgpu::Buffer,
    /// Byte of the choices; none where the program chooses none.
    pub chosen_at: Option<u64>,
    pub output: &'a dyn Fn(usize) -> Operand,
}

fn unpack(step: &InFlight, bytes: &[u8], into: &mut StepResults) {
    into.tokens.extend(words(&bytes[..step.tokens * 4]));
    for (fetched, into) in step.fetched.iter().zip(&mut into.rows) {
        let width = fetched.elem.packed_bytes(fetched.cols);
        for row in 0..fetched.rows {
            let row = &bytes[fetched.at + row * fetched.stride..][..width];
            match fetched.elem {
                Elem::F32 => into.extend(words(row).map(f32::from_bits)),
                Elem::I32 => into.extend(words(row).map(|word| word as i32 as f32)),
                Elem::Private(elem) => into.extend((elem.decode)(row, fetched.cols)),
            }
        }
    }
}

/// Little-endian words.
fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word))
}
