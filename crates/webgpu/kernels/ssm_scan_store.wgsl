// ssm_scan_store: x, B and dt of the last positions of every segment go into its slot's rings. A thread has a column of a
// segment; the grid's y are segments.
// Constants: HEADS, HEAD_DIM, STATE, GROUPS, STATE_ELEM.
#include "common.wgsl"
#include "slot.wgsl"

const INNER: u32 = HEADS * HEAD_DIM;
const GROUP_STATE: u32 = GROUPS * STATE;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let column = group.x * 64u + thread;
    let index = group.z * GRID_ROWS + group.y;
    if (index >= step[STEP_SEGMENT_COUNT] || column >= INNER + GROUP_STATE + HEADS) {
        return;
    }
    let segment = segment_at(index);
    let part = slot_part(segment);
    let kept = min(segment.rows, p.ring_capacity);
    for (var i = segment.rows - kept; i < segment.rows; i++) {
        let row = segment.first_row + i;
        let entry = (segment.position + i) % p.ring_capacity;
        if (column < INNER) {
            cache[part + p.ring_x + entry * INNER + column] = arena[word_at(p.xbc, row, column)];
        } else if (column < INNER + GROUP_STATE) {
            cache[part + p.ring_b + entry * GROUP_STATE + column - INNER] = arena[word_at(p.xbc, row, column)];
        } else {
            let head = column - INNER - GROUP_STATE;
            cache[part + p.ring_dt + entry * HEADS + head] = arena[word_at(p.dt, row, head)];
        }
    }
}
