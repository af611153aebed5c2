// delta_scan_store: k and g of the last positions of every segment go into its slot's rings. A thread has a group or a
// head of a segment; the grid's y are segments.
// Constants: HEADS, HEAD_DIM, STATE, GROUPS, STATE_ELEM.
#include "common.wgsl"
#include "math.wgsl"
#include "slot.wgsl"
#include "delta.wgsl"

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let item = group.x * 64u + thread;
    let index = group.z * GRID_ROWS + group.y;
    if (index >= step[STEP_SEGMENT_COUNT] || item >= GROUPS + HEADS) {
        return;
    }
    let segment = segment_at(index);
    let part = slot_part(segment);
    let kept = min(segment.rows, p.ring_capacity);
    for (var i = segment.rows - kept; i < segment.rows; i++) {
        let row = segment.first_row + i;
        let entry = (segment.position + i) % p.ring_capacity;
        if (item >= GROUPS) {
            let head = item - GROUPS;
            cache[part + p.ring_dt + entry * HEADS + head] = bitcast<u32>(decay_of(row, head));
            continue;
        }
        let column = GROUP_STATE + item * STATE;
        let scale = unit_scale(row, column, 1.0);
        let to = part + p.ring_b + entry * GROUP_STATE + item * STATE;
        for (var n = 0u; n < STATE; n++) {
            cache[to + n] = bitcast<u32>(load(p.qkv, row, column + n) * scale);
        }
    }
}
