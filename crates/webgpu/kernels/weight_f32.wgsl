#include "weights.wgsl"
// Only where the block begins: values are read as they are used.
fn codes_at(row: u32, block: u32) -> vec4<u32> {
    return vec4<u32>(row + block * 8u, 0u, 0u, 0u);
}

fn more_at(row: u32, block: u32) -> vec4<u32> {
    return vec4<u32>(0u);
}

fn scales_at(parts: vec2<u32>, row: u32, block: u32) -> vec2<f32> {
    return vec2<f32>(0.0);
}

fn quad(codes: vec4<u32>, more: vec4<u32>, scales: vec2<f32>, i: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(matrix[codes.x + i]);
}
