// step_end: keeps the choices for later steps and the host. A thread has a row.
#include "common.wgsl"

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.x * 64u + thread;
    if (row < step[STEP_WANTED_ROWS]) {
        arena[step[STEP_CHOSEN_HERE] + row] = arena[word_at(p.choices, row, 0u)];
    }
}
