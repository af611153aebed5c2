// Up to three products of the same row, which may be that of a norm: matmul.wgsl for one row, to the bit. x of the grid is
// the first one's tiles of outputs, then the second one's, then the third one's.
// Constants: those of few_f32.wgsl with TILE_ROWS = 1.
#include "common.wgsl"
#include "weight_$WEIGHT.wgsl"
#include "fours.wgsl"
#include "few_$SUMS.wgsl"

fn x_word(row: u32) -> u32 {
    return p.x.data;
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    var weights = p.first_weights;
    var out = p.first_out;
    var tile = group.x;
    if (tile >= p.first_tiles + p.second_tiles) {
        weights = p.third_weights;
        out = p.third_out;
        tile -= p.first_tiles + p.second_tiles;
    } else if (tile >= p.first_tiles) {
        weights = p.second_weights;
        out = p.second_out;
        tile -= p.first_tiles;
    }
    let first_output = tile * 4u * TEAMS;
    let own = first_output + thread * 4u;
    let adds = thread < TEAMS && own < weights.outputs;
    var row_factors = vec4<f32>(0.0);
    if (adds) {
        row_factors = factors_of(weights, 0u, own);
    }
    let rows = rows_of(weights, 0u, first_output + thread / TEAM * 4u);
    let total = product(rows, parts_of(p.first_weights), p.first_weights.blocks, 1u, thread);
    if (adds) {
        put_values(out.data + own, total * row_factors, weights.outputs - own);
    }
}
