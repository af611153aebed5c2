//! Hard cases: what the contract requires of every kernel of an op.
//!
//! A case is a set of sequences fed to one op in ragged steps. The runner may cut the steps in
//! any way, because no cut may change a bit of the result.

use mambo_tensor::{DType, decode_row, encode_row};

use crate::cache::{CacheLayout, KvGroup, Rollback};
use crate::cache_elem::{KvScale, KvTypes, StateElem};
use crate::dims::AttentionDims;
use crate::op::Op;
use crate::step::{Adjustment, ChooseRow, MaskSource};
use crate::value::{Rows, ValueType};

/// A small deterministic generator (splitmix64), so that cases are the same everywhere.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Uniform in `[low, high)`.
    pub fn range(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }

    /// Roughly normal with mean 0 and deviation 1 (sum of uniforms).
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// `n` normal values times `scale`.
    pub fn normals(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.normal() * scale).collect()
    }
}

/// A weight of a case, in the bytes a checkpoint would hold.
#[derive(Clone, Debug)]
pub struct CaseWeight {
    /// Element type.
    pub dtype: DType,
    /// Shape, outermost first.
    pub shape: Vec<usize>,
    /// Stored bytes.
    pub bytes: Vec<u8>,
}

impl CaseWeight {
    /// Encodes values; the last dimension is the row.
    pub fn encode(dtype: DType, shape: &[usize], values: &[f32]) -> Self {
        let cols = *shape.last().expect("a weight has a shape");
        let row_bytes = dtype.row_bytes(cols).expect("cases use whole blocks");
        let mut bytes = vec![0; values.len() / cols * row_bytes];
        for (row, out) in values.chunks(cols).zip(bytes.chunks_mut(row_bytes)) {
            encode_row(dtype, row, out).expect("cases hold finite values");
        }
        CaseWeight { dtype, shape: shape.to_vec(), bytes }
    }

    /// An f32 vector or small matrix.
    pub fn f32(shape: &[usize], values: &[f32]) -> Self {
        Self::encode(DType::F32, shape, values)
    }

    /// The values the bytes stand for.
    pub fn decode(&self) -> Vec<f32> {
        let cols = *self.shape.last().expect("a weight has a shape");
        let row_bytes = self.dtype.row_bytes(cols).expect("cases use whole blocks");
        let mut values = vec![0.0; self.shape.iter().product()];
        for (row, out) in self.bytes.chunks(row_bytes).zip(values.chunks_mut(cols)) {
            decode_row(self.dtype, row, out).expect("cases hold whole rows");
        }
        values
    }
}

/// One input port of a case: for every sequence its rows, one after the other.
#[derive(Clone, Debug)]
pub struct CaseInput {
    /// Type; rows are `T` times the rows per token.
    pub ty: ValueType,
    /// Values by sequence, `[length · times][cols]`; integers are stored as their bits.
    pub sequences: Vec<Vec<f32>>,
}

/// How the rows of a `choose` case are chosen.
#[derive(Clone, Debug, Default)]
pub struct CaseChoose {
    /// By sequence and position.
    pub rows: Vec<Vec<ChooseRow>>,
    /// The adjustments of all rows.
    pub adjustments: Vec<Adjustment>,
    /// The masks of all rows, one after the other.
    pub masks: Vec<u32>,
}

impl MaskSource for CaseChoose {
    fn fill(&self, number: u32, mask: &mut [u32]) {
        mask.copy_from_slice(&self.masks[number as usize * mask.len()..][..mask.len()]);
    }
}

/// One op with weights, inputs for several sequences, and where tolerance ends.
#[derive(Clone, Debug)]
pub struct Case {
    /// What is hard about it.
    pub name: String,
    /// The op with its parameters.
    pub op: Op,
    /// Weights, in port order.
    pub weights: Vec<CaseWeight>,
    /// Inputs, in port order; the `wanted` port of `gather_rows` is left to the runner.
    pub inputs: Vec<CaseInput>,
    /// Length of every sequence.
    pub lengths: Vec<usize>,
    /// Element types of cached keys and values.
    pub kv_types: KvTypes,
    /// Scales of cached 8-bit floats.
    pub kv_scale: KvScale,
    /// Element type of recurrent states.
    pub state_elem: StateElem,
    /// Depth of the recurrent slots.
    pub rollback: Rollback,
    /// How tokens are chosen.
    pub choose: CaseChoose,
    /// Largest allowed `|got − want|` as a share of the largest `|want|` in the row.
    pub tolerance: f32,
}

impl Case {
    /// A case without weights or inputs yet; sequences have these lengths.
    pub fn new(name: impl Into<String>, op: Op, lengths: &[usize], tolerance: f32) -> Self {
        Case {
            name: name.into(),
            op,
            weights: Vec::new(),
            inputs: Vec::new(),
            lengths: lengths.to_vec(),
            kv_types: KvTypes::default(),
            kv_scale: KvScale::default(),
            state_elem: StateElem::F32,
            rollback: Rollback::None,
            choose: CaseChoose::default(),
            tolerance,
        }
    }

    /// The caches that the case runs on, with so many pages in every pool. The op's layer is
    /// [`Case::layer`]: an attention with a window stands behind another layer that sees everything, so that its pages
    /// are those of a second group.
    pub fn caches(&self, pages: usize) -> CacheLayout {
        let (mut kv_layers, mut windows) = (Vec::new(), Vec::new());
        if let Op::Attention(a) = self.op {
            if a.window.is_some() {
                kv_layers.push(AttentionDims { q_heads: 3, kv_heads: 3, head_dim: 8 });
                windows.push(None);
            }
            kv_layers.push(a.dims);
            windows.push(a.window);
        }
        let groups = KvGroup::by_window(windows).into_iter();
        CacheLayout {
            kv_scales: vec![self.kv_scale; kv_layers.len()],
            kv_layers,
            kv_types: self.kv_types,
            kv_groups: groups.map(|group| KvGroup { pages, ..group }).collect(),
            state_layers: match self.op {
                Op::SsmConv(dims) | Op::SsmScan(dims) | Op::SsmStep { dims, .. } => vec![dims],
                Op::ShortConv(dims) | Op::DeltaScan(dims) => vec![dims],
                _ => Vec::new(),
            },
            state_elem: self.state_elem,
            slots: self.lengths.len(),
            rollback: self.rollback,
        }
    }

    /// The op's layer in those caches.
    pub fn layer(&self) -> usize {
        usize::from(matches!(self.op, Op::Attention(a) if a.window.is_some()))
    }

    /// Adds a weight.
    pub fn weight(mut self, weight: CaseWeight) -> Self {
        self.weights.push(weight);
        self
    }

    /// Adds an f32 input whose values come from `value`.
    pub fn input(self, cols: usize, value: impl FnMut() -> f32) -> Self {
        self.input_of(ValueType::f32(Rows::TOKENS, cols), value)
    }

    /// Adds an input of any type.
    pub fn input_of(mut self, ty: ValueType, mut value: impl FnMut() -> f32) -> Self {
        let sequences = self
            .lengths
            .iter()
            .map(|n| (0..n * ty.rows.times * ty.cols).map(|_| value()).collect())
            .collect();
        self.inputs.push(CaseInput { ty, sequences });
        self
    }
}

/// Sequence lengths that expose errors: one token, less than the convolution, a chunk's edges, many chunks.
pub const RAGGED: [usize; 6] = [1, 2, 31, 32, 33, 70];
