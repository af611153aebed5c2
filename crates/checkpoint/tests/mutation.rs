//! Thousands of damaged files, the same ones every time: the readers may refuse them but never panic, and
//! whatever they accept can be read in full.

mod support;

use mambo_checkpoint::{Checkpoint, Metadata, parse_json};
use mambo_tensor::{DType, decode_row};
use support::{good_gguf, good_safetensors};

const ROUNDS: usize = 20_000;

/// A 64-bit linear congruence.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n.max(1)
    }

    /// Flips bits, plants extreme numbers, copies, cuts or inserts, one to four times.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        const EXTREMES: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff_ffff, 1 << 31, 1 << 62, u64::MAX];
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            match self.below(6) {
                0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
                1 if !bytes.is_empty() => bytes[at] = self.below(256) as u8,
                2 => {
                    let extreme = EXTREMES[self.below(EXTREMES.len())].to_le_bytes();
                    let end = bytes.len().min(at + if self.below(2) == 0 { 4 } else { 8 });
                    bytes[at..end].copy_from_slice(&extreme[..end - at]);
                }
                3 => bytes.truncate(at),
                4 => {
                    let end = bytes.len().min(at + self.below(40));
                    let copy = bytes[at..end].to_vec();
                    let to = self.below(bytes.len());
                    bytes.splice(to..to, copy);
                }
                _ => {
                    let end = bytes.len().min(at + self.below(9));
                    bytes.drain(at..end);
                }
            }
        }
    }
}

/// Reads everything there is to read.
fn exercise(bytes: Vec<u8>) -> bool {
    let size = bytes.len();
    let checkpoint = match Checkpoint::from_vec("m", bytes) {
        Ok(checkpoint) => checkpoint,
        Err(e) => {
            let text = e.to_string();
            assert!(text.starts_with("m: ") && text.len() < 4000 && !text.contains('\n'), "{text:?}");
            return false;
        }
    };
    assert!(checkpoint.total_bytes() <= size as u64);
    for tensor in checkpoint.tensors() {
        let data = checkpoint.read(tensor).unwrap();
        assert_eq!(Some(data.len()), tensor.dtype.row_bytes(tensor.shape.elems()));
        let mut values = vec![0.0; tensor.shape.elems()];
        decode_row(tensor.dtype, &data, &mut values).unwrap();
        assert_eq!(checkpoint.tensor(&tensor.name), Some(tensor));
        checkpoint.release(tensor, 0..tensor.byte_len());
    }
    if let Metadata::Gguf(metadata) = checkpoint.metadata() {
        for (key, value) in metadata.iter() {
            assert_eq!(metadata.get(key).map(|v| v.type_name()), Some(value.type_name()));
            let _ = (metadata.u32(key), metadata.f32s(key), metadata.u64s(key), metadata.strings(key));
            assert!(value.to_string().len() < 400);
        }
    }
    true
}

#[test]
fn damaged_files_never_panic() {
    for (seed, good) in [good_gguf(), good_safetensors()].into_iter().enumerate() {
        let mut random = Random(seed as u64 + 1);
        let mut accepted = 0;
        for _ in 0..ROUNDS {
            let mut bytes = good.clone();
            random.damage(&mut bytes);
            accepted += usize::from(exercise(bytes));
        }
        // Both outcomes have to occur often, or the damage tests nothing.
        assert!(accepted > ROUNDS / 50 && accepted < ROUNDS * 49 / 50, "{accepted} of {ROUNDS} accepted");
    }
}

#[test]
fn damaged_json_never_panics() {
    let good =
        r#"{"a": [1, -2.5e3, Infinity, {"__float__": "NaN"}], "b": "x \" \\ \u00e9 é", "c": {"d": null}}"#;
    let mut random = Random(9);
    for _ in 0..ROUNDS {
        let mut bytes = good.as_bytes().to_vec();
        random.damage(&mut bytes);
        let _ = parse_json(&String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn random_rows_decode_in_every_type() {
    let mut random = Random(4);
    for dtype in DType::all() {
        let elems = dtype.block_elems() * 3;
        let bytes: Vec<u8> = (0..dtype.row_bytes(elems).unwrap()).map(|_| random.below(256) as u8).collect();
        decode_row(dtype, &bytes, &mut vec![0.0; elems]).unwrap();
    }
}
