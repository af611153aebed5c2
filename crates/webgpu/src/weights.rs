//! Taking weights in: in the forms that kernels unpack, cut into shards that the device can bind; or as f32 vectors.

use std::ops::Range;
use std::sync::Arc;

use mambo_kernel::{BackendError, WeightKey, WeightPart, WeightSource, WeightUse};
use mambo_tensor::{DType, decode_row};

use crate::device::Device;
use crate::faults::{BACKEND, out_of_memory};
use crate::kernels::declaration::{TABLE, VECTOR};
use crate::params::{WeightRows, narrow};
use crate::pool::Pool;
use crate::stored::{Form, Layout, Packed, held, held_as_table};
use crate::vectors::Vectors;

/// Words that are packed before they are written.
const WORDS_AT_ONCE: usize = 1 << 20;

/// A weight in the form its kernel reads.
#[derive(Clone)]
pub(crate) enum Weight {
    /// f32 values in the pool of vectors.
    Vector { at: u32, len: usize },
    /// Rows of a matrix, of experts' matrices, or of a table.
    Matrix(Arc<Matrix>),
}

/// A part of a matrix that kernels see at once: whole rows, and with experts whole experts.
pub(crate) struct Shard {
    pub buffer: wgpu::Buffer,
    /// The vector of four words at which its first row begins.
    pub first: u32,
    /// Rows of the whole, counted over all experts.
    pub rows: Range<usize>,
    pub layout: Layout,
}

impl Shard {
    /// Where kernels find its rows: all of one matrix, or those of whole experts with so many outputs each.
    pub fn weight_rows(&self, experts: usize, outputs: usize) -> WeightRows {
        let Layout { blocks, scales, supers, factor, words, .. } = self.layout;
        let (outputs, experts) = match experts {
            1 => (self.rows.len(), 1),
            _ => (outputs, self.rows.len() / outputs),
        };
        WeightRows {
            first: self.first,
            stride: narrow(words / 4),
            blocks: narrow(blocks),
            scales: narrow(scales),
            supers: narrow(supers),
            factor: narrow(factor),
            outputs: narrow(outputs),
            experts: narrow(experts),
        }
    }
}

/// A matrix on the device.
pub(crate) struct Matrix {
    pub form: Form,
    /// Experts, outputs of each, columns.
    pub dims: [usize; 3],
    pub shards: Vec<Shard>,
}

impl Matrix {
    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| (shard.rows.len() * shard.layout.words) as u64 * 4).sum()
    }
}

/// Loads a weight in the form its key names and says how many bytes it takes.
pub(crate) fn load(
    device: &Device,
    (vectors, pool): (&mut Vectors, &mut Pool),
    key: &WeightKey,
    source: &dyn WeightSource,
) -> Result<(Weight, u64), BackendError> {
    let shape = source.shape();
    let dims = match (key.usage, shape) {
        (WeightUse::Matrix, &[out, cols]) => [1, out, cols],
        (WeightUse::Experts, &[experts, out, cols]) => [experts, out, cols],
        (WeightUse::Table, &[rows, cols]) => [1, rows, cols],
        (WeightUse::Vector, &[.., cols]) => [1, shape[..shape.len() - 1].iter().product(), cols],
        (WeightUse::Matrix | WeightUse::Table, _) => {
            return Err(wrong(key, source, "expected two dimensions"));
        }
        (WeightUse::Experts, _) => return Err(wrong(key, source, "expected three dimensions")),
        (WeightUse::Vector, _) => return Err(wrong(key, source, "expected at least one dimension")),
    };
    if dims.contains(&0) {
        return Err(wrong(key, source, "which is empty"));
    }
    let values = dims.iter().try_fold(1usize, |product, n| product.checked_mul(*n));
    if values.is_none_or(|values| values > usize::MAX / 8) {
        return Err(wrong(key, source, "which is too large"));
    }
    if key.form == VECTOR {
        let len = dims[1] * dims[2];
        let at = load_vector(vectors, key, source, dims)?;
        return Ok((Weight::Vector { at, len }, len as u64 * 4));
    }
    let form = if key.form == TABLE { held_as_table(source.dtype()) } else { held(source.dtype()) };
    let Some(form) = form else {
        return Err(BackendError::UnsupportedWeight {
            name: key.name.clone(),
            dtype: source.dtype(),
            backend: BACKEND.to_owned(),
            supported: supported(),
        });
    };
    let matrix = load_matrix(device, pool, key, source, (form, dims))?;
    let bytes = matrix.bytes();
    #[cfg_attr(
        target_family = "wasm",
        expect(clippy::arc_with_non_send_sync, reason = "what a browser gives stays in its thread")
    )]
    let matrix = Arc::new(matrix);
    Ok((Weight::Matrix(matrix), bytes))
}

/// The types that products read, for messages.
fn supported() -> String {
    let single = DType::all().filter(|dtype| held(*dtype).is_some() && !matches!(dtype, DType::Affine(_)));
    format!("{} or affine groups", single.map(DType::name).collect::<Vec<_>>().join(", "))
}

/// The error of a weight whose shape or bytes do not fit.
fn wrong(key: &WeightKey, source: &dyn WeightSource, problem: &str) -> BackendError {
    BackendError::WeightShape {
        name: key.name.clone(),
        shape: format!("{:?}", source.shape()),
        problem: problem.to_owned(),
    }
}

/// Calls `take` with every part's rows and the number of rows before it; all parts together have `rows` rows.
fn each_part(
    key: &WeightKey,
    source: &dyn WeightSource,
    [rows, cols]: [usize; 2],
    mut take: impl FnMut(&WeightPart, usize, usize) -> Result<(), BackendError>,
) -> Result<(), BackendError> {
    let row_bytes = source.dtype().row_bytes(cols).filter(|bytes| *bytes > 0);
    let row_bytes = row_bytes.ok_or_else(|| wrong(key, source, "whose rows are not whole blocks"))?;
    let mut before = 0;
    for index in 0..source.part_count() {
        let part = source
            .part(index)
            .map_err(|source| BackendError::ReadWeight { name: key.name.clone(), source })?;
        let count = part.bytes.len() / row_bytes;
        if !part.bytes.len().is_multiple_of(row_bytes) || before + count > rows {
            return Err(wrong(key, source, "whose stored bytes are of another size"));
        }
        take(&part, before, row_bytes)?;
        before += count;
        drop(part);
        source.release(index);
    }
    if before != rows {
        return Err(wrong(key, source, "of which rows are missing"));
    }
    Ok(())
}

fn load_vector(
    vectors: &mut Vectors,
    key: &WeightKey,
    source: &dyn WeightSource,
    [_, rows, cols]: [usize; 3],
) -> Result<u32, BackendError> {
    let mut words = Vec::with_capacity(rows * cols);
    let mut values = vec![0f32; cols];
    each_part(key, source, [rows, cols], |part, _, row_bytes| {
        for (row, stored) in part.bytes.chunks_exact(row_bytes).enumerate() {
            let decoded = decode_row(source.dtype(), stored, &mut values);
            decoded.map_err(|error| wrong(key, source, &error.to_string()))?;
            let scale = part.row_scale(row);
            words.extend(values.iter().map(|value| (value * scale).to_bits()));
        }
        Ok(())
    })?;
    Ok(vectors.add(words))
}

fn load_matrix(
    device: &Device,
    pool: &mut Pool,
    key: &WeightKey,
    source: &dyn WeightSource,
    (form, dims): (Form, [usize; 3]),
) -> Result<Matrix, BackendError> {
    let [experts, outputs, cols] = dims;
    let rows = experts * outputs;
    let shards = make_shards(device, pool, key, form, dims)?;
    let dtype = source.dtype();
    each_part(key, source, [rows, cols], |part, before, row_bytes| {
        for jobs in batches(&shards, before..before + part.bytes.len() / row_bytes) {
            let packed = pack(&jobs, |row, packed: &mut Packed, layout: &Layout| {
                let at = row - before;
                let stored = &part.bytes[at * row_bytes..][..row_bytes];
                packed.push(layout, dtype, stored, cols, part.row_scale(at))
            });
            write(device, &packed.map_err(|problem| wrong(key, source, &problem))?);
        }
        Ok(())
    })?;
    device.faults.check(&format!("loading weight `{}`", key.name))?;
    Ok(Matrix { form, dims, shards })
}

/// Buffers for so many rows as fit each: all of them, whole experts, or rows of a matrix.
fn make_shards(
    device: &Device,
    pool: &mut Pool,
    key: &WeightKey,
    form: Form,
    [experts, outputs, cols]: [usize; 3],
) -> Result<Vec<Shard>, BackendError> {
    let unit = if experts > 1 { outputs } else { 1 };
    let limit = usize::try_from(device.shard_bytes()).unwrap_or(usize::MAX);
    let rows = experts * outputs;
    let layout = Layout::new(form, cols);
    let row_bytes = layout.words * 4;
    let at_once = limit / row_bytes / unit * unit;
    if at_once == 0 {
        let what = if experts > 1 { "an expert" } else { "a row" };
        let what = format!("{what} of weight `{}`, of which this device binds {limit} at most", key.name);
        return Err(out_of_memory(&what, (row_bytes * unit) as u64));
    }
    let what = format!("weight `{}`", key.name);
    let shard = |first: usize| {
        let rows = first..(first + at_once).min(rows);
        let (buffer, first) = pool.take(device, rows.len() * row_bytes, &what)?;
        Ok(Shard { buffer, first, rows, layout })
    };
    (0..rows).step_by(at_once).map(shard).collect()
}

/// Rows of one shard that are packed by one thread.
struct Job<'a> {
    shard: &'a Shard,
    rows: Range<usize>,
}

/// Rows cut into jobs within shards, a round of jobs after the other: one for each thread of this machine.
fn batches(shards: &[Shard], rows: Range<usize>) -> Vec<Vec<Job<'_>>> {
    let mut jobs = Vec::new();
    for shard in shards {
        let (start, end) = (rows.start.max(shard.rows.start), rows.end.min(shard.rows.end));
        let at_once = (WORDS_AT_ONCE / shard.layout.words).max(1);
        jobs.extend(
            (start..end).step_by(at_once).map(|first| Job { shard, rows: first..(first + at_once).min(end) }),
        );
    }
    let mut jobs = jobs.into_iter().peekable();
    let mut rounds = Vec::new();
    while jobs.peek().is_some() {
        rounds.push(jobs.by_ref().take(threads()).collect());
    }
    rounds
}

/// Threads that pack; in a browser there is one.
fn threads() -> usize {
    match cfg!(target_family = "wasm") {
        true => 1,
        false => std::thread::available_parallelism().map_or(1, |count| count.get().min(16)),
    }
}

/// Packs jobs side by side.
fn pack<'a, 'b>(
    jobs: &'b [Job<'a>],
    push: impl Fn(usize, &mut Packed, &Layout) -> Result<(), String> + Sync,
) -> Result<Vec<(&'b Job<'a>, Packed)>, String> {
    let one = |job: &'b Job<'a>| {
        let mut packed = Packed::default();
        job.rows.clone().try_for_each(|row| push(row, &mut packed, &job.shard.layout))?;
        Ok((job, packed))
    };
    if let [job] = jobs {
        return Ok(vec![one(job)?]);
    }
    side_by_side(jobs, one)
}

/// Jobs on threads of their own.
#[cfg(not(target_family = "wasm"))]
fn side_by_side<'b, J: Sync, T: Send>(
    jobs: &'b [J],
    one: impl Fn(&'b J) -> Result<T, String> + Sync,
) -> Result<Vec<T>, String> {
    let one = &one;
    std::thread::scope(|scope| {
        let running: Vec<_> = jobs.iter().map(|job| scope.spawn(move || one(job))).collect();
        running.into_iter().map(|thread| thread.join().expect("packing does not panic")).collect()
    })
}

/// Jobs one after the other: there are no threads.
#[cfg(target_family = "wasm")]
fn side_by_side<'b, J, T>(jobs: &'b [J], one: impl Fn(&'b J) -> Result<T, String>) -> Result<Vec<T>, String> {
    jobs.iter().map(one).collect()
}

/// Queues writing packed rows.
fn write(device: &Device, packed: &[(&Job, Packed)]) {
    for (Job { shard, rows }, Packed { words, .. }) in packed {
        let row = u64::from(shard.first) * 4 + ((rows.start - shard.rows.start) * shard.layout.words) as u64;
        device.write(&shard.buffer, row, words);
    }
    device.flush();
}
