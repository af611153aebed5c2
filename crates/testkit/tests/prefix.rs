//! The prefix cache: what was read is not read again, and no token changes whether it is on, off or evicting all the
//! time.

mod model;

use mambo_engine::{
    Engine, EngineConfig, EngineError, Event, MatchEnd, PrefixCacheConfig, Request, Reuse, SequenceId,
    Snapshot, SnapshotRoom,
};
use mambo_kernel::ReferenceBackend;
use proptest::prelude::*;

fn engine(bytes: Option<u64>) -> Engine {
    engine_that(false, bytes)
}

fn engine_that(spills: bool, bytes: Option<u64>) -> Engine {
    let prefix_cache = bytes.map(|bytes| PrefixCacheConfig { bytes, every: Some(32), spills });
    let config = EngineConfig {
        max_sequences: 2,
        context_tokens: 512,
        step_tokens: 48,
        snapshots: SnapshotRoom::default(),
        prefix_cache,
        ..model::config()
    };
    model::load("moe", Box::new(ReferenceBackend::new()), config, None).0
}

const PLENTY: u64 = 1 << 26;

fn request(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request { prompt, max_tokens: Some(max_tokens), uses_cache: true, ..Request::default() }
}

/// Tokens that look random and are the same for one seed.
fn text(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| (i * i + i * 7 + seed * 31 + seed * i) % 97).collect()
}

fn reuse_of(events: &[Event], id: SequenceId) -> Reuse {
    let mut found = events.iter().filter_map(|event| match event {
        Event::Started { id: of, reuse } if *of == id => Some(*reuse),
        _ => None,
    });
    found.next().expect("every sequence starts")
}

/// Runs a request alone; its tokens and what it reused.
fn run(engine: &mut Engine, request: Request) -> (Vec<u32>, Reuse) {
    let id = engine.submit(request).unwrap();
    let events = model::run(engine);
    (model::tokens(&events, id), reuse_of(&events, id))
}

#[test]
fn an_agent_loop_reads_every_token_once() {
    let mut engine = engine(Some(PLENTY));
    let (mut prompt, mut run_tokens, mut length) = (text(1, 40), 0, 0);
    for turn in 0..8 {
        let (answer, reuse) = run(&mut engine, request(prompt.clone(), 6));
        // What the answer before left unread is its last token; all else was restored.
        let read = prompt.len() - reuse.tokens;
        run_tokens += read + answer.len() - 1;
        if turn > 0 {
            assert_eq!(reuse.tokens, length, "{reuse}");
            assert_eq!(reuse.ended, MatchEnd::Diverged);
        }
        prompt.extend(&answer);
        length = prompt.len() - 1;
        prompt.extend(text(turn + 2, 15));
    }
    // The tokens after the last answer never ran, nor did its last token.
    assert_eq!(run_tokens, length);
}

#[test]
fn a_branch_is_kept_the_second_time_it_is_seen() {
    let mut engine = engine(Some(PLENTY));
    let with = |tail: u32| -> Vec<u32> { [text(1, 101), text(tail, 20)].concat() };
    assert_eq!(run(&mut engine, request(with(2), 2)).1.ended, MatchEnd::Unknown);
    let second = run(&mut engine, request(with(3), 2)).1;
    assert_eq!((second.known, second.tokens), (101, 96), "the nearest multiple of 32: {second}");
    let third = run(&mut engine, request(with(4), 2)).1;
    assert_eq!((third.known, third.tokens), (101, 101), "{third}");
    // The same prompt again, and an edited last turn.
    let again = run(&mut engine, request(with(4), 2)).1;
    assert_eq!((again.tokens, again.ended), (120, MatchEnd::Whole), "{again}");
}

#[test]
fn two_that_arrive_together_read_their_beginning_once() {
    let mut engine = engine(Some(PLENTY));
    let system = text(1, 200);
    let with = |tail: u32| [system.clone(), text(tail, 30)].concat();
    let ids = [2, 3].map(|tail| engine.submit(request(with(tail), 3)).unwrap());
    let events = model::run(&mut engine);
    let reused = ids.map(|id| reuse_of(&events, id).tokens);
    assert_eq!(reused, [0, 200]);
    let mut plain = self::engine(None);
    for (id, tail) in ids.into_iter().zip([2, 3]) {
        assert_eq!(model::tokens(&events, id), run(&mut plain, request(with(tail), 3)).0);
    }
}

#[test]
fn nobody_waits_for_a_sequence_that_is_cancelled() {
    let mut engine = engine(Some(PLENTY));
    let with = |tail: u32| [text(1, 200), text(tail, 30)].concat();
    let first = engine.submit(request(with(2), 3)).unwrap();
    let second = engine.submit(request(with(3), 3)).unwrap();
    let mut events = engine.step();
    events.extend(engine.cancel(first));
    events.extend(model::run(&mut engine));
    assert_eq!(model::tokens(&events, second), run(&mut self::engine(None), request(with(3), 3)).0);
}

#[test]
fn the_budget_is_kept_and_running_sequences_come_first() {
    let budget = 200_000;
    let mut engine = engine(Some(budget));
    let before = engine.free_cells();
    for seed in 0..6 {
        run(&mut engine, request(text(seed, 150), 2));
        let stats = engine.prefix_cache().unwrap();
        assert!(stats.bytes <= budget && stats.snapshots > 0, "{stats:?}");
    }
    assert!(engine.prefix_cache().unwrap().evicted > 0);
    // Two sequences of a whole context need every page but those set aside for the cache.
    let ids = [7, 8]
        .map(|seed| engine.submit(Request { max_tokens: None, ..request(text(seed, 500), 1) }).unwrap());
    let events = model::run(&mut engine);
    ids.iter().for_each(|id| assert_eq!(model::tokens(&events, *id).len(), 12));
    engine.clear_prefix_cache();
    assert_eq!(engine.free_cells(), before);
}

#[test]
fn what_is_dropped_leaves_as_bytes_and_comes_back() {
    let prompt = text(1, 300);
    let (want, _) = run(&mut engine(None), request(prompt.clone(), 4));
    let mut small = engine_that(true, Some(150_000));
    run(&mut small, request(prompt.clone(), 4));
    run(&mut small, request(text(2, 300), 4));
    let spilled = small.take_spilled();
    let snapshots: Vec<_> = spilled.iter().map(|one| Snapshot::from_bytes(&one.bytes).unwrap()).collect();
    assert!(snapshots.iter().all(|snapshot| snapshot.tokens().len() >= 256), "short ones are not worth it");
    let longest = snapshots.into_iter().filter(|s| s.begins(&prompt)).max_by_key(|s| s.tokens().len());
    let longest = longest.expect("the first prompt made room for the second");
    let length = longest.tokens().len();

    let mut fresh = engine(Some(PLENTY));
    let before = fresh.free_cells();
    assert_eq!(fresh.reusable(&prompt).tokens, 0);
    fresh.adopt(longest.clone()).unwrap();
    assert_eq!(fresh.reusable(&prompt).tokens, length);
    let ids = [0, 1].map(|_| fresh.submit(request(prompt.clone(), 4)).unwrap());
    let events = model::run(&mut fresh);
    for id in ids {
        assert_eq!(model::tokens(&events, id), want);
        assert!(reuse_of(&events, id).tokens >= length);
    }
    fresh.clear_prefix_cache();
    assert_eq!(fresh.free_cells(), before);

    assert!(matches!(engine(None).adopt(longest.clone()), Err(EngineError::NoPrefixCache)));
    let refused = engine(Some(1000)).adopt(longest.clone());
    assert!(matches!(refused, Err(EngineError::PrefixCacheTooSmall { .. })), "{refused:?}");
    let mut other = model::load("dense", Box::new(ReferenceBackend::new()), model::config(), None).0;
    assert!(matches!(other.adopt(longest), Err(EngineError::SnapshotModel { .. })));
}

/// Prompts that share beginnings in many ways.
fn prompts() -> impl Strategy<Value = Vec<(Vec<u32>, usize)>> {
    let part = (0u32..3, prop_oneof![Just(5usize), Just(33), Just(64), 1usize..80]);
    let prompt = prop::collection::vec(part, 1..4);
    let prompt = prompt.prop_map(|parts| parts.into_iter().flat_map(|(seed, n)| text(seed, n)).collect());
    prop::collection::vec((prompt, 1usize..5), 2..7)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_token_depends_on_the_cache(prompts in prompts(), together in any::<bool>()) {
        let mut answers = Vec::new();
        for bytes in [None, Some(PLENTY), Some(60_000), Some(0)] {
            let mut engine = engine(bytes);
            let before = engine.free_cells();
            let mut got = Vec::new();
            if together {
                let ids: Vec<_> =
                    prompts.iter().map(|(p, n)| engine.submit(request(p.clone(), *n)).unwrap()).collect();
                let events = model::run(&mut engine);
                got.extend(ids.into_iter().map(|id| model::tokens(&events, id)));
            } else {
                got.extend(prompts.iter().map(|(p, n)| run(&mut engine, request(p.clone(), *n)).0));
            }
            engine.clear_prefix_cache();
            prop_assert_eq!(engine.free_cells(), before, "pages or slots are lost");
            answers.push(got);
        }
        prop_assert!(answers.windows(2).all(|two| two[0] == two[1]), "{:?}", answers);
    }
}
