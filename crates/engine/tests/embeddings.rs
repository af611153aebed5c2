//! The hidden row of a prompt's last token has the same bits alone, batched, chunked and from the prefix cache, and is
//! the row that other routes give; experts are counted while somebody watches.

mod loaded;

use loaded::{On, Setup, load};
use mambo_cpu::Isa;
use mambo_engine::{Engine, Event, FinishReason, Request, ScoreOptions, SequenceId};

fn text(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| (i * i + i * 7 + seed * 31 + seed * i) % 90).collect()
}

fn embedding(prompt: &[u32]) -> Request {
    Request { prompt: prompt.to_vec(), embeds: true, uses_cache: true, ..Request::default() }
}

fn setup() -> Setup {
    Setup { embeddings: true, ..Setup::default() }
}

fn cpu() -> On {
    On::Cpu(Isa::detect(), 2)
}

/// Runs until nothing is left; the rows of these sequences, each right before its end.
fn rows(engine: &mut Engine, ids: &[SequenceId]) -> Vec<Vec<f32>> {
    let mut rows = vec![Vec::new(); ids.len()];
    while !engine.is_idle() {
        let events = engine.step();
        for (at, event) in events.iter().enumerate() {
            let Some(index) = ids.iter().position(|id| *id == event.id()) else { continue };
            match event {
                Event::Embedding { id, row } => {
                    assert!(rows[index].is_empty(), "a second row came");
                    rows[index] = row.clone();
                    assert!(
                        matches!(&events[at + 1], Event::Finished { id: of, reason: FinishReason::Stop } if of == id)
                    );
                }
                Event::Token { .. } => panic!("an embedding has no tokens"),
                _ => {}
            }
        }
    }
    rows
}

fn alone(engine: &mut Engine, prompt: &[u32]) -> Vec<f32> {
    let id = engine.submit(embedding(prompt)).expect("the prompt fits");
    rows(engine, &[id]).remove(0)
}

#[test]
fn batch_chunk_and_cache_change_no_bit() {
    let prompts = [text(1, 70), text(2, 1), text(3, 33), [&text(1, 50)[..], &text(4, 20)].concat()];
    for case in ["moe", "latent", "mtp"] {
        let want: Vec<Vec<f32>> =
            prompts.iter().map(|prompt| alone(&mut load(case, cpu(), setup()), prompt)).collect();
        assert!(want[0] != want[3] && want.iter().all(|row| row.iter().any(|value| *value != 0.0)));
        for step_tokens in [4, 7, 512] {
            for fill_mtp in [false, true] {
                let prefix_cache = true;
                let mut engine = load(case, cpu(), Setup { step_tokens, fill_mtp, prefix_cache, ..setup() });
                // One that answers runs beside them.
                let answer = Request { prompt: text(9, 20), max_tokens: Some(12), ..Request::default() };
                engine.submit(answer).expect("the prompt fits");
                let ids = prompts.each_ref().map(|prompt| engine.submit(embedding(prompt)).unwrap());
                assert_eq!(rows(&mut engine, &ids), want, "{case} in steps of {step_tokens}");
                assert_eq!(alone(&mut engine, &prompts[0]), want[0], "{case} from the cache");
                assert!(engine.prefix_cache().unwrap().restored_tokens >= 69, "nothing was restored");
            }
        }
    }
}

#[test]
fn it_is_the_row_that_scoring_shows_and_the_reference_computes() {
    let prompt = text(5, 45);
    let mut engine = load("mtp", cpu(), setup());
    let got = alone(&mut engine, &prompt);
    assert_eq!(engine.embedding_size(), Some(got.len()));
    let options = ScoreOptions { chunk: 32, companions: 0, outputs: &["hidden"] };
    let mut last = Vec::new();
    engine
        .score(&prompt, options, &mut |rows| {
            last = rows.outputs[0][rows.outputs[0].len() - got.len()..].to_vec();
        })
        .expect("it scores");
    assert_eq!(got, last);
    let reference = alone(&mut load("mtp", On::Reference, setup()), &prompt);
    let scale = reference.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    for (got, want) in got.iter().zip(&reference) {
        assert!((got - want).abs() <= 1e-3 * scale, "{got} is not {want}");
    }
}

#[test]
fn a_prompt_may_fill_the_context_and_an_engine_without_refuses() {
    let mut engine = load("dense", cpu(), setup());
    assert!(!alone(&mut engine, &text(6, 1024)).is_empty());
    assert!(engine.submit(embedding(&[])).is_err());
    assert!(engine.submit(embedding(&text(6, 1025))).is_err());
    let mut without = load("dense", cpu(), Setup::default());
    let error = without.submit(embedding(&[1])).unwrap_err().to_string();
    assert!(without.embedding_size().is_none() && error.contains("without embeddings"), "{error}");
}

#[test]
fn experts_are_counted_while_somebody_watches() {
    for on in [cpu(), On::Reference] {
        let mut engine = load("moe", on, Setup { expert_counts: true, step_tokens: 16, ..Setup::default() });
        let ask = |engine: &mut Engine| {
            let request = Request { prompt: text(7, 40), max_tokens: Some(5), ..Request::default() };
            engine.submit(request).expect("the prompt fits");
            while !engine.is_idle() {
                engine.step();
            }
        };
        ask(&mut engine);
        assert!(engine.take_expert_counts().is_empty(), "nobody watched");
        engine.watch_experts(true);
        ask(&mut engine);
        let counts = engine.take_expert_counts();
        assert!(!counts.is_empty());
        let top_k = counts[0].counts.iter().sum::<u64>() / 44;
        for layer in &counts {
            // The last token of an answer does not run.
            assert_eq!(layer.counts.iter().sum::<u64>(), 44 * top_k, "{layer:?}");
            assert!(layer.label.starts_with("layers.") && layer.counts.iter().all(|count| *count <= 44));
        }
        assert!(engine.take_expert_counts().iter().all(|layer| layer.counts.iter().all(|count| *count == 0)));
        engine.watch_experts(false);
        assert!(engine.take_expert_counts().is_empty());
    }
}
