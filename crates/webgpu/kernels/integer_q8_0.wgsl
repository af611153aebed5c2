// Signed codes, in the order of those they are multiplied with.
const HALVES: bool = false;

fn even_codes(codes: vec4<u32>, more: vec4<u32>) -> vec4<u32> {
    return codes;
}

fn odd_codes(codes: vec4<u32>, more: vec4<u32>) -> vec4<u32> {
    return more;
}

fn value_of(first: i32, second: i32, scales: vec2<f32>, tail: vec4<u32>) -> f32 {
    return f32(first + second) * (scales.x * bitcast<f32>(tail.x));
}
