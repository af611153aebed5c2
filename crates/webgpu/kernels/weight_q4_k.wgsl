#include "weights.wgsl"
fn codes_at(row: u32, block: u32) -> vec4<u32> {
    return matrix[row + block];
}

fn more_at(row: u32, block: u32) -> vec4<u32> {
    return vec4<u32>(0u);
}

fn scales_at(parts: vec2<u32>, row: u32, block: u32) -> vec2<f32> {
    let steps = block_scale(parts, row, block);
    let scales = super_scales(parts, row, block) * vec2<f32>(f32(steps & 0xffu), f32(steps >> 8u));
    return vec2<f32>(scales.x, -scales.y);
}

// The product is exact, so that it does not matter whether it is rounded before the sum.
fn quad(codes: vec4<u32>, more: vec4<u32>, scales: vec2<f32>, i: u32) -> vec4<f32> {
    return fma(vec4<f32>(nibbles(codes, i)), vec4<f32>(scales.x), vec4<f32>(scales.y));
}
