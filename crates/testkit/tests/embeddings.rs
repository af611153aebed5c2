//! Embeddings on a backend that answers late: no step runs ahead of one, and cancelling one ends it alone.

mod model;

use mambo_engine::{EngineConfig, Event, FinishReason, Request};
use mambo_kernel::ReferenceBackend;
use mambo_testkit::mock::Late;

fn config() -> EngineConfig {
    EngineConfig { embeddings: true, ..model::config() }
}

fn embedding(prompt: &[u32]) -> Request {
    Request { prompt: prompt.to_vec(), embeds: true, ..Request::default() }
}

fn row(events: &[Event], of: mambo_engine::SequenceId) -> Option<Vec<f32>> {
    events.iter().find_map(|event| match event {
        Event::Embedding { id, row } if *id == of => Some(row.clone()),
        _ => None,
    })
}

#[test]
fn a_late_backend_gives_the_same_rows() {
    let prompts: Vec<Vec<u32>> =
        (1u32..7).map(|n| (0..9 * n).map(|i| (i * 5 + n * 13) % 97).collect()).collect();
    let mut plain = model::load("moe", Box::new(ReferenceBackend::new()), config(), None).0;
    let want: Vec<_> = prompts
        .iter()
        .map(|prompt| {
            let id = plain.submit(embedding(prompt)).unwrap();
            row(&model::run(&mut plain), id).expect("a row")
        })
        .collect();
    for seed in 0..4 {
        let mut late =
            model::load("moe", Box::new(Late::new(ReferenceBackend::new(), seed)), config(), None).0;
        let ids: Vec<_> = prompts.iter().map(|prompt| late.submit(embedding(prompt)).unwrap()).collect();
        let answer = Request { prompt: vec![1, 2, 3], max_tokens: Some(9), ..Request::default() };
        let answer = late.submit(answer).unwrap();
        let mut events = late.step();
        events.extend(late.cancel(ids[1]));
        events.extend(model::run(&mut late));
        for (index, id) in ids.iter().enumerate() {
            let (tokens, reason) = model::outcome(&events, *id);
            assert!(tokens.is_empty(), "an embedding has no tokens");
            if index == 1 {
                assert_eq!((reason, row(&events, *id)), (Some(FinishReason::Cancelled), None));
            } else {
                assert_eq!(
                    (reason, row(&events, *id).as_ref()),
                    (Some(FinishReason::Stop), Some(&want[index]))
                );
            }
        }
        assert_eq!(model::tokens(&events, answer).len(), 9);
        assert_eq!(late.free_cells(), plain.free_cells(), "all memory is free again");
    }
}
