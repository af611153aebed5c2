// Codes from 0 on, and what is added to all of a block.
const HALVES: bool = false;

fn even_codes(codes: vec4<u32>, more: vec4<u32>) -> vec4<u32> {
    return codes & vec4<u32>(0x0f0f0f0fu);
}

fn odd_codes(codes: vec4<u32>, more: vec4<u32>) -> vec4<u32> {
    return (codes >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
}

fn value_of(first: i32, second: i32, scales: vec2<f32>, tail: vec4<u32>) -> f32 {
    let own = scales * bitcast<f32>(tail.x);
    return fma(f32(first + second), own.x, f32(bitcast<i32>(tail.y)) * own.y);
}
