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
        let a = quad(block_at(p.weights, row_of(p.weights, expert, output), block), half * 4u + q);
        let b = quad(block_at(p.weights, row_of(p.weights, expert, output + 1u), block), half * 4u + q);
        let c = quad(block_at(p.weights, row_of(p.weights, expert, output + 2u), block), half * 4u + q);
        let d = quad(block_at(p.weights, row_of(p.weights, expert, output + 3u), block), half * 4u + q);
        let at = q * 4u * 32u + four;
        ws[at] = vec4<f32>(a.x, b.x, c.x, d.x);
        ws[at + 32u] = vec4<f32>(a.y, b.y, c.y, d.y);
        ws[at + 64u] = vec4<f32>(a.z, b.z, c.z, d.z);
        ws[at + 96u] = vec4<f32>(a.w, b.w, c.w, d.w);
    }
}

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

// Stores eight outputs of a row of the tile.
fn finish_row(row: u32, count: u32, expert: u32, output: u32, low: vec4<f32>, high: vec4<f32>) {
    if (row < count && output < p.weights.outputs) {
        finish(out_rows[row], output, low, ends_of(out_rows[row], expert, output));
    }
    if (row < count && output + 64u < p.weights.outputs) {
        finish(out_rows[row], output + 64u, high, ends_of(out_rows[row], expert, output + 64u));
    }
}

@compute @workgroup_size(THREADS)
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
            stage_weights(expert, first_output, block, half, thread);
            stage_rows(count, block * 32u + half * COLUMNS, thread);
            workgroupBarrier();
            for (var k = 0u; k < COLUMNS; k++) {
                let w0 = ws[k * 32u + own_output];
                let w1 = ws[k * 32u + 16u + own_output];
                let x0 = xs[k * ROW_VECTORS + own_row];
                let x1 = xs[k * ROW_VECTORS + ROW_VECTORS / 2u + own_row];
                chain0 = fma(w0, vec4<f32>(x0.x), chain0);
                chain1 = fma(w1, vec4<f32>(x0.x), chain1);
                chain2 = fma(w0, vec4<f32>(x0.y), chain2);
                chain3 = fma(w1, vec4<f32>(x0.y), chain3);
                chain4 = fma(w0, vec4<f32>(x0.z), chain4);
                chain5 = fma(w1, vec4<f32>(x0.z), chain5);
                chain6 = fma(w0, vec4<f32>(x0.w), chain6);
                chain7 = fma(w1, vec4<f32>(x0.w), chain7);
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
    finish_row(far, count, expert, output, sum8, sum9);
    finish_row(far + 1u, count, expert, output, sum10, sum11);
    finish_row(far + 2u, count, expert, output, sum12, sum13);
    finish_row(far + 3u, count, expert, output, sum14, sum15);
}
