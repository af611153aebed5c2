#include "weights.wgsl"
struct Block { low: vec4<u32>, high: vec2<u32>, scales: vec2<f32> }

// Twelve words a block pair: the low four bits of 32 codes, and the high two. Blocks take six words; two of them share
// three groups of four.
fn block_at(weights: Weights, row: u32, block: u32) -> Block {
    let at = block * 6u;
    let even = (at & 3u) == 0u;
    let first = matrix[row + (at >> 2u)];
    let second = matrix[row + (at >> 2u) + 1u];
    let low = select(vec4<u32>(first.zw, second.xy), first, even);
    let high = select(second.zw, second.xy, even);
    let steps = bitcast<i32>(block_scale(weights, row, block));
    let scale = super_scales(weights, row, block).x;
    return Block(low, high, scale * vec2<f32>(f32((steps << 24u) >> 24u), f32((steps << 16u) >> 24u)));
}

fn quad(block: Block, i: u32) -> vec4<f32> {
    let bits = block.high[i >> 2u] >> ((i & 3u) * 8u);
    let high = (vec4<u32>(bits) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(3u);
    let codes = nibbles(block.low, i) | (high << vec4<u32>(4u));
    return block.scales[i >> 2u] * (vec4<f32>(codes) - 32.0);
}
