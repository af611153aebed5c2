// Blocks of 32 values as codes of eight bits and a scale, in the steps of src/activation.rs: integers but for two products, so
// that every device and every kernel gives the same bits.

// Codes of even and of odd columns; the scale's bits, the sum of all codes, that of the first sixteen, 0.
struct Rounded { even: vec4<u32>, odd: vec4<u32>, tail: vec4<u32> }

fn largest_of(values: vec4<f32>) -> u32 {
    let sizes = bitcast<vec4<u32>>(values) & vec4<u32>(0x7fffffffu);
    return max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
}

// The bits of a block's scale, which has five digits.
fn scale_of(largest: u32) -> u32 {
    if (largest >= 0x7f800000u) {
        return 0x7fc00000u;
    }
    if (largest < 0x0d800000u) {
        return 0u;
    }
    let scale = bitcast<f32>(largest) * 0.00787401574803149606;
    return (bitcast<u32>(scale) + 0x7ffffu) & 0xfff80000u;
}

// What values are multiplied with; 0 where the codes are.
fn inverse_of(scale: u32) -> f32 {
    if (scale == 0u || scale == 0x7fc00000u) {
        return 0.0;
    }
    let sixteenths = 16u + ((scale >> 19u) & 15u);
    let inverse = f32((0x10000000u + sixteenths / 2u) / sixteenths) * 5.9604644775390625e-8;
    return inverse * bitcast<f32>((254u - (scale >> 23u)) << 23u);
}

fn four_codes(values: vec4<f32>, inverse: f32) -> vec4<i32> {
    // What is no number is no integer either.
    let own = select(vec4<f32>(0.0), values, vec4<bool>(inverse != 0.0));
    return vec4<i32>(round(own * inverse));
}

fn sum_of_codes(codes: vec4<i32>) -> i32 {
    return (codes.x + codes.y) + (codes.z + codes.w);
}

fn packed(a: i32, b: i32, c: i32, d: i32) -> u32 {
    let bytes = vec4<u32>(bitcast<u32>(a), bitcast<u32>(b), bitcast<u32>(c), bitcast<u32>(d)) & vec4<u32>(0xffu);
    return bytes.x | (bytes.y << 8u) | (bytes.z << 16u) | (bytes.w << 24u);
}

fn rounded_block(
    v0: vec4<f32>, v1: vec4<f32>, v2: vec4<f32>, v3: vec4<f32>, v4: vec4<f32>, v5: vec4<f32>, v6: vec4<f32>, v7: vec4<f32>,
) -> Rounded {
    let low = max(max(largest_of(v0), largest_of(v1)), max(largest_of(v2), largest_of(v3)));
    let high = max(max(largest_of(v4), largest_of(v5)), max(largest_of(v6), largest_of(v7)));
    let scale = scale_of(max(low, high));
    let inverse = inverse_of(scale);
#repeat i 8
    let c$i = four_codes(v$i, inverse);
#end
    let first = (sum_of_codes(c0) + sum_of_codes(c1)) + (sum_of_codes(c2) + sum_of_codes(c3));
    let second = (sum_of_codes(c4) + sum_of_codes(c5)) + (sum_of_codes(c6) + sum_of_codes(c7));
    var result: Rounded;
    result.even = vec4<u32>(
        packed(c0.x, c0.z, c1.x, c1.z), packed(c2.x, c2.z, c3.x, c3.z),
        packed(c4.x, c4.z, c5.x, c5.z), packed(c6.x, c6.z, c7.x, c7.z),
    );
    result.odd = vec4<u32>(
        packed(c0.y, c0.w, c1.y, c1.w), packed(c2.y, c2.w, c3.y, c3.w),
        packed(c4.y, c4.w, c5.y, c5.w), packed(c6.y, c6.w, c7.y, c7.w),
    );
    result.tail = vec4<u32>(scale, bitcast<u32>(first + second), bitcast<u32>(first), 0u);
    return result;
}
