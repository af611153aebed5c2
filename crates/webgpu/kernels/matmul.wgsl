// matmul and moe_matmul: y[o] = Σ_i W[o,i]·x[i] for every row, then the epilogue.
//
// A workgroup has sixteen outputs and eight rows; eight threads share an output, a block of 32 columns each. A thread
// adds its blocks in order, then the eight sums are added in order: that order is the same whatever the rows. Rows
// beyond the first four cost nothing where they are not there. A shard has some of the outputs, or some of the experts.
//
// With experts a tile of rows is one (token, expert) pair, or, sorted (moe_sort.wgsl), up to eight pairs of one expert.
// Constants: EXPERTS (0, 1), EPILOGUE (0 none, 1 relu2, 2 residual).
#include "common.wgsl"
#include "weight_$WEIGHT.wgsl"

const OUTPUTS: u32 = 16u;
const LANES: u32 = 8u;
const TILE_ROWS: u32 = 8u;
const THREADS: u32 = 128u;
const TILE_COLS: u32 = 256u;

// Values of 256 columns, by column: rows 0 to 3, rows 4 to 7. Then the threads' sums.
var<workgroup> tile: array<vec4<f32>, 512>;
// Word of every row's first value, row of its output, and expert, rows of the tile.
var<workgroup> row_words: array<u32, 8>;
var<workgroup> out_rows: array<u32, 8>;
var<workgroup> picked: vec2<u32>;

fn pick(index: u32, thread: u32) {
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
            expert = arena[word_at(p.ids, index / p.top_k, index % p.top_k)];
        }
    } else if (index < arena[p.tiles]) {
        let at = p.tiles + 4u + index * 4u;
        expert = arena[at];
        count = arena[at + 2u];
        pair = arena[p.order + arena[at + 1u] + min(thread, count - 1u)];
    }
    let x_row = select(pair / p.top_k, pair, p.x_per_pair == 1u);
    row_words[thread] = word_at(p.x, x_row, 0u);
    out_rows[thread] = pair;
    if (thread == 0u) {
        picked = vec2<u32>(expert, count);
    }
}

fn finish(row: u32, output: u32, product: f32) {
    var y = product;
    if (EPILOGUE == 1u) {
        let positive = max(y, 0.0);
        y = positive * positive;
    } else if (EPILOGUE == 2u) {
        y = y + load(p.residual, row, output);
    }
    store(p.out, row, output, y);
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    if (thread < TILE_ROWS) {
        pick(group.z * GRID_ROWS + group.y, thread);
    }
    let chosen = workgroupUniformLoad(&picked);
    let count = chosen.y;
    let expert = chosen.x - p.first_expert;
    if (count == 0u || expert >= p.experts) {
        return;
    }
    let lane = thread % LANES;
    let local = group.x * OUTPUTS + thread / LANES;
    let weight_row = expert * p.outputs + local;
    var low = vec4<f32>(0.0);
    var high = vec4<f32>(0.0);
    for (var first = 0u; first < p.blocks; first += LANES) {
        for (var c = thread; c < TILE_COLS; c += THREADS) {
            let col = first * 32u + c;
            var values = vec4<f32>(0.0);
            var more = vec4<f32>(0.0);
            if (col < p.cols) {
                for (var i = 0u; i < min(count, 4u); i++) {
                    values[i] = bitcast<f32>(arena[row_words[i] + col]);
                }
                for (var i = 4u; i < count; i++) {
                    more[i - 4u] = bitcast<f32>(arena[row_words[i] + col]);
                }
            }
            tile[2u * c] = values;
            tile[2u * c + 1u] = more;
        }
        workgroupBarrier();
        if (local < p.outputs && first + lane < p.blocks) {
            let block = block_at(weight_row, first + lane);
            let at = lane * 64u;
            if (count > 4u) {
                for (var i = 0u; i < 8u; i++) {
                    let w = quad(block, i);
                    let c = at + i * 8u;
                    low = fma(vec4<f32>(w.x), tile[c], low);
                    high = fma(vec4<f32>(w.x), tile[c + 1u], high);
                    low = fma(vec4<f32>(w.y), tile[c + 2u], low);
                    high = fma(vec4<f32>(w.y), tile[c + 3u], high);
                    low = fma(vec4<f32>(w.z), tile[c + 4u], low);
                    high = fma(vec4<f32>(w.z), tile[c + 5u], high);
                    low = fma(vec4<f32>(w.w), tile[c + 6u], low);
                    high = fma(vec4<f32>(w.w), tile[c + 7u], high);
                }
            } else {
                for (var i = 0u; i < 8u; i++) {
                    let w = quad(block, i);
                    let c = at + i * 8u;
                    low = fma(vec4<f32>(w.x), tile[c], low);
                    low = fma(vec4<f32>(w.y), tile[c + 2u], low);
                    low = fma(vec4<f32>(w.z), tile[c + 4u], low);
                    low = fma(vec4<f32>(w.w), tile[c + 6u], low);
                }
            }
        }
        workgroupBarrier();
    }
    tile[2u * thread] = low;
    tile[2u * thread + 1u] = high;
    workgroupBarrier();
    let output = group.x * OUTPUTS + thread / TILE_ROWS;
    let row = thread % TILE_ROWS;
    if (row >= count || output >= p.outputs) {
        return;
    }
    let factor = row_factor(expert * p.outputs + output);
    let first_sum = thread / TILE_ROWS * LANES;
    var sum = 0.0;
    for (var i = 0u; i < LANES; i++) {
        sum = fma(tile[2u * (first_sum + i) + row / 4u][row % 4u], factor, sum);
    }
    finish(out_rows[row], p.first + output, sum);
}
