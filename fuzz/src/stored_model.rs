//! A model as one JSON document, all of whose values are zero: `{"config": .., "tensors": {NAME: [TYPE, SHAPE]}}` is a
//! safetensors folder, `{"metadata": .., "tensors": ..}` a GGUF file. Sizes may be of any size, because the values take
//! no memory.

use std::borrow::Cow;
use std::io;
use std::ops::Range;

use mambo_checkpoint::{ByteSource, Checkpoint, ConfigFiles, SourceFile};
use mambo_tensor::DType;
use serde_json::{Map, Value, json};

/// Opening and describing a model reads headers and scales; more than this would be a whole tensor.
const MOST_READ: u64 = 64 << 20;
const ALIGNMENT: usize = 32;

/// A header with zeros behind it.
struct Zeros {
    header: Vec<u8>,
    size: u64,
}

impl ByteSource for Zeros {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, range: Range<u64>) -> io::Result<Cow<'_, [u8]>> {
        let count = range.end.saturating_sub(range.start);
        assert!(count <= MOST_READ, "{count} bytes are asked for at once");
        let mut bytes = vec![0; count as usize];
        let start = usize::try_from(range.start).unwrap_or(usize::MAX);
        let header = self.header.get(start..).unwrap_or_default();
        let known = header.len().min(bytes.len());
        bytes[..known].copy_from_slice(&header[..known]);
        Ok(Cow::Owned(bytes))
    }
}

/// Opens a document as the model it stands for.
pub fn open(document: &Value) -> Option<Checkpoint> {
    let tensors = document.get("tensors")?.as_object()?;
    let file = match document.get("metadata").and_then(Value::as_object) {
        Some(metadata) => gguf(metadata, tensors)?,
        None => safetensors(tensors),
    };
    let beside = ConfigFiles {
        config: document.get("config").cloned().unwrap_or_default(),
        generation_config: document.get("generation_config").cloned(),
        quant_config: document.get("quant_config").cloned(),
        ..Default::default()
    };
    Checkpoint::from_sources("fuzz", beside, vec![SourceFile::new("fuzz", file)]).ok()
}

fn type_and_shape(tensor: &Value) -> (&str, Vec<u64>) {
    let shape = tensor[1].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    (tensor[0].as_str().unwrap_or("F32"), shape)
}

fn safetensors(tensors: &Map<String, Value>) -> Zeros {
    let (mut header, mut end) = (Map::new(), 0u64);
    for (name, tensor) in tensors {
        let (dtype, shape) = type_and_shape(tensor);
        let digits: u64 =
            dtype.chars().filter(char::is_ascii_digit).take(2).collect::<String>().parse().unwrap_or(8);
        let bits = if dtype.starts_with("F8") { 8 } else { digits };
        let elems = shape.iter().fold(1u64, |n, dim| n.saturating_mul(*dim));
        let start = end;
        end = end.saturating_add(elems.saturating_mul(bits / 8));
        header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]}));
    }
    let text = Value::Object(header).to_string();
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.extend(text.bytes());
    Zeros { size: end.saturating_add(header.len() as u64), header }
}

fn gguf(metadata: &Map<String, Value>, tensors: &Map<String, Value>) -> Option<Zeros> {
    let mut header = b"GGUF\x03\0\0\0".to_vec();
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        put_text(&mut header, key);
        header.extend(type_number(value).to_le_bytes());
        put_value(&mut header, value);
    }
    let mut offset = 0u64;
    for (name, tensor) in tensors {
        let (dtype, shape) = type_and_shape(tensor);
        let dtype = DType::from_name(dtype).unwrap_or(DType::F32);
        put_text(&mut header, name);
        header.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|dim| header.extend(dim.to_le_bytes()));
        header.extend(dtype.ggml_id()?.to_le_bytes());
        header.extend(offset.to_le_bytes());
        let elems = shape.iter().fold(1u64, |n, dim| n.saturating_mul(*dim));
        let blocks = elems / dtype.block_elems() as u64;
        let bytes = blocks.saturating_mul(dtype.block_bytes() as u64);
        offset = offset.saturating_add(bytes.checked_next_multiple_of(ALIGNMENT as u64)?);
    }
    header.resize(header.len().next_multiple_of(ALIGNMENT), 0);
    Some(Zeros { size: offset.saturating_add(header.len() as u64), header })
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.bytes());
}

/// Whole numbers are u32 where they fit, as converters write them; fractions are f32.
fn type_number(value: &Value) -> u32 {
    match value {
        Value::Bool(_) => 7,
        Value::String(_) => 8,
        Value::Array(_) => 9,
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(n), _) if u32::try_from(n).is_ok() => 4,
            (Some(_), _) => 10,
            (None, Some(_)) => 11,
            (None, None) => 6,
        },
        // JSON has no word for them.
        Value::Null | Value::Object(_) => 6,
    }
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Bool(value) => out.push(u8::from(*value)),
        Value::String(text) => put_text(out, text),
        Value::Array(list) => {
            let kind = list.first().map_or(4, type_number);
            let alike: Vec<&Value> = list.iter().filter(|value| type_number(value) == kind).collect();
            out.extend(kind.to_le_bytes());
            out.extend((alike.len() as u64).to_le_bytes());
            alike.into_iter().for_each(|value| put_value(out, value));
        }
        _ => match type_number(value) {
            4 => out.extend((value.as_u64().unwrap_or(0) as u32).to_le_bytes()),
            10 => out.extend(value.as_u64().unwrap_or(0).to_le_bytes()),
            11 => out.extend(value.as_i64().unwrap_or(0).to_le_bytes()),
            _ => out.extend((value.as_f64().unwrap_or(f64::NAN) as f32).to_le_bytes()),
        },
    }
}
