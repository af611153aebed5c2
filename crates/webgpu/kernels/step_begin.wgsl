// step_begin: hidden rows that are rows of the step before. A thread has a value.
#include "common.wgsl"

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let col = group.x * 64u + thread;
    let row = group.z * GRID_ROWS + group.y;
    let cols = step[STEP_HIDDEN_COLS];
    if (row >= step[STEP_ROWS] || col >= cols) {
        return;
    }
    let origin = step[step[STEP_HIDDEN_ROWS] + row];
    arena[step[STEP_HIDDEN] + row * cols + col] = arena[step[STEP_HIDDEN_FROM] + origin * step[STEP_HIDDEN_STRIDE] + col];
}
