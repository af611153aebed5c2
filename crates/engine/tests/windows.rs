//! Models whose layers see windows, on texts much longer than those: chunks, company, the prefix cache and backends.

mod golden_files;
mod loaded;

use std::path::PathBuf;

use golden_files::{largest_difference, score};
use loaded::{On, Setup, load_folder};
use mambo_cpu::Isa;
use mambo_engine::{Engine, Event, Request};

const CASES: [&str; 4] = ["gemma3", "gpt-oss", "qwen2", "mistral"];

fn folder(case: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/families").join(case)
}

fn text(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| (i * i + i * 7 + seed * 31 + seed * i) % 97).collect()
}

#[test]
fn long_texts_agree_with_the_reference_however_they_are_cut() {
    for case in CASES {
        let ids = text(1, 200);
        let logits = On::all().into_iter().map(|on| {
            let setup = Setup { widened: true, sequences: 3, ..Setup::default() };
            let mut engine = load_folder(&folder(case), on, setup);
            let whole = score(&mut engine, &ids, 64, 0);
            // The reference takes its time, and runs rows one by one anyway.
            let ways = if matches!(on, On::Reference) { &[][..] } else { &[(1, 0), (13, 2)] };
            for &(chunk, companions) in ways {
                let again = score(&mut engine, &ids, chunk, companions);
                assert!(whole == again, "{case} on {on:?}: chunks of {chunk} beside {companions} differ");
            }
            whole.0
        });
        let logits: Vec<_> = logits.collect();
        for other in &logits[1..] {
            let off = largest_difference(other, &logits[0]);
            assert!(off <= 1e-3, "{case}: backends differ by {off}");
        }
    }
}

/// Answers to prompts that go on from each other, all at once or one after the other.
fn answers(engine: &mut Engine, together: bool) -> Vec<Vec<u32>> {
    let prompts = [text(1, 150), [text(1, 100), text(2, 40)].concat(), text(1, 160), text(1, 70)];
    let mut answers = vec![Vec::new(); prompts.len()];
    let mut ids = Vec::new();
    let mut run = |engine: &mut Engine, ids: &[_]| {
        while !engine.is_idle() {
            for event in engine.step() {
                if let Event::Token { id, choice } = event {
                    let of = ids.iter().position(|other| *other == id).expect("it was submitted");
                    answers[of].push(choice.token);
                }
            }
        }
    };
    for prompt in prompts {
        let request = Request { prompt, max_tokens: Some(40), uses_cache: true, ..Request::default() };
        ids.push(engine.submit(request).expect("a good request"));
        if !together {
            run(engine, &ids);
        }
    }
    run(engine, &ids);
    answers
}

#[test]
fn the_prefix_cache_changes_no_token() {
    for case in CASES {
        let engine = |prefix_cache, step_tokens| {
            let setup = Setup { prefix_cache, step_tokens, sequences: 2, ..Setup::default() };
            load_folder(&folder(case), On::Cpu(Isa::detect(), 1), setup)
        };
        let want = answers(&mut engine(false, 512), false);
        assert!(want.iter().all(|answer| answer.len() == 40));
        for (step_tokens, together) in [(512, false), (40, true), (7, false)] {
            let mut kept = engine(true, step_tokens);
            let free = kept.free_cells();
            assert_eq!(answers(&mut kept, together), want, "{case}: {step_tokens} tokens a step");
            let stats = kept.prefix_cache().expect("there is a cache");
            assert!(stats.restored_tokens > 0, "{case}: {stats:?}");
            kept.clear_prefix_cache();
            assert_eq!(kept.free_cells(), free, "{case}: pages are lost");
        }
    }
}
