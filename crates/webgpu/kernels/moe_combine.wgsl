// moe_combine: y[t] = Σ_j w[t,j]·x[t,j], rounded, plus the residual if there is one.
// A thread has a value; the grid's x covers a row's columns, y and z its rows.
#include "common.wgsl"

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let col = group.x * 64u + thread;
    let row = group.z * GRID_ROWS + group.y;
    if (row >= row_count(p.out) || col >= p.out.cols) {
        return;
    }
    var sum = 0.0;
    for (var j = 0u; j < p.top_k; j++) {
        sum = fma(load(p.weights, row, j), load(p.x, row * p.top_k + j, col), sum);
    }
    if (p.residual.stride > 0u) {
        sum = sum + load(p.residual, row, col);
    }
    store(p.out, row, col, sum);
}
