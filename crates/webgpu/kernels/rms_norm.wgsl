// rms_norm: y = x · w / sqrt(mean(x²) + eps); head_norm: the same for every head of a row.
// A workgroup has a head of a row: x the head, y and z the row.
#include "common.wgsl"
#include "rms.wgsl"
#include "sums.wgsl"

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.z * GRID_ROWS + group.y;
    if (row >= row_count(p.out)) {
        return;
    }
    let first = group.x * p.size;
    var sum = 0.0;
    for (var four = 4u * thread; thread < SQUARE_THREADS && four < p.size; four += 4u * SQUARE_THREADS) {
        for (var i = four; i < min(four + 4u, p.size); i++) {
            let x = load(p.x, row, first + i);
            sum = fma(x, x, sum);
        }
    }
    let scale = rms_factor(sum_of(sum, thread), p.size, p.eps);
    for (var i = thread; i < p.size; i += SUM_THREADS) {
        store(p.out, row, first + i, settled(load(p.x, row, first + i) * scale) * vector_at(p.weight + i));
    }
}
