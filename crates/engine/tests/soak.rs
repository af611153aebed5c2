//! Random requests for a while: mixed lengths, cancellations, snapshots that are resumed. Every greedy answer equals what
//! its prompt gives alone, and memory stays flat. `soak [--seconds N]`; a few seconds unless told otherwise.

mod loaded;

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loaded::{On, Setup, load};
use mambo_engine::{Engine, Event, FinishReason, Request, SequenceId, Snapshot};

const VOCAB: u32 = 90;
/// Requests at once, more than there are places.
const MOST_REQUESTS: usize = 12;
/// Prompts whose answers are known.
const PROMPTS: usize = 48;
const ANSWER_TOKENS: usize = 24;

/// Numbers that look random, the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % count
    }
}

fn request(prompt: &[u32]) -> Request {
    Request { prompt: prompt.to_vec(), max_tokens: Some(ANSWER_TOKENS), ..Default::default() }
}

/// The tokens that a prompt gives alone.
fn alone(engine: &mut Engine, prompt: &[u32]) -> Result<Vec<u32>, String> {
    engine.submit(request(prompt)).map_err(|error| error.to_string())?;
    let mut tokens = Vec::new();
    while !engine.is_idle() {
        for event in engine.step() {
            match event {
                Event::Token { choice, .. } => tokens.push(choice.token),
                Event::Finished { reason: FinishReason::Failed(why), .. } => return Err(why.to_string()),
                _ => {}
            }
        }
    }
    Ok(tokens)
}

/// A request that runs.
struct Running {
    prompt: usize,
    tokens: Vec<u32>,
    /// Tokens after which it is cancelled.
    cancelled_after: Option<usize>,
}

struct Soak {
    engine: Engine,
    dice: Dice,
    prompts: Vec<Vec<u32>>,
    answers: Vec<Vec<u32>>,
    running: HashMap<SequenceId, Running>,
    snapshots: Vec<(usize, Arc<Snapshot>)>,
    finished: usize,
    cancelled: usize,
    resumed: usize,
}

impl Soak {
    fn new(on: On) -> Result<Soak, String> {
        let mut dice = Dice(7);
        let prompts: Vec<Vec<u32>> = (0..PROMPTS)
            .map(|_| (0..1 + dice.below(120)).map(|_| dice.below(VOCAB as usize) as u32).collect())
            .collect();
        let mut single = load("moe", on, Setup { sequences: 1, ..Setup::default() });
        let answers = prompts.iter().map(|prompt| alone(&mut single, prompt)).collect::<Result<_, _>>()?;
        let setup = Setup { sequences: 5, step_tokens: 64, prefix_cache: true, ..Setup::default() };
        let engine = load("moe", on, setup);
        let (running, snapshots) = (HashMap::new(), Vec::new());
        Ok(Soak { engine, dice, prompts, answers, running, snapshots, finished: 0, cancelled: 0, resumed: 0 })
    }

    /// Sends a request: a new one, or one that goes on from a snapshot.
    fn send(&mut self) -> Result<(), String> {
        let prompt = self.dice.below(self.prompts.len());
        let mut request = request(&self.prompts[prompt]);
        let length = self.prompts[prompt].len();
        if self.dice.below(4) == 0 && length > 1 {
            request.snapshot_at = Some(1 + self.dice.below(length - 1));
        }
        let known = self.snapshots.iter().position(|(own, _)| *own == prompt);
        if let Some(at) = known.filter(|_| self.dice.below(2) == 0) {
            request.resume = Some(self.snapshots.swap_remove(at).1);
            request.snapshot_at = None;
            self.resumed += 1;
        }
        let cancelled_after = (self.dice.below(5) == 0).then(|| self.dice.below(ANSWER_TOKENS));
        let id = self.engine.submit(request).map_err(|error| error.to_string())?;
        self.running.insert(id, Running { prompt, tokens: Vec::new(), cancelled_after });
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        for event in self.engine.step() {
            match event {
                Event::Token { id, choice } => {
                    let Some(own) = self.running.get_mut(&id) else { continue };
                    own.tokens.push(choice.token);
                    let want = self.answers[own.prompt].get(own.tokens.len() - 1);
                    if want != Some(&choice.token) {
                        let at = own.tokens.len() - 1;
                        return Err(format!(
                            "prompt {}, token {at}: {} beside others, {want:?} alone",
                            own.prompt, choice.token
                        ));
                    }
                }
                Event::Snapshot { id, snapshot } => {
                    if let Some(own) = self.running.get(&id).filter(|_| self.snapshots.len() < 8) {
                        self.snapshots.push((own.prompt, snapshot));
                    }
                }
                Event::Finished { reason: FinishReason::Failed(why), .. } => return Err(why.to_string()),
                Event::Finished { id, .. } => {
                    if let Some(own) = self.running.remove(&id) {
                        let whole = own.tokens.len() == self.answers[own.prompt].len();
                        if !whole && own.cancelled_after.is_none() {
                            return Err(format!(
                                "prompt {} ended after {} tokens",
                                own.prompt,
                                own.tokens.len()
                            ));
                        }
                        self.finished += 1;
                    }
                }
                _ => {}
            }
        }
        let is_over = |own: &Running| own.cancelled_after.is_some_and(|after| own.tokens.len() >= after);
        let over: Vec<SequenceId> =
            self.running.iter().filter(|(_, own)| is_over(own)).map(|(id, _)| *id).collect();
        for id in over {
            self.engine.cancel(id);
            self.running.remove(&id);
            self.cancelled += 1;
        }
        Ok(())
    }

    /// Bytes of device memory that are free, where the backend knows.
    fn free(&self) -> Option<u64> {
        self.engine.backend().memory().ok()?.device
    }

    fn run(&mut self, long: Duration) -> Result<String, String> {
        let begin = Instant::now();
        let (mut free_at_first, mut least_free) = (None, None);
        while begin.elapsed() < long {
            while self.running.len() < 1 + self.dice.below(MOST_REQUESTS) {
                self.send()?;
            }
            self.step()?;
            // Working memory has grown to what it needs after the first part.
            if begin.elapsed() > long / 4 {
                let free = self.free();
                free_at_first = free_at_first.or(free);
                least_free = free.into_iter().chain(least_free).min();
            }
        }
        while !self.engine.is_idle() {
            self.step()?;
        }
        if let (Some(first), Some(least)) = (free_at_first, least_free)
            && first.saturating_sub(least) > 1 << 20
        {
            return Err(format!("{} bytes of device memory were lost", first - least));
        }
        Ok(format!(
            "{} answers, all as alone; {} cancelled, {} resumed, in {:.0} s",
            self.finished,
            self.cancelled,
            self.resumed,
            begin.elapsed().as_secs_f64()
        ))
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip_while(|word| word != "--seconds").skip(1);
    let seconds = arguments.next().and_then(|word| word.parse().ok()).unwrap_or(5);
    let result = Soak::new(On::usual()).and_then(|mut soak| soak.run(Duration::from_secs(seconds)));
    match result {
        Ok(done) => {
            println!("soak: {done}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            println!("soak failed: {problem}");
            ExitCode::FAILURE
        }
    }
}
