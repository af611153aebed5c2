// Rows of a shard of a weight, one after the other in whole vectors of four words: codes of blocks of 32 columns; scales,
// 16 bits a block; what scales are multiplied with, a word for eight blocks; the row's factor.
//
// A file weight_TYPE.wgsl gives what a block of the row that begins at a vector has: `codes_at`, `more_at` (codes beyond four
// words) and `scales_at`; and `quad` of those and i: values 4i .. 4i + 4. No structs: compilers may keep those in memory.
struct Weights {
    // The vector at which the first row begins, and vectors from one row to the next.
    first: u32,
    stride: u32,
    blocks: u32,
    // Words from the beginning of a row to its parts.
    scales: u32,
    supers: u32,
    factor: u32,
    // Rows of an expert, and experts.
    outputs: u32,
    experts: u32,
}

// The vectors at which the rows of four outputs begin.
fn rows_of(weights: Weights, expert: u32, output: u32) -> vec4<u32> {
    let outputs = min(vec4<u32>(output) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(weights.outputs - 1u));
    return weights.first + (expert * weights.outputs + outputs) * weights.stride;
}

fn parts_of(weights: Weights) -> vec2<u32> {
    return vec2<u32>(weights.scales, weights.supers);
}

// The vector at which the row of an output begins; the expert's last one's beyond it.
fn row_of(weights: Weights, expert: u32, output: u32) -> u32 {
    return weights.first + (expert * weights.outputs + min(output, weights.outputs - 1u)) * weights.stride;
}

fn matrix_word(at: u32) -> u32 {
    return matrix[at >> 2u][at & 3u];
}

// `parts` are the words from the beginning of a row to scales, and to what those are multiplied with.
fn block_scale(parts: vec2<u32>, row: u32, block: u32) -> u32 {
    let word = matrix_word(row * 4u + parts.x + (block >> 1u));
    return (word >> ((block & 1u) * 16u)) & 0xffffu;
}

fn super_scales(parts: vec2<u32>, row: u32, block: u32) -> vec2<f32> {
    return unpack2x16float(matrix_word(row * 4u + parts.y + (block >> 3u)));
}

fn half_value(bits: u32) -> f32 {
    return unpack2x16float(bits).x;
}

fn row_factor(weights: Weights, row: u32) -> f32 {
    return bitcast<f32>(matrix_word(row * 4u + weights.factor));
}

fn factors_of(weights: Weights, expert: u32, output: u32) -> vec4<f32> {
    return vec4<f32>(
        row_factor(weights, row_of(weights, expert, output)),
        row_factor(weights, row_of(weights, expert, output + 1u)),
        row_factor(weights, row_of(weights, expert, output + 2u)),
        row_factor(weights, row_of(weights, expert, output + 3u)),
    );
}

fn nibbles(codes: vec4<u32>, i: u32) -> vec4<u32> {
    let word = codes[i >> 1u] >> ((i & 1u) * 16u);
    return (vec4<u32>(word) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u);
}

fn e2m1_doubled(code: vec4<u32>) -> vec4<f32> {
    let size = code & vec4<u32>(7u);
    // 0 1 2 3 4 6 8 12
    let value = vec4<f32>((vec4<u32>(0xc8643210u) >> (size * 4u)) & vec4<u32>(15u));
    return select(value, -value, code > vec4<u32>(7u));
}
