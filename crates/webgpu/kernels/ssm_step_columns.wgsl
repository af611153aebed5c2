// ssm_step of segments of one row, first part: the convolution of every channel, and dt. A thread has a channel, or a head, of
// a segment.
// Constants: HEADS, HEAD_DIM, STATE, GROUPS, STATE_ELEM, TAPS.
#include "common.wgsl"
#include "math.wgsl"
#include "slot.wgsl"
#include "ssm_columns.wgsl"

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let channel = group.x * 64u + thread;
    let index = group.z * GRID_ROWS + group.y;
    if (index >= step[STEP_SEGMENT_COUNT] || channel >= CHANNELS + HEADS) {
        return;
    }
    let segment = segment_at(index);
    let own = load(p.x, segment.first_row, INNER + channel);
    if (channel >= CHANNELS) {
        step_of_head(segment, channel - CHANNELS, own);
    } else {
        end_column(segment, index, channel, sum_before(segment, channel), own);
    }
}
