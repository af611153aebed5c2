#include "weights.wgsl"
fn codes_at(row: u32, block: u32) -> vec4<u32> {
    return matrix[row + block];
}

fn more_at(row: u32, block: u32) -> vec4<u32> {
    return vec4<u32>(0u);
}

fn scales_at(parts: vec2<u32>, row: u32, block: u32) -> vec2<f32> {
    return vec2<f32>(half_value(block_scale(parts, row, block)), 0.0);
}

// The sixteen steps, four signed bytes a word.
fn iq4_step(code: u32) -> f32 {
    let words = vec4<u32>(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
    let word = bitcast<i32>(words[code >> 2u]);
    return f32((word << ((3u - (code & 3u)) * 8u)) >> 24u);
}

fn quad(codes: vec4<u32>, more: vec4<u32>, scales: vec2<f32>, i: u32) -> vec4<f32> {
    let own = nibbles(codes, i);
    return scales.x * vec4<f32>(iq4_step(own.x), iq4_step(own.y), iq4_step(own.z), iq4_step(own.w));
}
