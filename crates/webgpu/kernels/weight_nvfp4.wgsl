#include "weights.wgsl"
struct Block { codes: vec4<u32>, scales: vec2<f32> }

// Half of a scale of eight bits: four of exponent, three of mantissa.
fn half_scale(byte: u32) -> f32 {
    let exponent = (byte >> 3u) & 15u;
    let mantissa = f32(byte & 7u);
    let normal = (8.0 + mantissa) * bitcast<f32>((exponent + 116u) << 23u);
    let value = select(normal, mantissa / 1024.0, exponent == 0u);
    return select(value, 0.0, byte == 0x7fu);
}

fn block_at(weights: Weights, row: u32, block: u32) -> Block {
    let bytes = block_scale(weights, row, block);
    return Block(matrix[row + block], vec2<f32>(half_scale(bytes & 0xffu), half_scale(bytes >> 8u)));
}

fn quad(block: Block, i: u32) -> vec4<f32> {
    return block.scales[i >> 2u] * e2m1_doubled(nibbles(block.codes, i));
}
