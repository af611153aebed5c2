//! The engine on WebGPU: `webgpu [PART]...`, all parts unless some are named. A golden checkpoint's name compares it whole, in
//! chunks and in company, and its answers alone and beside others, whose steps run other kernels; that of a quantised one
//! compares it whole; `integers` compares a model whose activations are rounded in chunks and in company, and with its
//! weights widened; `snapshots` moves sessions from and to the CPU; `faults` are a lost device, and memory that does not suffice.

#[path = "../../model/tests/common/mod.rs"]
mod common;
mod golden_files;
mod loaded;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use common::tiny::{config, gguf};
use golden_files::{expected, largest_difference, score};
use loaded::{CASES, On, QUANTIZED, Setup, folder, load, load_folder, load_with, quantized_folder};
use mambo_engine::{Choice, Engine, EngineError, Event, FinishReason, Request, SamplingParams, Snapshot};
use mambo_tensor::DType;
use mambo_webgpu::{WebGpuBackend, WebGpuOptions, devices};
use serde_json::json;

type Part = fn() -> Result<(), String>;

/// What is no golden checkpoint.
const PARTS: [(&str, Part); 3] = [("integers", integers), ("snapshots", snapshots), ("faults", faults)];

fn main() -> ExitCode {
    if devices().is_empty() {
        println!("SKIPPED: nothing is reached through WebGPU");
        return ExitCode::SUCCESS;
    }
    let named: Vec<String> = std::env::args().skip(1).collect();
    let is_named = |name: &str| named.is_empty() || named.iter().any(|own| own == name);
    let goldens = CASES.into_iter().filter(|case| is_named(case));
    let mut results: Vec<_> = goldens.map(|case| (case, golden(case).and_then(|()| company(case)))).collect();
    let stored = QUANTIZED.into_iter().filter(|case| is_named(case));
    results.extend(stored.map(|case| (case, quantised(case))));
    results.extend(PARTS.into_iter().filter(|(name, _)| is_named(name)).map(|(name, part)| (name, part())));
    for (name, result) in &results {
        println!("{name}: {}", result.as_ref().map_or_else(String::as_str, |()| "as it should be"));
    }
    if results.iter().all(|(_, result)| result.is_ok()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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
    company_of(&folder(case))
}

fn company_of(path: &Path) -> Result<(), String> {
    let prompts: Vec<Vec<u32>> =
        [5u32, 40, 19].into_iter().map(|len| (0..len).map(|i| (i * 7 + len) % 90).collect()).collect();
    let mut alone = load_folder(path, On::WebGpu, Setup { sequences: 1, ..Setup::default() });
    let want: Vec<_> =
        prompts.iter().map(|prompt| answers(&mut alone, std::slice::from_ref(prompt)).remove(0)).collect();
    let mut together = load_folder(path, On::WebGpu, Setup { sequences: 3, ..Setup::default() });
    let got = answers(&mut together, &prompts);
    match (0..prompts.len()).find(|i| got[*i] != want[*i] || want[*i].is_empty()) {
        None => Ok(()),
        Some(i) => Err(format!("answer {i} changes in company")),
    }
}

/// The golden file of a quantised checkpoint, as it is.
fn quantised(case: &str) -> Result<(), String> {
    let folder = quantized_folder(case);
    let want = expected(&folder);
    let (logits, _) = score(&mut load_folder(&folder, On::WebGpu, Setup::default()), &want.ids, 64, 0);
    let off = largest_difference(&logits, &want.logits);
    if off > 2e-3 { Err(format!("logits are off by {off}")) } else { Ok(()) }
}

/// A model with every kind of layer whose products are sums of integers. What rounding rows costs is far below what a wrong
/// product would; bits are the same however a text is cut.
fn integers() -> Result<(), String> {
    let mut config = config("MEM*E-", 256);
    let sizes = [
        ("vocab_size", 96),
        ("num_attention_heads", 4),
        ("num_key_value_heads", 2),
        ("head_dim", 64),
        ("mamba_num_heads", 8),
        ("mamba_head_dim", 32),
        ("ssm_state_size", 16),
        ("n_groups", 2),
        ("conv_kernel", 4),
        ("n_routed_experts", 10),
        ("num_experts_per_tok", 3),
        ("moe_intermediate_size", 256),
        ("moe_shared_expert_intermediate_size", 512),
        ("intermediate_size", 512),
    ];
    sizes.into_iter().for_each(|(key, value)| config[key] = json!(value));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("integers.gguf");
    let ids: Vec<u32> = (0..70).map(|i| i * 37 % 96).collect();
    gguf(&path, &config, |_| DType::Q6K, &[]);
    let mut engine = load_folder(&path, On::WebGpu, Setup::default());
    let whole = score(&mut engine, &ids, 64, 0);
    let widened = Setup { widened: true, ..Setup::default() };
    let wide = score(&mut load_folder(&path, On::WebGpu, widened), &ids, 64, 0).0;
    let largest = wide.iter().fold(0f32, |most, logit| logit.abs().max(most));
    let off = largest_difference(&whole.0, &wide) / largest;
    if off.is_nan() || off > 0.02 {
        return Err(format!("logits are off by {off} of the largest"));
    }
    for (chunk, companions) in [(1, 0), (7, 2)] {
        if score(&mut engine, &ids, chunk, companions) != whole {
            return Err(format!("bits change with chunk {chunk}, {companions} companions"));
        }
    }
    company_of(&path)
}

/// Tokens of an answer and the snapshot that was asked for, or why it failed.
fn answer(engine: &mut Engine, request: Request) -> Result<(Vec<u32>, Option<Arc<Snapshot>>), String> {
    engine.submit(request).map_err(|error| error.to_string())?;
    let (mut tokens, mut snapshot, mut failed) = (Vec::new(), None, None);
    while !engine.is_idle() {
        for event in engine.step() {
            match event {
                Event::Token { choice, .. } => tokens.push(choice.token),
                Event::Snapshot { snapshot: own, .. } => snapshot = Some(own),
                Event::Finished { reason: FinishReason::Failed(why), .. } => failed = Some(why.to_string()),
                _ => {}
            }
        }
    }
    failed.map_or(Ok((tokens, snapshot)), Err)
}

fn request(prompt: &[u32], max_tokens: usize) -> Request {
    Request { prompt: prompt.to_vec(), max_tokens: Some(max_tokens), ..Default::default() }
}

/// A session that began on one device goes on on another as if it had begun there.
fn snapshots() -> Result<(), String> {
    let prompt: Vec<u32> = (0..45).map(|i| i * 11 % 90).collect();
    for (from, to) in [(On::cpu(), On::WebGpu), (On::WebGpu, On::cpu())] {
        let (mut first, mut second) =
            (load("moe", from, Setup::default()), load("moe", to, Setup::default()));
        let (want, _) = answer(&mut second, request(&prompt, 12))?;
        let cut = Request { snapshot_at: Some(40), ..request(&prompt, 1) };
        let snapshot = answer(&mut first, cut)?.1.ok_or("there is no snapshot")?;
        let bytes = first.export(&snapshot).map_err(|error| error.to_string())?;
        let snapshot = Snapshot::from_bytes(&bytes).map_err(|error| error.to_string())?;
        let resumed = Request { resume: Some(Arc::new(snapshot)), ..request(&prompt, 12) };
        let (got, _) = answer(&mut second, resumed)?;
        if got != want {
            return Err(format!("from {from:?} to {to:?}: {got:?} instead of {want:?}"));
        }
    }
    Ok(())
}

fn faults() -> Result<(), String> {
    let open = |options: &WebGpuOptions| WebGpuBackend::new(options).map_err(|error| error.to_string());
    let prompt: Vec<u32> = (1..20).collect();
    let backend = open(&WebGpuOptions::default())?;
    let destroy = backend.destroyer();
    let mut engine = load_with(&folder("dense"), Box::new(backend), Setup::default(), None)?;
    let (want, _) = answer(&mut engine, request(&prompt, 6))?;
    destroy();
    match answer(&mut engine, request(&prompt, 6)) {
        Err(why) if why.contains("lost") => {}
        other => return Err(format!("a destroyed device gave {other:?}")),
    }
    if !engine.is_lost() || !matches!(engine.submit(request(&prompt, 1)), Err(EngineError::Lost(_))) {
        return Err("a lost device takes requests".into());
    }
    drop(engine);
    let mut again = load("dense", On::WebGpu, Setup::default());
    if answer(&mut again, request(&prompt, 6))?.0 != want {
        return Err("the device that was opened again answers otherwise".into());
    }
    let small = WebGpuOptions { memory_bytes: Some(100_000), ..WebGpuOptions::default() };
    match load_with(&folder("dense"), Box::new(open(&small)?), Setup::default(), None) {
        Err(why) if why.contains("KiB") || why.contains("MiB") => Ok(()),
        Err(why) => Err(format!("what does not fit is refused without sizes: {why}")),
        Ok(_) => Err("a model that does not fit is loaded".into()),
    }
}
