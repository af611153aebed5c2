#include "weights.wgsl"
struct Block { codes: vec4<u32>, scale: f32 }

// Half of the block's power of two; the two smallest are subnormal.
fn block_at(weights: Weights, row: u32, block: u32) -> Block {
    let e = block_scale(weights, row, block);
    let bits = select((e - 1u) << 23u, 0x00200000u << e, e < 2u);
    return Block(matrix[row + block], bitcast<f32>(bits));
}

fn quad(block: Block, i: u32) -> vec4<f32> {
    return block.scale * e2m1_doubled(nibbles(block.codes, i));
}
