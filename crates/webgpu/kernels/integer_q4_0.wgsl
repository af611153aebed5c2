// Codes from 0 on, of which 8 is zero.
const HALVES: bool = false;

fn even_codes(codes: vec4<u32>, more: vec4<u32>) -> vec4<u32> {
    return codes & vec4<u32>(0x0f0f0f0fu);
}

fn odd_codes(codes: vec4<u32>, more: vec4<u32>) -> vec4<u32> {
    return (codes >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
}

fn value_of(first: i32, second: i32, scales: vec2<f32>, tail: vec4<u32>) -> f32 {
    return f32(first + second - 8 * bitcast<i32>(tail.y)) * (scales.x * bitcast<f32>(tail.x));
}
