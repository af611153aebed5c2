// moe_bias: y[t,j] = x[t,j] + b[id[t,j]].
// A thread has a value; the grid's x covers a row's columns, y and z its rows.
#include "common.wgsl"

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let col = group.x * 64u + thread;
    let row = group.z * GRID_ROWS + group.y;
    if (row >= row_count(p.out) || col >= p.out.cols) {
        return;
    }
    let expert = min(arena[word_at(p.ids, row / p.top_k, row % p.top_k)], p.experts - 1u);
    store(p.out, row, col, load(p.x, row, col) + vector_at(p.bias + expert * p.out.cols + col));
}
