// Codes of six bits, of which 32 is zero, with a scale for each half of the columns.
const HALVES: bool = true;

// The high bits of a vector of codes, a column's two beside its neighbour's in every byte.
fn high_codes(more: vec4<u32>) -> vec4<u32> {
    let pairs = vec4<u32>(more.x & 0xffffu, more.x >> 16u, more.y & 0xffffu, more.y >> 16u);
    let halves = (pairs | (pairs << vec4<u32>(8u))) & vec4<u32>(0x00ff00ffu);
    return (halves | (halves << vec4<u32>(4u))) & vec4<u32>(0x0f0f0f0fu);
}

fn even_codes(codes: vec4<u32>, more: vec4<u32>) -> vec4<u32> {
    return (codes & vec4<u32>(0x0f0f0f0fu)) | ((high_codes(more) & vec4<u32>(0x03030303u)) << vec4<u32>(4u));
}

fn odd_codes(codes: vec4<u32>, more: vec4<u32>) -> vec4<u32> {
    let low = (codes >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
    return low | ((high_codes(more) & vec4<u32>(0x0c0c0c0cu)) << vec4<u32>(2u));
}

fn value_of(first: i32, second: i32, scales: vec2<f32>, tail: vec4<u32>) -> f32 {
    let own = scales * bitcast<f32>(tail.x);
    let sum = bitcast<i32>(tail.y);
    let half = bitcast<i32>(tail.z);
    return fma(f32(first - 32 * half), own.x, f32(second - 32 * (sum - half)) * own.y);
}
