//! Whatever the backend does, every sequence gets its own tokens, in order and once, and nothing is lost: on a backend
//! that answers late and out of order, and on one that fails.

mod model;

use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use mambo_engine::{
    Choice, Engine, EngineError, Event, FinishReason, Request, SamplingParams, Snapshot, TokenMask,
};
use mambo_kernel::case::Rng;
use mambo_kernel::{ReferenceBackend, Wait};
use mambo_testkit::mock::{Failing, Failures, Late};
use proptest::prelude::*;

/// Tokens of the smallest vocabulary.
const VOCABULARY: u32 = 97;

/// Allows two thirds of the tokens, others after each.
#[derive(Debug)]
struct Thirds;

impl TokenMask for Thirds {
    fn allow(&self, generated: &[u32], mask: &mut [u32]) {
        for token in (0..VOCABULARY as usize).filter(|token| token % 3 != generated.len() % 3) {
            mask[token / 32] |= 1 << (token % 32);
        }
    }
}

/// A request and when things happen to it, counted in turns of the driver.
#[derive(Clone, Debug)]
struct Plan {
    request: Request,
    submit_at: usize,
    cancel_at: Option<usize>,
    /// Whether it goes on from the snapshot of the request before, if there is one.
    resumes: bool,
}

fn sampling() -> impl Strategy<Value = SamplingParams> {
    let penalties = prop_oneof![3 => Just((1.0, 0.0)), 1 => Just((1.3, 0.4))];
    let logprobs = prop::option::weighted(0.2, 0usize..3);
    (prop_oneof![Just(0.0f32), Just(0.9)], any::<u64>(), penalties, logprobs).prop_map(
        |(temperature, seed, (repetition_penalty, frequency_penalty), logprobs)| SamplingParams {
            temperature,
            seed,
            repetition_penalty,
            frequency_penalty,
            logprobs,
            ..SamplingParams::default()
        },
    )
}

fn plan() -> impl Strategy<Value = Plan> {
    let request = (
        prop::collection::vec(0..VOCABULARY, 1..40),
        1usize..7,
        prop::collection::vec(0..VOCABULARY, 0..12),
        sampling(),
        prop::bool::weighted(0.2),
        prop::option::weighted(0.5, 1usize..40),
    );
    let times = (0usize..30, prop::option::weighted(0.2, 0usize..60), prop::bool::weighted(0.4));
    (request, times).prop_map(
        |((prompt, max, stop_tokens, sampling, masked, at), (submit_at, cancel, resumes))| {
            let snapshot_at = at.filter(|at| *at <= prompt.len());
            let mask = masked.then(|| Arc::new(Thirds) as Arc<dyn TokenMask>);
            let request = Request {
                prompt,
                max_tokens: Some(max),
                stop_tokens,
                sampling,
                mask,
                resume: None,
                snapshot_at,
                uses_cache: true,
                ..Request::default()
            };
            Plan { request, submit_at, cancel_at: cancel.map(|turns| submit_at + turns), resumes }
        },
    )
}

/// Requests of which some go on from the snapshot of the one before.
fn plans() -> impl Strategy<Value = Vec<Plan>> {
    prop::collection::vec(plan(), 1..6).prop_map(|mut plans| {
        for index in 1..plans.len() {
            let before = plans[index - 1].request.clone();
            let Some(at) = before.snapshot_at.filter(|_| plans[index].resumes) else { continue };
            let mut prompt = before.prompt[..at].to_vec();
            prompt.extend(plans[index].request.prompt.iter().take(20));
            let request = &mut plans[index].request;
            request.snapshot_at = request.snapshot_at.map(|own| own.min(prompt.len()));
            request.prompt = prompt;
        }
        plans
    })
}

/// What one request got.
#[derive(Debug, Default)]
struct Outcome {
    id: Option<mambo_engine::SequenceId>,
    choices: Vec<Choice>,
    finished: Option<FinishReason>,
    snapshot: Option<Arc<Snapshot>>,
}

/// Submits, cancels, begins and ends in a random order until all is done.
fn drive(engine: &mut Engine, plans: &[Plan], random: &mut Rng) -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> = plans.iter().map(|_| Outcome::default()).collect();
    for turn in 0..20_000 {
        for (index, plan) in plans.iter().enumerate() {
            let source = index.checked_sub(1).filter(|_| plan.resumes).map(|before| &outcomes[before]);
            let is_ready = source.is_none_or(|source| source.snapshot.is_some() || source.finished.is_some());
            if outcomes[index].id.is_none()
                && outcomes[index].finished.is_none()
                && turn >= plan.submit_at
                && is_ready
            {
                let resume = source.and_then(|source| source.snapshot.clone());
                let request = Request { resume, ..plan.request.clone() };
                match engine.submit(request) {
                    Ok(id) => outcomes[index].id = Some(id),
                    Err(error @ EngineError::Lost(_)) => {
                        outcomes[index].finished = Some(FinishReason::Failed(error.into()));
                    }
                    Err(error) => panic!("plans are good requests: {error}"),
                }
            }
            if let Some(id) = outcomes[index].id.filter(|_| plan.cancel_at == Some(turn)) {
                let event = engine.cancel(id);
                event.into_iter().for_each(|event| record(&mut outcomes, event));
            }
        }
        if random.below(3) > 0 {
            engine.begin();
        }
        if random.below(2) == 0 {
            let events = engine.end(Wait::Poll).unwrap_or_default();
            events.into_iter().for_each(|event| record(&mut outcomes, event));
        }
        if outcomes.iter().all(|outcome| outcome.finished.is_some()) && engine.is_idle() {
            return outcomes;
        }
    }
    panic!("the engine does not come to an end: {outcomes:?}");
}

fn record(outcomes: &mut [Outcome], event: Event) {
    let id = event.id();
    let outcome = outcomes.iter_mut().find(|outcome| outcome.id == Some(id)).expect("an event of a request");
    assert!(outcome.finished.is_none(), "{event:?} came after the end");
    match event {
        Event::Started { .. } => assert!(outcome.choices.is_empty(), "it started twice"),
        Event::Token { choice, .. } => outcome.choices.push(choice),
        Event::Embedding { .. } => panic!("nobody asked for an embedding"),
        Event::Snapshot { snapshot, .. } => {
            assert!(outcome.snapshot.replace(snapshot).is_none(), "a second snapshot came");
        }
        Event::Finished { reason, .. } => outcome.finished = Some(reason),
    }
}

/// Compares what a request got with what it gets alone; only requests that were cut short may get less.
fn judge(plan: &Plan, outcome: &Outcome, alone: &mut Engine, may_fail: bool) {
    let request = Request { snapshot_at: None, ..plan.request.clone() };
    let (want, reason) = model::run_alone(alone, &request);
    match outcome.finished.as_ref().expect("every request ends") {
        FinishReason::Cancelled => assert!(plan.cancel_at.is_some() && want.starts_with(&outcome.choices)),
        FinishReason::Failed(why) => {
            assert!(may_fail, "{why}");
            assert!(want.starts_with(&outcome.choices), "{:?} against {want:?}", outcome.choices);
        }
        finished => {
            assert_eq!((&outcome.choices, Some(finished)), (&want, reason.as_ref()));
            // A snapshot that lies before where the sequence resumed is not taken.
            let wants_one = plan.request.snapshot_at.is_some() && !plan.resumes;
            assert!(!wants_one || outcome.snapshot.is_some(), "the snapshot is missing");
        }
    }
}

fn plain(case: &str) -> Engine {
    model::load(case, Box::new(ReferenceBackend::new()), model::config(), None).0
}

fn check(case: &str, plans: &[Plan], seed: u64, failures: usize) {
    let failing = Failures::default();
    let backend = Failing::new(Late::new(ReferenceBackend::new(), seed), failing.clone());
    let (mut engine, layout) = model::load(case, Box::new(backend), model::config(), None);
    let all = (layout.slots, layout.pages());
    failing.every(failures);
    let outcomes = drive(&mut engine, plans, &mut Rng(seed));
    failing.every(0);
    let mut alone = plain(case);
    for (plan, outcome) in plans.iter().zip(&outcomes) {
        judge(plan, outcome, &mut alone, failures > 0);
    }
    drop(outcomes);
    assert_eq!(engine.free_cells(), all, "slots or pages are lost");
    let after = Request { prompt: vec![3, 1, 4], max_tokens: Some(3), ..Request::default() };
    assert_eq!(model::run_alone(&mut engine, &after), model::run_alone(&mut alone, &after));
    assert_eq!(engine.free_cells(), all, "slots or pages are lost");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn late_answers_reach_their_sequences(plans in plans(), seed in any::<u64>(), case in 0usize..3) {
        check(["odd", "moe", "gemma3"][case], &plans, seed, 0);
    }

    #[test]
    fn failures_end_the_sequences_they_hit(
        plans in plans(),
        seed in any::<u64>(),
        every in 2usize..40,
        windows in any::<bool>(),
    ) {
        check(if windows { "gemma3" } else { "moe" }, &plans, seed, every);
    }

    #[test]
    fn a_lost_device_ends_every_sequence_once(plans in plans(), seed in any::<u64>(), after in 0usize..120) {
        let failing = Failures::default();
        let backend = Failing::new(Late::new(ReferenceBackend::new(), seed), failing.clone());
        let (mut engine, layout) = model::load("moe", Box::new(backend), model::config(), None);
        failing.lose_after(after);
        let outcomes = drive(&mut engine, &plans, &mut Rng(seed));
        let mut alone = plain("moe");
        for (plan, outcome) in plans.iter().zip(&outcomes) {
            judge(plan, outcome, &mut alone, true);
        }
        if engine.is_lost() {
            let again = engine.submit(Request { prompt: vec![1], ..Request::default() });
            assert!(matches!(again, Err(EngineError::Lost(_))), "{again:?}");
            // Snapshots hold memory that is gone; those from before the loss say so instead of reading it.
            for snapshot in outcomes.iter().filter_map(|outcome| outcome.snapshot.as_ref()) {
                assert!(matches!(engine.export(snapshot), Err(EngineError::Lost(_))));
            }
            assert_eq!(engine.free_cells(), (layout.slots, layout.pages()));
        }
    }
}

/// Remembers the threads that asked for it, and how far the answer was.
#[derive(Debug, Default)]
struct Remembering(Mutex<Vec<(ThreadId, usize)>>);

impl TokenMask for Remembering {
    fn allow(&self, generated: &[u32], mask: &mut [u32]) {
        self.0.lock().unwrap().push((std::thread::current().id(), generated.len()));
        Thirds.allow(generated, mask);
    }
}

#[test]
fn masks_are_made_when_the_backend_asks_for_them() {
    let backend = Late::new(ReferenceBackend::new(), 3);
    let (mut engine, _) = model::load("moe", Box::new(backend), model::config(), None);
    let mask = Arc::new(Remembering::default());
    let request = |mask: Arc<dyn TokenMask>| Request {
        prompt: vec![3, 1, 4, 1, 5],
        max_tokens: Some(6),
        mask: Some(mask),
        ..Request::default()
    };
    let late = model::run_alone(&mut engine, &request(mask.clone()));
    assert_eq!(late, model::run_alone(&mut plain("moe"), &request(Arc::new(Thirds))));
    let asked = mask.0.lock().unwrap();
    assert_eq!(asked.iter().map(|(_, generated)| *generated).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    // The engine has left them all to the backend, which has a thread of its own for them.
    assert!(asked.iter().all(|(thread, _)| *thread != std::thread::current().id()));
}

#[test]
fn an_mtp_head_that_is_filled_changes_no_token() {
    let plan = |prompt: Vec<u32>, submit_at| Plan {
        request: Request { prompt, max_tokens: Some(5), snapshot_at: Some(2), ..Request::default() },
        submit_at,
        cancel_at: None,
        resumes: false,
    };
    let plans = [plan((0..40).collect(), 0), plan(vec![5, 6, 7], 3), plan((9..30).collect(), 4)];
    for failures in [0, 5, 7, 11] {
        let failing = Failures::default();
        let backend = Failing::new(Late::new(ReferenceBackend::new(), 3), failing.clone());
        let config = mambo_engine::EngineConfig { fill_mtp: true, ..model::config() };
        let (mut engine, layout) = model::load("mtp", Box::new(backend), config, None);
        failing.every(failures);
        let outcomes = drive(&mut engine, &plans, &mut Rng(failures as u64));
        failing.every(0);
        let mut alone = plain("mtp");
        for (plan, outcome) in plans.iter().zip(&outcomes) {
            judge(plan, outcome, &mut alone, failures > 0);
        }
        drop(outcomes);
        assert_eq!(engine.free_cells(), (layout.slots, layout.pages()));
    }
}
