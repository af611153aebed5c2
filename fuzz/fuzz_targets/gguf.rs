//! Any bytes behind the GGUF magic: refused or read in full, never a panic.
#![cfg_attr(fuzzing, no_main)]

use mambo_checkpoint::{Checkpoint, Metadata};
use mambo_fuzz::fuzz_target;
use mambo_tensor::decode_row;

fuzz_target!(|bytes: &[u8]| {
    // Without the magic the bytes would go to the other reader.
    let mut file = b"GGUF".to_vec();
    file.extend(bytes.strip_prefix(b"GGUF").unwrap_or(bytes));
    let Ok(checkpoint) = Checkpoint::from_vec("fuzz.gguf", file) else { return };
    for tensor in checkpoint.tensors() {
        let mut values = vec![0.0; tensor.shape.elems()];
        let stored = checkpoint.read(tensor).expect("an accepted tensor lies in the file");
        decode_row(tensor.dtype, &stored, &mut values).expect("an accepted tensor decodes");
    }
    let Metadata::Gguf(metadata) = checkpoint.metadata() else { panic!("a GGUF file has GGUF metadata") };
    for (key, value) in metadata.iter() {
        let _ =
            (value.to_string(), metadata.u32(key), metadata.u64s(key), metadata.f32s(key), metadata.str(key));
    }
});
