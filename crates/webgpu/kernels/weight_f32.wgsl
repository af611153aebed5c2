#include "weights.wgsl"
struct Block { at: u32 }

fn block_at(weights: Weights, row: u32, block: u32) -> Block {
    return Block(row + block * 8u);
}

fn quad(block: Block, i: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(matrix[block.at + i]);
}
