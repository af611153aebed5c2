//! Greedy answers are the same tokens alone, batched, chunked, resumed and rolled back; checked on the
//! log probabilities too, whose bits would show a difference long before a token does.

mod loaded;

use std::sync::Arc;

use loaded::{On, Setup, load};
use mambo_cpu::Isa;
use mambo_engine::{Choice, Engine, Event, FinishReason, Request, SamplingParams, SequenceId, Snapshot};
use mambo_kernel::{KvElem, KvScale, KvTypes, Rollback, StateElem};
use proptest::prelude::*;

const VOCAB: u32 = 90;

fn request(prompt: &[u32], tokens: usize) -> Request {
    Request {
        prompt: prompt.to_vec(),
        max_tokens: Some(tokens),
        sampling: SamplingParams { logprobs: Some(3), ..Default::default() },
        ..Default::default()
    }
}

/// What came of some sequences: each one's choices, and snapshots.
struct Outcome {
    choices: Vec<Vec<Choice>>,
    snapshots: Vec<Arc<Snapshot>>,
}

impl Outcome {
    fn new(sequences: usize) -> Self {
        Outcome { choices: vec![Vec::new(); sequences], snapshots: Vec::new() }
    }

    fn step(&mut self, engine: &mut Engine, ids: &[SequenceId]) {
        self.take(engine.step(), ids);
    }

    fn take(&mut self, events: Vec<Event>, ids: &[SequenceId]) {
        for event in events {
            match event {
                Event::Token { id, choice } => {
                    self.choices[ids.iter().position(|i| *i == id).expect("a known id")].push(choice)
                }
                Event::Snapshot { snapshot, .. } => self.snapshots.push(snapshot),
                Event::Started { .. } | Event::Embedding { .. } => {}
                Event::Finished { reason: FinishReason::Failed(why), .. } => panic!("{why}"),
                Event::Finished { .. } => {}
            }
        }
    }
}

/// Runs until nothing is left.
fn finish(engine: &mut Engine, ids: &[SequenceId]) -> Outcome {
    let mut outcome = Outcome::new(ids.len());
    while !engine.is_idle() {
        outcome.step(engine, ids);
    }
    outcome
}

fn alone(case: &str, on: On, setup: Setup, prompt: &[u32], tokens: usize) -> Vec<Choice> {
    let mut engine = load(case, on, setup);
    let id = engine.submit(request(prompt, tokens)).expect("the prompt fits");
    finish(&mut engine, &[id]).choices.remove(0)
}

fn on() -> On {
    On::usual()
}

fn prompts() -> impl Strategy<Value = Vec<Vec<u32>>> {
    prop::collection::vec(prop::collection::vec(0..VOCAB, 1..80), 1..5)
}

fn cases() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["moe", "odd", "latent", "dense", "router-groups"])
}

fn kv_types() -> impl Strategy<Value = KvTypes> {
    let elem = || prop::sample::select(KvElem::ALL.to_vec());
    (elem(), elem()).prop_map(|(k, v)| KvTypes { k, v })
}

fn state_elems() -> impl Strategy<Value = StateElem> {
    prop::sample::select(StateElem::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() })]

    #[test]
    fn batched_and_chunked_equal_alone(case in cases(), prompts in prompts(), step_tokens in 1usize..70, kv_types in kv_types(), state_elem in state_elems()) {
        let single = Setup { sequences: 1, kv_types, state_elem, ..Default::default() };
        let want: Vec<_> = prompts.iter().map(|p| alone(case, on(), single, p, 40)).collect();
        // Fewer places than prompts: some wait, and slots and pages are used again.
        let mut engine = load(case, on(), Setup { sequences: 3, step_tokens, ..single });
        let ids: Vec<_> = prompts.iter().map(|p| engine.submit(request(p, 40)).expect("fits")).collect();
        prop_assert_eq!(finish(&mut engine, &ids).choices, want);
    }

    #[test]
    fn resumed_equals_whole(case in cases(), prompt in prop::collection::vec(0..VOCAB, 2..150), cut in any::<prop::sample::Index>(), depth in any::<bool>(), kv_types in kv_types(), state_elem in state_elems()) {
        let rollback = if depth { Rollback::OneChunk } else { Rollback::None };
        let setup = Setup { rollback, kv_types, state_elem, ..Default::default() };
        let want = alone(case, on(), setup, &prompt, 40);
        let cut = 1 + cut.index(prompt.len() - 1);
        let mut first = load(case, on(), setup);
        let id = first.submit(Request { snapshot_at: Some(cut), ..request(&prompt, 1) }).expect("fits");
        let snapshot = finish(&mut first, &[id]).snapshots.remove(0);
        prop_assert_eq!(snapshot.tokens(), &prompt[..cut]);
        let snapshot = Arc::new(Snapshot::from_bytes(&first.export(&snapshot).unwrap()).unwrap());
        // Another engine, whose other slot is busy, so that the snapshot lands elsewhere.
        let mut second = load(case, on(), setup);
        let other = second.submit(request(&prompt[..1], 60)).expect("fits");
        let resumed = second.submit(Request { resume: Some(snapshot), ..request(&prompt, 40) }).expect("fits");
        let ids = [other, resumed];
        let mut outcome = Outcome::new(2);
        outcome.step(&mut second, &ids);
        prop_assert_eq!(second.reused_tokens(resumed), Some(cut), "the snapshot is really used");
        while !second.is_idle() {
            outcome.step(&mut second, &ids);
        }
        prop_assert_eq!(&outcome.choices[1], &want);
    }

    #[test]
    fn rolled_back_equals_straight(case in cases(), prompt in prop::collection::vec(0..VOCAB, 1..60), moves in prop::collection::vec((1usize..40, 1usize..34), 1..4), kv_types in kv_types(), state_elem in state_elems()) {
        let setup = Setup { rollback: Rollback::OneChunk, kv_types, state_elem, ..Default::default() };
        let want = alone(case, on(), setup, &prompt, 120);
        let mut engine = load(case, on(), setup);
        let id = engine.submit(request(&prompt, 120)).expect("fits");
        let mut outcome = Outcome::new(1);
        let mut furthest = 0;
        for (run, back) in moves {
            let goal = outcome.choices[0].len() + run;
            while outcome.choices[0].len() < goal {
                outcome.step(&mut engine, &[id]);
            }
            // A device runs ahead, and what is in flight cannot be taken back.
            outcome.take(engine.drain(), &[id]);
            let made = outcome.choices[0].len();
            furthest = furthest.max(made);
            let done = engine.rollback(id, back).is_ok();
            // The newest token has not run, and the one that is kept runs again.
            let within = back <= made && furthest - (made - back) <= 32;
            prop_assert!(done || !within, "{back} of {made} tokens, furthest {furthest}");
            if done {
                outcome.choices[0].truncate(made - back);
            }
        }
        while !engine.is_idle() {
            outcome.step(&mut engine, &[id]);
        }
        prop_assert_eq!(&outcome.choices[0], &want);
    }
}

#[test]
fn instruction_sets_and_threads_agree() {
    let prompt: Vec<u32> = (0..70).map(|i| i * 7 % VOCAB).collect();
    for case in ["moe", "odd"] {
        for group in On::alike() {
            let want = alone(case, group[0], Setup::default(), &prompt, 30);
            for on in group {
                assert_eq!(alone(case, on, Setup::default(), &prompt, 30), want, "{case} on {on:?}");
            }
        }
    }
}

#[test]
fn cores_that_are_left_to_others_change_no_bit() {
    let prompt: Vec<u32> = (0..70).map(|i| i * 7 % VOCAB).collect();
    let isa = Isa::available()[0];
    let want = alone("moe", On::Cpu(isa, 3), Setup::default(), &prompt, 30);
    let mut engine = load("moe", On::Cpu(isa, 3), Setup::default());
    let ids = [engine.submit(request(&prompt, 30)).unwrap()];
    let mut outcome = Outcome::new(1);
    // More than there are leaves one.
    for cores in (0..5).cycle() {
        if engine.is_idle() {
            break;
        }
        engine.backend_mut().leave_cores(cores);
        outcome.step(&mut engine, &ids);
    }
    assert_eq!(outcome.choices[0], want);
}

/// Every pair of types at least once, which chance above may not meet: a short prompt cut unevenly and
/// batched, and on every instruction set.
#[test]
fn every_cache_type_keeps_the_bits() {
    let prompt: Vec<u32> = (0..75).map(|i| i * 11 % VOCAB).collect();
    let pairs = KvElem::ALL.into_iter().flat_map(|k| KvElem::ALL.map(|v| KvTypes { k, v }));
    for group in On::alike() {
        let mut exact = None;
        for (i, kv_types) in pairs.clone().enumerate() {
            let state_elem = StateElem::ALL[i % 3];
            let setup = Setup { kv_types, state_elem, ..Default::default() };
            let want = alone("moe", group[0], setup, &prompt, 12);
            let exact = exact.get_or_insert_with(|| want.clone());
            assert_eq!(want == *exact, i == 0, "{kv_types} and {} states change nothing", state_elem.name());
            for &on in &group {
                let mut engine = load("moe", on, Setup { step_tokens: 19, ..setup });
                let ids = [&prompt[..], &prompt[..40]].map(|p| engine.submit(request(p, 12)).expect("fits"));
                let got = finish(&mut engine, &ids).choices.swap_remove(0);
                assert_eq!(got, want, "{kv_types} and {} states on {on:?}", state_elem.name());
            }
        }
    }
}

/// Scales of keys and values reach caches of 8-bit floats, and no others. Those of the checkpoint are 1.
#[test]
fn scales_are_used_for_8_bit_floats_alone() {
    let prompt: Vec<u32> = (0..40).map(|i| i * 11 % VOCAB).collect();
    let folder = loaded::quantized_folder("modelopt-mixed");
    let run = |on: On, elem: KvElem, scales: Option<KvScale>| {
        let setup = Setup { kv_types: KvTypes::both(elem), ..Default::default() };
        let mut engine = loaded::load_scaled(&folder, on, setup, scales.map(|scale| vec![scale]));
        let id = engine.submit(request(&prompt, 8)).expect("fits");
        finish(&mut engine, &[id]).choices.remove(0)
    };
    let (own, odd) = (None, Some(KvScale { k: 0.013, v: 0.21 }));
    assert_eq!(run(on(), KvElem::F8, own), run(on(), KvElem::F8, Some(KvScale::default())));
    assert_eq!(run(on(), KvElem::Q8, own), run(on(), KvElem::Q8, odd));
    let scaled = run(on(), KvElem::F8, odd);
    assert_ne!(scaled, run(on(), KvElem::F8, own));
    assert_ne!(scaled, run(on(), KvElem::F8, Some(KvScale { v: 1.0, ..odd.unwrap() })));
    assert_ne!(scaled, run(on(), KvElem::F8, Some(KvScale { k: 1.0, ..odd.unwrap() })));
    assert_eq!(scaled[0].token, run(On::Reference, KvElem::F8, odd)[0].token);
}

#[test]
fn a_used_slot_leaks_nothing() {
    let prompt: Vec<u32> = (0..45).map(|i| i * 5 % VOCAB).collect();
    let setup = Setup { sequences: 1, ..Default::default() };
    let want = alone("moe", on(), setup, &prompt, 20);
    let mut engine = load("moe", on(), setup);
    let before = engine.submit(request(&[3; 100], 50)).expect("fits");
    let after = engine.submit(request(&prompt, 20)).expect("fits");
    assert_eq!(finish(&mut engine, &[before, after]).choices[1], want);
}

#[test]
fn cancelling_frees_the_place_for_the_next() {
    let mut engine = load("moe", on(), Setup { sequences: 1, ..Default::default() });
    let first = engine.submit(request(&[1, 2, 3], 500)).expect("fits");
    let second = engine.submit(request(&[4, 5], 3)).expect("fits");
    engine.step();
    assert!(engine.cancel(first).is_some());
    assert!(engine.cancel(first).is_none(), "an ended sequence cannot be ended again");
    let waiting = engine.submit(request(&[6], 3)).expect("fits");
    assert!(engine.cancel(waiting).is_some(), "a waiting sequence can be ended too");
    assert_eq!(finish(&mut engine, &[second]).choices[0].len(), 3);
}

#[test]
fn more_sequences_than_step_tokens_all_move() {
    let mut engine = load("moe", on(), Setup { sequences: 4, step_tokens: 1, ..Default::default() });
    let ids: Vec<_> = (0..4).map(|n| engine.submit(request(&[n + 1], 50)).expect("fits")).collect();
    let mut outcome = Outcome::new(4);
    for _ in 0..10 {
        outcome.step(&mut engine, &ids);
    }
    assert!(outcome.choices.iter().all(|c| c.len() == 10), "nobody starves");
}

#[test]
fn impossible_requests_are_refused() {
    let mut engine = load("moe", on(), Setup::default());
    let refused = |engine: &mut Engine, request: Request| engine.submit(request).unwrap_err().to_string();
    assert!(refused(&mut engine, request(&[], 1)).contains("empty"));
    assert!(refused(&mut engine, request(&[1; 2000], 1)).contains("2000 tokens"));
    assert!(refused(&mut engine, request(&[1; 1024], 1)).contains("no room"));
    assert!(refused(&mut engine, request(&[1], 0)).contains("max_tokens"));
    assert!(refused(&mut engine, request(&[4_000_000], 1)).contains("vocabulary"));
    assert!(
        refused(&mut engine, Request { snapshot_at: Some(9), ..request(&[1], 1) }).contains("snapshot_at")
    );
    // A snapshot of other caches ends the request with a reason, and the place it wanted is free again.
    let others = [
        Setup { kv_types: KvTypes::both(KvElem::BF16), ..Default::default() },
        Setup { state_elem: StateElem::F16, ..Default::default() },
    ];
    for setup in others {
        let mut other = load("moe", on(), setup);
        let id = other.submit(Request { snapshot_at: Some(2), ..request(&[1, 2, 3], 1) }).expect("fits");
        let snapshot = finish(&mut other, &[id]).snapshots.remove(0);
        let snapshot = Arc::new(Snapshot::from_bytes(&other.export(&snapshot).unwrap()).unwrap());
        engine.submit(Request { resume: Some(snapshot), ..request(&[1, 2, 3], 1) }).expect("is queued");
        let events = engine.step();
        let [Event::Finished { reason: FinishReason::Failed(why), .. }] = &events[..] else {
            panic!("{events:?}")
        };
        assert!(why.to_string().contains("snapshot"), "{why}");
    }
    let id = engine.submit(request(&[1, 2, 3], 2)).expect("fits");
    assert_eq!(finish(&mut engine, &[id]).choices[0].len(), 2);
}

/// A session saved on one device goes on on another as if it had begun there.
#[test]
fn snapshots_move_between_cpu_and_gpu() {
    let Some(gpu) = On::gpu() else {
        println!("SKIPPED: this machine has no GPU to move snapshots to");
        return;
    };
    let tokens = |choices: Vec<Choice>| choices.into_iter().map(|choice| choice.token).collect::<Vec<_>>();
    let prompt: Vec<u32> = (0..75).map(|i| i * 11 % VOCAB).collect();
    for (from, to) in [(On::cpu(), gpu), (gpu, On::cpu())] {
        for (cut, case) in [(40, "moe"), (64, "dense"), (13, "odd")] {
            let setup = Setup::default();
            let want = tokens(alone(case, to, setup, &prompt, 20));
            let mut first = load(case, from, setup);
            let id = first.submit(Request { snapshot_at: Some(cut), ..request(&prompt, 1) }).expect("fits");
            let snapshot = finish(&mut first, &[id]).snapshots.remove(0);
            let snapshot = Arc::new(Snapshot::from_bytes(&first.export(&snapshot).unwrap()).unwrap());
            let mut second = load(case, to, setup);
            let resumed = Request { resume: Some(snapshot), ..request(&prompt, 20) };
            let id = second.submit(resumed).expect("fits");
            let got = tokens(finish(&mut second, &[id]).choices.remove(0));
            assert_eq!(got, want, "{case} from {from:?} to {to:?} at {cut}");
        }
    }
}
