//! A position in untrusted bytes: every read is checked against what is left before anything is allocated.

use std::fmt;

use super::value::ARRAY_ID;
use super::{GgufArray, GgufValue};
use crate::CheckpointError;
use crate::error::one_line;

/// Arrays of arrays deeper than this are damage: nothing published nests more than twice.
const MAX_DEPTH: usize = 8;

/// What is being read, for errors.
#[derive(Clone, Copy)]
pub enum Place<'a> {
    Header,
    Key(u64),
    Value(&'a str),
    TensorName(u64),
    Tensor(&'a str),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Header => f.write_str("the header"),
            Place::Key(i) => write!(f, "metadata entry {i}"),
            Place::Value(key) => write!(f, "metadata key `{key}`"),
            Place::TensorName(i) => write!(f, "entry {i} of the tensor list"),
            Place::Tensor(name) => write!(f, "the entry of tensor `{name}`"),
        }
    }
}

pub struct Cursor<'a> {
    pub file: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(file: &'a str, bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { file, bytes, at: 0 }
    }

    pub fn position(&self) -> u64 {
        self.at as u64
    }

    pub fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    pub fn truncated(&self, needed: u64, place: Place<'_>) -> CheckpointError {
        CheckpointError::Truncated {
            file: self.file.to_string(),
            what: one_line(&place.to_string()),
            offset: self.position(),
            needed,
            left: self.left(),
        }
    }

    pub fn malformed(&self, problem: String) -> CheckpointError {
        CheckpointError::malformed(self.file, problem)
    }

    fn take(&mut self, needed: u64, place: Place<'_>) -> Result<&'a [u8], CheckpointError> {
        if needed > self.left() {
            return Err(self.truncated(needed, place));
        }
        let slice = &self.bytes[self.at..self.at + needed as usize];
        self.at += needed as usize;
        Ok(slice)
    }

    pub fn array<const N: usize>(&mut self, place: Place<'_>) -> Result<[u8; N], CheckpointError> {
        let slice = self.take(N as u64, place)?;
        Ok(std::array::from_fn(|i| slice[i]))
    }

    pub fn u32(&mut self, place: Place<'_>) -> Result<u32, CheckpointError> {
        self.array(place).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, place: Place<'_>) -> Result<u64, CheckpointError> {
        self.array(place).map(u64::from_le_bytes)
    }

    pub fn string(&mut self, place: Place<'_>) -> Result<&'a str, CheckpointError> {
        let length = self.u64(place)?;
        let bytes = self.take(length, place)?;
        std::str::from_utf8(bytes)
            .map_err(|_| self.malformed(format!("{place} holds a string that is not UTF-8")))
    }

    fn bool(&self, byte: u8, place: Place<'_>) -> Result<bool, CheckpointError> {
        match byte {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.malformed(format!("{place} holds {other} where a bool is 0 or 1"))),
        }
    }

    pub fn value(&mut self, type_id: u32, place: Place<'_>) -> Result<GgufValue, CheckpointError> {
        Ok(match type_id {
            0 => GgufValue::U8(u8::from_le_bytes(self.array(place)?)),
            1 => GgufValue::I8(i8::from_le_bytes(self.array(place)?)),
            2 => GgufValue::U16(u16::from_le_bytes(self.array(place)?)),
            3 => GgufValue::I16(i16::from_le_bytes(self.array(place)?)),
            4 => GgufValue::U32(self.u32(place)?),
            5 => GgufValue::I32(i32::from_le_bytes(self.array(place)?)),
            6 => GgufValue::F32(f32::from_le_bytes(self.array(place)?)),
            7 => {
                let [byte] = self.array(place)?;
                GgufValue::Bool(self.bool(byte, place)?)
            }
            8 => GgufValue::String(self.string(place)?.to_string()),
            ARRAY_ID => GgufValue::Array(self.values(place, 1)?),
            10 => GgufValue::U64(self.u64(place)?),
            11 => GgufValue::I64(i64::from_le_bytes(self.array(place)?)),
            12 => GgufValue::F64(f64::from_le_bytes(self.array(place)?)),
            other => return Err(self.malformed(format!("{place} has unknown type {other}"))),
        })
    }

    fn values(&mut self, place: Place<'_>, depth: usize) -> Result<GgufArray, CheckpointError> {
        if depth > MAX_DEPTH {
            return Err(self.malformed(format!("{place} nests arrays more than {MAX_DEPTH} deep")));
        }
        let type_id = self.u32(place)?;
        let count = self.u64(place)?;
        Ok(match type_id {
            0 => GgufArray::U8(self.numbers(count, place, u8::from_le_bytes)?),
            1 => GgufArray::I8(self.numbers(count, place, i8::from_le_bytes)?),
            2 => GgufArray::U16(self.numbers(count, place, u16::from_le_bytes)?),
            3 => GgufArray::I16(self.numbers(count, place, i16::from_le_bytes)?),
            4 => GgufArray::U32(self.numbers(count, place, u32::from_le_bytes)?),
            5 => GgufArray::I32(self.numbers(count, place, i32::from_le_bytes)?),
            6 => GgufArray::F32(self.numbers(count, place, f32::from_le_bytes)?),
            7 => {
                let bytes = self.take(count, place)?;
                GgufArray::Bool(bytes.iter().map(|&b| self.bool(b, place)).collect::<Result<_, _>>()?)
            }
            8 => {
                self.expect(count, 8, place)?;
                let strings = (0..count).map(|_| self.string(place).map(str::to_string));
                GgufArray::String(strings.collect::<Result<_, _>>()?)
            }
            ARRAY_ID => {
                self.expect(count, 12, place)?;
                GgufArray::Array((0..count).map(|_| self.values(place, depth + 1)).collect::<Result<_, _>>()?)
            }
            10 => GgufArray::U64(self.numbers(count, place, u64::from_le_bytes)?),
            11 => GgufArray::I64(self.numbers(count, place, i64::from_le_bytes)?),
            12 => GgufArray::F64(self.numbers(count, place, f64::from_le_bytes)?),
            other => return Err(self.malformed(format!("{place} is an array of unknown type {other}"))),
        })
    }

    /// That `count` things of at least `bytes` each can follow at all. Only then may space for them be reserved.
    pub fn expect_entries(&self, count: u64, bytes: u64, what: &str) -> Result<(), CheckpointError> {
        if self.expect(count, bytes, Place::Header).is_err() {
            let problem = format!("the header announces {count} {what}, more than the file has room for");
            return Err(self.malformed(problem));
        }
        Ok(())
    }

    /// The same for the elements of an array.
    fn expect(&self, count: u64, bytes: u64, place: Place<'_>) -> Result<(), CheckpointError> {
        match count.checked_mul(bytes) {
            Some(needed) if needed <= self.left() => Ok(()),
            other => Err(self.truncated(other.unwrap_or(u64::MAX), place)),
        }
    }

    fn numbers<const N: usize, T>(
        &mut self,
        count: u64,
        place: Place<'_>,
        convert: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, CheckpointError> {
        self.expect(count, N as u64, place)?;
        let bytes = self.take(count * N as u64, place)?;
        Ok(bytes.as_chunks::<N>().0.iter().map(|&b| convert(b)).collect())
    }
}
