#include "weights.wgsl"
fn codes_at(row: u32, block: u32) -> vec4<u32> {
    return matrix[row + block * 2u];
}

fn more_at(row: u32, block: u32) -> vec4<u32> {
    return matrix[row + block * 2u + 1u];
}

fn scales_at(parts: vec2<u32>, row: u32, block: u32) -> vec2<f32> {
    return vec2<f32>(half_value(block_scale(parts, row, block)), 0.0);
}

// Codes of even columns are in one vector, those of odd ones in the other.
fn quad(codes: vec4<u32>, more: vec4<u32>, scales: vec2<f32>, i: u32) -> vec4<f32> {
    let even = bitcast<i32>(codes[i >> 1u] >> ((i & 1u) * 16u));
    let odd = bitcast<i32>(more[i >> 1u] >> ((i & 1u) * 16u));
    let values = (vec4<i32>(even, odd, even, odd) << vec4<u32>(24u, 24u, 16u, 16u)) >> vec4<u32>(24u);
    return scales.x * vec4<f32>(values);
}
