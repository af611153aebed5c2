//! Random rows made directly in their stored form. Quantising billions of random floats would take hours;
//! random codes under a scale of the right size have the same spread and cost one pass of the generator.
//!
//! A block is random bytes with its head (scales) laid over them. Heads come from a small table, so that
//! scales differ from block to block; the byte under the head says which one. Codes are spread evenly and
//! every block's are fresh, so a file neither repeats nor compresses.

use mambo_tensor::{DType, encode_row};

use super::random::Random;

/// Different heads in one tensor.
const HEADS: usize = 64;

/// Fills whole rows with values of mean 0 and deviation `std`.
pub fn fill(dtype: DType, std: f32, random: &mut Random, out: &mut [u8]) {
    match dtype {
        DType::Q4_0 => with_heads(out, 18, 0, random, |r| scale(std / 4.637, r)),
        DType::Q5_0 => with_heads(out, 22, 0, random, |r| scale(std / 9.247, r)),
        DType::Q8_0 => q8_0(std, random, out),
        DType::Q4K => with_heads(out, 144, 0, random, |r| q4_k_head(std, r)),
        DType::Q6K => with_heads(out, 210, 192, random, |r| q6_k_head(std, r)),
        _ => plain(dtype, std, random, out),
    }
}

/// Random blocks of `size` bytes with one of the heads at byte `at` of each.
fn with_heads<const N: usize>(
    out: &mut [u8],
    size: usize,
    at: usize,
    random: &mut Random,
    head: impl Fn(&mut Random) -> [u8; N],
) {
    let heads: [[u8; N]; HEADS] = std::array::from_fn(|_| head(random));
    random.fill(out);
    for block in out.chunks_exact_mut(size) {
        let pick = usize::from(block[at]) % HEADS;
        block[at..at + N].copy_from_slice(&heads[pick]);
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
    with_heads(out, 34, 0, random, |r| scale(std / 73.9, r));
    for block in out.chunks_exact_mut(34) {
        for code in &mut block[2..] {
            *code = code.cast_signed().max(-127).cast_unsigned();
        }
    }
}

/// `d * sc * q - dmin * mn` with `mn = sc` and `dmin = 7.5 d`: evenly spread around zero.
fn q4_k_head(std: f32, random: &mut Random) -> [u8; 16] {
    // Deviation of q - 7.5 over 0..15, and root mean square of scales over 32..63.
    let d = std / (4.61 * 48.4);
    let sc: [u8; 8] = std::array::from_fn(|_| 32 + (random.bits() % 32) as u8);
    let mut head = [0; 16];
    head[..2].copy_from_slice(&f16_bytes(d));
    head[2..4].copy_from_slice(&f16_bytes(7.5 * d));
    let packed = &mut head[4..];
    for j in 0..4 {
        let (low, high) = (sc[j], sc[j + 4]);
        packed[j] = low | (high >> 4) << 6;
        packed[j + 4] = packed[j];
        packed[j + 8] = (high & 15) | (high & 15) << 4;
    }
    head
}

/// Sixteen scales of both signs, then `d`; codes run from -32 to 31.
fn q6_k_head(std: f32, random: &mut Random) -> [u8; 18] {
    let mut head = [0; 18];
    for scale in &mut head[..16] {
        let bits = random.bits();
        let size = 16 + (bits % 16) as i8;
        *scale = if bits >> 63 == 0 { size } else { -size }.cast_unsigned();
    }
    // Root mean square of the codes, and of scales over 16..31.
    head[16..].copy_from_slice(&f16_bytes(std / (18.48 * 23.95)));
    head
}

/// Plain floats, drawn one by one.
fn plain(dtype: DType, std: f32, random: &mut Random, out: &mut [u8]) {
    let mut values = [0.0; 256];
    for piece in out.chunks_mut(values.len() * dtype.block_bytes()) {
        let values = &mut values[..piece.len() / dtype.block_bytes()];
        values.iter_mut().for_each(|v| *v = std * random.normal());
        encode_row(dtype, values, piece).expect("random values are small and finite");
    }
}
