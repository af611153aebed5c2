#include "weights.wgsl"
fn codes_at(row: u32, block: u32) -> vec4<u32> {
    return matrix[row + block];
}

fn more_at(row: u32, block: u32) -> vec4<u32> {
    return vec4<u32>(0u);
}

// Half of the block's power of two; the two smallest are subnormal.
fn scales_at(parts: vec2<u32>, row: u32, block: u32) -> vec2<f32> {
    let e = block_scale(parts, row, block);
    let bits = select((e - 1u) << 23u, 0x00200000u << e, e < 2u);
    return vec2<f32>(bitcast<f32>(bits), 0.0);
}

fn quad(codes: vec4<u32>, more: vec4<u32>, scales: vec2<f32>, i: u32) -> vec4<f32> {
    return scales.x * e2m1_doubled(nibbles(codes, i));
}
