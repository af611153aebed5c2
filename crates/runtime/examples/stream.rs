//! Asks a model a question and streams its answer: `cargo run -p mambo-runtime --example stream [MODEL [QUESTION]]`.

use std::io::Write;
use std::ops::ControlFlow;

use mambo_cpu::{CpuBackend, CpuOptions};
use mambo_runtime::{
    Conversation, GenerateEvent, GenerateOptions, LoadOptions, Model, OpenOptions, Piece, generate,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or("models/tiny-hybrid-Q4_K_M.gguf".into());
    let question = arguments.next().unwrap_or("What is 17 + 25?".into());

    let model = Model::open(path, &OpenOptions::default())?;
    let text = model.text()?;
    let backend = CpuBackend::new(CpuOptions::default())?;
    let mut engine = model.load(Box::new(backend), &LoadOptions::default(), &mut |_| {})?;
    let prompt = Conversation::default().ask(&text, &question)?;
    generate(&mut engine, &text, prompt, GenerateOptions::default(), &mut |event| {
        if let GenerateEvent::Piece(Piece::Content(words)) = event {
            print!("{words}");
            let _ = std::io::stdout().flush();
        }
        ControlFlow::Continue(())
    })?;
    println!();
    Ok(())
}
