//! Random rows made directly in their stored form. Quantising billions of random floats would take hours;
//! random codes under a scale of the right size have the same spread and cost one pass of the generator.
//!
//! A block is random bytes with its head (scales) laid over them. Heads come from a small table, so that
//! scales differ from block to block; the byte under the head says which one. Codes are spread evenly and
//! every block's are fresh, so a file neither repeats nor compresses.

use mambo_tensor::blocks::{
    Block, Iq4Nl, Iq4Xs, Mxfp4, Nvfp4, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, pack_scales_and_mins,
};
use mambo_tensor::{DType, decode_row, encode_row};

use super::random::Random;

/// Different heads in one tensor: as many as a byte can choose from.
const HEADS: usize = 256;

/// Fills whole rows with values of mean 0 and deviation `std`.
pub fn fill(dtype: DType, std: f32, random: &mut Random, out: &mut [u8]) {
    let line = |most: f32| move |r: &mut Random| scale_and_offset(std, most, r);
    let nested = |most: f32| move |r: &mut Random| nested_head(std, most, r);
    match dtype {
        DType::Q4_0 => {
            with_heads(out, random, |r| scale(std / 4.637, r), |b: &mut Q4_0, head| b.d = head(b.d[0]));
        }
        DType::Q5_0 => {
            with_heads(out, random, |r| scale(std / 9.247, r), |b: &mut Q5_0, head| b.d = head(b.d[0]));
        }
        DType::Q8_0 => q8_0(std, random, out),
        DType::Q4_1 => with_heads(out, random, line(15.0), |b: &mut Q4_1, head| (b.d, b.m) = head(b.d[0])),
        DType::Q5_1 => with_heads(out, random, line(31.0), |b: &mut Q5_1, head| (b.d, b.m) = head(b.d[0])),
        DType::IQ4_NL => {
            with_heads(out, random, |r| scale(std / 67.44, r), |b: &mut Iq4Nl, head| b.d = head(b.d[0]));
        }
        DType::IQ4_XS => with_heads(
            out,
            random,
            |r| iq4_xs_head(std, r),
            |b: &mut Iq4Xs, head| *b = Iq4Xs { qs: b.qs, ..head(b.d[0]) },
        ),
        DType::MXFP4 => mxfp4(std, random, out),
        DType::NVFP4 => with_heads(
            out,
            random,
            |r| nvfp4_head(std / NVFP4_FACTOR, r),
            |b: &mut Nvfp4, head| b.scales = head(b.scales[0]),
        ),
        DType::Q4K => {
            with_heads(out, random, nested(15.0), |b: &mut Q4K, head| {
                (b.d, b.dmin, b.scales) = head(b.d[0]);
            });
        }
        DType::Q5K => {
            with_heads(out, random, nested(31.0), |b: &mut Q5K, head| {
                (b.d, b.dmin, b.scales) = head(b.d[0]);
            });
        }
        DType::Q6K => with_heads(
            out,
            random,
            |r| q6_k_head(std, r),
            |b: &mut Q6K, head| (b.scales, b.d) = head(b.scales[0]),
        ),
        _ => plain(dtype, std, random, out),
    }
}

/// Factor beside `nvfp4` blocks: brings the spread of every weight into the range of their scales.
pub const NVFP4_FACTOR: f32 = 1.0 / 512.0;
/// Deviation of `e2m1` codes that are all equally likely.
const E2M1_DEVIATION: f32 = 2.926;

/// Random blocks, each with one of the heads laid over it: `lay` says where a head goes, and which byte of
/// the block chooses it.
fn with_heads<B: Block, H: Copy>(
    out: &mut [u8],
    random: &mut Random,
    head: impl Fn(&mut Random) -> H,
    lay: impl Fn(&mut B, &dyn Fn(u8) -> H),
) {
    let heads: [H; HEADS] = std::array::from_fn(|_| head(random));
    random.fill(out);
    for block in B::row_mut(out) {
        lay(block, &|byte| heads[usize::from(byte)]);
    }
}

fn f16_bytes(value: f32) -> [u8; 2] {
    let mut bytes = [0; 2];
    encode_row(DType::F16, &[value], &mut bytes).expect("scales are small");
    bytes
}

/// A factor around 1 whose square has mean 1.
fn jitter(random: &mut Random) -> f32 {
    const SPREAD: f32 = 0.25;
    (1.0 + SPREAD * (2.0 * random.unit() - 1.0)) / (1.0 + SPREAD * SPREAD / 3.0).sqrt()
}

/// A block's one scale. Codes run from -2^n to 2^n - 1, so their mean is not zero; scales of both signs
/// balance it.
fn scale(size: f32, random: &mut Random) -> [u8; 2] {
    let sign = if random.bits() & 1 == 0 { 1.0 } else { -1.0 };
    f16_bytes(sign * size * jitter(random))
}

/// Codes of -128 are left out: no quantiser writes them, and kernels may rely on that.
fn q8_0(std: f32, random: &mut Random, out: &mut [u8]) {
    with_heads(
        out,
        random,
        |r| scale(std / 73.9, r),
        |block: &mut Q8_0, head| {
            block.d = head(block.d[0]);
            block.qs = block.qs.map(|code| code.cast_signed().max(-127).cast_unsigned());
        },
    );
}

/// Deviation of whole numbers from 0 to `most` that are all equally likely.
fn deviation(most: f32) -> f32 {
    (((most + 1.0) * (most + 1.0) - 1.0) / 12.0).sqrt()
}

/// `d * q + m` with `m` half the range below zero.
fn scale_and_offset(std: f32, most: f32, random: &mut Random) -> ([u8; 2], [u8; 2]) {
    let d = std / deviation(most) * jitter(random);
    (f16_bytes(d), f16_bytes(-d * most / 2.0))
}

/// Six bits for each of eight scales, of both signs around 32, and `d`.
fn iq4_xs_head(std: f32, random: &mut Random) -> Iq4Xs {
    // Root mean square of the steps, and of scales over 16..31.
    let d = f16_bytes(std / (67.44 * 23.95));
    let mut head = Iq4Xs { d, scales_h: [0; 2], scales_l: [0; 4], qs: [[0; 16]; 8] };
    for b in 0..8 {
        let bits = random.bits();
        let size = 16 + (bits % 16) as i8;
        head.put_scale(b, if bits >> 63 == 0 { size } else { -size });
    }
    head
}

/// Scales are powers of two; two neighbouring ones in the right proportion have the wanted mean square.
fn mxfp4(std: f32, random: &mut Random, out: &mut [u8]) {
    let wanted = std / E2M1_DEVIATION;
    let low = wanted.log2().floor();
    let squares = (wanted / low.exp2()).powi(2);
    let larger = ((squares - 1.0) / 3.0 * HEADS as f32).round() as usize;
    let exponent = (low + 127.0) as u8;
    let made = std::cell::Cell::new(0);
    let head = |_: &mut Random| {
        made.set(made.get() + 1);
        exponent + u8::from(made.get() <= larger)
    };
    with_heads(out, random, head, |block: &mut Mxfp4, head| block.e = head(block.e));
}

/// Four scales in `e4m3`, whose bytes are in the order of their values.
fn nvfp4_head(std: f32, random: &mut Random) -> [u8; 4] {
    let bytes: [u8; 127] = std::array::from_fn(|byte| byte as u8);
    let mut scales = [0.0; 127];
    decode_row(DType::F8E4M3, &bytes, &mut scales).expect("a byte is a value");
    std::array::from_fn(|_| {
        let wanted = std / E2M1_DEVIATION * jitter(random);
        let above = scales.partition_point(|&scale| scale < wanted).clamp(1, 126);
        let is_nearer = wanted - scales[above - 1] < scales[above] - wanted;
        if is_nearer { above as u8 - 1 } else { above as u8 }
    })
}

/// `d * sc * q - dmin * mn` with `mn = sc` and `dmin` half the range of q: evenly spread around zero.
fn nested_head(std: f32, most: f32, random: &mut Random) -> ([u8; 2], [u8; 2], [u8; 12]) {
    // Root mean square of scales over 32..63.
    let d = std / (deviation(most) * 48.4);
    let scales: [u8; 8] = std::array::from_fn(|_| 32 + (random.bits() % 32) as u8);
    (f16_bytes(d), f16_bytes(most / 2.0 * d), pack_scales_and_mins(&scales, &scales))
}

/// Sixteen scales of both signs, then `d`; codes run from -32 to 31.
fn q6_k_head(std: f32, random: &mut Random) -> ([u8; 16], [u8; 2]) {
    let mut scales = [0; 16];
    for scale in &mut scales {
        let bits = random.bits();
        let size = 16 + (bits % 16) as i8;
        *scale = if bits >> 63 == 0 { size } else { -size }.cast_unsigned();
    }
    // Root mean square of the codes, and of scales over 16..31.
    (scales, f16_bytes(std / (18.48 * 23.95)))
}

/// Plain floats, and the types nobody measures speed with: drawn one by one.
fn plain(dtype: DType, std: f32, random: &mut Random, out: &mut [u8]) {
    let mut values = [0.0; 256];
    let (block_elems, block_bytes) = (dtype.block_elems(), dtype.block_bytes());
    for piece in out.chunks_mut(values.len() / block_elems * block_bytes) {
        let values = &mut values[..piece.len() / block_bytes * block_elems];
        values.iter_mut().for_each(|v| *v = std * random.normal());
        encode_row(dtype, values, piece).expect("random values are small and finite");
    }
}
