//! Snapshots, and what goes wrong with one sequence alone.

mod model;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mambo_engine::{
    Engine, EngineConfig, EngineError, Event, FinishReason, PrefixCacheConfig, Request, ScoreOptions,
    Snapshot, TokenMask,
};
use mambo_kernel::case::Rng;
use mambo_kernel::{Cell, PAGE_TOKENS, ReferenceBackend, Rollback, SSM_CHUNK, Wait};
use mambo_testkit::mock::{Late, Unwaited};

fn engine_of(case: &str, config: EngineConfig, poisoned: Option<usize>) -> Engine {
    model::load(case, Box::new(ReferenceBackend::new()), config, poisoned).0
}

fn engine() -> Engine {
    engine_of("moe", model::config(), None)
}

/// A prompt of so many tokens.
fn prompt(length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| (i * 7 + 3) % 97).collect()
}

fn request(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request { prompt, max_tokens: Some(max_tokens), ..Request::default() }
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
fn a_row_that_is_not_a_number_ends_its_sequence_alone() {
    let mut engine = engine_of("moe", model::config(), Some(5));
    let good = engine.submit(request(vec![1, 2, 3], 6)).unwrap();
    let bad = engine.submit(request(vec![1, 2, 5], 6)).unwrap();
    let events = model::run(&mut engine);
    let (choices, reason) = model::outcome(&events, bad);
    assert!(choices.is_empty());
    assert!(matches!(reason, Some(FinishReason::Failed(why)) if why.to_string().contains("position 2")));
    let alone = model::run_alone(&mut engine, &request(vec![1, 2, 3], 6));
    assert_eq!(model::outcome(&events, good), alone);
    assert_eq!(alone.0.len(), 6);
}

#[test]
fn another_model_of_the_same_shape_is_refused_for_that_sequence_alone() {
    let (mut ours, mut other) = (engine(), engine_of("moe", model::config(), Some(5)));
    assert_ne!(ours.fingerprint(), other.fingerprint());
    let taken = snapshot(&mut other, &prompt(20), 10);
    let bytes = other.export(&taken).unwrap();
    let foreign = Arc::new(Snapshot::from_bytes(&bytes).unwrap());
    let free = ours.free_cells();
    let bad = ours.submit(Request { resume: Some(foreign), ..request(prompt(20), 4) }).unwrap();
    let good = ours.submit(request(prompt(12), 4)).unwrap();
    let events = model::run(&mut ours);
    let (choices, reason) = model::outcome(&events, bad);
    assert!(choices.is_empty());
    assert!(matches!(reason, Some(FinishReason::Failed(why)) if why.to_string().contains("is of model")));
    assert_eq!(model::outcome(&events, good), model::run_alone(&mut ours, &request(prompt(12), 4)));
    // A snapshot that shares another engine's pages is refused too, with the remedy.
    let shared = ours.submit(Request { resume: Some(taken), ..request(prompt(20), 4) }).unwrap();
    let reason = model::outcome(&model::run(&mut ours), shared).1;
    assert!(matches!(reason, Some(FinishReason::Failed(_))), "{reason:?}");
    assert!(matches!(ours.export(&snapshot(&mut other, &prompt(40), 33)), Err(EngineError::ForeignSnapshot)));
    assert_eq!(ours.free_cells(), free);
}

#[test]
fn an_exported_snapshot_resumes_on_another_engine() {
    for at in [1, 31, 32, 33, 64, 69] {
        let (mut here, mut there) = (engine(), engine());
        let want = model::run_alone(&mut here, &request(prompt(70), 5));
        let taken = snapshot(&mut here, &prompt(70), at);
        let bytes = here.export(&taken).unwrap();
        let moved = Arc::new(Snapshot::from_bytes(&bytes).unwrap());
        assert_eq!(there.export(&moved).unwrap(), bytes);
        let id = there.submit(Request { resume: Some(moved), ..request(prompt(70), 5) }).unwrap();
        let mut events = there.step();
        assert_eq!(there.reused_tokens(id), Some(at));
        events.extend(model::run(&mut there));
        assert_eq!(model::outcome(&events, id), want, "resumed at {at}");
    }
}

#[test]
fn an_export_can_be_polled() {
    let backend = Late::new(ReferenceBackend::new(), 5);
    let mut engine = model::load("moe", Box::new(backend), model::config(), None).0;
    let taken = snapshot(&mut engine, &prompt(70), 69);
    let mut export = engine.begin_export(&taken).unwrap();
    let mut polls = 0;
    let bytes = loop {
        match engine.end_export(&mut export, Wait::Poll).unwrap() {
            Some(bytes) => break bytes,
            None => polls += 1,
        }
    };
    assert!(polls > 0, "the backend answers late");
    assert_eq!(bytes, engine.export(&taken).unwrap());
}

/// Polls until nothing is left to do.
fn poll(engine: &mut Engine) -> Vec<Event> {
    let mut events = Vec::new();
    while !engine.is_idle() {
        while engine.begin() {}
        events.extend(engine.end(Wait::Poll).into_iter().flatten());
    }
    events
}

#[test]
fn where_nothing_may_wait_the_prefix_cache_makes_room_for_snapshots() {
    let prefix_cache = PrefixCacheConfig { bytes: 1 << 30, every: Some(32), spills: false };
    let config = EngineConfig { prefix_cache: Some(prefix_cache), ..model::config() };
    let backend = Unwaited::new(Late::new(ReferenceBackend::new(), 9));
    let mut engine = model::load("moe", Box::new(backend), config, None).0;
    // More prompts, and with them kept states, than the two slots that snapshots have.
    for start in 0..4 {
        let tokens: Vec<u32> = prompt(70).iter().map(|token| (token + start) % 97).collect();
        let want =
            model::run_alone(&mut engine_of("moe", model::config(), None), &request(tokens.clone(), 5));
        let asking = Request { snapshot_at: Some(69), uses_cache: true, ..request(tokens.clone(), 5) };
        let id = engine.submit(asking).unwrap();
        let events = poll(&mut engine);
        assert_eq!(model::outcome(&events, id), want);
        let taken = events.into_iter().find_map(|event| match event {
            Event::Snapshot { snapshot, .. } => Some(snapshot),
            _ => None,
        });
        let resume = Some(taken.expect("there is room for it"));
        let id = engine.submit(Request { resume, ..request(tokens, 5) }).unwrap();
        assert_eq!(model::outcome(&poll(&mut engine), id), want);
    }
    assert!(engine.prefix_cache().unwrap().evicted > 0);
    let scored = engine.score(&prompt(9), ScoreOptions { chunk: 4, ..Default::default() }, &mut |_| {});
    assert!(matches!(scored, Err(EngineError::CannotWait { .. })));
    // Held by the caller, both slots are taken for good: an error, and no wait.
    let held: Vec<_> = (0..3)
        .map(|start| {
            let asking = Request { snapshot_at: Some(9), ..request(vec![start + 1; 10], 1) };
            engine.submit(asking).unwrap();
            poll(&mut engine)
        })
        .collect();
    let failed = held.iter().flatten().filter_map(|event| match event {
        Event::Finished { reason: FinishReason::Failed(why), .. } => Some(why.to_string()),
        _ => None,
    });
    let failed: Vec<String> = failed.collect();
    assert!(matches!(&failed[..], [why] if why.contains("fit on the device")), "{failed:?}");
}

#[test]
fn a_snapshot_without_a_slot_of_its_own_is_bytes() {
    let mut engine = engine();
    let (slots, _) = engine.free_cells();
    let want = model::run_alone(&mut engine, &request(prompt(70), 5));
    // Two states stay in the backend, the third goes to the host; all resume alike.
    let taken: Vec<_> = [40, 64, 69].map(|at| snapshot(&mut engine, &prompt(70), at)).into();
    assert_eq!(engine.free_cells().0, slots - 2);
    for resume in taken.iter().cloned().map(Some) {
        let id = engine.submit(Request { resume, ..request(prompt(70), 5) }).unwrap();
        assert_eq!(model::outcome(&model::run(&mut engine), id), want);
    }
    drop(taken);
    assert_eq!(engine.free_cells().0, slots);
}

#[test]
fn damaged_snapshots_are_refused() {
    let mut engine = engine();
    let taken = snapshot(&mut engine, &prompt(40), 34);
    let bytes = engine.export(&taken).unwrap();
    for length in 0..bytes.len().min(400) {
        assert!(Snapshot::from_bytes(&bytes[..length]).is_err(), "{length} bytes were taken");
    }
    assert!(Snapshot::from_bytes(&bytes[..bytes.len() - 1]).is_err());
    let mut random = Rng(8);
    for case in 0..300 {
        let mut damaged = bytes.clone();
        // Half of the damage hits the header, where lengths are.
        let at = random.below(if case % 2 == 0 { 60 } else { damaged.len() });
        damaged[at] ^= 1 << random.below(8);
        assert!(Snapshot::from_bytes(&damaged).is_err(), "byte {at} was changed and nobody noticed");
    }
}

#[test]
fn a_snapshot_at_a_chunk_is_the_state_and_the_convolution() {
    let (mut engine, layout) = model::load("moe", Box::new(ReferenceBackend::new()), model::config(), None);
    let page = layout.cell_bytes(Cell::Page { group: 0, page: 0 });
    let sizes = |at: usize| {
        let states = layout.state_layers.iter().map(|dims| {
            let state = if at < SSM_CHUNK { 0 } else { dims.heads * dims.state * dims.head_dim };
            let columns = at.min(dims.taps - 1) * dims.conv_dim();
            let ring = (at % SSM_CHUNK) * (dims.inner() + dims.group_state() + dims.heads);
            (state + columns + ring) * 4
        });
        states.sum::<usize>() + at.div_ceil(PAGE_TOKENS) * page
    };
    for at in [1, 32, 33, 64] {
        assert_eq!(snapshot(&mut engine, &prompt(66), at).bytes(), sizes(at), "at {at}");
    }
}

#[test]
fn shared_pages_are_counted_once() {
    let mut engine = engine();
    let (_, all) = engine.free_cells();
    let long = prompt(70);
    let taken = snapshot(&mut engine, &long, 64);
    assert_eq!(engine.free_cells().1, all - 2);
    let resumed = || Request { resume: Some(Arc::clone(&taken)), ..request(prompt(70), 20) };
    let ids = [engine.submit(resumed()).unwrap(), engine.submit(resumed()).unwrap()];
    let mut events = engine.step();
    // 90 tokens take three pages, of which two are shared.
    assert_eq!(engine.free_cells().1, all - 2 - 2);
    events.extend(model::run(&mut engine));
    assert_eq!(engine.free_cells().1, all - 2);
    let want = model::run_alone(&mut engine, &request(long, 20));
    ids.iter().for_each(|id| assert_eq!(model::outcome(&events, *id), want));
    drop(taken);
    assert_eq!(engine.free_cells().1, all);
}

/// Forbids the lower half of the vocabulary or the upper one.
#[derive(Debug, Default)]
struct Half(AtomicBool);

impl TokenMask for Half {
    fn allow(&self, _generated: &[u32], mask: &mut [u32]) {
        let words = if self.0.load(Ordering::Relaxed) { 0..2 } else { 2..4 };
        mask[words].fill(u32::MAX);
    }
}

#[test]
fn rollback_leaves_a_snapshot_as_it_was() {
    let config = EngineConfig { rollback: Rollback::OneChunk, ..model::config() };
    let mut engine = engine_of("moe", config, None);
    let half = Arc::new(Half::default());
    let mask = Some(Arc::clone(&half) as Arc<dyn TokenMask>);
    let id = engine.submit(Request { mask, ..request(prompt(50), 40) }).unwrap();
    let mut generated = Vec::new();
    while generated.len() < 15 {
        generated.extend(model::tokens(&engine.step(), id));
    }
    // 64 tokens have run: both pages are full, and the snapshot shares them.
    let taken = engine.snapshot(id).unwrap();
    assert_eq!(taken.tokens().len(), 64);
    let before = engine.export(&taken).unwrap();
    let free = engine.free_cells().1;
    engine.rollback(id, 5).unwrap();
    assert_eq!(engine.free_cells().1, free - 1, "the page that is written again is copied");
    half.0.store(true, Ordering::Relaxed);
    let other: Vec<u32> = (0..8).flat_map(|_| model::tokens(&engine.step(), id)).collect();
    assert!(other.iter().all(|token| *token < 64) && generated.iter().all(|token| *token >= 64));
    assert!(engine.export(&taken).unwrap() == before, "the snapshot has changed");
    // The snapshot goes on as the sequence would have.
    engine.cancel(id).unwrap();
    let (mut full, resume) = (prompt(50), Some(Arc::new(taken)));
    full.extend(&generated);
    let resumed = engine.submit(Request { resume, ..request(full.clone(), 4) }).unwrap();
    let events = model::run(&mut engine);
    assert_eq!(model::outcome(&events, resumed), model::run_alone(&mut engine, &request(full, 4)));
}
