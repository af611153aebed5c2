// What products of few rows and of many share: the row of x and the place of y for every row of a tile, and what is done
// to a product. Both kernels compute a value in the same steps: a block of 32 columns is a chain of fma from zero in
// the order of columns; the sums of blocks are added in order; then comes the row's factor.
//
// With experts a tile of rows is one (token, expert) pair, or, sorted (moe_sort.wgsl), pairs of one expert.
// Constants: EXPERTS (0, 1), EPILOGUE (0 none, 1 relu2, 2 residual), TILE_ROWS.
#include "common.wgsl"
#include "weight_$WEIGHT.wgsl"
#include "fours.wgsl"

// Expert and number of rows of the tile.
var<workgroup> picked: vec2<u32>;
// Word of every row's first value, and row of its output.
var<workgroup> row_words: array<u32, TILE_ROWS>;
var<workgroup> out_rows: array<u32, TILE_ROWS>;

fn pick(index: u32, thread: u32) {
    if (thread >= TILE_ROWS) {
        return;
    }
    let pairs = row_count(p.out);
    if (EXPERTS == 0u) {
        let first = index * TILE_ROWS;
        let row = min(first + thread, pairs - 1u);
        row_words[thread] = word_at(p.x, row, 0u);
        out_rows[thread] = row;
        if (thread == 0u) {
            picked = vec2<u32>(0u, select(0u, min(pairs - first, TILE_ROWS), first < pairs));
        }
        return;
    }
    var expert = 0u;
    var count = 0u;
    var pair = 0u;
    if (p.sorted == 0u) {
        if (index < pairs) {
            pair = index;
            count = 1u;
            expert = word(word_at(p.ids, index / p.top_k, index % p.top_k));
        }
    } else if (index < word(p.tiles)) {
        let at = p.tiles + 4u + index * 4u;
        expert = word(at);
        count = word(at + 2u);
        pair = word(p.order + word(at + 1u) + min(thread, count - 1u));
    }
    let x_row = select(pair / p.top_k, pair, p.x_per_pair == 1u);
    row_words[thread] = word_at(p.x, x_row, 0u);
    out_rows[thread] = pair;
    if (thread == 0u) {
        picked = vec2<u32>(expert, count);
    }
}

// What a product of four outputs ends with: factors of their rows, and the residual's values.
struct Ends { factors: vec4<f32>, residual: vec4<f32> }

fn ends_of(row: u32, expert: u32, output: u32) -> Ends {
    var ends = Ends(vec4<f32>(0.0), vec4<f32>(0.0));
    ends.factors = factors_of(p.weights, expert, output);
    if (EPILOGUE == 2u) {
        let at = word_at(p.residual, row, p.first + output);
        if (output + 4u <= p.weights.outputs) {
            ends.residual = bitcast<vec4<f32>>(four_words(at));
        } else {
            let left = p.weights.outputs - output;
            ends.residual = values_at(at, left);
        }
    }
    return ends;
}

// Stores four outputs of a row.
fn finish(row: u32, output: u32, sums: vec4<f32>, ends: Ends) {
    var values = sums * ends.factors;
    if (EPILOGUE == 1u) {
        let positive = max(values, vec4<f32>(0.0));
        values = positive * positive;
    } else if (EPILOGUE == 2u) {
        values = fma(sums, ends.factors, ends.residual);
    }
    put_values(word_at(p.out, row, p.first + output), values, p.weights.outputs - output);
}
