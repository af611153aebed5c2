// matmul and moe_matmul for many rows: the same as matmul.wgsl, to the bit.
//
// A workgroup has 128 outputs and TILE_ROWS rows, a thread eight outputs of four or eight rows. Sixteen columns at a time lie
// in workgroup memory by column; the chains of a block go on over two of those, and join the sums at its end. What the next
// block needs is read while the second half of a block is multiplied.
// Constants: those of product.wgsl; TILE_ROWS is 32 or 64.
#include "product.wgsl"

const THREADS: u32 = 128u;
const COLUMNS: u32 = 16u;
const OUTPUTS: u32 = 128u;
const ROW_VECTORS: u32 = TILE_ROWS / 4u;
const HAS_FAR_ROWS: bool = TILE_ROWS > 32u;

// By column: outputs, rows.
var<workgroup> ws: array<vec4<f32>, 512>;
var<workgroup> xs: array<vec4<f32>, X_VECTORS>;

fn x_or_zero(row: u32, col: u32, count: u32) -> vec4<f32> {
    if (row >= count) {
        return vec4<f32>(0.0);
    }
    let at = row_words[row] + col;
    if (col + 4u <= p.cols) {
        return bitcast<vec4<f32>>(four_words(at));
    }
    return values_at(at, p.cols - min(col, p.cols));
}

// Stores eight outputs of a row of the tile.
fn finish_row(row: u32, count: u32, expert: u32, output: u32, low: vec4<f32>, high: vec4<f32>) {
    if (row < count && output < p.weights.outputs) {
        finish(out_rows[row], output, low, ends_of(out_rows[row], expert, output));
    }
    if (row < count && output + 64u < p.weights.outputs) {
        finish(out_rows[row], output + 64u, high, ends_of(out_rows[row], expert, output + 64u));
    }
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    pick(group.z * GRID_ROWS + group.y, thread);
    let chosen = workgroupUniformLoad(&picked);
    let count = chosen.y;
    let expert = chosen.x - p.first_expert;
    if (count == 0u || expert >= p.weights.experts) {
        return;
    }
    let first_output = group.x * OUTPUTS;
    // Outputs 4 · own_output and 64 beyond, rows 4 · own_row and half a tile beyond; fields of their own, because arrays
    // might not be kept in registers.
    let own_output = thread % 16u;
    let own_row = thread / 16u;
    let zero = vec4<f32>(0.0);
    var sum0 = zero;
    var sum1 = zero;
    var sum2 = zero;
    var sum3 = zero;
    var sum4 = zero;
    var sum5 = zero;
    var sum6 = zero;
    var sum7 = zero;
    var sum8 = zero;
    var sum9 = zero;
    var sum10 = zero;
    var sum11 = zero;
    var sum12 = zero;
    var sum13 = zero;
    var sum14 = zero;
    var sum15 = zero;
    // What the thread stages of a block: four outputs' codes, of which it unpacks four columns of each half, and four
    // columns of four rows. Threads without a place among the rows read none.
    let quarter = thread / 32u;
    let rows = rows_of(p.weights, expert, first_output + thread % 32u * 4u);
    let parts = parts_of(p.weights);
    let staged_row = thread % ROW_VECTORS * 4u;
    let staged_column = thread / ROW_VECTORS;
    let staged_count = select(0u, count, staged_column < 8u);
    let w_place = quarter * 4u * 32u + thread % 32u;
    let x_place = staged_column % 4u * 4u * ROW_VECTORS + thread % ROW_VECTORS;
#repeat o 4
    var codes$o = codes_at(rows[$o], 0u);
    var more$o = more_at(rows[$o], 0u);
    var scales$o = scales_at(parts, rows[$o], 0u);
    var staged$o = x_or_zero(staged_row + $ou, staged_column * 4u, staged_count);
#end
    for (var block = 0u; block < p.weights.blocks; block++) {
        var chain0 = zero;
        var chain1 = zero;
        var chain2 = zero;
        var chain3 = zero;
        var chain4 = zero;
        var chain5 = zero;
        var chain6 = zero;
        var chain7 = zero;
        var chain8 = zero;
        var chain9 = zero;
        var chain10 = zero;
        var chain11 = zero;
        var chain12 = zero;
        var chain13 = zero;
        var chain14 = zero;
        var chain15 = zero;
        for (var half = 0u; half < 2u; half++) {
            let q = half * 4u + quarter;
            let a = quad(codes0, more0, scales0, q);
            let b = quad(codes1, more1, scales1, q);
            let c = quad(codes2, more2, scales2, q);
            let d = quad(codes3, more3, scales3, q);
            ws[w_place] = vec4<f32>(a.x, b.x, c.x, d.x);
            ws[w_place + 32u] = vec4<f32>(a.y, b.y, c.y, d.y);
            ws[w_place + 64u] = vec4<f32>(a.z, b.z, c.z, d.z);
            ws[w_place + 96u] = vec4<f32>(a.w, b.w, c.w, d.w);
            if (staged_column / 4u == half) {
                xs[x_place] = vec4<f32>(staged0.x, staged1.x, staged2.x, staged3.x);
                xs[x_place + ROW_VECTORS] = vec4<f32>(staged0.y, staged1.y, staged2.y, staged3.y);
                xs[x_place + 2u * ROW_VECTORS] = vec4<f32>(staged0.z, staged1.z, staged2.z, staged3.z);
                xs[x_place + 3u * ROW_VECTORS] = vec4<f32>(staged0.w, staged1.w, staged2.w, staged3.w);
            }
            workgroupBarrier();
            if (half == 1u) {
                let ahead = min(block + 1u, p.weights.blocks - 1u);
#repeat o 4
                codes$o = codes_at(rows[$o], ahead);
                more$o = more_at(rows[$o], ahead);
                scales$o = scales_at(parts, rows[$o], ahead);
                staged$o = x_or_zero(staged_row + $ou, ahead * 32u + staged_column * 4u, staged_count);
#end
            }
            for (var k = 0u; k < COLUMNS; k++) {
                let w0 = ws[k * 32u + own_output];
                let w1 = ws[k * 32u + 16u + own_output];
                let x0 = xs[k * ROW_VECTORS + own_row];
                chain0 = fma(w0, vec4<f32>(x0.x), chain0);
                chain1 = fma(w1, vec4<f32>(x0.x), chain1);
                chain2 = fma(w0, vec4<f32>(x0.y), chain2);
                chain3 = fma(w1, vec4<f32>(x0.y), chain3);
                chain4 = fma(w0, vec4<f32>(x0.z), chain4);
                chain5 = fma(w1, vec4<f32>(x0.z), chain5);
                chain6 = fma(w0, vec4<f32>(x0.w), chain6);
                chain7 = fma(w1, vec4<f32>(x0.w), chain7);
                if (!HAS_FAR_ROWS) {
                    continue;
                }
                let x1 = xs[k * ROW_VECTORS + ROW_VECTORS / 2u + own_row];
                chain8 = fma(w0, vec4<f32>(x1.x), chain8);
                chain9 = fma(w1, vec4<f32>(x1.x), chain9);
                chain10 = fma(w0, vec4<f32>(x1.y), chain10);
                chain11 = fma(w1, vec4<f32>(x1.y), chain11);
                chain12 = fma(w0, vec4<f32>(x1.z), chain12);
                chain13 = fma(w1, vec4<f32>(x1.z), chain13);
                chain14 = fma(w0, vec4<f32>(x1.w), chain14);
                chain15 = fma(w1, vec4<f32>(x1.w), chain15);
            }
            workgroupBarrier();
        }
        sum0 = sum0 + chain0;
        sum1 = sum1 + chain1;
        sum2 = sum2 + chain2;
        sum3 = sum3 + chain3;
        sum4 = sum4 + chain4;
        sum5 = sum5 + chain5;
        sum6 = sum6 + chain6;
        sum7 = sum7 + chain7;
        sum8 = sum8 + chain8;
        sum9 = sum9 + chain9;
        sum10 = sum10 + chain10;
        sum11 = sum11 + chain11;
        sum12 = sum12 + chain12;
        sum13 = sum13 + chain13;
        sum14 = sum14 + chain14;
        sum15 = sum15 + chain15;
    }
    let output = first_output + own_output * 4u;
    let row = own_row * 4u;
    let far = row + TILE_ROWS / 2u;
    finish_row(row, count, expert, output, sum0, sum1);
    finish_row(row + 1u, count, expert, output, sum2, sum3);
    finish_row(row + 2u, count, expert, output, sum4, sum5);
    finish_row(row + 3u, count, expert, output, sum6, sum7);
    if (!HAS_FAR_ROWS) {
        return;
    }
    finish_row(far, count, expert, output, sum8, sum9);
    finish_row(far + 1u, count, expert, output, sum10, sum11);
    finish_row(far + 2u, count, expert, output, sum12, sum13);
    finish_row(far + 3u, count, expert, output, sum14, sum15);
}
