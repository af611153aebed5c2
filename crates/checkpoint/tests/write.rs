//! What the writers write, the readers and other programs read back.

mod support;

use std::fs;
use std::path::Path;

use mambo_checkpoint::{
    Checkpoint, Format, GgufArray, GgufMetadata, GgufTensor, GgufValue, GgufWriter, Metadata,
    SafetensorsTensor, SafetensorsWriter, write_safetensors,
};
use mambo_tensor::{DType, Shape, decode_row};

fn metadata() -> GgufMetadata {
    let mut m = GgufMetadata::new("new");
    m.set("general.architecture", "toy");
    m.set("general.alignment", 64u32);
    m.set("n", -3i8);
    m.set("list", vec![1u16, 2]);
    m.set("words", vec!["é".to_string(), String::new()]);
    m.set("flags", vec![true, false]);
    m.set("f", vec![0.5f64, f64::INFINITY]);
    let nested = vec![GgufArray::I64(vec![-1]), GgufArray::Array(vec![GgufArray::String(vec![])])];
    m.set("nested", GgufValue::Array(GgufArray::Array(nested)));
    m
}

fn tensor(name: &str, dtype: DType, dims: &[usize]) -> GgufTensor {
    GgufTensor { name: name.to_string(), dtype, shape: Shape::new(dims).unwrap() }
}

fn listing(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn gguf_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.gguf");
    let tensors = [
        tensor("a", DType::F32, &[3, 5]),
        tensor("b", DType::Q8_0, &[2, 64]),
        tensor("s", DType::BF16, &[]),
        tensor("c", DType::Q6K, &[2, 1, 256]),
    ];
    let data: Vec<Vec<u8>> = tensors
        .iter()
        .map(|t| (0..t.dtype.row_bytes(t.shape.elems()).unwrap()).map(|i| (i * 7) as u8).collect())
        .collect();
    let mut writer = GgufWriter::create(&path, &metadata(), &tensors).unwrap();
    for (t, bytes) in tensors.iter().zip(&data) {
        for piece in bytes.chunks(33) {
            writer.write(&t.name, piece).unwrap();
        }
    }
    assert!(
        listing(folder.path()).iter().all(|name| name.ends_with(".partial")),
        "nothing appears before the end"
    );
    writer.finish().unwrap();
    assert_eq!(listing(folder.path()), ["out.gguf"]);

    let back = Checkpoint::open(&path).unwrap();
    assert_eq!(back.format(), Format::Gguf);
    assert_eq!(back.total_bytes(), data.iter().map(|d| d.len() as u64).sum::<u64>());
    for (t, bytes) in tensors.iter().zip(&data) {
        let info = back.tensor(&t.name).unwrap();
        let want = if t.shape.rank() == 0 { Shape::from([1]) } else { t.shape };
        assert_eq!((info.dtype, info.shape), (t.dtype, want));
        assert_eq!(&*back.read(info).unwrap(), bytes);
        back.release(info, 0..info.byte_len());
        assert_eq!(&*back.read(info).unwrap(), bytes, "released bytes can be read again");
    }
    let Metadata::Gguf(read) = back.metadata() else { panic!("gguf metadata") };
    let written = metadata();
    let wanted: Vec<_> = written.iter().filter(|(k, _)| *k != "general.alignment").collect();
    assert_eq!(read.iter().collect::<Vec<_>>(), wanted);
}

#[test]
fn every_kind_of_metadata_is_read() {
    let checkpoint = Checkpoint::from_vec("good", support::good_gguf()).unwrap();
    let Metadata::Gguf(m) = checkpoint.metadata() else { panic!("gguf metadata") };
    let numbers = ["t.u8", "t.i8", "t.u16", "t.i16", "t.u32", "t.i32", "t.u64", "t.i64"];
    let values = numbers.map(|k| m.i64(k).unwrap().unwrap());
    assert_eq!(values, [200, -1, 513, -2, 70_000, -5, 1 << 40, -7]);
    assert_eq!((m.f32("t.f32").unwrap(), m.f32("t.f64").unwrap()), (Some(0.5), Some(0.25)));
    assert_eq!(m.bool("t.bool").unwrap(), Some(true));
    assert_eq!(m.strings("t.words").unwrap().unwrap(), ["a", "bc"]);
    assert_eq!(m.strings("t.empty").unwrap().unwrap().len(), 0);
    let nested = GgufArray::Array(vec![GgufArray::Bool(vec![false, true]), GgufArray::U32(vec![9])]);
    assert_eq!(m.array("t.nested").unwrap(), Some(&nested));
    assert_eq!(checkpoint.tensor("c.weight").unwrap().shape, Shape::from([3, 2, 32]));
    assert_eq!(checkpoint.read(checkpoint.tensor("b.weight").unwrap()).unwrap()[0], 32);
}

#[test]
fn an_unfinished_file_disappears() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.gguf");
    let tensors = [tensor("a", DType::F32, &[2]), tensor("b", DType::F32, &[2])];
    let mut writer = GgufWriter::create(&path, &metadata(), &tensors).unwrap();
    let error = writer.write("b", &[0; 8]).unwrap_err().to_string();
    assert!(error.contains("out.gguf: the data of tensor `b` came out of order"), "{error}");
    let error = writer.write("a", &[0; 9]).unwrap_err().to_string();
    assert!(error.contains("tensor `a` got more than its 8 bytes"), "{error}");
    writer.write("a", &[0; 4]).unwrap();
    let error = writer.finish().unwrap_err().to_string();
    assert!(error.contains("tensor `a` got 4 of its 8 bytes"), "{error}");
    assert!(listing(folder.path()).is_empty());

    fs::write(&path, "old").unwrap();
    drop(GgufWriter::create(&path, &metadata(), &tensors).unwrap());
    assert_eq!(fs::read(&path).unwrap(), b"old", "an older file survives a failed run");
    assert_eq!(listing(folder.path()), ["out.gguf"]);
}

#[test]
fn what_gguf_cannot_hold_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.gguf");
    let refused = |tensors: &[GgufTensor]| {
        let error = GgufWriter::create(&path, &metadata(), tensors).map(|_| ()).unwrap_err().to_string();
        assert!(listing(folder.path()).is_empty());
        error
    };
    assert!(refused(&[tensor("x", DType::F8E4M3, &[4])]).contains("no type for tensor `x` of type f8_e4m3"));
    assert!(refused(&[tensor("x", DType::F32, &[1; 5])]).contains("cannot hold tensor `x`"));
    assert!(refused(&[tensor("x", DType::F32, &[0])]).contains("cannot hold tensor `x`"));
    assert!(refused(&[tensor("x", DType::Q4_0, &[2, 33])]).contains("rows of 33 values"));
    let twice = tensor("x", DType::F32, &[1]);
    assert!(refused(&[twice.clone(), twice]).contains("two tensors named `x`"));
}

#[test]
fn unwritable_places_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("no such folder/out.gguf");
    let error = GgufWriter::create(&nowhere, &metadata(), &[]).map(|_| ()).unwrap_err().to_string();
    assert!(error.starts_with("cannot write ") && error.contains("no such folder/out.gguf"), "{error}");
    let error = write_safetensors(folder.path(), &[]).unwrap_err().to_string();
    assert!(error.contains("it is a folder"), "{error}");
    assert!(listing(folder.path()).is_empty());
}

#[test]
fn safetensors_are_read_by_others_and_by_us() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.safetensors");
    let logits: Vec<f32> = (0..200_000).map(|i| i as f32 * 0.25 - 3.0).collect();
    let tensors =
        [("logits", Shape::from([100, 2000]), &logits[..]), ("x \"y\"", Shape::scalar(), &[7.5][..])];
    write_safetensors(&path, &tensors).unwrap();
    assert_eq!(listing(folder.path()), ["out.safetensors"]);

    let bytes = fs::read(&path).unwrap();
    let other = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(other.tensor("logits").unwrap().shape(), [100, 2000]);
    let ours = Checkpoint::from_vec("out", bytes.clone()).unwrap();
    for (name, shape, values) in tensors {
        let info = ours.tensor(name).unwrap();
        assert_eq!(info.shape, shape);
        assert_eq!(ours.read(info).unwrap(), other.tensor(name).unwrap().data());
        let mut read = vec![0.0; values.len()];
        decode_row(info.dtype, &ours.read(info).unwrap(), &mut read).unwrap();
        assert_eq!(read, values);
    }
    let error = write_safetensors(&path, &[("x", Shape::from([2]), &[0.0])]).unwrap_err().to_string();
    assert!(error.contains("tensor `x` has fewer values than its shape holds"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), bytes, "a refused write leaves the old file");
}

#[cfg(unix)]
#[test]
fn links_are_followed_and_devices_refused() {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &Path| write_safetensors(path, &[("x", Shape::from([1]), &[1.0][..])]);
    let (real, link) = (folder.path().join("real.safetensors"), folder.path().join("link.safetensors"));
    fs::write(&real, b"old").unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    write(&link).unwrap();
    assert!(link.is_symlink() && fs::read(&real).unwrap().len() > 8, "the link stays, its target is new");
    let error = write(Path::new("/dev/null")).unwrap_err().to_string();
    assert!(error.contains("/dev/null") && error.contains("device"), "{error}");
}

#[test]
fn writers_of_one_name_do_not_share_a_partial_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("twice.gguf");
    let metadata = GgufMetadata::new("test");
    // As a killed writer leaves it.
    fs::write(folder.path().join("twice.gguf.0.partial"), "old").unwrap();
    let first = GgufWriter::create(&path, &metadata, &[]).unwrap();
    let second = GgufWriter::create(&path, &metadata, &[]).unwrap();
    first.finish().unwrap();
    second.finish().unwrap();
    assert_eq!(listing(folder.path()), ["twice.gguf", "twice.gguf.0.partial"]);
}

#[test]
fn tensors_filled_in_turns_lie_in_order_and_a_dropped_file_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("turns.safetensors");
    let shapes =
        [SafetensorsTensor::f32("a", Shape::from([3, 2])), SafetensorsTensor::f32("b", Shape::from([2, 2]))];
    let mut file = SafetensorsWriter::create(&path, &shapes).unwrap();
    for (tensor, values) in
        [(0, &[1.0, 2.0][..]), (1, &[7.0, 8.0]), (0, &[3.0, 4.0, 5.0, 6.0]), (1, &[9.0, 0.0])]
    {
        file.add(tensor, values).unwrap();
    }
    assert!(file.partial().exists() && !path.exists());
    file.finish().unwrap();
    let bytes = fs::read(&path).unwrap();
    let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let values = |name: &str| -> Vec<f32> {
        let (words, _) = read.tensor(name).unwrap().data().as_chunks();
        words.iter().map(|&word| f32::from_le_bytes(word)).collect()
    };
    assert_eq!(values("a"), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(values("b"), [7.0, 8.0, 9.0, 0.0]);
    drop(SafetensorsWriter::create(&path, &shapes).unwrap());
    assert_eq!(listing(folder.path()), ["turns.safetensors"]);
    assert!(fs::read(&path).unwrap() == bytes, "an unfinished file leaves the old one alone");
    let mut file = SafetensorsWriter::create(&path, &shapes).unwrap();
    let error = file.add(1, &[0.0; 5]).unwrap_err().to_string();
    assert!(error.contains("tensor `b` gets more values"), "{error}");
}
