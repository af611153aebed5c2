//! Any bytes as a safetensors file: refused or read in full, never a panic.
#![cfg_attr(fuzzing, no_main)]

use mambo_checkpoint::Checkpoint;
use mambo_fuzz::fuzz_target;
use mambo_tensor::decode_row;

fuzz_target!(|bytes: &[u8]| {
    let Ok(checkpoint) = Checkpoint::from_vec("fuzz.safetensors", bytes.to_vec()) else { return };
    assert!(checkpoint.total_bytes() <= bytes.len() as u64);
    for tensor in checkpoint.tensors() {
        let mut values = vec![0.0; tensor.shape.elems()];
        let stored = checkpoint.read(tensor).expect("an accepted tensor lies in the file");
        decode_row(tensor.dtype, &stored, &mut values).expect("an accepted tensor decodes");
    }
});
