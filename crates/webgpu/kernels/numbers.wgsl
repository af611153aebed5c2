// Number formats that are written, to the bits that the contract's rounding gives.

// Nearest f16, ties to even; infinite beyond its range.
fn f16_bits(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    let sign = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return sign | 0x7e00u;
    }
    if (size >= 0x477ff000u) {
        return sign | 0x7c00u;
    }
    if (size >= 0x38800000u) {
        return sign | ((size - 0x38000000u + 0xfffu + ((size >> 13u) & 1u)) >> 13u);
    }
    if (size < 0x33000000u) {
        return sign;
    }
    // Subnormal: the digits are shifted to their fixed place.
    let shift = 126u - (size >> 23u);
    let digits = (size & 0x007fffffu) | 0x00800000u;
    let kept = digits >> shift;
    let rest = digits & ((1u << shift) - 1u);
    let half = 1u << (shift - 1u);
    let up = rest > half || (rest == half && (kept & 1u) == 1u);
    return sign | (kept + select(0u, 1u, up));
}

// The value of an f16, subnormals included whatever the device does with those.
fn f16_value(bits: u32) -> f32 {
    let size = bits & 0x7fffu;
    var value = bitcast<f32>((size << 13u) + 0x38000000u);
    if (size < 0x400u) {
        value = f32(size) * 5.9604644775390625e-8;
    } else if (size >= 0x7c00u) {
        value = bitcast<f32>((size << 13u) + 0x70000000u);
    }
    return bitcast<f32>(bitcast<u32>(value) | ((bits & 0x8000u) << 16u));
}

// Nearest bf16, ties to even; one NaN for all.
fn bf16_bits(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return 0x7fc0u;
    }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

fn bf16_value(bits: u32) -> f32 {
    return bitcast<f32>(bits << 16u);
}

// Nearest f8 (e4m3), ties to even; the largest beyond its range.
fn e4m3_code(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    let sign = (bits >> 24u) & 0x80u;
    let size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return 0x7fu;
    }
    if (size >= 0x43e00000u) {
        return sign | 0x7eu;
    }
    if (size >= 0x3c800000u) {
        let rounded = (size - 0x3c000000u + 0x7ffffu + ((size >> 20u) & 1u)) >> 20u;
        return sign | min(rounded, 0x7eu);
    }
    // Subnormal: whole steps of 2^-9, ties to even.
    let steps = bitcast<f32>(size) * 512.0;
    return sign | u32(round(steps));
}

fn e4m3_value(code: u32) -> f32 {
    let size = code & 0x7fu;
    var bits = (size << 20u) + 0x3c000000u;
    if (size < 8u) {
        bits = bitcast<u32>(f32(size) * 0.001953125);
    } else if (size == 0x7fu) {
        // Of a constant, browsers refuse to make what is not a number.
        bits = 0x7fc00000u;
    }
    return bitcast<f32>(bits | ((code & 0x80u) << 24u));
}
