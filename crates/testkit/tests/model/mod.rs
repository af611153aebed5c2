//! Golden checkpoints as engines on any backend, perhaps with a damaged weight.
#![allow(dead_code, reason = "each test program uses its part")]

use std::path::Path;

use mambo_checkpoint::Checkpoint;
use mambo_engine::{
    Choice, Engine, EngineConfig, Event, FinishReason, ModelGraphs, Request, SequenceId, SnapshotRoom,
    Weights, cache_layout,
};
use mambo_kernel::{Backend, CacheLayout, KvScale, WeightError, WeightPart, WeightSource};
use mambo_model::{BuildOptions, WeightTable, bind, describe};
use mambo_tensor::DType;

/// The embedding's name in every model.
const EMBED: &str = "embed";

/// A weight with one row of its first part replaced by NaN.
struct Poisoned<'a> {
    inside: &'a dyn WeightSource,
    row: usize,
}

impl WeightSource for Poisoned<'_> {
    fn dtype(&self) -> DType {
        self.inside.dtype()
    }

    fn shape(&self) -> &[usize] {
        self.inside.shape()
    }

    fn part_count(&self) -> usize {
        self.inside.part_count()
    }

    fn part(&self, index: usize) -> Result<WeightPart<'_>, WeightError> {
        let mut part = self.inside.part(index)?;
        let row_bytes = self.dtype().row_bytes(self.shape()[1]).expect("whole rows");
        // All bits set are a NaN in every float.
        part.bytes.to_mut()[self.row * row_bytes..][..row_bytes].fill(0xff);
        Ok(part)
    }

    fn release(&self, index: usize) {
        self.inside.release(index);
    }

    fn digest(&self) -> u64 {
        self.inside.digest() ^ 1
    }
}

struct Bound<'a> {
    table: &'a WeightTable<'a>,
    poisoned: Option<Poisoned<'a>>,
}

impl Weights for Bound<'_> {
    fn weight(&self, name: &str) -> Option<&dyn WeightSource> {
        match &self.poisoned {
            Some(poisoned) if name == EMBED => Some(poisoned),
            _ => self.table.get(name).map(|weight| weight as &dyn WeightSource),
        }
    }

    fn kv_scales(&self) -> &[KvScale] {
        self.table.kv_scales()
    }
}

/// What the tests run with: little of everything, so that sequences wait, share and are cut.
pub fn config() -> EngineConfig {
    EngineConfig {
        max_sequences: 3,
        context_tokens: 128,
        step_tokens: 16,
        snapshots: SnapshotRoom { count: 6, tokens: 256, slots: 2 },
        ..EngineConfig::default()
    }
}

/// Loads a golden checkpoint, or one of another family; `poisoned` is the row of the embedding that is not numbers.
pub fn load(
    case: &str,
    backend: Box<dyn Backend>,
    config: EngineConfig,
    poisoned: Option<usize>,
) -> (Engine, CacheLayout) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let folders = ["checkpoints", "families"].map(|kind| fixtures.join(kind).join(case));
    let folder = folders.into_iter().find(|folder| folder.exists()).expect("a fixture of that name");
    let checkpoint = Checkpoint::open(&folder).expect("golden checkpoints open");
    let spec = describe(&checkpoint).expect("golden checkpoints are described");
    let table = bind(&checkpoint, &spec).expect("golden checkpoints bind");
    let poison = |row| Poisoned { inside: table.get(EMBED).expect("every model embeds"), row };
    let weights = Bound { table: &table, poisoned: poisoned.map(poison) };
    let trunk = spec.trunk_graph(BuildOptions::default()).expect("a graph");
    let with_hidden = spec.trunk_graph(BuildOptions { hidden: true }).expect("a graph");
    let head = spec.mtp.map(|_| spec.mtp_graph().expect("a graph"));
    let mtp = head.as_ref().map(|head| (&with_hidden, head));
    let graphs = ModelGraphs { trunk: &trunk, mtp, trained_context: 1024, vocab: spec.vocab };
    let layout = cache_layout(&graphs, &config);
    let engine = Engine::load(backend, &graphs, &weights, config, &mut |_| {}).expect("it loads");
    (engine, layout)
}

/// Steps until nothing is left to do.
pub fn run(engine: &mut Engine) -> Vec<Event> {
    let mut events = Vec::new();
    for _ in 0..10_000 {
        if engine.is_idle() {
            return events;
        }
        events.extend(engine.step());
    }
    panic!("the engine does not come to an end");
}

/// What one sequence got.
pub fn outcome(events: &[Event], id: SequenceId) -> (Vec<Choice>, Option<FinishReason>) {
    let (mut choices, mut finished) = (Vec::new(), None);
    for event in events {
        match event {
            Event::Token { id: of, choice } if *of == id => {
                assert!(finished.is_none(), "a token came after the end");
                choices.push(choice.clone());
            }
            Event::Finished { id: of, reason } if *of == id => {
                assert!(finished.is_none(), "a sequence ended twice");
                finished = Some(reason.clone());
            }
            _ => {}
        }
    }
    (choices, finished)
}

/// The tokens of one sequence.
pub fn tokens(events: &[Event], id: SequenceId) -> Vec<u32> {
    outcome(events, id).0.iter().map(|choice| choice.token).collect()
}

/// Runs a request alone.
pub fn run_alone(engine: &mut Engine, request: &Request) -> (Vec<Choice>, Option<FinishReason>) {
    let id = engine.submit(request.clone()).expect("the request is good");
    outcome(&run(engine), id)
}
