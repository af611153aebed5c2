// rope: the pairs of channels of every head are turned by position × turns per position.
//
// Turns are fractions of 64 bits, so that the product with a position, of which the whole turns are left out, is exact
// to 2^-40; sine and cosine are of an eighth of a turn at most.
// Constants: NEIGHBOURS (pairs of neighbouring channels, otherwise of halves).
#include "common.wgsl"

// The upper 32 bits of the fraction of `position` times a fraction of 64 bits.
fn turned(position: u32, fraction: vec2<u32>) -> u32 {
    // position · low / 2^32, then position · high modulo 2^32.
    let a = position & 0xffffu;
    let b = position >> 16u;
    let c = fraction.x & 0xffffu;
    let d = fraction.x >> 16u;
    let middle = a * d + ((a * c) >> 16u);
    let second = b * c + (middle & 0xffffu);
    return position * fraction.y + b * d + (middle >> 16u) + (second >> 16u);
}

// Sine and cosine of a fraction of a turn.
fn sine_cosine(turn: u32) -> vec2<f32> {
    let quarter = (turn + 0x20000000u) >> 30u;
    let rest = bitcast<i32>(turn - (quarter << 30u));
    let x = f32(rest) * 1.4629180792671596e-9;
    let z = x * x;
    var s = fma(-1.9515295891e-4, z, 8.3321608736e-3);
    s = fma(s, z, -1.6666654611e-1);
    s = fma(s * z, x, x);
    var c = fma(2.443315711809948e-5, z, -1.388731625493765e-3);
    c = fma(c, z, 4.166664568298827e-2);
    c = fma(c * z, z, fma(-0.5, z, 1.0));
    switch (quarter) {
        case 0u: {
            return vec2<f32>(s, c);
        }
        case 1u: {
            return vec2<f32>(c, -s);
        }
        case 2u: {
            return vec2<f32>(-s, -c);
        }
        default: {
            return vec2<f32>(-c, s);
        }
    }
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let item = group.x * 64u + thread;
    let row = group.z * GRID_ROWS + group.y;
    // Turned pairs of a head, then channels that stay.
    let per_head = p.head_dim - p.pairs;
    if (row >= row_count(p.out) || item >= p.out.cols / p.head_dim * per_head) {
        return;
    }
    let first = item / per_head * p.head_dim;
    let i = item % per_head;
    if (i >= p.pairs) {
        let col = first + i + p.pairs;
        arena[word_at(p.out, row, col)] = arena[word_at(p.x, row, col)];
        return;
    }
    let a = first + select(i, 2u * i, NEIGHBOURS == 1u);
    let b = first + select(i + p.pairs, 2u * i + 1u, NEIGHBOURS == 1u);
    let fraction = vec2<u32>(vectors[p.turns + 2u * i], vectors[p.turns + 2u * i + 1u]);
    let angle = sine_cosine(turned(position_of(row), fraction));
    let x = load(p.x, row, a);
    let y = load(p.x, row, b);
    store(p.out, row, a, p.magnitude * fma(x, angle.y, -(y * angle.x)));
    store(p.out, row, b, p.magnitude * fma(y, angle.y, x * angle.x));
}
