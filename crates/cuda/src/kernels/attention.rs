//! `attention`: over f16 caches on tensor cores, over all others in f32.

use std::f32::consts::LOG2_E;

use mambo_kernel::{
    Arithmetic, Attention, AttentionDims, BackendError, KvElem, KvTypes, Op, OpKind, PAGE_TOKENS, Phase, Site,
};

use super::binding::{Binding, DeviceFacts};
use super::declaration::{Bind, Declaration};
use super::slot::most_shared_bytes;
use crate::arch::Arch;
use crate::launch::Launch;
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Expects, Source, Specialisation};
use crate::step_table::StepTable;

c_struct! {
    struct AttentionParams {
        step: Ptr<StepTable>,
        q: View,
        k: View,
        v: View,
        out: View,
        pages: Ptr<u8>,
        page_bytes: u64,
        /// One score per head, or null.
        sinks: Ptr<f32>,
        /// Scores and their cap are exponents of two.
        scale: f32,
        soft_cap: f32,
        k_scale: f32,
        v_scale: f32,
        /// 0 for none.
        window: u32,
        /// Whose page lists are read.
        group: u32,
        /// Segments of so many rows are left to attention_tile.
        tile_rows: u32,
        /// Rows whose positions several blocks of attention_split share.
        divided_rows: u32,
        most_blocks: u32,
        most_items: u32,
        /// Whether attention_split appends keys and values; then every segment has one row.
        appends: u32,
        unused: u32,
        /// What those blocks leave to attention_merge.
        results: Ptr<f32>,
    }
}

static PLAIN: Source = Source {
    stem: "attention",
    text: include_str!("../../kernels/attention.cu"),
    structs: &[AttentionParams::c_text],
};

static SPLIT: Source = Source {
    stem: "attention_split",
    text: include_str!("../../kernels/attention_split.cu"),
    structs: &[AttentionParams::c_text],
};

static MERGE: Source = Source {
    stem: "attention_merge",
    text: include_str!("../../kernels/attention_merge.cu"),
    structs: &[AttentionParams::c_text],
};

static TILE: Source = Source {
    stem: "attention_tile",
    text: include_str!("../../kernels/attention_tile.cu"),
    structs: &[AttentionParams::c_text],
};

/// Query heads of a block or warp.
const HEAD_TILE: usize = 16;
/// Positions that are computed at a time.
const UNIT: usize = 64;
/// Threads of a block that computes in f32.
const THREADS: u32 = 128;
/// Warps of a block that appends.
const APPEND_WARPS: u32 = 4;
/// Largest head that both forms hold.
const MOST_HEAD_DIM: usize = 256;

/// The kernels of one attention layer.
#[derive(Clone, Copy)]
struct Kernels {
    dims: AttentionDims,
    types: KvTypes,
    /// Whether scores have a cap.
    capped: bool,
}

fn elem_number(elem: KvElem) -> usize {
    KvElem::ALL.iter().position(|other| *other == elem).expect("every type is listed")
}

impl Kernels {
    fn sized(&self, source: &'static Source, entry: &'static str) -> Specialisation {
        Specialisation::new(source, entry)
            .define("Q_HEADS", self.dims.q_heads)
            .define("KV_HEADS", self.dims.kv_heads)
            .define("HEAD_DIM", self.dims.head_dim)
            .define("K_ELEM", elem_number(self.types.k))
            .define("V_ELEM", elem_number(self.types.v))
            .define("CAPPED", u32::from(self.capped))
    }

    fn group(&self) -> usize {
        self.dims.q_heads / self.dims.kv_heads
    }

    fn head_tiles(&self) -> usize {
        self.group().div_ceil(HEAD_TILE)
    }

    /// `AttentionShared` in attention.cu.
    fn plain_shared(&self) -> u32 {
        let n = self.dims.head_dim;
        (4 * (HEAD_TILE * n + UNIT * (n | 1) + HEAD_TILE * (UNIT + 6))) as u32
    }

    fn plain(&self, entry: &'static str) -> Specialisation {
        self.sized(&PLAIN, entry).define("SHARED_BYTES", self.plain_shared())
    }

    /// Whether tensor cores read the caches as they are.
    fn is_tensor(&self) -> bool {
        self.types == KvTypes::both(KvElem::F16) && matches!(self.dims.head_dim, 64 | 128)
    }

    fn unit_shared(&self) -> usize {
        2 * 2 * UNIT * (self.dims.head_dim + 8)
    }

    fn query_shared(&self) -> usize {
        HEAD_TILE * (2 * 2 * (self.dims.head_dim + 8) + 4)
    }

    /// `SplitShared` in attention_split.cu.
    fn split_shared(&self) -> u32 {
        (2 * self.unit_shared() + self.query_shared() + HEAD_TILE * (2 * (UNIT + 8) + 4 * 4 + 4 * 4 * 4))
            as u32
    }

    /// `TileShared` in attention_tile.cu.
    fn tile_shared(&self, warps: usize) -> u32 {
        let whole = 4 * HEAD_TILE * (self.dims.head_dim + 4);
        (2 * self.unit_shared() + warps * (self.query_shared() + whole)) as u32
    }

    /// Warps of a block that has prompts' tiles; 0 where heads do not fill a tile evenly or do not fit.
    fn tile_warps(&self, shared_bytes: u32) -> usize {
        let fits = |warps: &usize| self.tile_shared(*warps) <= shared_bytes;
        match HEAD_TILE.is_multiple_of(self.group()) {
            true => [8, 4].into_iter().find(fits).unwrap_or(0),
            false => 0,
        }
    }

    fn split(&self) -> Specialisation {
        self.sized(&SPLIT, "attention_split")
    }

    fn merge(&self) -> Specialisation {
        self.sized(&MERGE, "attention_merge")
    }

    fn tile(&self, warps: usize) -> Specialisation {
        self.sized(&TILE, "attention_tile").define("TILE_WARPS", warps)
    }
}

/// Rows from which on a segment is computed in tiles.
const TILE_ROWS: u32 = 8;
/// Rows whose positions several blocks share.
const DIVIDED_ROWS: usize = 64;

/// Heads of models that were released: Nano 4B and 9B, Llama 3.1 8B and Qwen3 8B, gpt-oss.
const RELEASED_HEADS: [AttentionDims; 3] = [
    AttentionDims { q_heads: 40, kv_heads: 8, head_dim: 128 },
    AttentionDims { q_heads: 32, kv_heads: 8, head_dim: 128 },
    AttentionDims { q_heads: 64, kv_heads: 8, head_dim: 64 },
];

/// Kernels of sizes that are not declared: for f16 caches.
pub(crate) fn released_sizes(arch: Arch) -> Vec<Specialisation> {
    let types = KvTypes::both(KvElem::F16);
    let all = RELEASED_HEADS.map(|dims| {
        let kernels = Kernels { dims, types, capped: false };
        let warps = kernels.tile_warps(most_shared_bytes(arch));
        let tile = (warps > 0).then(|| kernels.tile(warps).expecting(Expects::Mma));
        let split = [kernels.split().expecting(Expects::Mma), kernels.merge()];
        split.into_iter().chain([kernels.plain("attention_append")]).chain(tile).collect::<Vec<_>>()
    });
    all.concat()
}

/// The kernels that serve a site, if any do.
fn kernels_of(site: &Site) -> Option<Kernels> {
    let Op::Attention(Attention { dims, soft_cap, .. }) = *site.op else { return None };
    let is_served =
        dims.kv_heads > 0 && dims.q_heads.is_multiple_of(dims.kv_heads) && dims.head_dim <= MOST_HEAD_DIM;
    is_served.then_some(Kernels { dims, types: site.caches.kv, capped: soft_cap.is_some() })
}

pub(crate) fn declare(arch: Arch) -> Vec<Declaration> {
    let released = AttentionDims { q_heads: 32, kv_heads: 2, head_dim: 128 };
    let kernels = |types| Kernels { dims: released, types, capped: false };
    let plain = KvElem::ALL.map(|elem| {
        let kernels = kernels(KvTypes::both(elem));
        [kernels.plain("attention_append"), kernels.plain("attention"), kernels.merge()]
    });
    let tensor = kernels(KvTypes::both(KvElem::F16));
    let warps = tensor.tile_warps(most_shared_bytes(arch));
    let tile = (warps > 0).then(|| tensor.tile(warps).expecting(Expects::Mma));
    let split = tensor.split().expecting(Expects::Mma);
    let tensor: Vec<_> = [split].into_iter().chain(tile).collect();
    [("row.f16", true, true), ("row.f32", true, false), ("f16", false, true), ("f32", false, false)]
        .map(|(types, is_row, is_tensor)| {
            let accepts = move |site: &Site| {
                let kernels = kernels_of(site).filter(|kernels| kernels.is_tensor() == is_tensor);
                kernels.is_some() && (!is_row || site.phase == Phase::Decode)
            };
            let (kernels, bind): (_, Bind) = match (is_tensor, is_row) {
                (true, true) => (tensor.clone(), bind_rows),
                (true, false) => (tensor.clone(), bind),
                (false, true) => (plain.concat(), bind_rows),
                (false, false) => (plain.concat(), bind),
            };
            // On tensor cores a weight is an f16.
            let arithmetic = if is_tensor { Arithmetic::RoundedF16InF32 } else { Arithmetic::F32 };
            Declaration::new(OpKind::Attention, types, kernels, bind)
                .offering(|row| row.accepting(accepts).computing(arithmetic))
        })
        .into()
}

/// Of segments of any length.
fn bind(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    bind_any(binding, false)
}

/// Of one token per sequence.
fn bind_rows(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    bind_any(binding, true)
}

fn bind_any(binding: &Binding, is_row: bool) -> Result<Vec<Launch>, BackendError> {
    let Op::Attention(attention) = binding.call.op else { binding.wrong_op() };
    let (dims, pool, tokens) = (attention.dims, binding.kv(), binding.bucket.tokens);
    let kernels = Kernels { dims, types: pool.types, capped: attention.soft_cap.is_some() };
    let mut params = AttentionParams {
        step: binding.step,
        q: binding.input(0),
        k: binding.input(1),
        v: binding.input(2),
        out: binding.output(0),
        pages: pool.pages,
        page_bytes: pool.page_bytes as u64,
        sinks: if attention.sinks { binding.vector(0, dims.q_heads)? } else { Ptr::NULL },
        scale: attention.scale * LOG2_E,
        soft_cap: attention.soft_cap.unwrap_or(0.0) * LOG2_E,
        k_scale: pool.scale.k,
        v_scale: pool.scale.v,
        window: attention.window.unwrap_or(0) as u32,
        group: pool.group as u32,
        tile_rows: u32::MAX,
        divided_rows: 0,
        most_blocks: 1,
        most_items: 1,
        appends: u32::from(is_row && kernels.is_tensor()),
        unused: 0,
        results: Ptr::NULL,
    };
    let heads = (dims.kv_heads * kernels.head_tiles()) as u32;
    divide(binding, &kernels, tokens, heads, &mut params);
    let mut launches = Vec::new();
    if params.appends == 0 {
        let blocks = ((2 * tokens * dims.kv_heads) as u32).div_ceil(APPEND_WARPS);
        let append = Launch::new(kernels.plain("attention_append"), &params);
        launches.push(append.grid([blocks, 1, 1]).block(32 * APPEND_WARPS));
    }
    if kernels.is_tensor() {
        launches.extend(tensor_launches(&kernels, &params, binding.facts, tokens, heads));
    } else {
        let launch = Launch::new(kernels.plain("attention"), &params)
            .grid([tokens as u32, heads, params.most_blocks])
            .block(THREADS)
            .shared(kernels.plain_shared());
        launches.extend([launch, merge(&kernels, &params)]);
    }
    Ok(launches)
}

/// Decides how many blocks share the positions of a row.
fn divide(binding: &Binding, kernels: &Kernels, tokens: usize, heads: u32, params: &mut AttentionParams) {
    let rows = tokens.min(DIVIDED_ROWS);
    let wanted = 4 * binding.facts.processors / (rows as u32 * heads);
    params.most_blocks = wanted.clamp(4, 128);
    params.most_items = (2048 / rows as u32).clamp(32, 256);
    params.divided_rows = rows as u32;
    let results = rows * kernels.dims.q_heads * params.most_items as usize * (kernels.dims.head_dim + 2);
    params.results = binding.scratch(results * size_of::<f32>()).cast();
}

fn merge(kernels: &Kernels, params: &AttentionParams) -> Launch {
    Launch::new(kernels.merge(), params)
        .grid([params.divided_rows, kernels.dims.q_heads as u32, 1])
        .block((kernels.dims.head_dim as u32).next_multiple_of(32))
}

fn tensor_launches(
    kernels: &Kernels,
    params: &AttentionParams,
    facts: DeviceFacts,
    tokens: usize,
    heads: u32,
) -> Vec<Launch> {
    let warps = kernels.tile_warps(facts.shared_bytes);
    let with_tiles = params.appends == 0 && warps > 0 && tokens >= TILE_ROWS as usize;
    let params = AttentionParams { tile_rows: if with_tiles { TILE_ROWS } else { u32::MAX }, ..*params };
    let split = Launch::new(kernels.split(), &params)
        .grid([params.divided_rows, heads, params.most_blocks])
        .block(128)
        .shared(kernels.split_shared());
    let mut launches = vec![split, merge(kernels, &params)];
    if with_tiles {
        let rows = warps * (HEAD_TILE / kernels.group());
        let tile = Launch::new(kernels.tile(warps), &params)
            .grid([tokens.div_ceil(rows) as u32, kernels.dims.kv_heads as u32, 1])
            .block(32 * warps as u32)
            .shared(kernels.tile_shared(warps));
        launches.push(tile);
    }
    launches
}

const _: () = assert!(UNIT.is_multiple_of(PAGE_TOKENS));
