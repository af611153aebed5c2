//! Golden files on WebGPU, whole, in chunks and in company, and answers alone and beside others, whose steps run other
//! kernels: `webgpu [CASE]...`, all golden checkpoints unless some are named.

mod golden_files;
mod loaded;

use std::process::ExitCode;

use golden_files::{expected, largest_difference, score};
use loaded::{CASES, On, Setup, folder, load};
use mambo_engine::{Choice, Engine, Event, Request, SamplingParams};
use mambo_webgpu::devices;

fn main() -> ExitCode {
    if devices().is_empty() {
        println!("SKIPPED: nothing is reached through WebGPU");
        return ExitCode::SUCCESS;
    }
    let named: Vec<String> = std::env::args().skip(1).collect();
    let cases = CASES.into_iter().filter(|case| named.is_empty() || named.iter().any(|name| name == case));
    let mut failed = 0;
    for case in cases {
        match golden(case).and_then(|()| company(case)) {
            Ok(()) => println!("{case}: as it should be"),
            Err(problem) => {
                println!("{case}: {problem}");
                failed += 1;
            }
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn golden(case: &str) -> Result<(), String> {
    let want = expected(&folder(case));
    let allowed = if case == "long" { 5e-3 } else { 2e-3 };
    let mut engine = load(case, On::WebGpu, Setup::default());
    let whole = score(&mut engine, &want.ids, 64, 0);
    let off = largest_difference(&whole.0, &want.logits).max(largest_difference(&whole.1, &want.mtp_logits));
    if off > allowed {
        return Err(format!("logits are off by {off}"));
    }
    for (chunk, companions) in [(1, 0), (7, 2)] {
        if score(&mut engine, &want.ids, chunk, companions) != whole {
            return Err(format!("bits change with chunk {chunk}, {companions} companions"));
        }
    }
    Ok(())
}

/// Choices with log probabilities, whose bits show a difference long before a token does.
fn answers(engine: &mut Engine, prompts: &[Vec<u32>]) -> Vec<Vec<Choice>> {
    let request = |prompt: &Vec<u32>| Request {
        prompt: prompt.clone(),
        max_tokens: Some(36),
        sampling: SamplingParams { logprobs: Some(3), ..Default::default() },
        ..Default::default()
    };
    let ids: Vec<_> =
        prompts.iter().map(|prompt| engine.submit(request(prompt)).expect("the prompt fits")).collect();
    let mut choices = vec![Vec::new(); ids.len()];
    while !engine.is_idle() {
        for event in engine.step() {
            if let Event::Token { id, choice } = event {
                choices[ids.iter().position(|own| *own == id).expect("a known id")].push(choice);
            }
        }
    }
    choices
}

fn company(case: &str) -> Result<(), String> {
    let prompts: Vec<Vec<u32>> =
        [5u32, 40, 19].into_iter().map(|len| (0..len).map(|i| (i * 7 + len) % 90).collect()).collect();
    let mut alone = load(case, On::WebGpu, Setup { sequences: 1, ..Setup::default() });
    let want: Vec<_> =
        prompts.iter().map(|prompt| answers(&mut alone, std::slice::from_ref(prompt)).remove(0)).collect();
    let mut together = load(case, On::WebGpu, Setup { sequences: 3, ..Setup::default() });
    let got = answers(&mut together, &prompts);
    match (0..prompts.len()).find(|i| got[*i] != want[*i] || want[*i].is_empty()) {
        None => Ok(()),
        Some(i) => Err(format!("answer {i} changes in company")),
    }
}
