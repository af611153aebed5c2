//! Greedy answers are the same tokens alone, batched, chunked, resumed and rolled back; checked on the
//! log probabilities too, whose bits would show a difference long before a token does.

mod loaded;

use std::sync::Arc;

use loaded::{On, Setup, load};
use mambo_cpu::Isa;
use mambo_engine::{Choice, Engine, Event, Request, SamplingParams, SequenceId, Snapshot};
use mambo_kernel::{KvElem, Rollback};
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

/// Runs until nothing is left and gives each sequence's choices, and the snapshots that came.
fn finish(engine: &mut Engine, ids: &[SequenceId]) -> (Vec<Vec<Choice>>, Vec<Arc<Snapshot>>) {
    let mut choices = vec![Vec::new(); ids.len()];
    let mut snapshots = Vec::new();
    while !engine.is_idle() {
        for event in engine.step().expect("steps run") {
            match event {
                Event::Token { id, choice } => {
                    choices[ids.iter().position(|i| *i == id).expect("a known id")].push(choice)
                }
                Event::Snapshot { snapshot, .. } => snapshots.push(snapshot),
                Event::Finished { .. } => {}
            }
        }
    }
    (choices, snapshots)
}

fn alone(case: &str, on: On, setup: Setup, prompt: &[u32], tokens: usize) -> Vec<Choice> {
    let mut engine = load(case, on, setup);
    let id = engine.submit(request(prompt, tokens)).expect("the prompt fits");
    finish(&mut engine, &[id]).0.remove(0)
}

fn on() -> On {
    On::Cpu(Isa::detect(), 2)
}

fn prompts() -> impl Strategy<Value = Vec<Vec<u32>>> {
    prop::collection::vec(prop::collection::vec(0..VOCAB, 1..80), 1..5)
}

fn cases() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["moe", "odd", "latent", "dense", "router-groups"])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() })]

    #[test]
    fn batched_and_chunked_equal_alone(case in cases(), prompts in prompts(), step_tokens in 1usize..70, half in any::<bool>()) {
        let kv_elem = if half { KvElem::F16 } else { KvElem::F32 };
        let single = Setup { sequences: 1, kv_elem, ..Default::default() };
        let want: Vec<_> = prompts.iter().map(|p| alone(case, on(), single, p, 40)).collect();
        // Fewer places than prompts: some wait, and slots and pages are used again.
        let mut engine = load(case, on(), Setup { sequences: 3, step_tokens, kv_elem, ..Default::default() });
        let ids: Vec<_> = prompts.iter().map(|p| engine.submit(request(p, 40)).expect("fits")).collect();
        prop_assert_eq!(finish(&mut engine, &ids).0, want);
    }

    #[test]
    fn resumed_equals_whole(case in cases(), prompt in prop::collection::vec(0..VOCAB, 2..150), cut in any::<prop::sample::Index>(), depth in any::<bool>()) {
        let rollback = if depth { Rollback::OneChunk } else { Rollback::None };
        let setup = Setup { rollback, ..Default::default() };
        let want = alone(case, on(), setup, &prompt, 40);
        let cut = 1 + cut.index(prompt.len() - 1);
        let mut first = load(case, on(), setup);
        let id = first.submit(Request { snapshot_at: Some(cut), ..request(&prompt, 1) }).expect("fits");
        let snapshot = finish(&mut first, &[id]).1.remove(0);
        prop_assert_eq!(snapshot.tokens(), &prompt[..cut]);
        // Another engine, whose other slot is busy, so that the snapshot lands elsewhere.
        let mut second = load(case, on(), setup);
        let other = second.submit(request(&prompt[..1], 60)).expect("fits");
        let resumed = second.submit(Request { resume: Some(snapshot), ..request(&prompt, 40) }).expect("fits");
        prop_assert_eq!(&finish(&mut second, &[other, resumed]).0[1], &want);
    }

    #[test]
    fn rolled_back_equals_straight(case in cases(), prompt in prop::collection::vec(0..VOCAB, 1..60), runs in 1usize..70, back in 1usize..32) {
        let setup = Setup { rollback: Rollback::OneChunk, ..Default::default() };
        let want = alone(case, on(), setup, &prompt, 90);
        let mut engine = load(case, on(), setup);
        let id = engine.submit(request(&prompt, 90)).expect("fits");
        let mut choices = Vec::new();
        let collect = |engine: &mut Engine, choices: &mut Vec<Choice>| {
            for event in engine.step().expect("steps run") {
                if let Event::Token { choice, .. } = event {
                    choices.push(choice);
                }
            }
        };
        while choices.len() < runs {
            collect(&mut engine, &mut choices);
        }
        let back = back.min(choices.len());
        engine.rollback(id, back).expect("within a chunk");
        choices.truncate(choices.len() - back);
        while !engine.is_idle() {
            collect(&mut engine, &mut choices);
        }
        prop_assert_eq!(choices, want);
    }
}

#[test]
fn instruction_sets_and_threads_agree() {
    let prompt: Vec<u32> = (0..70).map(|i| i * 7 % VOCAB).collect();
    for case in ["moe", "odd"] {
        let want = alone(case, on(), Setup::default(), &prompt, 30);
        for isa in Isa::available() {
            for threads in [1, 2, 3] {
                let got = alone(case, On::Cpu(isa, threads), Setup::default(), &prompt, 30);
                let tokens = |c: &[Choice]| c.iter().map(|c| c.token).collect::<Vec<_>>();
                assert_eq!(tokens(&got), tokens(&want), "{case} with {isa:?} on {threads} threads");
            }
        }
    }
}

#[test]
fn a_used_slot_leaks_nothing() {
    let prompt: Vec<u32> = (0..45).map(|i| i * 5 % VOCAB).collect();
    let setup = Setup { sequences: 1, ..Default::default() };
    let want = alone("moe", on(), setup, &prompt, 20);
    let mut engine = load("moe", on(), setup);
    let before = engine.submit(request(&[3; 100], 50)).expect("fits");
    let after = engine.submit(request(&prompt, 20)).expect("fits");
    assert_eq!(finish(&mut engine, &[before, after]).0[1], want);
}

#[test]
fn cancelling_frees_the_place_for_the_next() {
    let mut engine = load("moe", on(), Setup { sequences: 1, ..Default::default() });
    let first = engine.submit(request(&[1, 2, 3], 500)).expect("fits");
    let second = engine.submit(request(&[4, 5], 3)).expect("fits");
    engine.step().expect("steps run");
    assert!(engine.cancel(first).is_some());
    assert!(engine.cancel(first).is_none(), "an ended sequence cannot be ended again");
    let waiting = engine.submit(request(&[6], 3)).expect("fits");
    assert!(engine.cancel(waiting).is_some(), "a waiting sequence can be ended too");
    assert_eq!(finish(&mut engine, &[second]).0[0].len(), 3);
}
