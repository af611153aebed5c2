//! A checksum that finds damaged bytes at the speed of memory. Not collision-resistant: it guards against broken disks
//! and files cut short, not against attackers.

/// Odd, so that multiplying loses nothing: a single changed word always changes the result.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// The checksum of these bytes, the same on every machine and in every version.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    // Four lanes, because a multiplication takes longer than the load of a word.
    let mut lanes = [1u64, 2, 3, 4];
    let (blocks, tail) = bytes.as_chunks::<32>();
    let mut last = [0; 32];
    last[..tail.len()].copy_from_slice(tail);
    for block in blocks.iter().chain([&last]) {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
            *lane = mixed(*lane, u64::from_le_bytes(*word));
        }
    }
    lanes.into_iter().fold(bytes.len() as u64, mixed)
}

#[inline(always)]
fn mixed(sum: u64, word: u64) -> u64 {
    (sum ^ word).wrapping_mul(FACTOR).rotate_left(29)
}

#[cfg(test)]
mod tests {
    use super::checksum;

    #[test]
    fn every_bit_and_the_length_count() {
        for length in [0, 1, 31, 32, 33, 200] {
            let bytes: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let sum = checksum(&bytes);
            for bit in 0..length * 8 {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(checksum(&damaged), sum, "bit {bit} of {length} bytes");
            }
            let longer = [&bytes[..], &[0]].concat();
            assert_ne!(checksum(&longer), sum, "a zero after {length} bytes");
        }
    }

    #[test]
    fn it_never_changes() {
        assert_eq!(checksum(b"a conversation's memory, which must be readable tomorrow"), 0xf956d3fa3a22028a);
    }
}
