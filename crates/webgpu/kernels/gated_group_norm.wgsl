// gated_group_norm: v = y · SiLU(z), then the root-mean-square norm of each group of channels, times a weight.
// A workgroup has a group of a row.
#include "common.wgsl"
#include "math.wgsl"
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
            let value = settled(load(p.y, row, first + i) * silu(load(p.z, row, first + i)));
            sum = fma(value, value, sum);
        }
    }
    let scale = rms_factor(sum_of(sum, thread), p.size, p.eps);
    for (var i = thread; i < p.size; i += SUM_THREADS) {
        let value = load(p.y, row, first + i) * silu(load(p.z, row, first + i));
        store(p.out, row, first + i, settled(settled(value) * scale) * vector_at(p.weight + first + i));
    }
}
