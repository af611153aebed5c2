#include "weights.wgsl"
fn codes_at(row: u32, block: u32) -> vec4<u32> {
    return matrix[row + block];
}

fn more_at(row: u32, block: u32) -> vec4<u32> {
    return vec4<u32>(0u);
}

// Half of a scale of eight bits: four of exponent, three of mantissa.
fn half_scale(byte: u32) -> f32 {
    let exponent = (byte >> 3u) & 15u;
    let mantissa = f32(byte & 7u);
    let normal = (8.0 + mantissa) * bitcast<f32>((exponent + 116u) << 23u);
    let value = select(normal, mantissa / 1024.0, exponent == 0u);
    return select(value, 0.0, byte == 0x7fu);
}

fn scales_at(parts: vec2<u32>, row: u32, block: u32) -> vec2<f32> {
    let bytes = block_scale(parts, row, block);
    return vec2<f32>(half_scale(bytes & 0xffu), half_scale(bytes >> 8u));
}

fn quad(codes: vec4<u32>, more: vec4<u32>, scales: vec2<f32>, i: u32) -> vec4<f32> {
    return scales[i >> 2u] * e2m1_doubled(nibbles(codes, i));
}
