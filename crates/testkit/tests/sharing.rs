//! How sequences share a step: answers first, prompts in equal shares and by priority, within the room that is left.

mod model;

use mambo_engine::{Engine, Event, Request, SequenceId};
use mambo_kernel::ReferenceBackend;

fn engine() -> Engine {
    model::load("moe", Box::new(ReferenceBackend::new()), model::config(), None).0
}

fn request(length: usize, max_tokens: usize, priority: i32) -> Request {
    let prompt = (0..length as u32).map(|i| (i * 5 + length as u32) % 97).collect();
    Request { prompt, max_tokens: Some(max_tokens), priority, ..Request::default() }
}

/// The order in which sequences get their first token.
fn order(engine: &mut Engine) -> Vec<SequenceId> {
    let mut seen = Vec::new();
    for event in model::run(engine) {
        if let Event::Token { id, .. } = event
            && !seen.contains(&id)
        {
            seen.push(id);
        }
    }
    seen
}

#[test]
fn a_short_prompt_does_not_wait_for_a_long_one() {
    let mut engine = engine();
    let long = engine.submit(request(100, 1, 0)).unwrap();
    let short = engine.submit(request(20, 1, 0)).unwrap();
    assert_eq!(order(&mut engine), [short, long]);
}

#[test]
fn a_higher_priority_goes_first() {
    let mut engine = engine();
    let usual = engine.submit(request(40, 1, 0)).unwrap();
    let urgent = engine.submit(request(60, 1, 5)).unwrap();
    assert_eq!(order(&mut engine), [urgent, usual]);
}

#[test]
fn the_oldest_prompt_moves_however_many_are_shorter() {
    let mut engine = engine();
    let answering = engine.submit(request(2, 100, 0)).unwrap();
    engine.step();
    let oldest = engine.submit(request(90, 1, 0)).unwrap();
    engine.set_prompt_room(1);
    let mut before = 0;
    for _ in 0..5 {
        engine.submit(request(3, 1, 0)).unwrap();
        engine.step();
        let position = engine.position(oldest).expect("it runs");
        assert!(position > before, "{position} tokens after {before}");
        before = position;
    }
    engine.cancel(answering);
}

#[test]
fn prompts_leave_answers_their_pace() {
    let mut engine = engine();
    let answering = engine.submit(request(2, 60, 0)).unwrap();
    engine.step();
    engine.set_prompt_room(5);
    engine.submit(request(50, 1, 0)).unwrap();
    let mut tokens = 0;
    for _ in 0..10 {
        tokens += model::tokens(&engine.step(), answering).len();
        let load = engine.last_step();
        assert!(load.answers == 1 && load.prompt_tokens <= 5, "{load:?}");
    }
    assert_eq!(tokens, 10, "a token in every step");
}
