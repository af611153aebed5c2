//! `attention`: append, then splits of positions, then their sum.

use mambo_kernel::{Attention, AttentionDims, BackendError, KvElem, KvTypes, Op, OpKind, PAGE_TOKENS, Site};

use super::binding::{Binding, Launch, StepFacts, Then, rows_grid};
use super::declaration::Declaration;
use super::pointwise::source;
use crate::params::{Params, View, narrow, params};
use crate::source::{Source, Specialisation};

params! {
    struct AppendParams {
        k: View,
        v: View,
        page_words: u32,
        pages: u32,
        group: u32,
        k_scale: f32,
        v_scale: f32,
    }
    struct AttentionParams {
        q: View,
        /// Where rows of a single split go.
        out: View,
        /// The first row of the batch.
        first_row: u32,
        page_words: u32,
        pages: u32,
        group: u32,
        k_scale: f32,
        v_scale: f32,
        scale: f32,
        soft_cap: f32,
        /// 0 for none.
        window: u32,
        /// Where splits leave their sums.
        results: u32,
        /// The most splits that a row sees.
        most_splits: u32,
    }
    struct MergeParams {
        out: View,
        first_row: u32,
        q_heads: u32,
        window: u32,
        results: u32,
        most_splits: u32,
        has_sinks: u32,
        sinks: u32,
    }
}

source!(APPEND, "attention_append", AppendParams);
source!(SOURCE, "attention", AttentionParams);
source!(MERGE, "attention_merge", MergeParams);

/// Query heads of a workgroup, and positions of a split (`HEADS` and `SPLIT_PAGES` in attention.wgsl).
const HEADS: usize = 4;
const SPLIT: usize = 8 * PAGE_TOKENS;
/// Channels whose queries a workgroup's memory holds.
const MOST_HEAD_DIM: usize = 512;
/// Rows are computed in batches of a multiple of so many.
const BATCH_UNIT: usize = 8;
/// Words of splits' sums that a batch may take, unless one unit needs more.
const RESULT_WORDS: usize = 4 << 20;

fn elem_number(elem: KvElem) -> usize {
    KvElem::ALL.iter().position(|other| *other == elem).expect("every type is listed")
}

/// The kernels of one attention layer.
#[derive(Clone, Copy)]
struct Kernels {
    dims: AttentionDims,
    types: KvTypes,
    capped: bool,
}

impl Kernels {
    fn sized(&self, source: &'static Source) -> Specialisation {
        Specialisation::new(source)
            .define("KV_HEADS", self.dims.kv_heads)
            .define("HEAD_DIM", self.dims.head_dim)
            .define("K_ELEM", elem_number(self.types.k))
            .define("V_ELEM", elem_number(self.types.v))
    }

    fn group(&self) -> usize {
        self.dims.q_heads / self.dims.kv_heads
    }

    fn append(&self) -> Specialisation {
        self.sized(&APPEND).define("SCALES", PAGE_TOKENS * self.dims.head_dim.div_ceil(32))
    }

    /// The splits of rows, or rows that are a single split each.
    fn split(&self, is_whole: bool) -> Specialisation {
        self.sized(&SOURCE)
            .define("IS_WHOLE", usize::from(is_whole))
            .define("GROUP", self.group())
            .define("CAPPED", usize::from(self.capped))
            .define("QUERY_WORDS", HEADS * self.dims.head_dim)
    }

    fn merge(&self) -> Specialisation {
        Specialisation::new(&MERGE).define("HEAD_DIM", self.dims.head_dim)
    }
}

pub(crate) fn declare() -> Vec<Declaration> {
    let released = AttentionDims { q_heads: 32, kv_heads: 2, head_dim: 128 };
    let odd = AttentionDims { q_heads: 6, kv_heads: 3, head_dim: 20 };
    let all = KvElem::ALL.into_iter().flat_map(|elem| {
        let types = KvTypes::both(elem);
        [released, odd].into_iter().flat_map(move |dims| {
            let kernels = Kernels { dims, types, capped: dims == odd };
            [kernels.append(), kernels.split(false), kernels.split(true), kernels.merge()]
        })
    });
    let accepts = |site: &Site| match site.op {
        Op::Attention(Attention { dims, .. }) => {
            dims.kv_heads > 0 && dims.q_heads.is_multiple_of(dims.kv_heads) && dims.head_dim <= MOST_HEAD_DIM
        }
        _ => false,
    };
    let declaration = Declaration::new(OpKind::Attention, "f32", all.collect(), bind);
    vec![declaration.offering(|row| row.accepting(accepts))]
}

/// How a step's rows are cut into batches whose sums fit.
#[derive(Clone, Copy)]
struct Batches {
    words: usize,
    /// Words of the sums of a row in one split.
    row_words: usize,
    /// The most splits that a row sees.
    most_splits: usize,
}

impl Batches {
    fn of(attention: &Attention, pages: usize, max_tokens: usize) -> Batches {
        let row_words = attention.dims.q_heads * (attention.dims.head_dim + 2);
        // A window may begin and end within a split. Without one, all positions have pages.
        let most_splits = match attention.window {
            Some(window) => window / SPLIT + 2,
            None => (pages * PAGE_TOKENS).div_ceil(SPLIT).max(1),
        };
        let unit = BATCH_UNIT * row_words * most_splits;
        let words = (max_tokens * row_words * most_splits).min(RESULT_WORDS).max(unit);
        Batches { words, row_words, most_splits }
    }

    /// Splits of the rows of a step.
    fn splits(self, facts: &StepFacts) -> usize {
        facts.end.div_ceil(SPLIT).min(self.most_splits)
    }

    /// Rows of a batch.
    fn rows(self, splits: usize) -> usize {
        let fitting = self.words / (self.row_words * splits.max(1));
        (fitting / BATCH_UNIT * BATCH_UNIT).max(BATCH_UNIT)
    }
}

fn bind(binding: &mut Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::Attention(attention) = binding.call.op else { binding.wrong_op() };
    let (dims, pool) = (attention.dims, binding.kv());
    let kernels = Kernels { dims, types: pool.types, capped: attention.soft_cap.is_some() };
    let (page_words, pages, group) = (narrow(pool.page_words), narrow(pool.pages), narrow(pool.group));
    let append = AppendParams {
        k: binding.input(1),
        v: binding.input(2),
        page_words,
        pages,
        group,
        k_scale: pool.scale.k,
        v_scale: pool.scale.v,
    };
    let x = narrow(2 * dims.kv_heads);
    let rows = binding.rows();
    let append = Launch::new(kernels.append(), &append, move |facts| rows_grid(x, facts.rows(rows)));
    let mut launches = vec![append.caching(&pool.buffer)];
    launches.extend(batches(binding, &kernels, &attention)?);
    Ok(launches)
}

/// Splits and their sums, batch by batch: all batches use the same working memory.
fn batches(binding: &Binding, kernels: &Kernels, attention: &Attention) -> Result<Vec<Launch>, BackendError> {
    let (dims, pool) = (attention.dims, binding.kv());
    let batches = Batches::of(attention, pool.pages, binding.max_tokens);
    let window = narrow(attention.window.unwrap_or(0));
    let results = binding.scratch(batches.words);
    let most_splits = narrow(batches.most_splits);
    let sinks = if attention.sinks { Some(binding.vector(0, dims.q_heads)?) } else { None };
    let split = AttentionParams {
        q: binding.input(0),
        out: binding.output(0),
        first_row: 0,
        page_words: narrow(pool.page_words),
        pages: narrow(pool.pages),
        group: narrow(pool.group),
        k_scale: pool.scale.k,
        v_scale: pool.scale.v,
        scale: attention.scale,
        soft_cap: attention.soft_cap.unwrap_or(0.0),
        window,
        results,
        most_splits,
    };
    let merge = MergeParams {
        out: binding.output(0),
        first_row: 0,
        q_heads: narrow(dims.q_heads),
        window,
        results,
        most_splits,
        has_sinks: u32::from(sinks.is_some()),
        sinks: sinks.unwrap_or(0),
    };
    let heads = narrow(dims.q_heads);
    let firsts = || (0..binding.max_tokens).step_by(BATCH_UNIT).map(narrow);
    let x = narrow(dims.kv_heads * kernels.group().div_ceil(HEADS));
    let merge = Then {
        kernel: kernels.merge(),
        params: firsts().map(|first_row| MergeParams { first_row, ..merge }.words()).collect(),
        grid: Box::new(move |[_, rows, _]| [heads, rows, 1]),
    };
    let params: Vec<Vec<u32>> =
        firsts().map(|first_row| AttentionParams { first_row, ..split }.words()).collect();
    // With sinks the sum of splits has something to add to a single one, too.
    let may_be_whole = sinks.is_none();
    let launch = |is_whole: bool| Launch {
        kernel: kernels.split(is_whole),
        params: params.clone(),
        matrix: None,
        cache: Some(pool.buffer.clone()),
        then: None,
        dispatch: Box::new(move |facts, dispatch| {
            let splits = batches.splits(facts);
            let rows = batches.rows(splits);
            if is_whole != (may_be_whole && splits == 1) {
                return;
            }
            for first in (0..facts.tokens).step_by(rows) {
                let count = rows.min(facts.tokens - first);
                dispatch(first / BATCH_UNIT, [x, narrow(count), narrow(splits)]);
            }
        }),
    };
    let several = Launch { then: Some(Box::new(merge)), ..launch(false) };
    Ok(if may_be_whole { vec![launch(true), several] } else { vec![several] })
}
