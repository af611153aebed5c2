// Where the parts of a shard of a weight are: codes of blocks of 32 columns, row by row; scales, 16 bits a block; what
// scales are multiplied with, a word for eight blocks; a factor for every row.
//
// A file weight_TYPE.wgsl gives `Block`, `block_at(row, block)` and `quad(block, i)`: values 4i .. 4i + 4 of a block.

fn matrix_word(at: u32) -> u32 {
    return matrix[at >> 2u][at & 3u];
}

fn block_scale(row: u32, block: u32) -> u32 {
    let word = matrix_word(p.scales + row * p.scale_words + (block >> 1u));
    return (word >> ((block & 1u) * 16u)) & 0xffffu;
}

fn super_scales(row: u32, block: u32) -> vec2<f32> {
    return unpack2x16float(matrix_word(p.supers + row * p.super_words + (block >> 3u)));
}

fn half_value(bits: u32) -> f32 {
    return unpack2x16float(bits).x;
}

fn row_factor(row: u32) -> f32 {
    return bitcast<f32>(matrix_word(p.factors + row));
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
