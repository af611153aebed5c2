//! The command line: names, flags and help. Says what can be asked, does nothing.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};
use mambo_engine::EngineError;
use mambo_kernel::{KvTypes, StateElem};
use mambo_runtime::{DEFAULT_STEP_TOKENS, LoadOptions, SamplingParams};

use crate::commands::bench::BenchArgs;
use crate::commands::chat::ChatArgs;
use crate::commands::doctor::DoctorArgs;
use crate::commands::eval::EvalArgs;
use crate::commands::explain::ExplainArgs;
use crate::commands::fit::FitArgs;
use crate::commands::inspect::InspectArgs;
use crate::commands::list::ListArgs;
use crate::commands::pull::PullArgs;
use crate::commands::quantize::QuantizeArgs;
use crate::commands::rm::RmArgs;
use crate::commands::serve::ServeArgs;
use crate::commands::synth::SynthArgs;
use crate::open;
use crate::remote::ServerArgs;

/// Prompt tokens of one step that fill a GPU, also where experts share them.
const GPU_STEP_TOKENS: usize = 4096;

/// The first things to try.
const EXAMPLES: &str = "\
Examples:
  mambo run \"Tell me a story\"               answer with the built-in model
  mambo pull ORG/NAME:Q4_K_M                download a model from the hub
  mambo chat -m ORG/NAME                    talk to it, or to a model file of your own
  mambo serve -m model.gguf                 answer other programs over HTTP
  mambo fit nano-30b --quant q4_0           will it fit, and how fast can it be?
  mambo explain -m model.gguf --analyze     where does the time go?

MODEL is a folder with config.json and safetensors files, a .gguf file, or a model of the hub as
ORG/NAME or ORG/NAME:QUANT; nothing is downloaded without being asked. `mambo COMMAND --help` lists the flags of a command; --json prints one JSON object.";

/// Runs hybrid language models (Mamba-2, attention, mixture of experts) on your own machine.
#[derive(Parser)]
#[command(name = "mambo", version, about, arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// Answer one prompt
    Run(RunArgs),
    /// Talk in the terminal
    Chat(ChatArgs),
    /// Serve a model to other programs, in the dialects of OpenAI, Anthropic and Ollama
    Serve(ServeArgs),
    /// Show what is in a model: layers, sizes, types, memory, tokenizer
    Inspect(InspectArgs),
    /// Show the graph and the plan of a model as text, or measure every kernel
    Explain(ExplainArgs),
    /// Say whether a model fits this machine, and how fast it can be
    Fit(FitArgs),
    /// Measure prefill and decode speed beside the machine's bandwidth
    Bench(BenchArgs),
    /// Check this machine: processor, bandwidth, built-in model, every kernel
    Doctor(DoctorArgs),
    /// Write the logits of every position of a token list
    Logits(LogitsArgs),
    /// Write a model with random weights in a real model's shape, to measure with
    Synth(SynthArgs),
    /// Convert a model to a GGUF file or a safetensors folder, quantised or not
    Quantize(QuantizeArgs),
    /// Measure quality: perplexity of a text, divergence from a base model
    Eval(EvalArgs),
    /// Download a model from the hub
    Pull(PullArgs),
    /// List the models of the hub on this machine
    List(ListArgs),
    /// Remove a model of the hub from this machine
    Rm(RmArgs),
}

/// Which model, and on what.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// A folder, a .gguf file or a model of the hub such as ORG/NAME:Q4_K_M; the built-in model if left out
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Most tokens of a conversation, prompt and answer together
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<usize>,
    /// Where it runs.
    #[command(flatten)]
    pub place: BackendArgs,
    /// How caches are stored.
    #[command(flatten)]
    pub cache: CacheArgs,
    /// Most prompt tokens of one step; 512 on the CPU and 4096 on a GPU if left out
    #[arg(long, value_name = "TOKENS")]
    pub chunk: Option<usize>,
}

impl ModelArgs {
    /// What the flags ask of an engine.
    pub fn load_options(&self) -> LoadOptions {
        let step_tokens = self.step_tokens();
        LoadOptions { context_tokens: self.context, step_tokens, ..self.cache.load_options() }
    }

    /// Most prompt tokens of one step, as the flags have it or as the place where the model runs is best used.
    pub fn step_tokens(&self) -> usize {
        self.chunk.unwrap_or_else(|| match open::is_gpu(self.place) {
            true => GPU_STEP_TOKENS,
            false => DEFAULT_STEP_TOKENS,
        })
    }
}

/// Where a model runs.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct BackendArgs {
    /// Where the model runs: cpu, cuda (an NVIDIA GPU), webgpu (any GPU, through Vulkan, Metal or DX12), or auto for
    /// the NVIDIA GPU if there is one that the model fits on
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub backend: BackendName,
    /// Number of the GPU, counted from 0
    #[arg(long, value_name = "N")]
    pub device: Option<usize>,
    /// Threads of the CPU to use, one for each core at most; all cores if left out. With it, auto is the CPU
    #[arg(short, long, value_name = "N")]
    pub threads: Option<usize>,
}

impl BackendArgs {
    /// The CPU with so many threads.
    pub fn cpu(threads: Option<usize>) -> BackendArgs {
        BackendArgs { backend: BackendName::Cpu, device: None, threads }
    }
}

/// A backend by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum BackendName {
    /// The NVIDIA GPU if there is one that the model fits on, else the CPU
    #[default]
    Auto,
    /// The CPU
    Cpu,
    /// An NVIDIA GPU
    Cuda,
    /// Any GPU, through Vulkan, Metal or DX12
    #[value(name = "webgpu")]
    WebGpu,
}

/// Which model to describe: weights need not be there.
#[derive(Args)]
pub struct NameArgs {
    /// A folder, a .gguf file, a config.json, a model of the hub such as ORG/NAME:Q4_K_M or a preset such as
    /// nano-30b; the built-in model if left out
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    positional: Option<String>,
    /// The same, as commands that run a model take it
    #[arg(short, long, value_name = "MODEL")]
    model: Option<String>,
}

impl NameArgs {
    /// The name, however it was given.
    pub fn name(&self) -> Option<&str> {
        self.positional.as_deref().or(self.model.as_deref())
    }
}

/// Element types of the caches.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct CacheArgs {
    /// Type of cached keys and values: f32, f16, bf16, q8 (8-bit integers), f8 (8-bit floats, with the
    /// checkpoint's scales), two of them as KEYS/VALUES such as q8/f16, or auto for f32 with f32 weights and
    /// f16 otherwise
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    pub kv_type: KvType,
    /// Type of recurrent states: f32, f16 (rounded stochastically) or bf16
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    pub state_type: StateElem,
}

impl CacheArgs {
    /// The types of the caches, everything else as usual.
    pub fn load_options(&self) -> LoadOptions {
        let kv_types = match self.kv_type {
            KvType::Given(types) => Some(types),
            KvType::Auto => None,
        };
        LoadOptions { kv_types, state_elem: self.state_type, ..LoadOptions::default() }
    }
}

/// Types of cached keys and values, or the usual ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// f32 where the weights are f32, else f16.
    #[default]
    Auto,
    /// These.
    Given(KvTypes),
}

impl FromStr for KvType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(KvType::Auto),
            _ => text.parse().map(KvType::Given).map_err(|error: String| {
                format!("{error}, two of them as KEYS/VALUES such as q8/f16, or auto")
            }),
        }
    }
}

/// How tokens are chosen; what is left out comes from the model's generation config.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sampling")]
pub struct SampleArgs {
    /// 0 always takes the most likely token
    #[arg(long, value_name = "T")]
    pub temp: Option<f32>,
    /// Keep the K most likely tokens; 0 keeps all
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Keep the likeliest tokens that together reach this probability
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,
    /// Drop tokens less likely than this share of the likeliest
    #[arg(long, value_name = "P")]
    pub min_p: Option<f32>,
    /// Penalty on tokens already in the text
    #[arg(long, value_name = "X")]
    pub repetition_penalty: Option<f32>,
    /// Penalty on tokens already generated
    #[arg(long, value_name = "X")]
    pub presence_penalty: Option<f32>,
    /// Penalty for each time a token was generated
    #[arg(long, value_name = "X")]
    pub frequency_penalty: Option<f32>,
    /// Seed of the random choice; a new one each time if left out
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Add X to the logit of token ID (repeatable)
    #[arg(long, value_name = "ID=X", value_parser = parse_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Report log probabilities with this many alternatives (with --json)
    #[arg(long, value_name = "N", requires = "json")]
    pub logprobs: Option<usize>,
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let parts =
        text.split_once('=').and_then(|(id, x)| Some((id.trim().parse().ok()?, x.trim().parse().ok()?)));
    parts.ok_or_else(|| format!("`{text}` is not TOKEN_ID=NUMBER, such as 42=-1.5"))
}

impl SampleArgs {
    /// The flags over the model's own defaults; refuses what the engine would refuse once the model is loaded.
    pub fn over(&self, defaults: &SamplingParams) -> Result<SamplingParams, EngineError> {
        let sampling = SamplingParams {
            temperature: self.temp.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(defaults.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            seed: self.seed.unwrap_or_else(clock_seed),
            logit_bias: self.logit_bias.clone(),
            logprobs: self.logprobs,
        };
        match sampling.problem() {
            Some(problem) => Err(EngineError::Request(problem)),
            None => Ok(sampling),
        }
    }
}

/// A seed from the clock, for answers that nobody asked to repeat.
fn clock_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |d| d.as_nanos() as u64)
}

/// `mambo run`
#[derive(Args)]
pub struct RunArgs {
    /// The question, or with --raw the text to continue; `-` reads it from standard input
    #[arg(required_unless_present = "messages")]
    pub prompt: Option<String>,
    /// A JSON file with a whole request: a list of messages, or an object with `messages` and perhaps
    /// `tools` and `enable_thinking`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["raw", "system", "prompt"])]
    pub messages: Option<PathBuf>,
    /// Continue plain text, without the chat template
    #[arg(long, conflicts_with_all = ["system", "tools", "no_think"])]
    pub raw: bool,
    /// Most tokens to generate
    #[arg(short = 'n', long = "tokens", value_name = "N")]
    pub tokens: Option<usize>,
    /// Answer without thinking first
    #[arg(long)]
    pub no_think: bool,
    /// A system message
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// A JSON file with a list of tools to offer
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// Print one JSON object instead of streaming
    #[arg(long)]
    pub json: bool,
    /// The sampling.
    #[command(flatten)]
    pub sample: SampleArgs,
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The server, if one answers.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// `mambo logits`
#[derive(Args)]
pub struct LogitsArgs {
    /// Token ids, separated by commas
    #[arg(long, value_delimiter = ',', required_unless_present = "ids_file")]
    pub ids: Vec<u32>,
    /// A file with token ids: text separated by commas or white space, or safetensors with `input_ids`
    #[arg(long, value_name = "FILE", conflicts_with = "ids")]
    pub ids_file: Option<PathBuf>,
    /// Where to write `logits` (and `mtp_logits`) as safetensors
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Other sequences of made-up tokens to run in the same steps; the result must not change
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub beside: usize,
    /// Run on the plain reference backend
    #[arg(long)]
    pub reference: bool,
    /// Print a summary as JSON
    #[arg(long)]
    pub json: bool,
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
}

impl OutputArgs {
    /// Workers to use: one per core unless the command line says otherwise, and a second one even on a single
    /// core, so that making rows goes on while others are written.
    pub fn workers(&self) -> anyhow::Result<usize> {
        const MOST: usize = 1024;
        match self.threads {
            Some(0) => anyhow::bail!("--threads is 0; use 1 or more"),
            Some(threads) if threads > MOST => {
                anyhow::bail!("--threads is {threads}; use {MOST} or fewer")
            }
            Some(threads) => Ok(threads),
            None => Ok(std::thread::available_parallelism().map_or(2, usize::from).max(2)),
        }
    }
}

/// Where a made file goes.
#[derive(Args)]
pub struct OutputArgs {
    /// What to write: a name that ends in .gguf is a file, for `quantize` any other a safetensors folder
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub path: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    pub force: bool,
    /// Threads to use; all cores if left out
    #[arg(short, long, value_name = "N")]
    pub threads: Option<usize>,
    /// Print a summary as JSON
    #[arg(long)]
    pub json: bool,
}
