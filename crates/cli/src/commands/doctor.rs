//! `mambo doctor`: this machine, and whether mambo works on it.

use anyhow::{Result, bail};
use clap::Args;
use mambo_cpu::{CpuBackend, CpuOptions, Isa, host_memory};
use mambo_engine::human_bytes;
use mambo_kernel::{Backend, Rollback};
use mambo_runtime::{DEFAULT_CONTEXT, GenerateOptions, LoadOptions, SamplingParams};
use mambo_testkit::contract::{Report, check_all};
use serde_json::{Value, json};

use crate::args::{BackendArgs, BackendName};
use crate::bandwidth::{ANY_GPU_PASS_BYTES, read_bandwidth};
use crate::gpus::{self, Gpus};
use crate::hints::one_sentence;
use crate::interrupt::Interrupt;
use crate::reply::answer;
use crate::terminal::{put, put_json, put_note};
use crate::{machine, open};

/// `mambo doctor`
#[derive(Args)]
pub struct DoctorArgs {
    /// Check only this backend; with webgpu also the device, from a bare dispatch up
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub backend: BackendName,
    /// Number of the GPU, counted from 0, with --backend webgpu
    #[arg(long, value_name = "N")]
    pub device: Option<usize>,
    /// Leave out the contract checks of the kernels
    #[arg(long)]
    pub quick: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A text the built-in model continues, and how: greedy, so the same on every machine.
const QUESTION: &str = "Once upon a time";
const ANSWER: &str = ", there was a little girl named Lily. She loved to";
const ANSWER_TOKENS: usize = 12;

/// Features worth naming.
const FEATURES: [&str; 12] = [
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
    "asimd",
];

/// One thing that was tried.
struct Check {
    name: String,
    /// What was found, or the sentence that says what is wrong.
    result: Result<String, String>,
}

/// Runs the command.
pub fn run(args: &DoctorArgs) -> Result<()> {
    let machine = describe_machine()?;
    if !args.json {
        put(&machine_text(&machine))?;
    }
    let mut checks =
        vec![Check { name: "built-in model".to_owned(), result: check_model(BackendArgs::cpu(None)) }];
    show(args, &checks[0])?;
    let checks_cpu = matches!(args.backend, BackendName::Auto | BackendName::Cpu) && !args.quick;
    for isa in if checks_cpu { Isa::available() } else { Vec::new() } {
        let check = Check { name: format!("kernels {isa}"), result: check_kernels(isa) };
        show(args, &check)?;
        checks.push(check);
    }
    let checks_cuda = matches!(args.backend, BackendName::Auto | BackendName::Cuda) && !args.quick;
    if let Some(gpu) = gpus::usable().filter(|_| checks_cuda) {
        let check = Check { name: "kernels cuda".to_owned(), result: check_gpu(gpu) };
        show(args, &check)?;
        checks.push(check);
    }
    if args.backend == BackendName::WebGpu {
        for check in check_any_gpu(args)? {
            show(args, &check)?;
            checks.push(check);
        }
    }
    let failed: Vec<&str> = checks.iter().filter(|c| c.result.is_err()).map(|c| c.name.as_str()).collect();
    if args.json {
        let mut object = machine;
        object["checks"] = checks.iter().map(Check::to_json).collect();
        object["ok"] = json!(failed.is_empty());
        put_json(&object)?;
    } else if args.quick {
        put("kernels          not checked (--quick)\n")?;
    }
    if !failed.is_empty() {
        bail!("{} failed; please report the lines above with the processor's name", failed.join(", "));
    }
    Ok(())
}

impl Check {
    fn to_json(&self) -> Value {
        let text = match &self.result {
            Ok(text) | Err(text) => text,
        };
        json!({"name": self.name, "ok": self.result.is_ok(), "result": text})
    }
}

fn show(args: &DoctorArgs, check: &Check) -> Result<()> {
    let (word, text) = match &check.result {
        Ok(text) => ("ok", text),
        Err(text) => ("FAILED", text),
    };
    if args.json {
        put_note(format_args!("{}: {word}: {text}", check.name));
    } else {
        put(&format!("{:<16} {word}: {text}\n", check.name))?;
    }
    Ok(())
}

fn describe_machine() -> Result<Value> {
    let (name, flags) = machine::processor();
    let features: Vec<&str> = FEATURES.into_iter().filter(|f| flags.iter().any(|flag| flag == f)).collect();
    let cores = machine::cores();
    let one = read_bandwidth(1)?;
    let all = if cores > 1 { read_bandwidth(cores)? } else { one };
    let Gpus { list: gpus, problem } = gpus::describe();
    Ok(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "processor": name,
        "features": features,
        "instruction_set": Isa::detect().name(),
        "instruction_sets": Isa::available().iter().map(|isa| isa.name()).collect::<Vec<_>>(),
        "cores": cores,
        "memory_bytes": host_memory::total(),
        "available_bytes": host_memory::available(),
        "bandwidth_bytes_per_second": {"one_thread": one, "all_threads": all},
        "gpus": gpus,
        "gpu_problem": problem,
        "defaults": defaults(),
    }))
}

/// The engine's configuration as commands set it up unless told otherwise.
fn defaults() -> Value {
    let options = LoadOptions::default();
    json!({
        "max_sequences": options.sequences,
        "context_tokens": DEFAULT_CONTEXT,
        "step_tokens": options.step_tokens,
        "kv_type": options.kv_types_for(None).to_string(),
        "state_type": options.state_elem.name(),
        "rollback_tokens": Rollback::None.tokens(),
    })
}

fn machine_text(m: &Value) -> String {
    let bytes = |name: &str| m[name].as_u64().map_or("unknown".to_owned(), human_bytes);
    let unchecked = match m["available_bytes"].is_null() {
        true => " (this system does not say: models are loaded without a check that they fit)",
        false => "",
    };
    let words = |name: &str| -> String {
        let list = m[name].as_array().into_iter().flatten().filter_map(Value::as_str);
        list.collect::<Vec<_>>().join(" ")
    };
    let rate = |name: &str| m["bandwidth_bytes_per_second"][name].as_f64().unwrap_or(0.0) / 1e9;
    let d = &m["defaults"];
    format!(
        "mambo       {}\nprocessor   {}, {} cores\nfeatures    {}\nkernels     {} (of {})\nmemory      {}, {} available{unchecked}\n\
         bandwidth   {:.1} GB/s read by one thread, {:.1} by all\n{}defaults    {} sequence, context {} (or the trained one if shorter), {} tokens per prompt step, keys and values {}, states {}, rollback {} tokens\n\n",
        m["version"].as_str().unwrap_or_default(),
        m["processor"].as_str().unwrap_or_default(),
        m["cores"],
        words("features"),
        m["instruction_set"].as_str().unwrap_or_default(),
        words("instruction_sets"),
        bytes("memory_bytes"),
        bytes("available_bytes"),
        rate("one_thread"),
        rate("all_threads"),
        gpus::text(m),
        d["max_sequences"],
        d["context_tokens"],
        d["step_tokens"],
        d["kv_type"].as_str().unwrap_or_default(),
        d["state_type"].as_str().unwrap_or_default(),
        d["rollback_tokens"],
    )
}

/// The built-in model must go on as it always does.
fn check_model(place: BackendArgs) -> Result<String, String> {
    let said = continue_text(place).map_err(|error| one_sentence(&error))?;
    match said == ANSWER {
        true => Ok(format!("`{QUESTION}` goes on as it should")),
        false => Err(format!("`{QUESTION}` goes on with `{said}` instead of `{ANSWER}`")),
    }
}

fn continue_text(place: BackendArgs) -> Result<String> {
    let model = open::model(None)?;
    let text = model.text()?;
    let mut engine = open::engine(&model, place, &LoadOptions::default())?;
    let greedy = Some(SamplingParams::default());
    let options = GenerateOptions { max_tokens: Some(ANSWER_TOKENS), sampling: greedy };
    let prompt = text.plain(QUESTION);
    let timed = answer(&mut engine, &text, prompt, options, &Interrupt::default(), &mut |_| Ok(()))?;
    Ok(timed.reply.content)
}

/// Every kernel of one instruction set against its contract.
fn check_kernels(isa: Isa) -> Result<String, String> {
    // Two threads whatever the machine has: kernels must share work.
    let backend = CpuBackend::new(CpuOptions {
        threads: 2,
        isa: Some(isa),
        every_thread: true,
        ..CpuOptions::default()
    });
    check_contracts(&mut backend.map_err(|error| error.to_string())?)
}

/// Every kernel of a GPU against its contract.
fn check_gpu(device: usize) -> Result<String, String> {
    let place = BackendArgs { device: Some(device), ..BackendArgs::default() };
    check_contracts(&mut open::gpu(place).map_err(|error| one_sentence(&error))?)
}

/// A GPU through whatever interface it has: the device's own checks, the built-in model, contracts.
fn check_any_gpu(args: &DoctorArgs) -> Result<Vec<Check>> {
    let place = BackendArgs { backend: BackendName::WebGpu, device: args.device, threads: None };
    let mut gpu = open::any_gpu(place)?;
    let device = gpu.device();
    let [halves, subgroups, _] = device.features;
    let has = |feature: bool| if feature { "has" } else { "lacks" };
    let text = format!(
        "{device}, {}, binds {}, {} 16-bit floats, {} subgroups",
        device.driver,
        human_bytes(device.max_binding_bytes),
        has(halves),
        has(subgroups)
    );
    let mut checks = vec![Check { name: "device".to_owned(), result: Ok(text) }];
    let tried = mambo_webgpu::block_on(gpu.diagnose());
    checks.extend(tried.into_iter().map(|tried| Check {
        name: tried.name.to_owned(),
        result: tried.result.map(|()| "as it should be".to_owned()),
    }));
    let rate = gpu.read_bandwidth(ANY_GPU_PASS_BYTES).map_err(|error| error.to_string());
    checks.push(Check { name: "reading".to_owned(), result: rate.map(|rate| format!("{rate:.0} GB/s")) });
    let result = check_model(place);
    checks.push(Check { name: "model on the GPU".to_owned(), result });
    if !args.quick {
        checks.push(Check { name: "kernels webgpu".to_owned(), result: check_contracts(&mut gpu) });
    }
    Ok(checks)
}

fn check_contracts(backend: &mut dyn Backend) -> Result<String, String> {
    let report: Report = check_all(backend);
    let cases: usize = report.rows.iter().map(|row| row.1).sum();
    match report.failures.is_empty() {
        true => Ok(format!("{} kernels agree with their contracts in {cases} cases", report.rows.len())),
        false => Err(report.failures.join("; ")),
    }
}
