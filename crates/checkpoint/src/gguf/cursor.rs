//! A position in untrusted bytes: every read is checked against what is left before anything is allocated.
//!
//! The bytes are the head of a file; a read that leaves the head but not the file is told apart, so that the caller
//! can come back with more of it.

use std::fmt;

use super::value::ARRAY_ID;
use super::{GgufArray, GgufValue};
use crate::CheckpointError;
use crate::error::one_line;

/// Arrays of arrays deeper than this are damage: nothing published nests more than twice.
const MAX_DEPTH: usize = 8;

/// What is being read, for errors.
#[derive(Clone, Copy)]
pub enum Field<'a> {
    Header,
    Key(u64),
    Value(&'a str),
    TensorName(u64),
    Tensor(&'a str),
}

impl fmt::Display for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Field::Header => f.write_str("the header"),
            Field::Key(i) => write!(f, "metadata entry {i}"),
            Field::Value(key) => write!(f, "metadata key `{key}`"),
            Field::TensorName(i) => write!(f, "entry {i} of the tensor list"),
            Field::Tensor(name) => write!(f, "the entry of tensor `{name}`"),
        }
    }
}

pub struct Cursor<'a> {
    pub file: &'a str,
    head: &'a [u8],
    file_bytes: u64,
    at: usize,
    left_the_head: bool,
}

impl<'a> Cursor<'a> {
    pub fn new(file: &'a str, head: &'a [u8], file_bytes: u64) -> Cursor<'a> {
        Cursor { file, head, file_bytes, at: 0, left_the_head: false }
    }

    pub fn position(&self) -> u64 {
        self.at as u64
    }

    /// Size of the whole file.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Whether a read failed only because the head ends before the file does.
    pub fn left_the_head(&self) -> bool {
        self.left_the_head
    }

    pub fn left(&self) -> u64 {
        self.file_bytes - self.position()
    }

    pub fn truncated(&self, needed: u64, field: Field<'_>) -> CheckpointError {
        CheckpointError::Truncated {
            file: self.file.to_string(),
            what: one_line(&field.to_string()),
            offset: self.position(),
            needed,
            left: self.left(),
        }
    }

    pub fn malformed(&self, problem: String) -> CheckpointError {
        CheckpointError::malformed(self.file, problem)
    }

    fn take(&mut self, needed: u64, field: Field<'_>) -> Result<&'a [u8], CheckpointError> {
        let left = &self.head[self.at..];
        let Some(slice) = usize::try_from(needed).ok().and_then(|needed| left.get(..needed)) else {
            self.left_the_head = needed <= self.left();
            return Err(self.truncated(needed, field));
        };
        self.at += slice.len();
        Ok(slice)
    }

    pub fn array<const N: usize>(&mut self, field: Field<'_>) -> Result<[u8; N], CheckpointError> {
        let slice = self.take(N as u64, field)?;
        Ok(std::array::from_fn(|i| slice[i]))
    }

    pub fn u32(&mut self, field: Field<'_>) -> Result<u32, CheckpointError> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, field: Field<'_>) -> Result<u64, CheckpointError> {
        self.array(field).map(u64::from_le_bytes)
    }

    pub fn string(&mut self, field: Field<'_>) -> Result<&'a str, CheckpointError> {
        let length = self.u64(field)?;
        let bytes = self.take(length, field)?;
        std::str::from_utf8(bytes)
            .map_err(|_| self.malformed(format!("{field} holds a string that is not UTF-8")))
    }

    fn bool(&self, byte: u8, field: Field<'_>) -> Result<bool, CheckpointError> {
        match byte {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.malformed(format!("{field} holds {other} where a bool is 0 or 1"))),
        }
    }

    pub fn value(&mut self, type_id: u32, field: Field<'_>) -> Result<GgufValue, CheckpointError> {
        Ok(match type_id {
            0 => GgufValue::U8(u8::from_le_bytes(self.array(field)?)),
            1 => GgufValue::I8(i8::from_le_bytes(self.array(field)?)),
            2 => GgufValue::U16(u16::from_le_bytes(self.array(field)?)),
            3 => GgufValue::I16(i16::from_le_bytes(self.array(field)?)),
            4 => GgufValue::U32(self.u32(field)?),
            5 => GgufValue::I32(i32::from_le_bytes(self.array(field)?)),
            6 => GgufValue::F32(f32::from_le_bytes(self.array(field)?)),
            7 => {
                let [byte] = self.array(field)?;
                GgufValue::Bool(self.bool(byte, field)?)
            }
            8 => GgufValue::String(self.string(field)?.to_string()),
            ARRAY_ID => GgufValue::Array(self.values(field, 1)?),
            10 => GgufValue::U64(self.u64(field)?),
            11 => GgufValue::I64(i64::from_le_bytes(self.array(field)?)),
            12 => GgufValue::F64(f64::from_le_bytes(self.array(field)?)),
            other => return Err(self.malformed(format!("{field} has unknown type {other}"))),
        })
    }

    fn values(&mut self, field: Field<'_>, depth: usize) -> Result<GgufArray, CheckpointError> {
        if depth > MAX_DEPTH {
            return Err(self.malformed(format!("{field} nests arrays more than {MAX_DEPTH} deep")));
        }
        let type_id = self.u32(field)?;
        let count = self.u64(field)?;
        Ok(match type_id {
            0 => GgufArray::U8(self.numbers(count, field, u8::from_le_bytes)?),
            1 => GgufArray::I8(self.numbers(count, field, i8::from_le_bytes)?),
            2 => GgufArray::U16(self.numbers(count, field, u16::from_le_bytes)?),
            3 => GgufArray::I16(self.numbers(count, field, i16::from_le_bytes)?),
            4 => GgufArray::U32(self.numbers(count, field, u32::from_le_bytes)?),
            5 => GgufArray::I32(self.numbers(count, field, i32::from_le_bytes)?),
            6 => GgufArray::F32(self.numbers(count, field, f32::from_le_bytes)?),
            7 => {
                let bytes = self.take(count, field)?;
                GgufArray::Bool(bytes.iter().map(|&b| self.bool(b, field)).collect::<Result<_, _>>()?)
            }
            8 => {
                self.expect(count, 8, field)?;
                let strings = (0..count).map(|_| self.string(field).map(str::to_string));
                GgufArray::String(strings.collect::<Result<_, _>>()?)
            }
            ARRAY_ID => {
                self.expect(count, 12, field)?;
                GgufArray::Array((0..count).map(|_| self.values(field, depth + 1)).collect::<Result<_, _>>()?)
            }
            10 => GgufArray::U64(self.numbers(count, field, u64::from_le_bytes)?),
            11 => GgufArray::I64(self.numbers(count, field, i64::from_le_bytes)?),
            12 => GgufArray::F64(self.numbers(count, field, f64::from_le_bytes)?),
            other => return Err(self.malformed(format!("{field} is an array of unknown type {other}"))),
        })
    }

    /// That `count` things of at least `bytes` each can follow at all. Only then may space for them be reserved.
    pub fn expect_entries(&self, count: u64, bytes: u64, what: &str) -> Result<(), CheckpointError> {
        if self.expect(count, bytes, Field::Header).is_err() {
            let problem = format!("the header announces {count} {what}, more than the file has room for");
            return Err(self.malformed(problem));
        }
        Ok(())
    }

    /// The same for the elements of an array.
    fn expect(&self, count: u64, bytes: u64, field: Field<'_>) -> Result<(), CheckpointError> {
        match count.checked_mul(bytes) {
            Some(needed) if needed <= self.left() => Ok(()),
            other => Err(self.truncated(other.unwrap_or(u64::MAX), field)),
        }
    }

    fn numbers<const N: usize, T>(
        &mut self,
        count: u64,
        field: Field<'_>,
        convert: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, CheckpointError> {
        self.expect(count, N as u64, field)?;
        let bytes = self.take(count * N as u64, field)?;
        Ok(bytes.as_chunks::<N>().0.iter().map(|&b| convert(b)).collect())
    }
}
