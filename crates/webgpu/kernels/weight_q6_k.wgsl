#include "weights.wgsl"
// Six words a block: the low four bits of 32 codes, and the high two. Two blocks share three vectors.
fn codes_at(row: u32, block: u32) -> vec4<u32> {
    let at = row + block * 6u / 4u;
    let first = matrix[at];
    return select(vec4<u32>(first.zw, matrix[at + 1u].xy), first, (block & 1u) == 0u);
}

fn more_at(row: u32, block: u32) -> vec4<u32> {
    let second = matrix[row + block * 6u / 4u + 1u];
    return vec4<u32>(select(second.zw, second.xy, (block & 1u) == 0u), 0u, 0u);
}

fn scales_at(parts: vec2<u32>, row: u32, block: u32) -> vec2<f32> {
    let steps = bitcast<i32>(block_scale(parts, row, block));
    return super_scales(parts, row, block).x * vec2<f32>(f32((steps << 24u) >> 24u), f32((steps << 16u) >> 24u));
}

fn quad(codes: vec4<u32>, more: vec4<u32>, scales: vec2<f32>, i: u32) -> vec4<f32> {
    let bits = more[i >> 2u] >> ((i & 3u) * 8u);
    let high = (vec4<u32>(bits) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(3u);
    let values = nibbles(codes, i) | (high << vec4<u32>(4u));
    return scales[i >> 2u] * (vec4<f32>(values) - 32.0);
}
