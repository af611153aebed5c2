//! The library as its users meet it: the example runs, and each way to get an answer gives the same one.

use std::ops::ControlFlow;
use std::process::Command;

use mambo_cpu::{CpuBackend, CpuOptions};
use mambo_kernel::MemoryBudget;
use mambo_runtime::{
    ChatRequest, Conversation, Engine, FinishReason, GenerateEvent, GenerateOptions, LoadEvent, LoadOptions,
    Model, OpenOptions, Piece, Reply, ReplyStream, RuntimeError, SamplingParams, generate,
};
use serde_json::json;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-hybrid-Q4_K_M.gguf");
const QUESTION: &str = "What is 17 + 25?";

fn open() -> Model {
    Model::open(MODEL, &OpenOptions::default()).unwrap()
}

fn load(model: &Model, sequences: usize) -> Engine {
    let backend = Box::new(CpuBackend::new(CpuOptions::default()).unwrap());
    model.load(backend, &LoadOptions { sequences, ..LoadOptions::default() }, &mut |_| {}).unwrap()
}

fn greedy() -> GenerateOptions {
    GenerateOptions { sampling: Some(SamplingParams::default()), max_tokens: None }
}

fn ask(engine: &mut Engine, model: &Model, conversation: &mut Conversation, question: &str) -> Reply {
    let text = model.text().unwrap();
    let prompt = conversation.ask(&text, question).unwrap();
    generate(engine, &text, prompt, greedy(), &mut |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn the_example_answers() {
    // `cargo test` builds examples too, into the folder beside the tests'.
    let name = format!("../examples/stream{}", std::env::consts::EXE_SUFFIX);
    let example = std::env::current_exe().unwrap().with_file_name(name);
    let output = Command::new(example).args([MODEL, QUESTION]).output().expect("cargo built the example");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer = String::from_utf8(output.stdout).unwrap();
    assert!(answer.contains("42"), "{answer}");
}

#[test]
fn events_add_up_to_the_reply() {
    let model = open();
    let text = model.text().unwrap();
    let prompt = Conversation::default().ask(&text, QUESTION).unwrap();
    let prompt_tokens = prompt.tokens.len();
    let (mut thought, mut answer, mut tokens, mut reads) =
        (String::new(), String::new(), Vec::new(), Vec::new());
    let reply = generate(&mut load(&model, 1), &text, prompt, greedy(), &mut |event| {
        match event {
            GenerateEvent::Step { read, prompt } => reads.push((read, prompt)),
            GenerateEvent::Token(choice) => tokens.push(choice.token),
            GenerateEvent::Piece(Piece::Reasoning(words)) => thought += words,
            GenerateEvent::Piece(Piece::Content(words)) => answer += words,
            GenerateEvent::Piece(call) => panic!("no tool was offered: {call:?}"),
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!((&thought, &answer), (&reply.reasoning, &reply.content));
    assert!(answer.contains("42") && thought.contains("17 + 25"), "{thought} / {answer}");
    assert_eq!(tokens, reply.choices.iter().map(|c| c.token).collect::<Vec<_>>());
    assert_eq!((&reply.finish, reply.finish_name()), (&FinishReason::Stop, "stop"));
    assert!(reads.iter().all(|(_, of)| *of == prompt_tokens) && reads.is_sorted(), "{reads:?}");
    assert_eq!((reads[0].0, reads.last().unwrap().0), (0, prompt_tokens));
}

#[test]
fn many_streams_share_one_engine() {
    let model = open();
    let text = model.text().unwrap();
    let mut engine = load(&model, 3);
    let questions = [QUESTION, "Hello!", "What is 3 + 4?"];
    let mut streams: Vec<ReplyStream> = questions
        .iter()
        .map(|question| {
            let prompt = Conversation::default().ask(&text, question).unwrap();
            ReplyStream::start(&mut engine, &text, prompt, greedy()).unwrap()
        })
        .collect();
    let mut words = vec![String::new(); streams.len()];
    while !engine.is_idle() {
        for event in engine.step() {
            for (stream, words) in streams.iter_mut().zip(&mut words) {
                for piece in stream.take(&event) {
                    if let Piece::Content(text) = piece {
                        *words += &text;
                    }
                }
            }
        }
    }
    for ((stream, words), question) in streams.into_iter().zip(words).zip(questions) {
        assert!(stream.is_finished());
        let alone = ask(&mut engine, &model, &mut Conversation::default(), question);
        assert_eq!(stream.into_reply().content, words);
        assert_eq!(words, alone.content, "{question}");
    }
}

#[test]
fn a_broken_off_answer_frees_its_place() {
    let model = open();
    let text = model.text().unwrap();
    let mut engine = load(&model, 1);
    let prompt = || text.chat(ChatRequest::new(vec![json!({"role": "user", "content": QUESTION})])).unwrap();
    for _ in 0..2 {
        let mut steps = 0;
        let reply = generate(&mut engine, &text, prompt(), greedy(), &mut |event| {
            steps += usize::from(matches!(event, GenerateEvent::Step { .. }));
            if steps > 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        assert_eq!((reply.finish, reply.choices.len()), (FinishReason::Cancelled, 3));
        assert!(engine.is_idle());
    }
}

#[test]
fn a_second_turn_reuses_the_first() {
    let model = open();
    let mut engine = load(&model, 1);
    let mut conversation = Conversation::default();
    let first = ask(&mut engine, &model, &mut conversation, "Hello!");
    conversation.keep("Hello!", &first);
    let second = ask(&mut engine, &model, &mut conversation, QUESTION);
    assert!(second.reused_tokens > 0 && second.content.contains("42"), "{second:?}");
}

#[test]
fn loading_says_how_far_it_is() {
    let model = open();
    let backend = Box::new(CpuBackend::new(CpuOptions::default()).unwrap());
    let mut seen = Vec::new();
    let mut on_event = |event| {
        if let LoadEvent::Progress { done, total } = event {
            seen.push((done, total));
        }
    };
    model.load(backend, &LoadOptions::default(), &mut on_event).unwrap();
    assert!(seen.is_sorted() && seen.first().unwrap().0 == 0);
    let (done, total) = seen.last().unwrap();
    assert_eq!(done, total);
}

#[test]
fn errors_say_what_to_do_without_flags() {
    let missing = Model::open("someone/some-model", &OpenOptions::default());
    assert!(matches!(missing, Err(RuntimeError::Checkpoint(_))));
    let model = open();
    let refused = |options: &LoadOptions| {
        let backend = Box::new(CpuBackend::new(CpuOptions::default()).unwrap());
        model.load(backend, options, &mut |_| {}).err().expect("it is refused").to_string()
    };
    let usual = LoadOptions::default;
    let sentences = [
        refused(&LoadOptions { context_tokens: Some(0), ..usual() }),
        refused(&LoadOptions { context_tokens: Some(usize::MAX), ..usual() }),
        refused(&LoadOptions { step_tokens: 0, ..usual() }),
        refused(&LoadOptions { sequences: usize::MAX, ..usual() }),
        refused(&LoadOptions { memory: Some(MemoryBudget { host: Some(1), device: None }), ..usual() }),
    ];
    for sentence in sentences {
        assert!(!sentence.contains("--"), "{sentence}");
    }
}
