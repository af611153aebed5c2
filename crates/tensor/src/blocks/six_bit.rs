//! Eight scales and eight minima of six bits in twelve bytes, as `q4_k` and `q5_k` pack them.

/// Sub-block `j`'s scale and minimum. The first four sit in the low six bits of bytes j and j + 4; the
/// others have their low nibbles in byte j + 4 and their high two bits on top of bytes j − 4 and j.
#[inline(always)]
pub fn scale_and_min(packed: &[u8; 12], j: usize) -> (u8, u8) {
    if j < 4 {
        return (packed[j] & 63, packed[j + 4] & 63);
    }
    let scale = packed[j + 4] & 15 | packed[j - 4] >> 6 << 4;
    let min = packed[j + 4] >> 4 | packed[j] >> 6 << 4;
    (scale, min)
}

/// The inverse of [`scale_and_min`].
pub fn pack_scales_and_mins(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for j in 0..4 {
        packed[j] = scales[j] | scales[j + 4] >> 4 << 6;
        packed[j + 4] = mins[j] | mins[j + 4] >> 4 << 6;
        packed[j + 8] = scales[j + 4] & 15 | (mins[j + 4] & 15) << 4;
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_scales_round_trip() {
        let scales = [63, 0, 17, 40, 33, 5, 62, 16];
        let mins = [1, 63, 0, 21, 47, 32, 15, 63];
        let packed = pack_scales_and_mins(&scales, &mins);
        for j in 0..8 {
            assert_eq!(scale_and_min(&packed, j), (scales[j], mins[j]));
        }
    }
}
