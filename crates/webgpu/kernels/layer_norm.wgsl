// layer_norm: y = (x − mean(x)) · w / sqrt(var(x) + eps) + b. A workgroup has a row.
#include "common.wgsl"
#include "sums.wgsl"

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.z * GRID_ROWS + group.y;
    if (row >= row_count(p.out)) {
        return;
    }
    let size = p.out.cols;
    var sum = 0.0;
    for (var i = thread; i < size; i += SUM_THREADS) {
        sum = sum + load(p.x, row, i);
    }
    let mean = sum_of(sum, thread) / f32(size);
    var squares = 0.0;
    for (var i = thread; i < size; i += SUM_THREADS) {
        let x = load(p.x, row, i) - mean;
        squares = fma(x, x, squares);
    }
    let scale = 1.0 / sqrt(sum_of(squares, thread) / f32(size) + p.eps);
    for (var i = thread; i < size; i += SUM_THREADS) {
        let x = (load(p.x, row, i) - mean) * scale;
        store(p.out, row, i, fma(x, vector_at(p.weight + i), vector_at(p.bias + i)));
    }
}
