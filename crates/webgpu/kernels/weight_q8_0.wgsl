#include "weights.wgsl"
struct Block { low: vec4<u32>, high: vec4<u32>, scale: f32 }

fn block_at(weights: Weights, row: u32, block: u32) -> Block {
    let at = row + block * 2u;
    return Block(matrix[at], matrix[at + 1u], half_value(block_scale(weights, row, block)));
}

fn quad(block: Block, i: u32) -> vec4<f32> {
    let word = bitcast<i32>(select(block.low, block.high, i > 3u)[i & 3u]);
    let codes = (vec4<i32>(word) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u);
    return block.scale * vec4<f32>(codes);
}
