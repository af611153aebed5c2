#include "weights.wgsl"
struct Block { codes: vec4<u32>, scale: f32 }

fn block_at(row: u32, block: u32) -> Block {
    return Block(matrix[row * p.blocks + block], half_value(block_scale(row, block)));
}

fn quad(block: Block, i: u32) -> vec4<f32> {
    return block.scale * (vec4<f32>(nibbles(block.codes, i)) - 8.0);
}
