#include "weights.wgsl"
struct Block { at: u32 }

fn block_at(weights: Weights, row: u32, block: u32) -> Block {
    return Block(row + block * 4u);
}

fn quad(block: Block, i: u32) -> vec4<f32> {
    let words = matrix[block.at + (i >> 1u)];
    let pair = select(words.xy, words.zw, (i & 1u) == 1u);
    let bits = vec4<u32>(pair.x << 16u, pair.x & 0xffff0000u, pair.y << 16u, pair.y & 0xffff0000u);
    return bitcast<vec4<f32>>(bits);
}
