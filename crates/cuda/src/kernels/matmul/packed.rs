//! Weights on their way to the device: stored rows are copied as they are and packed there.
//!
//! A weight passes through a small buffer on the device, so that no second copy of it exists. Parts may end within a
//! unit of rows: packing leaves rows of other parts alone.

use mambo_kernel::{BackendError, WeightKey, WeightPart, WeightSource};
use mambo_tensor::{DType, decode_row};

use super::form::{Form, Held, TILE_COLS, TILE_ROWS, define_stored, held};
use crate::launch::Launch;
use crate::loader::Loader;
use crate::memory::DeviceBuffer;
use crate::params::{CStruct, Ptr, c_struct};
use crate::source::{Source, Specialisation};

/// Bytes of stored rows that are on the device at a time, beside what they become.
const STAGED_BYTES: usize = 32 << 20;
/// Columns that rows of f32 are padded to.
pub(super) const PLAIN_COLS: usize = 128;

c_struct! {
    pub(super) struct MatmulPackParams {
        stored: Ptr<u8>,
        tiles: Ptr<u8>,
        factors: Ptr<f32>,
        row_scales: Ptr<f32>,
        row_bytes: u32,
        /// Rows count over all experts.
        first_row: u32,
        row_count: u32,
        first_unit: u32,
        /// Rows of an expert.
        out: u32,
        cols: u32,
        col_tiles: u32,
        /// Row scales: none, one, or one for each row.
        scale_count: u32,
    }
}

static PACK: Source = Source {
    stem: "matmul_pack",
    text: include_str!("../../../kernels/matmul_pack.cu"),
    structs: &[MatmulPackParams::c_text],
};

static PLAIN_PACK: Source = Source {
    stem: "matmul_plain_pack",
    text: include_str!("../../../kernels/matmul_plain_pack.cu"),
    structs: &[MatmulPackParams::c_text],
};

/// The kernel that packs a stored type.
pub(super) fn pack_kernel(held: Held) -> Specialisation {
    match held.form {
        Form::Tiles(tiles) => {
            define_stored(tiles.define(Specialisation::new(&PACK, "matmul_pack")), held.packed_from)
        }
        Form::Rows => Specialisation::new(&PLAIN_PACK, "matmul_plain_pack"),
    }
}

/// A weight as products read it.
pub(crate) struct Packed {
    dims: [usize; 3],
    pub(in crate::kernels) form: Form,
    pub(in crate::kernels) values: DeviceBuffer,
    /// Factors on the outputs.
    pub(in crate::kernels) factors: DeviceBuffer,
}

impl Packed {
    /// Brings a weight of so many experts, outputs and columns to the device.
    pub fn load(
        loader: &mut Loader,
        key: &WeightKey,
        source: &dyn WeightSource,
        dims: [usize; 3],
    ) -> Result<Packed, BackendError> {
        let wrong = |problem: &str| BackendError::WeightShape {
            name: key.name.clone(),
            shape: format!("{:?}", source.shape()),
            problem: problem.to_owned(),
        };
        let dtype = source.dtype();
        let held = held(dtype).expect("types are checked before weights are loaded");
        let [experts, out, cols] = dims;
        let row_bytes = dtype.row_bytes(cols).ok_or_else(|| wrong("whose rows are not whole blocks"))?;
        let (value_bytes, factor_count) = match held.form {
            Form::Tiles(tiles) => {
                let units = experts * out.div_ceil(TILE_ROWS);
                (units * cols.div_ceil(TILE_COLS) * tiles.tile_bytes(), units * TILE_ROWS)
            }
            Form::Rows => (experts * out * cols.next_multiple_of(PLAIN_COLS) * 4, experts * out),
        };
        let allocate = |bytes: usize| {
            let buffer = loader.allocate(bytes, &format!("weight `{}`", key.name))?;
            buffer.fill(loader.stream, 0)?;
            Ok::<_, BackendError>(buffer)
        };
        let (values, factors) = (allocate(value_bytes)?, allocate(factor_count * 4)?);
        let packed = Packed { dims, form: held.form, values, factors };
        let mut packer = Packer { loader, packed: &packed, held, dtype, row_bytes, staged: None };
        let mut before = 0;
        for index in 0..source.part_count() {
            let part = source
                .part(index)
                .map_err(|source| BackendError::ReadWeight { name: key.name.clone(), source })?;
            let count = part.bytes.len() / row_bytes.max(1);
            if part.bytes.len() != count * row_bytes || before + count > experts * out {
                return Err(wrong("whose stored bytes are of another size"));
            }
            packer.pack(&part, before, count).map_err(|problem| match problem {
                PackError::Device(error) => error,
                PackError::Stored(problem) => wrong(&problem),
            })?;
            before += count;
            drop(part);
            source.release(index);
        }
        if before != experts * out {
            return Err(wrong("of which rows are missing"));
        }
        Ok(packed)
    }

    /// Experts, outputs, columns.
    pub fn dims(&self) -> [usize; 3] {
        self.dims
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> usize {
        self.values.bytes() + self.factors.bytes()
    }
}

enum PackError {
    Device(BackendError),
    Stored(String),
}

impl From<BackendError> for PackError {
    fn from(error: BackendError) -> Self {
        PackError::Device(error)
    }
}

/// Packs parts of one weight.
struct Packer<'l, 'c> {
    loader: &'l mut Loader<'c>,
    packed: &'l Packed,
    held: Held,
    dtype: DType,
    /// Of a stored row.
    row_bytes: usize,
    /// Rows on the device, as they are stored or decoded.
    staged: Option<DeviceBuffer>,
}

impl Packer<'_, '_> {
    /// Packs a part whose first row has so many rows before it.
    fn pack(&mut self, part: &WeightPart, before: usize, count: usize) -> Result<(), PackError> {
        let [_, _, cols] = self.packed.dims;
        let scales = match part.row_scales.is_empty() {
            true => None,
            false => {
                let bytes: Vec<u8> = part.row_scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
                let buffer = self.loader.allocate(bytes.len(), "factors of a weight's rows")?;
                self.loader.upload(&bytes, &buffer, 0)?;
                Some(buffer)
            }
        };
        let is_decoded = self.held.packed_from != self.dtype;
        let staged_row = if is_decoded { cols * 4 } else { self.row_bytes };
        let at_once = (STAGED_BYTES / staged_row.max(1)).max(1);
        for first in (0..count).step_by(at_once) {
            let rows = at_once.min(count - first);
            let stored = &part.bytes[first * self.row_bytes..][..rows * self.row_bytes];
            match is_decoded {
                true => self.stage(&decoded(self.dtype, stored, [rows, cols]).map_err(PackError::Stored)?)?,
                false => self.stage(stored)?,
            }
            let scale_count = part.row_scales.len().min(if part.row_scales.len() == 1 { 1 } else { rows });
            let row_scales = scales.as_ref().map_or(Ptr::NULL, |buffer| {
                buffer.ptr().plus_bytes(if part.row_scales.len() == 1 { 0 } else { first * 4 })
            });
            self.launch(before + first, rows, staged_row, row_scales, scale_count)?;
        }
        Ok(())
    }

    /// Copies rows to the device, after what was staged before has been packed.
    fn stage(&mut self, bytes: &[u8]) -> Result<(), BackendError> {
        if self.staged.as_ref().is_none_or(|staged| staged.bytes() < bytes.len()) {
            self.staged = Some(self.loader.allocate(bytes.len(), "the buffer that weights are packed from")?);
        }
        self.loader.upload(bytes, self.staged.as_ref().expect("allocated above"), 0)
    }

    /// Packs the rows that are staged.
    fn launch(
        &mut self,
        first_row: usize,
        rows: usize,
        row_bytes: usize,
        row_scales: Ptr<f32>,
        scale_count: usize,
    ) -> Result<(), BackendError> {
        let [_, out, cols] = self.packed.dims;
        let unit = |row: usize| row / out * out.div_ceil(TILE_ROWS) + row % out / TILE_ROWS;
        let narrow = |n: usize| u32::try_from(n).expect("a weight has fewer than 2^32 rows");
        let units = unit(first_row)..unit(first_row + rows - 1) + 1;
        let params = MatmulPackParams {
            stored: self.staged.as_ref().expect("rows are staged first").ptr(),
            tiles: self.packed.values.ptr(),
            factors: self.packed.factors.ptr(),
            row_scales,
            row_bytes: narrow(row_bytes),
            first_row: narrow(first_row),
            row_count: narrow(rows),
            first_unit: narrow(units.start),
            out: narrow(out),
            cols: narrow(cols),
            col_tiles: narrow(cols.div_ceil(TILE_COLS)),
            scale_count: narrow(scale_count),
        };
        let blocks = match self.held.form {
            Form::Tiles(_) => units.len(),
            Form::Rows => rows,
        };
        self.loader
            .launch(&Launch::new(pack_kernel(self.held), &params).grid([narrow(blocks), 1, 1]).block(256))
    }
}

/// Rows as the bytes of f32 values.
fn decoded(dtype: DType, stored: &[u8], [rows, cols]: [usize; 2]) -> Result<Vec<u8>, String> {
    let row_bytes = stored.len() / rows.max(1);
    let mut values = vec![0f32; cols];
    let mut bytes = Vec::with_capacity(rows * cols * 4);
    for row in stored.chunks_exact(row_bytes) {
        decode_row(dtype, row, &mut values).map_err(|error| format!("which cannot be decoded: {error}"))?;
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
    Ok(bytes)
}
