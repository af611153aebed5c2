#include "weights.wgsl"
struct Block { codes: vec4<u32>, scale: f32 }

fn block_at(weights: Weights, row: u32, block: u32) -> Block {
    return Block(matrix[row + block], half_value(block_scale(weights, row, block)));
}

// The sixteen steps, four signed bytes a word.
fn iq4_step(code: u32) -> f32 {
    let words = vec4<u32>(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
    let word = bitcast<i32>(words[code >> 2u]);
    return f32((word << ((3u - (code & 3u)) * 8u)) >> 24u);
}

fn quad(block: Block, i: u32) -> vec4<f32> {
    let codes = nibbles(block.codes, i);
    return block.scale * vec4<f32>(iq4_step(codes.x), iq4_step(codes.y), iq4_step(codes.z), iq4_step(codes.w));
}
