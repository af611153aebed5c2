//! The thread that owns the engine: takes jobs, steps, and sends every sequence's events to who asked for it. Nothing
//! here waits for a client, so that a slow one holds up nobody.

mod delivery;
mod lending;
mod pace;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mambo_engine::{Engine, EngineError, Event, FinishReason, SequenceId};
use mambo_kernel::Wait;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::disk::Spill;
use crate::job::{Job, Said, Update};
use crate::metrics::Metrics;
use delivery::{Delivery, Turns, wait_among};
pub(crate) use lending::Borrowed;
use lending::Lending;
use pace::Pace;

/// How often deadlines and clients that have gone are looked for.
const SWEEP: Duration = Duration::from_millis(50);

/// How long the prefix cache may take to reach the disk when the server stops.
const FLUSH: Duration = Duration::from_secs(10);

enum Command {
    Job(Box<Job>),
    /// Something to do with the engine itself.
    Tell(Box<dyn FnOnce(&mut Engine) + Send>),
    /// No more jobs; those that run may go on until then.
    Stop(Instant),
}

/// Why a job is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// So many wait already.
    Full(usize),
    /// The server stops.
    Stopping,
}

/// Handle to the worker; clones share it.
#[derive(Clone)]
pub(crate) struct Worker {
    commands: UnboundedSender<Command>,
    counts: Arc<Counts>,
    lending: Arc<Lending>,
    queue: usize,
    slots: usize,
}

/// Jobs that were sent and have not started, and those that run.
#[derive(Default)]
struct Counts {
    waiting: AtomicUsize,
    running: AtomicUsize,
}

impl Worker {
    /// Starts the thread.
    pub fn start(
        engine: Engine,
        queue: usize,
        metrics: Arc<Metrics>,
        spill: Option<Spill>,
    ) -> std::io::Result<Worker> {
        let (commands, receiver) = unbounded_channel();
        let (counts, slots) = (Arc::<Counts>::default(), engine.config().max_sequences);
        let lending = Arc::<Lending>::default();
        let state = State {
            engine,
            jobs: HashMap::new(),
            commands: receiver,
            counts: Arc::clone(&counts),
            metrics,
            spill,
            pace: Pace::new(),
            lending: Arc::clone(&lending),
            left_cores: 0,
            turns: Turns::new(Instant::now()),
            is_due: true,
            stop_at: None,
            swept: Instant::now(),
        };
        std::thread::Builder::new().name("engine".into()).spawn(move || state.run())?;
        Ok(Worker { commands, counts, lending, queue, slots })
    }

    /// Hands a job over, unless too many wait.
    pub fn submit(&self, job: Job) -> Result<(), Refusal> {
        let waiting = self.counts.waiting.fetch_add(1, Ordering::Relaxed);
        // Those that find a free slot do not wait.
        let free = self.slots.saturating_sub(self.counts.running.load(Ordering::Relaxed));
        let refusal = (waiting >= self.queue.saturating_add(free)).then_some(Refusal::Full(waiting));
        let sent = refusal.map_or_else(
            || self.commands.send(Command::Job(Box::new(job))).map_err(|_| Refusal::Stopping),
            Err,
        );
        sent.inspect_err(|_| {
            self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
        })
    }

    /// Jobs that can be taken at once: those that run and those that wait.
    pub fn most_jobs(&self) -> usize {
        self.queue.saturating_add(self.slots)
    }

    /// Announces work on text that takes long, so that it finds a core; until what this returns is dropped.
    pub async fn borrow_core(&self) -> Borrowed {
        self.lending.borrow_core(self.counts.running.load(Ordering::Relaxed) > 0).await
    }

    /// Has something done with the engine between two steps.
    pub fn tell(&self, tell: impl FnOnce(&mut Engine) + Send + 'static) {
        let _ = self.commands.send(Command::Tell(Box::new(tell)));
    }

    /// Asks something of the engine between two steps; nothing if the worker has ended.
    pub async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        self.tell(move |engine| _ = sender.send(ask(engine)));
        receiver.await.ok()
    }

    /// Jobs that run at the same time.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Whether jobs are still taken.
    pub fn is_alive(&self) -> bool {
        !self.commands.is_closed()
    }

    /// Takes no more jobs and ends those that run after so long.
    pub fn stop(&self, grace: Duration) {
        let _ = self.commands.send(Command::Stop(Instant::now() + grace));
    }
}

struct Running {
    delivery: Delivery,
    deadline: Instant,
    arrived: Instant,
    started: bool,
    last_token: Option<Instant>,
}

struct State {
    engine: Engine,
    jobs: HashMap<SequenceId, Running>,
    commands: UnboundedReceiver<Command>,
    counts: Arc<Counts>,
    metrics: Arc<Metrics>,
    /// Where what the prefix cache drops goes.
    spill: Option<Spill>,
    pace: Pace,
    lending: Arc<Lending>,
    /// Cores that the backend does without.
    left_cores: usize,
    turns: Turns,
    /// Whether answers hand over what they have after the last step.
    is_due: bool,
    stop_at: Option<Instant>,
    swept: Instant,
}

impl State {
    fn run(mut self) {
        while self.take_commands() {
            self.lend_cores();
            let begin = Instant::now();
            self.engine.set_prompt_room(self.pace.prompt_room());
            let mut begun = false;
            while self.engine.begin() {
                begun = true;
            }
            let load = self.engine.last_step();
            let events = self.engine.end(Wait::Block).unwrap_or_default();
            if begun {
                let now = Instant::now();
                let step = now - begin;
                self.is_due = self.turns.is_due(now, step, wait_among(load.answers));
                self.pace.note(load, step);
            }
            events.into_iter().for_each(|event| self.report(event));
            self.sweep();
            self.spill();
            self.metrics.note_engine(&self.engine);
        }
        for (_, mut running) in self.jobs.drain() {
            running.delivery.send(Update::ShuttingDown);
        }
        self.spill_all();
    }

    /// Leaves cores to work on text, where a step is shorter than what the system gives such work at a time.
    fn lend_cores(&mut self) {
        let cores = if self.pace.is_quick() { self.lending.wanted() } else { 0 };
        if cores != self.left_cores {
            self.engine.backend_mut().leave_cores(cores);
            self.lending.leave(cores);
            self.left_cores = cores;
        }
    }

    /// Sends on what the prefix cache dropped; where the disk is slower, it is lost.
    fn spill(&mut self) {
        let Some(spill) = &self.spill else { return };
        self.engine.take_spilled().into_iter().for_each(|prefix| _ = spill.try_send(prefix));
    }

    /// Sends on what the prefix cache holds, for the next start.
    fn spill_all(&mut self) {
        let Some(spill) = self.spill.take() else { return };
        let until = Instant::now() + FLUSH;
        // An engine that has lost its device has nothing to send.
        let _ = self.engine.spill_kept(|prefix| spill.send(prefix).is_ok() && Instant::now() < until);
    }

    /// Takes all commands there are, and waits for one where there is nothing to do; false at the end.
    fn take_commands(&mut self) -> bool {
        loop {
            let over = self.stop_at.is_some_and(|at| self.jobs.is_empty() || Instant::now() >= at);
            if over {
                return false;
            }
            let command = match self.commands.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Empty) if !self.engine.is_idle() => return true,
                Err(TryRecvError::Empty) => match self.commands.blocking_recv() {
                    Some(command) => command,
                    None => return false,
                },
                Err(TryRecvError::Disconnected) if self.engine.is_idle() => return false,
                Err(TryRecvError::Disconnected) => return true,
            };
            match command {
                Command::Job(job) => self.submit(*job),
                Command::Tell(tell) => tell(&mut self.engine),
                Command::Stop(at) => {
                    self.stop_at = Some(at);
                    self.commands.close();
                }
            }
        }
    }

    fn submit(&mut self, job: Job) {
        let Job { request, updates, deadline, arrived } = job;
        if updates.is_closed() {
            self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        match self.engine.submit(request) {
            Ok(id) => {
                let delivery = Delivery::new(updates);
                self.jobs
                    .insert(id, Running { delivery, deadline, arrived, started: false, last_token: None });
            }
            Err(error) => {
                self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
                let _ = updates.send(Update::Finished(failed(error)));
            }
        }
    }

    fn report(&mut self, event: Event) {
        let id = event.id();
        let Some(running) = self.jobs.get_mut(&id) else { return };
        let now = Instant::now();
        let since_arrival = now - running.arrived;
        match event {
            Event::Started { reuse, .. } => {
                running.started = true;
                self.counts.running.fetch_add(1, Ordering::Relaxed);
                self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
                self.metrics.note_start(since_arrival);
                running.delivery.send(Update::Started(reuse));
            }
            Event::Token { choice, .. } => {
                let since = running.last_token.replace(now);
                self.metrics.note_token(since.map(|then| now - then), since_arrival);
                running.delivery.token(Said { choice, at: now }, self.is_due);
            }
            Event::Embedding { row, .. } => running.delivery.send(Update::Embedding(row)),
            Event::Snapshot { snapshot, .. } => running.delivery.send(Update::Snapshot(snapshot)),
            Event::Finished { reason, .. } => {
                self.metrics.note_finish(&reason, since_arrival);
                running.delivery.send(Update::Finished(reason));
                return self.forget(id);
            }
        }
        if running.delivery.is_closed() {
            self.cancel(id);
        }
    }

    fn forget(&mut self, id: SequenceId) {
        let Some(running) = self.jobs.remove(&id) else { return };
        let count = if running.started { &self.counts.running } else { &self.counts.waiting };
        count.fetch_sub(1, Ordering::Relaxed);
    }

    fn cancel(&mut self, id: SequenceId) {
        self.engine.cancel(id);
        if let Some(running) = self.jobs.get(&id) {
            self.metrics.note_finish(&FinishReason::Cancelled, running.arrived.elapsed());
        }
        self.forget(id);
    }

    /// Ends jobs whose time is over or whose client has gone while they wait.
    fn sweep(&mut self) {
        let now = Instant::now();
        if now - self.swept < SWEEP {
            return;
        }
        self.swept = now;
        let late = |running: &Running| now >= running.deadline;
        let ended: Vec<(SequenceId, bool)> = self
            .jobs
            .iter()
            .filter(|(_, running)| late(running) || running.delivery.is_closed())
            .map(|(id, running)| (*id, late(running)))
            .collect();
        for (id, is_late) in ended {
            if is_late && let Some(running) = self.jobs.get_mut(&id) {
                running.delivery.send(Update::TimedOut);
            }
            self.cancel(id);
        }
    }
}

fn failed(error: EngineError) -> FinishReason {
    FinishReason::Failed(error.into())
}
