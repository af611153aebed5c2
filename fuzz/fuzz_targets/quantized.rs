//! A quantised model as bytes, all the way: opened, described, bound, every part read and every value decoded.
//! Refused or read in full, never a panic, and never more memory than a small multiple of the bytes.
//!
//! The bytes are a GGUF file, or `config.json`, `hf_quant_config.json` and `model.safetensors` one after the
//! other with a zero byte between them.
#![cfg_attr(fuzzing, no_main)]

use mambo_checkpoint::{Checkpoint, ConfigFiles, parse_json};
use mambo_fuzz::fuzz_target;
use mambo_kernel::WeightSource;
use mambo_model::{ModelError, bind, describe};

fuzz_target!(|bytes: &[u8]| {
    let Some(checkpoint) = open(bytes) else { return };
    let Ok(spec) = describe(&checkpoint) else { return };
    let _ = (spec.to_string(), spec.gguf_metadata(), spec.parameters());
    let Ok(table) = bind(&checkpoint, &spec) else { return };
    assert!(table.stored_bytes() <= 2 * bytes.len() as u64, "tensors are counted once, or twice if tied");
    for weight in table.iter() {
        let (elems, parts): (usize, _) = (weight.shape().iter().product(), weight.part_count());
        let part_bytes = weight.dtype().row_bytes(elems / parts);
        for part in 0..parts {
            if let Ok(read) = weight.part(part) {
                assert_eq!(Some(read.bytes.len()), part_bytes, "{}", weight.name());
            }
            weight.release(part);
        }
        weight.digest();
        match weight.to_f32() {
            Ok(values) => assert_eq!(values.len(), elems),
            Err(ModelError::BadScale { .. }) => {}
            Err(other) => panic!("only a scale can be wrong by now: {other}"),
        }
    }
});

fn open(bytes: &[u8]) -> Option<Checkpoint> {
    if bytes.starts_with(b"GGUF") {
        return Checkpoint::from_vec("fuzz.gguf", bytes.to_vec()).ok();
    }
    let mut parts = bytes.splitn(3, |&byte| byte == 0);
    let mut json = || parse_json(std::str::from_utf8(parts.next()?).ok()?).ok();
    let beside = ConfigFiles { config: json()?, quant_config: json(), ..Default::default() };
    Checkpoint::from_folder("fuzz", beside, parts.next()?.to_vec()).ok()
}
