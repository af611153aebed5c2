// embed: y[t] = table[id[t]], decoded.
//
// A thread has four columns of a row. A shard of the table has some of its rows; those of others are left alone.
#include "common.wgsl"
#include "weight_$WEIGHT.wgsl"

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let four = group.x * 64u + thread;
    let row = group.z * GRID_ROWS + group.y;
    if (row >= row_count(p.out) || four * 4u >= p.out.cols) {
        return;
    }
    let own = token_of(row) - p.first;
    if (own >= p.weights.outputs) {
        return;
    }
    let at = row_of(p.weights, 0u, own);
    let block = four >> 3u;
    let scales = scales_at(parts_of(p.weights), at, block);
    let values = quad(codes_at(at, block), more_at(at, block), scales, four & 7u) * row_factor(p.weights, at);
    for (var i = 0u; i < 4u && four * 4u + i < p.out.cols; i++) {
        store(p.out, row, four * 4u + i, values[i]);
    }
}
