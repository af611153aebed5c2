//! Layers that see a window keep no more than that: of their pages a sequence holds a bounded number, snapshots hold the
//! last window, and no token depends on any of it.

mod model;

use std::sync::Arc;

use mambo_engine::{
    Engine, EngineConfig, Event, PrefixCacheConfig, Request, SequenceId, Snapshot, SnapshotRoom,
};
use mambo_kernel::{CacheLayout, PAGE_TOKENS, ReferenceBackend, Rollback};
use mambo_testkit::mock::Late;
use proptest::prelude::*;

const CONTEXT: usize = 512;
const STEP: usize = 48;
/// Rows of a scoring step, which pages have to do for too.
const SCORED: usize = 64;
/// Windows of 12, 16, 14 and 16 tokens; all layers of the last see one.
const MODELS: [&str; 4] = ["gemma3", "gpt-oss", "qwen2", "mistral"];

fn config(cache_bytes: Option<u64>) -> EngineConfig {
    EngineConfig {
        max_sequences: 2,
        context_tokens: CONTEXT,
        step_tokens: STEP,
        snapshots: SnapshotRoom::default(),
        prefix_cache: cache_bytes.map(|bytes| PrefixCacheConfig { bytes, every: Some(32), spills: false }),
        ..EngineConfig::default()
    }
}

fn load(case: &str, config: EngineConfig) -> (Engine, CacheLayout) {
    model::load(case, Box::new(Late::new(ReferenceBackend::new(), 7)), config, None)
}

fn request(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request { prompt, max_tokens: Some(max_tokens), uses_cache: true, ..Request::default() }
}

fn text(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| (i * i + i * 7 + seed * 31 + seed * i) % 97).collect()
}

/// The most pages that a sequence may hold of a group, whatever its length.
fn bound(window: usize, rollback: Rollback) -> usize {
    (window + STEP.max(SCORED) + rollback.tokens()).div_ceil(PAGE_TOKENS) + 1
}

/// Steps until nothing is left to do, and looks at what a sequence holds of every group on the way.
fn watch(engine: &mut Engine, id: SequenceId, mut look: impl FnMut(&Engine, &[usize])) -> Vec<Event> {
    let mut events = Vec::new();
    while !engine.is_idle() {
        events.extend(engine.step());
        if let Some(held) = engine.held_pages(id) {
            look(engine, &held);
        }
    }
    events
}

#[test]
fn a_long_sequence_holds_no_more_than_the_window() {
    for case in MODELS {
        for (cache, rollback) in [(None, Rollback::None), (Some(1 << 24), Rollback::OneChunk)] {
            let (mut engine, layout) = load(case, EngineConfig { rollback, ..config(cache) });
            let all = engine.free_cells();
            let windows: Vec<_> = layout.kv_groups.iter().map(|group| group.window).collect();
            assert!(windows.iter().any(Option::is_some), "{case} has windows: {windows:?}");
            let id = engine.submit(request(text(1, 400), 100)).unwrap();
            let mut most = vec![0; windows.len()];
            let events = watch(&mut engine, id, |engine, held| {
                most.iter_mut().zip(held).for_each(|(most, held)| *most = (*most).max(*held));
                // Reserved pages included, nothing else is taken where no snapshot is.
                let taken = all.1 - engine.free_cells().1;
                let allowed = windows.iter().map(|window| match window {
                    Some(window) => bound(*window, rollback),
                    None => 500_usize.div_ceil(PAGE_TOKENS),
                });
                assert!(cache.is_some() || taken <= allowed.sum(), "{case}: {taken} pages are taken");
            });
            assert_eq!(model::tokens(&events, id).len(), 100);
            for (window, most) in windows.iter().zip(most) {
                match window {
                    Some(window) => assert!(most <= bound(*window, rollback), "{case}: {most} pages"),
                    None => assert_eq!(most, 499_usize.div_ceil(PAGE_TOKENS), "{case}"),
                }
            }
            engine.clear_prefix_cache();
            assert_eq!(engine.free_cells(), all, "{case}: pages are lost");
        }
    }
}

#[test]
fn the_plan_counts_each_group_by_its_window() {
    let (_, layout) = load("gemma3", config(None));
    let counts: Vec<_> = layout.kv_groups.iter().map(|group| (group.window, group.pages)).collect();
    let [(None, all), (Some(12), few)] = counts[..] else { panic!("{counts:?}") };
    assert_eq!((all, few), (2 * CONTEXT / PAGE_TOKENS, 2 * bound(12, Rollback::None)));
    // Snapshots hold the last window of such layers, however many tokens they have.
    let snapshots = SnapshotRoom { count: 3, tokens: 900, slots: 0 };
    let (_, more) = load("gemma3", EngineConfig { snapshots, ..config(None) });
    let added = |group: usize| more.kv_groups[group].pages - layout.kv_groups[group].pages;
    assert_eq!((added(0), added(1)), (900_usize.div_ceil(PAGE_TOKENS) + 3, 3 * 2));
    // A window beyond the context takes no more than the context.
    let (_, short) = load("gemma3", EngineConfig { context_tokens: 64, ..config(None) });
    assert!(short.kv_groups.iter().all(|group| group.pages == 2 * 2));
}

/// The snapshot of a prompt's first `at` tokens.
fn snapshot(engine: &mut Engine, prompt: &[u32], at: usize) -> Arc<Snapshot> {
    let asking = Request { snapshot_at: Some(at), ..request(prompt.to_vec(), 1) };
    engine.submit(asking).unwrap();
    let taken = model::run(engine).into_iter().find_map(|event| match event {
        Event::Snapshot { snapshot, .. } => Some(snapshot),
        _ => None,
    });
    taken.expect("a snapshot was asked for")
}

#[test]
fn snapshots_hold_the_last_window_and_resume_anywhere() {
    for case in MODELS {
        let (mut here, layout) = load(case, config(None));
        let (mut there, _) = load(case, config(None));
        let all = there.free_cells();
        let prompt = text(3, 200);
        let want = model::run_alone(&mut here, &request(prompt.clone(), 6));
        for at in [1, 12, 32, 43, 44, 170, 192, 199] {
            let taken = snapshot(&mut here, &prompt, at);
            let pages = |window: Option<usize>| {
                let first = window.map_or(0, |window| (at + 1).saturating_sub(window) / PAGE_TOKENS);
                at.div_ceil(PAGE_TOKENS) - first
            };
            let groups = layout.kv_groups.iter().enumerate();
            let bytes = groups.map(|(index, group)| pages(group.window) * layout.page_bytes(index));
            assert_eq!(taken.bytes(), bytes.sum::<usize>(), "{case} at {at}");
            let exported = here.export(&taken).unwrap();
            let moved = Arc::new(Snapshot::from_bytes(&exported).unwrap());
            assert_eq!(there.export(&moved).unwrap(), exported);
            // The sequence that resumes elsewhere, and one that shares the pages here.
            for (engine, resume) in [(&mut there, moved), (&mut here, taken)] {
                let resumed = Request { resume: Some(resume), ..request(prompt.clone(), 6) };
                assert_eq!(model::run_alone(engine, &resumed), want, "{case} resumed at {at}");
            }
        }
        assert_eq!(there.free_cells(), all);
    }
}

#[test]
fn a_snapshot_of_other_windows_is_refused() {
    let (mut gemma, _) = load("gemma3", config(None));
    let taken = snapshot(&mut gemma, &text(1, 100), 90);
    let mut bytes = gemma.export(&taken).unwrap();
    let foreign = Snapshot::from_bytes(&bytes).unwrap();
    let (mut other, _) = load("mistral", config(Some(1 << 24)));
    assert!(other.adopt(foreign).unwrap_err().to_string().contains("is of model"));
    // The version before had pages for every token.
    bytes[8] = 2;
    assert!(Snapshot::from_bytes(&bytes).unwrap_err().to_string().contains("version 2"));
}

#[test]
fn rollback_finds_its_window_and_leaves_snapshots_as_they_were() {
    for case in MODELS {
        let (mut engine, _) = load(case, EngineConfig { rollback: Rollback::OneChunk, ..config(None) });
        let (all, prompt) = (engine.free_cells(), text(5, 100));
        let id = engine.submit(request(prompt.clone(), 80)).unwrap();
        let mut generated = Vec::new();
        while generated.len() < 61 {
            generated.extend(model::tokens(&engine.step(), id));
        }
        generated.extend(model::tokens(&engine.drain(), id));
        let taken = engine.snapshot(id).unwrap();
        let before = engine.export(&taken).unwrap();
        // Greedy answers repeat themselves after a rollback, as often as there is one.
        for tokens in [1, 9, 30] {
            engine.rollback(id, tokens).unwrap();
            let mut again = Vec::new();
            while again.len() < tokens {
                again.extend(model::tokens(&engine.step(), id));
            }
            again.extend(model::tokens(&engine.drain(), id));
            let kept = generated.len() - tokens;
            let end = generated.len().min(kept + again.len());
            assert_eq!(generated[kept..end], again[..end - kept], "{case}: {tokens} taken back");
            generated.truncate(kept);
            generated.extend(again);
            assert!(engine.export(&taken).unwrap() == before, "{case}: the snapshot has changed");
        }
        assert!(engine.rollback(id, 60).is_err(), "further than one chunk");
        engine.cancel(id).unwrap();
        drop(taken);
        assert_eq!(engine.free_cells(), all, "{case}");
    }
}

/// Prompts that share beginnings in many ways.
fn prompts() -> impl Strategy<Value = Vec<(Vec<u32>, usize)>> {
    let part = (0u32..3, prop_oneof![Just(5usize), Just(33), Just(64), 1usize..80]);
    let prompt = prop::collection::vec(part, 1..4);
    let prompt = prompt.prop_map(|parts| parts.into_iter().flat_map(|(seed, n)| text(seed, n)).collect());
    prop::collection::vec((prompt, 1usize..40), 2..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_token_depends_on_the_cache(
        prompts in prompts(),
        together in any::<bool>(),
        case in 0..MODELS.len(),
        step_tokens in 5usize..STEP,
    ) {
        let mut answers = Vec::new();
        // All that could be kept, some of it, and none.
        for bytes in [None, Some(1 << 24), Some(60_000), Some(20_000), Some(0)] {
            let (mut engine, _) = load(MODELS[case], EngineConfig { step_tokens, ..config(bytes) });
            let before = engine.free_cells();
            let mut got = Vec::new();
            if together {
                let ids: Vec<_> =
                    prompts.iter().map(|(p, n)| engine.submit(request(p.clone(), *n)).unwrap()).collect();
                let events = model::run(&mut engine);
                got.extend(ids.into_iter().map(|id| model::tokens(&events, id)));
            } else {
                for (prompt, count) in &prompts {
                    let id = engine.submit(request(prompt.clone(), *count)).unwrap();
                    let events = model::run(&mut engine);
                    got.push(model::tokens(&events, id));
                }
            }
            engine.clear_prefix_cache();
            prop_assert_eq!(engine.free_cells(), before, "pages or slots are lost");
            answers.push(got);
        }
        prop_assert!(answers.windows(2).all(|two| two[0] == two[1]), "{:?}", answers);
    }
}
