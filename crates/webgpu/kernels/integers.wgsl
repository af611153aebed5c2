// Products of blocks as sums of integers. A file integer_TYPE.wgsl gives `even_codes` and `odd_codes` of a block, four bytes a
// word as rounded.wgsl orders them, and `value_of`: what sums of products of codes stand for, of the first half of the columns
// and of the second; without HALVES their sum decides.
//
// A product of a row is the sum of groups of GROUP blocks, in order, each the sum of its blocks in order; both start from zero,
// and a block's value is rounded before it is added.
const GROUP: u32 = 8u;

fn block_value(
    codes: vec4<u32>, more: vec4<u32>, scales: vec2<f32>, even: vec4<u32>, odd: vec4<u32>, tail: vec4<u32>,
) -> f32 {
    let a = even_codes(codes, more);
    let b = odd_codes(codes, more);
    let first = dot4I8Packed(a.x, even.x) + dot4I8Packed(b.x, odd.x) + dot4I8Packed(a.y, even.y) + dot4I8Packed(b.y, odd.y);
    let second = dot4I8Packed(a.z, even.z) + dot4I8Packed(b.z, odd.z) + dot4I8Packed(a.w, even.w) + dot4I8Packed(b.w, odd.w);
    return value_of(first, second, scales, tail);
}
