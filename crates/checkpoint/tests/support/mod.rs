//! Files built byte by byte, without the crate's writer, so that they can be wrong in any way.
#![allow(dead_code, reason = "each test program uses its own part")]

/// Bytes in the making.
#[derive(Clone, Default)]
pub struct Raw(pub Vec<u8>);

impl Raw {
    pub fn u32(mut self, v: u32) -> Raw {
        self.0.extend(v.to_le_bytes());
        self
    }

    pub fn u64(mut self, v: u64) -> Raw {
        self.0.extend(v.to_le_bytes());
        self
    }

    pub fn bytes(mut self, v: &[u8]) -> Raw {
        self.0.extend(v);
        self
    }

    pub fn str(self, v: &str) -> Raw {
        self.u64(v.len() as u64).bytes(v.as_bytes())
    }

    /// Magic, version 3 and the two counts.
    pub fn gguf(tensors: u64, entries: u64) -> Raw {
        Raw::default().bytes(b"GGUF").u32(3).u64(tensors).u64(entries)
    }

    /// A metadata entry of type u32.
    pub fn meta_u32(self, key: &str, value: u32) -> Raw {
        self.str(key).u32(4).u32(value)
    }

    /// An entry of the tensor list; dimensions innermost first.
    pub fn tensor(self, name: &str, dims: &[u64], type_id: u32, offset: u64) -> Raw {
        let raw = self.str(name).u32(dims.len() as u32);
        dims.iter().fold(raw, |raw, &d| raw.u64(d)).u32(type_id).u64(offset)
    }

    /// Zeros up to a multiple of `alignment`, then `length` bytes of data.
    pub fn data(mut self, alignment: usize, length: usize) -> Raw {
        self.0.resize(self.0.len().next_multiple_of(alignment), 0);
        self.0.extend((0..length).map(|i| i as u8));
        self
    }
}

/// A small file with every kind of metadata and three tensors.
pub fn good_gguf() -> Vec<u8> {
    Raw::gguf(3, 16)
        .str("general.architecture")
        .u32(8)
        .str("toy")
        .str("t.u8")
        .u32(0)
        .bytes(&[200])
        .str("t.i8")
        .u32(1)
        .bytes(&[0xff])
        .str("t.u16")
        .u32(2)
        .bytes(&[1, 2])
        .str("t.i16")
        .u32(3)
        .bytes(&[0xfe, 0xff])
        .meta_u32("t.u32", 70_000)
        .str("t.i32")
        .u32(5)
        .u32(-5i32 as u32)
        .str("t.f32")
        .u32(6)
        .bytes(&0.5f32.to_le_bytes())
        .str("t.bool")
        .u32(7)
        .bytes(&[1])
        .str("t.u64")
        .u32(10)
        .u64(1 << 40)
        .str("t.i64")
        .u32(11)
        .u64(-7i64 as u64)
        .str("t.f64")
        .u32(12)
        .bytes(&0.25f64.to_le_bytes())
        .str("t.ints")
        .u32(9)
        .u32(5)
        .u64(3)
        .u32(1)
        .u32(2)
        .u32(3)
        .str("t.words")
        .u32(9)
        .u32(8)
        .u64(2)
        .str("a")
        .str("bc")
        .str("t.nested")
        .u32(9)
        .u32(9)
        .u64(2)
        .u32(7)
        .u64(2)
        .bytes(&[0, 1])
        .u32(4)
        .u64(1)
        .u32(9)
        .str("t.empty")
        .u32(9)
        .u32(8)
        .u64(0)
        .tensor("a.weight", &[4, 2], 0, 0)
        .tensor("b.weight", &[32], 8, 32)
        .tensor("c.weight", &[32, 2, 3], 2, 96)
        .data(32, 96 + 108)
        .0
}

/// A safetensors file with the given header and data length.
pub fn safetensors(header: &str, data: usize) -> Vec<u8> {
    Raw::default().u64(header.len() as u64).bytes(header.as_bytes()).data(1, data).0
}

/// A small valid safetensors file.
pub fn good_safetensors() -> Vec<u8> {
    let header = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
        "b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},"c":{"dtype":"F8_E4M3","shape":[],"data_offsets":[32,33]},
        "d":{"dtype":"I64","shape":[0],"data_offsets":[33,33]}}"#;
    safetensors(header, 33)
}
