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

// Codes become numbers without a conversion: bits of a mantissa, from 8, 12 or 16 on, below a power of two. What that adds
// times the scale has at most 24 digits, and so has a code times the scale: all of this is exact.
fn quad(codes: vec4<u32>, more: vec4<u32>, scales: vec2<f32>, i: u32) -> vec4<f32> {
    let word = codes[i >> 1u];
    if ((i & 1u) == 0u) {
        let bits = (vec4<u32>(word << 8u, word << 8u, word, word) & vec4<u32>(0xf00u, 0xf000u, 0xf00u, 0xf000u))
            | vec4<u32>(0x47000000u, 0x45000000u, 0x47000000u, 0x45000000u);
        let added = scales.x * vec4<f32>(-32776.0, -2056.0, -32776.0, -2056.0);
        return fma(bitcast<vec4<f32>>(bits), vec4<f32>(scales.x), added);
    }
    let high = word >> 12u;
    let bits = (vec4<u32>(word, high, high, high) & vec4<u32>(0xf0000u, 0xf00u, 0xf000u, 0xf0000u))
        | vec4<u32>(0x43000000u, 0x47000000u, 0x45000000u, 0x43000000u);
    let added = scales.x * vec4<f32>(-136.0, -32776.0, -2056.0, -136.0);
    return fma(bitcast<vec4<f32>>(bits), vec4<f32>(scales.x), added);
}
