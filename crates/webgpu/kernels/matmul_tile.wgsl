// matmul and moe_matmul for many rows: the same as matmul.wgsl, to the bit.
//
// A workgroup has 128 outputs and TILE_ROWS rows, a thread eight of each. Sixteen columns at a time lie in workgroup
// memory by column; the chains of a block go on over two of those, and join the sums at its end.
// Constants: those of product.wgsl; TILE_ROWS is a multiple of eight.
#include "product.wgsl"

const THREADS: u32 = 2u * TILE_ROWS;
const COLUMNS: u32 = 16u;
const OUTPUTS: u32 = 128u;
const ROW_VECTORS: u32 = TILE_ROWS / 4u;

// By column: outputs, rows.
var<workgroup> ws: array<vec4<f32>, 512>;
var<workgroup> xs: array<vec4<f32>, X_VECTORS>;

// Four columns of the weights of four outputs.
fn stage_weights(expert: u32, first_output: u32, block: u32, half: u32, thread: u32) {
    for (var i = thread; i < 128u; i += THREADS) {
        let q = i & 3u;
        let four = i >> 2u;
        let output = first_output + four * 4u;
        let a = quad(block_at(weight_row(expert, output), block), half * 4u + q);
        let b = quad(block_at(weight_row(expert, output + 1u), block), half * 4u + q);
        let c = quad(block_at(weight_row(expert, output + 2u), block), half * 4u + q);
        let d = quad(block_at(weight_row(expert, output + 3u), block), half * 4u + q);
        let at = q * 4u * 32u + four;
        ws[at] = vec4<f32>(a.x, b.x, c.x, d.x);
        ws[at + 32u] = vec4<f32>(a.y, b.y, c.y, d.y);
        ws[at + 64u] = vec4<f32>(a.z, b.z, c.z, d.z);
        ws[at + 96u] = vec4<f32>(a.w, b.w, c.w, d.w);
    }
}

fn x_or_zero(row: u32, col: u32, count: u32) -> vec4<f32> {
    if (row < count) {
        return four_of_x(row, col);
    }
    return vec4<f32>(0.0);
}

// Four columns of four rows.
fn stage_rows(count: u32, first_column: u32, thread: u32) {
    for (var i = thread; i < ROW_VECTORS * 4u; i += THREADS) {
        let q = i & 3u;
        let four = i >> 2u;
        let col = first_column + q * 4u;
        let a = x_or_zero(four * 4u, col, count);
        let b = x_or_zero(four * 4u + 1u, col, count);
        let c = x_or_zero(four * 4u + 2u, col, count);
        let d = x_or_zero(four * 4u + 3u, col, count);
        let at = q * 4u * ROW_VECTORS + four;
        xs[at] = vec4<f32>(a.x, b.x, c.x, d.x);
        xs[at + ROW_VECTORS] = vec4<f32>(a.y, b.y, c.y, d.y);
        xs[at + 2u * ROW_VECTORS] = vec4<f32>(a.z, b.z, c.z, d.z);
        xs[at + 3u * ROW_VECTORS] = vec4<f32>(a.w, b.w, c.w, d.w);
    }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    pick(group.z * GRID_ROWS + group.y, thread);
    let chosen = workgroupUniformLoad(&picked);
    let count = chosen.y;
    let expert = chosen.x - p.first_expert;
    if (count == 0u || expert >= p.experts) {
        return;
    }
    let first_output = group.x * OUTPUTS;
    // Outputs 4 · out .. and 64 + 4 · out .., rows 4 · in .. and TILE_ROWS / 2 + 4 · in ..
    let own_output = thread % 16u;
    let own_row = thread / 16u;
    var sums: array<vec4<f32>, 16>;
    for (var block = 0u; block < p.blocks; block++) {
        // By row, eight outputs as two vectors.
        var chains = array<vec4<f32>, 16>();
        for (var half = 0u; half < 2u; half++) {
            stage_weights(expert, first_output, block, half, thread);
            stage_rows(count, block * 32u + half * COLUMNS, thread);
            workgroupBarrier();
            for (var k = 0u; k < COLUMNS; k++) {
                let w0 = ws[k * 32u + own_output];
                let w1 = ws[k * 32u + 16u + own_output];
                let x0 = xs[k * ROW_VECTORS + own_row];
                let x1 = xs[k * ROW_VECTORS + ROW_VECTORS / 2u + own_row];
                chains[0] = fma(w0, vec4<f32>(x0.x), chains[0]);
                chains[1] = fma(w1, vec4<f32>(x0.x), chains[1]);
                chains[2] = fma(w0, vec4<f32>(x0.y), chains[2]);
                chains[3] = fma(w1, vec4<f32>(x0.y), chains[3]);
                chains[4] = fma(w0, vec4<f32>(x0.z), chains[4]);
                chains[5] = fma(w1, vec4<f32>(x0.z), chains[5]);
                chains[6] = fma(w0, vec4<f32>(x0.w), chains[6]);
                chains[7] = fma(w1, vec4<f32>(x0.w), chains[7]);
                chains[8] = fma(w0, vec4<f32>(x1.x), chains[8]);
                chains[9] = fma(w1, vec4<f32>(x1.x), chains[9]);
                chains[10] = fma(w0, vec4<f32>(x1.y), chains[10]);
                chains[11] = fma(w1, vec4<f32>(x1.y), chains[11]);
                chains[12] = fma(w0, vec4<f32>(x1.z), chains[12]);
                chains[13] = fma(w1, vec4<f32>(x1.z), chains[13]);
                chains[14] = fma(w0, vec4<f32>(x1.w), chains[14]);
                chains[15] = fma(w1, vec4<f32>(x1.w), chains[15]);
            }
            workgroupBarrier();
        }
        for (var i = 0u; i < 16u; i++) {
            sums[i] = sums[i] + chains[i];
        }
    }
    for (var i = 0u; i < 8u; i++) {
        let row = own_row * 4u + (i & 3u) + (i >> 2u) * (TILE_ROWS / 2u);
        let output = first_output + own_output * 4u;
        if (row < count && output < p.outputs) {
            finish(out_rows[row], output, sums[2u * i], ends_of(out_rows[row], expert, output));
        }
        if (row < count && output + 64u < p.outputs) {
            let ends = ends_of(out_rows[row], expert, output + 64u);
            finish(out_rows[row], output + 64u, sums[2u * i + 1u], ends);
        }
    }
}
