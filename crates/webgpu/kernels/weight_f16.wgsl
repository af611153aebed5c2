#include "weights.wgsl"
struct Block { at: u32 }

fn block_at(weights: Weights, row: u32, block: u32) -> Block {
    return Block(row + block * 4u);
}

fn quad(block: Block, i: u32) -> vec4<f32> {
    let words = matrix[block.at + (i >> 1u)];
    let pair = select(words.xy, words.zw, (i & 1u) == 1u);
    return vec4<f32>(unpack2x16float(pair.x), unpack2x16float(pair.y));
}
