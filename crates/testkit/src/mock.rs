//! Backends that use what the contract allows: one answers late and out of order, one must not be waited for, one fails
//! every so many calls or is lost. All wrap another backend and compute what it computes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mambo_kernel::case::Rng;
use mambo_kernel::{
    Backend, BackendError, CacheLayout, CallTime, Cell, ChooseInputs, HiddenRows, KernelRow, MaskSource,
    Masks, MemoryBudget, Program, ProgramId, StepInputs, StepResults, Ticket, Wait, WeightKey, WeightSource,
    mask_words,
};

/// Everything that a wrapper leaves to the backend inside.
macro_rules! as_inside {
    () => {
        fn name(&self) -> &str {
            self.inside.name()
        }

        fn kernels(&self) -> &[KernelRow] {
            self.inside.kernels()
        }

        fn memory(&self) -> Result<MemoryBudget, BackendError> {
            self.inside.memory()
        }

        fn load_weight(&mut self, key: &WeightKey, source: &dyn WeightSource) -> Result<(), BackendError> {
            self.inside.load_weight(key, source)
        }

        fn weight_bytes(&self) -> u64 {
            self.inside.weight_bytes()
        }

        fn held_bytes(&self, key: &WeightKey) -> Option<u64> {
            self.inside.held_bytes(key)
        }

        fn create_caches(&mut self, layout: &CacheLayout) -> Result<(), BackendError> {
            self.inside.create_caches(layout)
        }

        fn compile(&mut self, program: Program) -> Result<ProgramId, BackendError> {
            self.inside.compile(program)
        }

        fn program(&self, id: ProgramId) -> &Program {
            self.inside.program(id)
        }

        fn clear(&mut self) -> Result<(), BackendError> {
            self.inside.clear()
        }

        fn poison_arena(&mut self) -> Result<(), BackendError> {
            self.inside.poison_arena()
        }

        fn leave_cores(&mut self, cores: usize) {
            self.inside.leave_cores(cores);
        }

        fn set_profiling(&mut self, on: bool) -> Result<(), BackendError> {
            self.inside.set_profiling(on)
        }

        fn call_times(&self, id: ProgramId) -> Result<Vec<CallTime>, BackendError> {
            self.inside.call_times(id)
        }
    };
}

/// Steps that [`Late`] takes before the first is collected.
pub const LATE_DEPTH: usize = 3;

/// Masks that were asked for before they are read.
struct Asked(HashMap<u32, Vec<u32>>);

impl Asked {
    /// Asks for the masks of a step on a thread of its own, the last first.
    fn on_a_thread(choose: ChooseInputs, vocabulary: usize) -> Asked {
        let numbers = choose.rows.iter().filter_map(|row| row.mask).rev();
        let ask = |number| {
            let mut mask = vec![0; mask_words(vocabulary)];
            choose.masks.fill(number, &mut mask);
            (number, mask)
        };
        std::thread::scope(|scope| Asked(scope.spawn(|| numbers.map(ask).collect()).join().expect("masks")))
    }
}

impl MaskSource for Asked {
    fn fill(&self, number: u32, mask: &mut [u32]) {
        mask.copy_from_slice(&self.0[&number]);
    }
}

/// A step has ended only after it was asked for a few times, however old it is. Masks are asked for on another thread.
pub struct Late<B> {
    inside: B,
    random: Rng,
    /// For each step in flight, how many more polls report that it has not ended.
    waiting: HashMap<Ticket, u32>,
    /// Steps in flight that stand behind another and read its rows.
    behind: Vec<Ticket>,
    /// The same of cells that are being read.
    cells: HashMap<Ticket, u32>,
}

impl<B: Backend> Late<B> {
    /// Wraps a backend; the seed decides how late each step is.
    pub fn new(inside: B, seed: u64) -> Self {
        let (waiting, behind, cells) = Default::default();
        Late { inside, random: Rng(seed), waiting, behind, cells }
    }
}

impl<B: Backend> Backend for Late<B> {
    as_inside!();

    fn queue_depth(&self) -> usize {
        LATE_DEPTH
    }

    fn may_block(&self) -> bool {
        self.inside.may_block()
    }

    fn submit(&mut self, id: ProgramId, step: &StepInputs) -> Result<Ticket, BackendError> {
        let is_behind = matches!(step.hidden, HiddenRows::Previous { .. });
        let in_flight = self.waiting.len() - self.behind.len();
        assert!(is_behind || in_flight < LATE_DEPTH, "{in_flight} steps are in flight already");
        let vocabulary = self.program(id).chooser().map_or(0, |call| call.inputs[0].cols);
        let masks = Asked::on_a_thread(step.choose, vocabulary);
        let choose = ChooseInputs { masks: Masks::of(&masks), ..step.choose };
        let ticket = self.inside.submit(id, &StepInputs { choose, ..*step })?;
        self.waiting.insert(ticket, self.random.below(5) as u32);
        if is_behind {
            self.behind.push(ticket);
        }
        Ok(ticket)
    }

    fn collect(&mut self, ticket: Ticket, wait: Wait, into: &mut StepResults) -> Result<bool, BackendError> {
        let left = self.waiting.get_mut(&ticket).expect("a step is collected once");
        if wait == Wait::Poll && *left > 0 {
            *left -= 1;
            return Ok(false);
        }
        self.waiting.remove(&ticket);
        self.behind.retain(|other| *other != ticket);
        while !self.inside.collect(ticket, Wait::Block, into)? {}
        Ok(true)
    }

    fn copy_cell(&mut self, from: Cell, to: Cell) -> Result<(), BackendError> {
        self.inside.copy_cell(from, to)
    }

    fn export_cell(&mut self, cell: Cell) -> Result<Ticket, BackendError> {
        let ticket = self.inside.export_cell(cell)?;
        self.cells.insert(ticket, self.random.below(5) as u32);
        Ok(ticket)
    }

    fn collect_cell(&mut self, ticket: Ticket, wait: Wait, into: &mut Vec<u8>) -> Result<bool, BackendError> {
        let left = self.cells.get_mut(&ticket).expect("a cell is collected once");
        if wait == Wait::Poll && *left > 0 {
            *left -= 1;
            return Ok(false);
        }
        self.cells.remove(&ticket);
        while !self.inside.collect_cell(ticket, Wait::Block, into)? {}
        Ok(true)
    }

    fn import_cell(&mut self, cell: Cell, bytes: &[u8]) -> Result<(), BackendError> {
        self.inside.import_cell(cell, bytes)
    }
}

/// Nothing may wait for it, like a GPU in a browser: whoever asks for a wait asks in vain.
pub struct Unwaited<B> {
    inside: B,
}

impl<B: Backend> Unwaited<B> {
    /// Wraps a backend.
    pub fn new(inside: B) -> Self {
        Unwaited { inside }
    }
}

impl<B: Backend> Backend for Unwaited<B> {
    as_inside!();

    fn may_block(&self) -> bool {
        false
    }

    fn queue_depth(&self) -> usize {
        self.inside.queue_depth()
    }

    fn submit(&mut self, id: ProgramId, step: &StepInputs) -> Result<Ticket, BackendError> {
        self.inside.submit(id, step)
    }

    fn collect(&mut self, ticket: Ticket, wait: Wait, into: &mut StepResults) -> Result<bool, BackendError> {
        assert_eq!(wait, Wait::Poll, "a step is waited for");
        self.inside.collect(ticket, wait, into)
    }

    fn copy_cell(&mut self, from: Cell, to: Cell) -> Result<(), BackendError> {
        self.inside.copy_cell(from, to)
    }

    fn export_cell(&mut self, cell: Cell) -> Result<Ticket, BackendError> {
        self.inside.export_cell(cell)
    }

    fn collect_cell(&mut self, ticket: Ticket, wait: Wait, into: &mut Vec<u8>) -> Result<bool, BackendError> {
        assert_eq!(wait, Wait::Poll, "a cell is waited for");
        self.inside.collect_cell(ticket, wait, into)
    }

    fn import_cell(&mut self, cell: Cell, bytes: &[u8]) -> Result<(), BackendError> {
        self.inside.import_cell(cell, bytes)
    }
}

/// When a [`Failing`] backend fails; a clone can change it later.
#[derive(Clone, Debug, Default)]
pub struct Failures(Arc<FailurePlan>);

#[derive(Debug, Default)]
struct FailurePlan {
    every: AtomicUsize,
    /// Calls until the device is lost, and one; 0 never loses it.
    lost_after: AtomicUsize,
}

impl Failures {
    /// Fails every `calls`th call from now on; 0 fails none.
    pub fn every(&self, calls: usize) {
        self.0.every.store(calls, Ordering::Relaxed);
    }

    /// Loses the device after so many more calls.
    pub fn lose_after(&self, calls: usize) {
        self.0.lost_after.store(calls + 1, Ordering::Relaxed);
    }
}

/// Every nth call that moves a sequence on fails as a device does, or all from some call on as of a device that is gone:
/// submit, collect, copy, export and import.
pub struct Failing<B> {
    inside: B,
    failures: Failures,
    calls: usize,
}

impl<B: Backend> Failing<B> {
    /// Wraps a backend that fails like this.
    pub fn new(inside: B, failures: Failures) -> Self {
        Failing { inside, failures, calls: 0 }
    }

    /// Counts a call, and fails if it is one that should.
    fn fails(&mut self, what: &str) -> Result<(), BackendError> {
        self.calls += 1;
        let backend = self.inside.name().to_owned();
        let FailurePlan { every, lost_after } = &*self.failures.0;
        match lost_after.load(Ordering::Relaxed) {
            0 => {}
            1 => return Err(BackendError::Lost { backend, reason: "it fell off the bus".into() }),
            left => lost_after.store(left - 1, Ordering::Relaxed),
        }
        let every = every.load(Ordering::Relaxed);
        if every == 0 || !self.calls.is_multiple_of(every) {
            return Ok(());
        }
        let (what, reason) = (what.to_owned(), format!("call {} fails", self.calls));
        Err(BackendError::Device { backend, what, reason })
    }
}

impl<B: Backend> Backend for Failing<B> {
    as_inside!();

    fn queue_depth(&self) -> usize {
        self.inside.queue_depth()
    }

    fn may_block(&self) -> bool {
        self.inside.may_block()
    }

    fn submit(&mut self, id: ProgramId, step: &StepInputs) -> Result<Ticket, BackendError> {
        self.fails("submit")?;
        self.inside.submit(id, step)
    }

    fn collect(&mut self, ticket: Ticket, wait: Wait, into: &mut StepResults) -> Result<bool, BackendError> {
        if !self.inside.collect(ticket, wait, into)? {
            return Ok(false);
        }
        // A step that failed counts as collected, and what it left behind is not a result.
        self.fails("collect").inspect_err(|_| *into = StepResults::default())?;
        Ok(true)
    }

    fn copy_cell(&mut self, from: Cell, to: Cell) -> Result<(), BackendError> {
        self.fails("copy")?;
        self.inside.copy_cell(from, to)
    }

    fn export_cell(&mut self, cell: Cell) -> Result<Ticket, BackendError> {
        self.fails("export")?;
        self.inside.export_cell(cell)
    }

    fn collect_cell(&mut self, ticket: Ticket, wait: Wait, into: &mut Vec<u8>) -> Result<bool, BackendError> {
        if !self.inside.collect_cell(ticket, wait, into)? {
            return Ok(false);
        }
        self.fails("read")?;
        Ok(true)
    }

    fn import_cell(&mut self, cell: Cell, bytes: &[u8]) -> Result<(), BackendError> {
        self.fails("import")?;
        self.inside.import_cell(cell, bytes)
    }
}
