//! One state layer's parts of the recurrent slots, as kernels see them.

use mambo_kernel::{SlotLayout, SsmDims, StateElem};

use crate::params::{Field, narrow};
use crate::source::Specialisation;

/// Offsets of `kernels/slot.wgsl`, which parameters end with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotView([u32; 11]);

impl SlotView {
    pub fn of(layout: &SlotLayout) -> SlotView {
        SlotView([
            narrow(layout.len),
            narrow(layout.state),
            narrow(layout.head_stride),
            narrow(layout.chunks),
            narrow(layout.conv),
            narrow(layout.conv_capacity),
            narrow(layout.ring_x),
            narrow(layout.ring_b),
            narrow(layout.ring_dt),
            narrow(layout.ring_capacity),
            narrow(layout.layer),
        ])
    }
}

impl Field for SlotView {
    // The fields of `Params` follow the first one's name: see `flatten`.
    const WGSL: &'static str = "SlotView";
    fn push(&self, words: &mut Vec<u32>) {
        words.extend(self.0);
    }
}

/// The text of parameters with the fields of their [`SlotView`], which stands last, in its place: as a struct it would
/// have to stand on a multiple of four words.
pub(crate) fn flatten(text: &str) -> String {
    let fields =
        "slot_words state head_stride chunks conv conv_capacity ring_x ring_b ring_dt ring_capacity layer";
    let fields: String = fields.split(' ').map(|name| format!("    {name}: u32,\n")).collect();
    text.replace("    slots: SlotView,\n", &fields)
}

/// Channels of a head that a workgroup of a scan has.
pub(crate) const PART_CHANNELS: usize = 32;

/// Workgroups for the channels of all heads.
pub(crate) fn head_parts(dims: &SsmDims) -> usize {
    dims.heads * dims.head_dim.div_ceil(PART_CHANNELS)
}

pub(crate) fn elem_number(elem: StateElem) -> usize {
    match elem {
        StateElem::F32 => 0,
        StateElem::F16 => 1,
        StateElem::BF16 => 2,
    }
}

/// A scan's kernel for these sizes.
pub(crate) fn sized(kernel: Specialisation, dims: &SsmDims, elem: StateElem) -> Specialisation {
    kernel
        .define("HEADS", dims.heads)
        .define("HEAD_DIM", dims.head_dim)
        .define("STATE", dims.state)
        .define("GROUPS", dims.groups)
        .define("STATE_ELEM", elem_number(elem))
}

/// The mixer of Nemotron 3 Nano 30B, and a small one with odd sizes.
pub(crate) const RELEASED: SsmDims = SsmDims { heads: 64, head_dim: 64, state: 128, groups: 8, taps: 4 };
pub(crate) const ODD: SsmDims = SsmDims { heads: 3, head_dim: 5, state: 7, groups: 1, taps: 3 };

/// The largest state that a workgroup's memory has columns of.
const MOST_STATE: usize = 256;

/// Whether heads share groups evenly, and no word of a narrow state belongs to two parts of a head.
pub(crate) fn is_scannable(dims: &SsmDims, elem: StateElem) -> bool {
    let is_even = dims.head_dim.is_multiple_of(2) || dims.head_dim <= PART_CHANNELS;
    (1..=MOST_STATE).contains(&dims.state)
        && dims.groups > 0
        && dims.heads.is_multiple_of(dims.groups)
        && (is_even || elem == StateElem::F32)
}
