#include "weights.wgsl"
struct Block { codes: vec4<u32>, scale: f32, lowest: f32 }

fn block_at(weights: Weights, row: u32, block: u32) -> Block {
    let steps = block_scale(weights, row, block);
    let scales = super_scales(weights, row, block) * vec2<f32>(f32(steps & 0xffu), f32(steps >> 8u));
    return Block(matrix[row + block], scales.x, -scales.y);
}

// The product is exact, so that it does not matter whether it is rounded before the sum.
fn quad(block: Block, i: u32) -> vec4<f32> {
    return fma(vec4<f32>(nibbles(block.codes, i)), vec4<f32>(block.scale), vec4<f32>(block.lowest));
}
