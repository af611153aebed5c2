// matmul and moe_matmul for few rows: y[o] = Σ_i W[o,i]·x[i] for every row, then the epilogue. A shard has some of the
// outputs, or some of the experts.
// Constants: those of product.wgsl and few_f32.wgsl.
#include "product.wgsl"
#include "few_$SUMS.wgsl"

// Whether the tile is the only row there is, which need not be looked for.
const IS_ALONE: bool = EXPERTS == 0u && TILE_ROWS == 1u;

fn x_word(row: u32) -> u32 {
    if (IS_ALONE) {
        return p.x.data;
    }
    return row_words[row];
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    var chosen = vec2<u32>(0u, 1u);
    if (!IS_ALONE) {
        pick(group.z * GRID_ROWS + group.y, thread);
        chosen = workgroupUniformLoad(&picked);
    }
    let count = chosen.y;
    let expert = chosen.x - p.first_expert;
    if (count == 0u || expert >= p.weights.experts) {
        return;
    }
    let first_output = group.x * 4u * TEAMS;
    // What a row's four outputs end with is on its way meanwhile.
    let row = thread / TEAMS;
    let own = first_output + thread % TEAMS * 4u;
    let adds = row < count && own < p.weights.outputs;
    var out_row = 0u;
    var ends = Ends(vec4<f32>(0.0), vec4<f32>(0.0));
    if (adds) {
        if (!IS_ALONE) {
            out_row = out_rows[row];
        }
        ends = ends_of(out_row, expert, own);
    }
    let rows = rows_of(p.weights, expert, first_output + thread / TEAM * 4u);
    let total = product(rows, parts_of(p.weights), p.weights.blocks, count, thread);
    if (adds) {
        finish(out_row, own, total, ends);
    }
}
