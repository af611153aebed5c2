// ssm_conv_store: the last columns of every segment go into its slot. A thread has a channel of a segment; the grid's y
// are segments.
// Constants: GATED (short_conv), STATE_ELEM.
#include "common.wgsl"
#include "slot.wgsl"

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let channel = group.x * 64u + thread;
    let index = group.z * GRID_ROWS + group.y;
    let channels = p.channels;
    if (index >= step[STEP_SEGMENT_COUNT] || channel >= channels) {
        return;
    }
    let segment = segment_at(index);
    let part = slot_part(segment);
    let kept = min(segment.rows, p.conv_capacity);
    for (var i = segment.rows - kept; i < segment.rows; i++) {
        let row = segment.first_row + i;
        var value = load(p.x, row, channel);
        if (GATED == 1u) {
            value = value * load(p.x, row, 2u * channels + channel);
        }
        cache[conv_column(part, segment.position + i, channels) + channel] = bitcast<u32>(value);
    }
}
