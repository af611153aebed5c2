//! One state layer's parts of the recurrent slots, as kernels see them, and the sizes that these are compiled for.

use mambo_kernel::{SSM_CHUNK, SlotLayout, SsmDims, StateElem};

use super::binding::SlotPool;
use crate::arch::Arch;
use crate::params::{Ptr, c_struct};
use crate::source::Specialisation;

c_struct! {
    /// Parts of the slots; see `SlotLayout` for the offsets, which count words.
    pub(crate) struct SlotView {
        /// The part of slot 0.
        pub parts: Ptr<f32>,
        /// Words from one slot's part to the next.
        pub stride: u64,
        pub state: u32,
        pub head_stride: u32,
        pub chunks: u32,
        pub conv: u32,
        pub conv_capacity: u32,
        pub ring_x: u32,
        pub ring_b: u32,
        pub ring_dt: u32,
        pub ring_capacity: u32,
        pub layer: u32,
    }
}

impl SlotView {
    pub fn of(pool: &SlotPool) -> SlotView {
        let SlotLayout { state, head_stride, chunks, conv, conv_capacity, .. } = pool.layout;
        let SlotLayout { ring_x, ring_b, ring_dt, ring_capacity, layer, .. } = pool.layout;
        let narrow = |n: usize| u32::try_from(n).expect("a layer's part of a slot is smaller than 16 GiB");
        SlotView {
            parts: pool.parts,
            stride: pool.stride_words as u64,
            state: narrow(state),
            head_stride: narrow(head_stride),
            chunks: narrow(chunks),
            conv: narrow(conv),
            conv_capacity: narrow(conv_capacity),
            ring_x: narrow(ring_x),
            ring_b: narrow(ring_b),
            ring_dt: narrow(ring_dt),
            ring_capacity: narrow(ring_capacity),
            layer: narrow(layer),
        }
    }
}

/// Channels of a head that a block of a scan has.
pub(crate) const PART_CHANNELS: usize = 32;

/// Most segments that blocks of a scan are launched for; the rest follow in a loop.
const MOST_SEGMENTS: usize = 32;

/// Blocks for the segments of a step of so many tokens.
pub(crate) fn segment_blocks(tokens: usize) -> u32 {
    tokens.min(MOST_SEGMENTS) as u32
}

/// Blocks for the channels of all heads.
pub(crate) fn head_blocks(dims: &SsmDims) -> u32 {
    (dims.heads * dims.head_dim.div_ceil(PART_CHANNELS)) as u32
}

/// A scan's kernel for these sizes.
pub(crate) fn sized(kernel: Specialisation, dims: &SsmDims, elem: StateElem, shared: u32) -> Specialisation {
    let elem = match elem {
        StateElem::F32 => 0,
        StateElem::F16 => 1,
        StateElem::BF16 => 2,
    };
    kernel
        .define("HEADS", dims.heads)
        .define("HEAD_DIM", dims.head_dim)
        .define("STATE", dims.state)
        .define("GROUPS", dims.groups)
        .define("STATE_ELEM", elem)
        .define("SHARED_BYTES", shared)
}

/// Shared memory of the chunk of a Mamba-2 scan (`ChunkShared` in ssm_chunk.cuh).
pub(crate) fn chunk_shared_bytes(dims: &SsmDims) -> u32 {
    let (blocks, pitch) = (dims.state.div_ceil(32), PART_CHANNELS + 8);
    // Halves of B and C, of x twice and of the weights; x; what the state gives; four numbers of every position, twice.
    let split = 4 * (2 * (32 * blocks + 8) + 3 * pitch);
    let floats = PART_CHANNELS + 1 + blocks * pitch + 8;
    (SSM_CHUNK * (split + 4 * floats)) as u32
}

/// Threads of such a block.
pub(crate) fn chunk_threads(dims: &SsmDims) -> u32 {
    (64 * dims.state.div_ceil(32)) as u32
}

/// The mixer of Nemotron 3 Nano 30B, which kernels are tuned for.
pub(crate) const RELEASED: SsmDims = SsmDims { heads: 64, head_dim: 64, state: 128, groups: 8, taps: 4 };
/// Those of Nano 4B, Super 120B and Nano 9B.
pub(crate) const RELEASED_MIXERS: [SsmDims; 3] = [
    SsmDims { heads: 96, head_dim: 80, state: 128, groups: 8, taps: 4 },
    SsmDims { heads: 128, head_dim: 64, state: 128, groups: 8, taps: 4 },
    SsmDims { heads: 128, head_dim: 80, state: 128, groups: 8, taps: 4 },
];
/// A small one with odd sizes.
pub(crate) const ODD: SsmDims = SsmDims { heads: 3, head_dim: 5, state: 7, groups: 1, taps: 3 };

/// The largest state whose parts a block's threads keep in registers.
const MOST_STATE: usize = 256;

/// Shared memory that a block can have, to know what is served and compiled where there is no device to ask.
pub(crate) fn most_shared_bytes(arch: Arch) -> u32 {
    match (arch.major, arch.minor) {
        (8, 0) => 163 << 10,
        (9 | 10, _) => 227 << 10,
        _ => 99 << 10,
    }
}

/// Whether heads share groups evenly and a block holds its part of a chunk.
pub(crate) fn is_scannable(dims: &SsmDims, shared_bytes: u32, arch: Arch) -> bool {
    (1..=MOST_STATE).contains(&dims.state)
        && dims.groups > 0
        && dims.heads.is_multiple_of(dims.groups)
        && shared_bytes <= most_shared_bytes(arch)
}
