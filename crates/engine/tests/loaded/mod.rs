//! Golden checkpoints, loaded into an engine on a chosen backend.
#![allow(dead_code, reason = "each test program uses its part")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use mambo_checkpoint::Checkpoint;
use mambo_cpu::{CpuBackend, CpuOptions, Isa};
use mambo_cuda::{CudaBackend, CudaOptions};
use mambo_engine::{Engine, EngineConfig, ModelGraphs, PrefixCacheConfig, Weights};
use mambo_kernel::{
    Backend, KvScale, KvTypes, ReferenceBackend, Rollback, StateElem, WeightError, WeightPart, WeightSource,
};
use mambo_model::{BuildOptions, WeightTable, bind, describe};
use mambo_tensor::DType;
use mambo_webgpu::{WebGpuBackend, WebGpuOptions};

/// The golden checkpoints of the repository.
pub const CASES: [&str; 9] =
    ["dense", "latent", "long", "moe", "mtp", "new-style", "odd", "router-groups", "small-dt"];

/// The repository's files, where the test was built; below the current folder if it was carried to another machine.
fn fixtures() -> PathBuf {
    let built = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    if built.is_dir() { built } else { PathBuf::from("tests/fixtures") }
}

/// Whether the test runs on another machine than it was built on: for its GPU, since the CPU was tested there.
fn is_carried() -> bool {
    !Path::new(env!("CARGO_MANIFEST_DIR")).is_dir()
}

/// The folder of one golden checkpoint.
pub fn folder(case: &str) -> PathBuf {
    fixtures().join("checkpoints").join(case)
}

/// The folder of one golden checkpoint of another family.
pub fn family_folder(case: &str) -> PathBuf {
    fixtures().join("families").join(case)
}

/// Checkpoints in formats with scales beside their codes.
pub const QUANTIZED: [&str; 4] = ["modelopt-nvfp4", "modelopt-fp8", "modelopt-mixed", "mlx-4bit"];

/// The folder of one quantised checkpoint.
pub fn quantized_folder(case: &str) -> PathBuf {
    fixtures().join("quant").join(case)
}

/// Where a model runs.
#[derive(Clone, Copy, Debug)]
pub enum On {
    /// The plain reference.
    Reference,
    /// The CPU backend with this instruction set and thread count.
    Cpu(Isa, usize),
    /// The first GPU.
    Cuda,
    /// The first device that WebGPU has, which may be a program.
    WebGpu,
}

/// Kernels are compiled once for all tests.
fn cuda_options() -> CudaOptions {
    let kernel_folder = Some(std::env::temp_dir().join("mambo-test-kernels"));
    CudaOptions { kernel_folder, ..CudaOptions::default() }
}

impl On {
    /// The GPU of this machine, if it has one, every instruction set, and the reference.
    pub fn all() -> Vec<On> {
        let mut all: Vec<On> = On::gpu().into_iter().collect();
        if !is_carried() {
            all.extend(Isa::available().into_iter().map(|isa| On::Cpu(isa, 2)));
            all.push(On::Reference);
        }
        all
    }

    /// The GPU, if there is one.
    pub fn gpu() -> Option<On> {
        match CudaBackend::check(&cuda_options()) {
            Ok(_) => Some(On::Cuda),
            Err(reason) if is_carried() => panic!("there is nothing to test here: {reason}"),
            Err(_) => None,
        }
    }

    /// What models run on unless a test says otherwise: the GPU if there is one, else all that the CPU can.
    pub fn usual() -> On {
        On::gpu().unwrap_or(On::cpu())
    }

    /// The CPU with all it can.
    pub fn cpu() -> On {
        On::Cpu(Isa::detect(), 2)
    }

    /// Backends that give the same bits as each other, for each kind of device.
    pub fn alike() -> Vec<Vec<On>> {
        let cpu = Isa::available().into_iter().flat_map(|isa| [1, 2, 3].map(|threads| On::Cpu(isa, threads)));
        let cpu = if is_carried() { Vec::new() } else { cpu.collect() };
        [cpu, On::gpu().into_iter().collect()]
            .into_iter()
            .filter(|group: &Vec<On>| !group.is_empty())
            .collect()
    }

    /// How far logits may be off where `cpu` is what the CPU keeps to: products of a GPU round quantised weights to f16.
    pub fn allowed(self, cpu: f32) -> f32 {
        if matches!(self, On::Cuda) { cpu.max(5e-3) } else { cpu }
    }

    fn backend(self) -> Result<Box<dyn Backend>, String> {
        Ok(match self {
            On::Reference => Box::new(ReferenceBackend::new()),
            On::Cuda => Box::new(CudaBackend::new(&cuda_options()).map_err(|error| error.to_string())?),
            On::WebGpu => {
                Box::new(WebGpuBackend::new(&WebGpuOptions::default()).map_err(|error| error.to_string())?)
            }
            On::Cpu(isa, threads) => Box::new(
                CpuBackend::new(CpuOptions {
                    threads,
                    isa: Some(isa),
                    every_thread: true,
                    ..CpuOptions::default()
                })
                .map_err(|error| error.to_string())?,
            ),
        })
    }
}

/// A weight as f32 values.
struct Floats {
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl WeightSource for Floats {
    fn dtype(&self) -> DType {
        DType::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn part_count(&self) -> usize {
        1
    }

    fn part(&self, _: usize) -> Result<WeightPart<'_>, WeightError> {
        Ok(WeightPart::plain(&self.bytes))
    }

    fn release(&self, _: usize) {}

    fn digest(&self) -> u64 {
        0
    }
}

/// Weights, what stands in for their scales for keys and values, and for those that are quantised.
struct Bound<'c>(WeightTable<'c>, Option<Vec<KvScale>>, HashMap<String, Floats>);

impl Weights for Bound<'_> {
    fn weight(&self, name: &str) -> Option<&dyn WeightSource> {
        let floats = self.2.get(name).map(|floats| floats as &dyn WeightSource);
        floats.or_else(|| self.0.get(name).map(|weight| weight as &dyn WeightSource))
    }

    fn kv_scales(&self) -> &[KvScale] {
        self.1.as_deref().unwrap_or(self.0.kv_scales())
    }
}

/// Engine settings that a test varies.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Sequences at once.
    pub sequences: usize,
    /// Most tokens of one step.
    pub step_tokens: usize,
    /// Element types of the KV cache.
    pub kv_types: KvTypes,
    /// Element type of recurrent states.
    pub state_elem: StateElem,
    /// Depth of the recurrent slots.
    pub rollback: Rollback,
    /// Whether steps fill the MTP head's cache.
    pub fill_mtp: bool,
    /// Whether embeddings may be asked for.
    pub embeddings: bool,
    /// Whether chosen experts can be counted.
    pub expert_counts: bool,
    /// Whether prompts that were read are kept.
    pub prefix_cache: bool,
    /// Whether quantised weights become f32, so that kernels do not round activations beside them.
    pub widened: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            sequences: 4,
            step_tokens: 512,
            kv_types: KvTypes::default(),
            state_elem: StateElem::F32,
            rollback: Rollback::None,
            fill_mtp: false,
            embeddings: false,
            expert_counts: false,
            prefix_cache: false,
            widened: false,
        }
    }
}

/// Loads a golden checkpoint.
pub fn load(case: &str, on: On, setup: Setup) -> Engine {
    load_folder(&folder(case), on, setup)
}

/// Loads the checkpoint in a folder.
pub fn load_folder(folder: &Path, on: On, setup: Setup) -> Engine {
    load_scaled(folder, on, setup, None)
}

/// The same, perhaps with other scales for keys and values than the checkpoint's.
pub fn load_scaled(folder: &Path, on: On, setup: Setup, scales: Option<Vec<KvScale>>) -> Engine {
    try_load(folder, on, setup, scales).expect("golden checkpoints load")
}

/// The same; the error is of a device that fails.
pub fn try_load(folder: &Path, on: On, setup: Setup, scales: Option<Vec<KvScale>>) -> Result<Engine, String> {
    load_with(folder, on.backend()?, setup, scales)
}

/// The same on a backend that was opened already.
pub fn load_with(
    folder: &Path,
    backend: Box<dyn Backend>,
    setup: Setup,
    scales: Option<Vec<KvScale>>,
) -> Result<Engine, String> {
    let checkpoint = Checkpoint::open(folder).expect("golden checkpoints open");
    let spec = describe(&checkpoint).expect("golden checkpoints are described");
    let table = bind(&checkpoint, &spec).expect("golden checkpoints bind");
    let quantized = table.iter().filter(|weight| setup.widened && weight.dtype().is_quantized());
    let floats = quantized.map(|weight| {
        let values = weight.to_f32().expect("golden checkpoints are whole");
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        (weight.name().to_owned(), Floats { shape: weight.shape().to_vec(), bytes })
    });
    let floats = floats.collect();
    let weights = Bound(table, scales, floats);
    let trunk = spec.trunk_graph(BuildOptions::default()).expect("a graph");
    let with_hidden = spec.trunk_graph(BuildOptions { hidden: true }).expect("a graph");
    let head = spec.mtp.map(|_| spec.mtp_graph().expect("a graph"));
    let graphs = ModelGraphs {
        trunk: &trunk,
        mtp: head.as_ref().map(|head| (&with_hidden, head)),
        trained_context: 1024,
        vocab: spec.vocab,
    };
    let config = EngineConfig {
        max_sequences: setup.sequences,
        context_tokens: 1024,
        step_tokens: setup.step_tokens,
        kv_types: setup.kv_types,
        state_elem: setup.state_elem,
        rollback: setup.rollback,
        fill_mtp: setup.fill_mtp,
        embeddings: setup.embeddings,
        expert_counts: setup.expert_counts,
        prefix_cache: setup.prefix_cache.then_some(PrefixCacheConfig {
            bytes: 1 << 26,
            every: Some(32),
            spills: false,
        }),
        ..Default::default()
    };
    Engine::load(backend, &graphs, &weights, config, &mut |_| {}).map_err(|error| error.to_string())
}
