//! Canonical weights find their tensors in a checkpoint; names, shapes and types are checked here, once.
//!
//! Must not know how a backend holds a weight nor what it computes with it.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use mambo_checkpoint::{Checkpoint, Format, StoredRange, TensorInfo};
use mambo_kernel::{Digest, KvScale, WeightError, WeightPart, WeightSource, WeightUse};
use mambo_tensor::{DType, decode_row};

use crate::error::ModelError;
use crate::families::Family;
use crate::families::spelling::Pick;
use crate::kv_scale;
use crate::locate::{Arranged, is_picked_by_element, locate, pick};
use crate::names::{Part, Transform};
use crate::quantization::{self, MlxSettings, PackedSettings};
use crate::spec::ModelSpec;
use crate::storage::{self, BadScale, Dims, Files, Form, Span, StoredPart};
use crate::unread;
use crate::weights::Weight;

/// Every weight of a model with its tensors, by canonical name.
pub struct WeightTable<'c> {
    weights: Vec<BoundWeight<'c>>,
    by_name: HashMap<String, usize>,
    kv_scales: Vec<KvScale>,
    /// What the files hold beside the weights, as a sentence.
    unread: Option<String>,
}

/// One weight: the stored parts that stack along its outermost dimension.
pub struct BoundWeight<'c> {
    weight: Weight,
    dtype: DType,
    transform: Transform,
    checkpoint: &'c Checkpoint,
    parts: Vec<StoredPart<'c>>,
    /// Which of the stored rows are the weight's; none where all are.
    picks: Vec<Pick>,
    /// Factors of the family on rows; none where all are 1.
    row_factors: Vec<f32>,
    /// Tensors that hold nothing but factors.
    factor_tensors: Vec<&'c TensorInfo>,
}

/// Finds every weight of `spec` in `checkpoint`.
pub fn bind<'c>(checkpoint: &'c Checkpoint, spec: &ModelSpec) -> Result<WeightTable<'c>, ModelError> {
    let files = files(checkpoint);
    let weights: Vec<BoundWeight> =
        spec.weights().into_iter().map(|weight| bind_one(&files, spec, weight)).collect::<Result<_, _>>()?;
    let unread = unread::check(checkpoint, spec, &read_tensors(&weights))?;
    let by_name = weights.iter().enumerate().map(|(i, w)| (w.name().to_owned(), i)).collect();
    Ok(WeightTable { weights, by_name, kv_scales: kv_scale::read(&files, spec)?, unread })
}

/// Everything that keeps the weights of `spec` from being found, where [`bind`] stops at the first.
pub fn problems(checkpoint: &Checkpoint, spec: &ModelSpec) -> Vec<ModelError> {
    let files = files(checkpoint);
    let (mut weights, mut problems) = (Vec::new(), Vec::new());
    for weight in spec.weights() {
        match bind_one(&files, spec, weight) {
            Ok(bound) => weights.push(bound),
            Err(problem) => problems.push(problem),
        }
    }
    problems.extend(unread::check(checkpoint, spec, &read_tensors(&weights)).err());
    problems.extend(kv_scale::read(&files, spec).err());
    problems
}

fn files(checkpoint: &Checkpoint) -> Files<'_> {
    Files {
        checkpoint,
        mlx: MlxSettings::of_checkpoint(checkpoint),
        packed: PackedSettings::of_checkpoint(checkpoint),
        square: quantization::square(checkpoint),
    }
}

/// Names of all tensors that weights are made of.
fn read_tensors<'w>(weights: &'w [BoundWeight]) -> HashSet<&'w str> {
    weights.iter().flat_map(BoundWeight::tensor_names).collect()
}

impl<'c> WeightTable<'c> {
    /// The weight of a canonical name.
    pub fn get(&self, name: &str) -> Option<&BoundWeight<'c>> {
        self.by_name.get(name).map(|&index| &self.weights[index])
    }

    /// Every weight, in the order a forward pass meets them.
    pub fn iter(&self) -> impl Iterator<Item = &BoundWeight<'c>> {
        self.weights.iter()
    }

    /// Bytes of all weights in the files.
    pub fn stored_bytes(&self) -> u64 {
        self.weights.iter().map(BoundWeight::stored_bytes).sum()
    }

    /// What a reader should know about how weights are held.
    pub fn notes(&self) -> Vec<String> {
        let forms = self.weights.iter().filter_map(|weight| Some(weight.parts.first()?.form));
        let notes = self.weights.iter().filter_map(BoundWeight::note).chain(storage::decoded(forms));
        notes.chain(self.unread.clone()).collect()
    }

    /// What a KV cache of 8-bit floats divides by, for each attention layer in layer order; the MTP head's
    /// comes last. A cache of f16 or f32 needs none of them.
    pub fn kv_scales(&self) -> &[KvScale] {
        &self.kv_scales
    }
}

impl BoundWeight<'_> {
    /// Canonical name.
    pub fn name(&self) -> &str {
        &self.weight.name
    }

    /// What it is in its layer.
    pub fn role(&self) -> Part {
        self.weight.part
    }

    /// How a backend holds it by its main use; a tied embedding is multiplied as well.
    pub fn usage(&self) -> WeightUse {
        self.weight.part.usage()
    }

    /// How stored values become the weight's.
    pub fn transform(&self) -> Transform {
        self.transform
    }

    /// Names of the tensors it is made of, each once.
    pub fn tensor_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.spans().map(|span| span.tensor.name.as_str()).collect();
        names.extend(self.factor_tensors.iter().map(|tensor| tensor.name.as_str()));
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The file or folder it is read from, for messages.
    pub fn file(&self) -> &str {
        self.checkpoint.source()
    }

    /// The tensor that holds a part's values or codes.
    pub fn part_tensor(&self, part: usize) -> &str {
        &self.parts[part].codes.tensor.name
    }

    /// Where in the files lies what its parts are read from.
    pub fn stored_ranges(&self) -> Vec<StoredRange> {
        self.spans().map(|span| span.tensor.place(span.range.clone())).collect()
    }

    /// Bytes it takes in the files, scales included.
    pub fn stored_bytes(&self) -> u64 {
        let factors: u64 = self.factor_tensors.iter().map(|tensor| tensor.byte_len()).sum();
        let whole: u64 = self.spans().map(|span| span.range.end - span.range.start).sum();
        factors + self.picked(whole)
    }

    /// The share of a tensor's bytes that its picked rows take.
    fn picked(&self, bytes: u64) -> u64 {
        let Some(Pick { period, .. }) = self.picks.first() else { return bytes };
        let taken: usize = self.picks.iter().map(|pick| pick.count).sum();
        (u128::from(bytes) * taken as u128 / (*period).max(1) as u128) as u64
    }

    /// All parts, decoded to f32 and with their factors.
    pub fn to_f32(&self) -> Result<Vec<f32>, ModelError> {
        let mut values = Vec::new();
        for index in 0..self.part_count() {
            let part = self.read(index)?;
            let start = values.len();
            values.resize(start + self.elems() / self.part_count(), 0.0);
            decode_row(self.dtype, &part.bytes, &mut values[start..])
                .map_err(|e| self.unreadable(e.to_string()))?;
            for (row, values) in values[start..].chunks_exact_mut(self.cols()).enumerate() {
                let factor = part.row_scale(row);
                if factor != 1.0 {
                    values.iter_mut().for_each(|value| *value *= factor);
                }
            }
        }
        Ok(values)
    }

    /// Refuses values that are not numbers; reads and decodes all of them.
    pub fn check_finite(&self) -> Result<(), ModelError> {
        let values = self.to_f32()?;
        let Some(at) = values.iter().position(|value| !value.is_finite()) else { return Ok(()) };
        Err(ModelError::NotANumber {
            file: self.file().to_owned(),
            tensor: self.part_tensor(at * self.part_count() / values.len()).to_owned(),
            weight: self.name().to_owned(),
            value: values[at],
        })
    }

    /// Says so where parts of different types are held as one.
    pub fn note(&self) -> Option<String> {
        let mut counts: Vec<(DType, usize)> = Vec::new();
        for part in &self.parts {
            match counts.iter_mut().find(|(dtype, _)| *dtype == part.dtype) {
                Some((_, count)) => *count += 1,
                None => counts.push((part.dtype, 1)),
            }
        }
        if counts.len() < 2 {
            return None;
        }
        let list: Vec<String> = counts.iter().map(|(dtype, count)| format!("{count} of {dtype}")).collect();
        let (name, held) = (self.name(), self.dtype);
        Some(format!(
            "`{name}` has parts of different types ({}): all are held as {held}, which loses nothing",
            list.join(", ")
        ))
    }

    /// One part in the weight's type, with its factors.
    fn read(&self, index: usize) -> Result<WeightPart<'_>, ModelError> {
        if let Some(value) = self.weight.constant {
            let bytes = value.to_le_bytes().repeat(self.elems());
            return Ok(WeightPart { bytes: Cow::Owned(bytes), row_scales: Cow::Borrowed(&[]) });
        }
        let part = &self.parts[index];
        let beside = part.beside.iter().map(|span| self.bytes(span)).collect::<Result<Vec<_>, _>>()?;
        let beside: Vec<&[u8]> = beside.iter().map(|bytes| &**bytes).collect();
        let bytes = part
            .form
            .apply(part.codes.tensor.dtype, self.bytes(&part.codes)?, &beside)
            .map_err(|bad| self.bad_scale(&part.beside[0], bad))?;
        let bytes = match part.dtype == self.dtype {
            true => bytes,
            false => Cow::Owned(storage::widen(part.dtype, &bytes, self.dtype)),
        };
        let mut row_scales = self.row_scales(part)?;
        let bytes = match self.picks.is_empty() {
            true => bytes,
            false => {
                let row_bytes = self.dtype.row_bytes(self.picked_cols()).expect("rows are whole blocks");
                if row_scales.len() > 1 {
                    row_scales = Cow::Owned(pick(&self.picks, &row_scales, 1));
                }
                Cow::Owned(pick(&self.picks, &bytes, row_bytes))
            }
        };
        Ok(WeightPart { bytes, row_scales: self.with_row_factors(index, row_scales) })
    }

    /// The part's factors with those of the family.
    fn with_row_factors<'a>(&self, part: usize, scales: Cow<'a, [f32]>) -> Cow<'a, [f32]> {
        if self.row_factors.is_empty() {
            return scales;
        }
        let rows = self.elems() / self.cols() / self.part_count();
        // Experts share their factors.
        let start = if self.usage() == WeightUse::Experts { 0 } else { part * rows };
        let own = self.row_factors.iter().skip(start).take(rows);
        let scale = |row: usize| match *scales {
            [] => 1.0,
            [scale] => scale,
            ref scales => scales[row],
        };
        Cow::Owned(own.enumerate().map(|(row, factor)| factor * scale(row)).collect())
    }

    /// Columns of what is picked: of vectors it is elements.
    fn picked_cols(&self) -> usize {
        if is_picked_by_element(&self.weight) { 1 } else { self.cols() }
    }

    fn row_scales<'a>(&'a self, part: &'a StoredPart) -> Result<Cow<'a, [f32]>, ModelError> {
        let Some(span) = &part.row_scales else {
            return Ok(match part.factor == 1.0 {
                true => Cow::Borrowed(&[]),
                false => Cow::Borrowed(std::slice::from_ref(&part.factor)),
            });
        };
        let (dtype, bytes) = (span.tensor.dtype, self.bytes(span)?);
        let mut scales = vec![0.0; bytes.len() / dtype.block_bytes()];
        decode_row(dtype, &bytes, &mut scales).expect("the scales are plain floats");
        scales.iter_mut().for_each(|scale| *scale *= part.factor);
        Ok(Cow::Owned(scales))
    }

    /// The failure of a scale among those of one part.
    fn bad_scale(&self, span: &Span, bad: BadScale) -> ModelError {
        // A scale is a byte in every form that looks for bad ones.
        let position = span.range.start + bad.position as u64;
        ModelError::BadScale {
            file: self.checkpoint.source().to_owned(),
            tensor: span.tensor.name.clone(),
            problem: format!("holds NaN or a negative scale at position {position}"),
        }
    }

    fn spans(&self) -> impl Iterator<Item = &Span<'_>> {
        self.parts.iter().flat_map(spans)
    }

    fn bytes(&self, span: &Span) -> Result<Cow<'_, [u8]>, ModelError> {
        Ok(self.checkpoint.read_range(span.tensor, span.range.clone())?)
    }

    fn cols(&self) -> usize {
        self.weight.shape.last().copied().unwrap_or(1)
    }

    fn elems(&self) -> usize {
        self.weight.shape.iter().product()
    }

    fn unreadable(&self, problem: String) -> ModelError {
        ModelError::UnsupportedTensor {
            file: self.checkpoint.source().to_owned(),
            tensor: self.parts[0].codes.tensor.name.clone(),
            problem: format!("cannot be decoded: {problem}"),
        }
    }
}

impl WeightSource for BoundWeight<'_> {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.weight.shape
    }

    fn part_count(&self) -> usize {
        self.parts.len().max(1)
    }

    fn part(&self, index: usize) -> Result<WeightPart<'_>, WeightError> {
        self.read(index).map_err(|error| WeightError(error.to_string()))
    }

    fn release(&self, index: usize) {
        for span in self.parts.get(index).into_iter().flat_map(spans) {
            self.checkpoint.release(span.tensor, span.range.clone());
        }
    }

    fn digest(&self) -> u64 {
        const PARTS: usize = 8;
        const BYTES: u64 = 256;
        let mut digest = Digest::default();
        let count = self.parts.len().min(PARTS);
        digest.write(&self.weight.constant.unwrap_or(0.0).to_le_bytes());
        for part in (0..count).map(|i| &self.parts[i * self.parts.len() / count]) {
            let Span { tensor, range } = &part.codes;
            let last = range.end.saturating_sub(BYTES).max(range.start);
            for start in [range.start, range.start.midpoint(last), last] {
                let sample = start..range.end.min(start + BYTES);
                // What cannot be read fails when the weight is loaded; here it only adds nothing.
                if let Ok(bytes) = self.checkpoint.read_range(tensor, sample) {
                    digest.write(&bytes);
                }
            }
            digest.write(&part.factor.to_le_bytes());
        }
        digest.finish()
    }
}

/// Everything of the files that belongs to a part.
fn spans<'a, 'c>(part: &'a StoredPart<'c>) -> impl Iterator<Item = &'a Span<'c>> {
    std::iter::once(&part.codes).chain(&part.beside).chain(&part.row_scales)
}

fn bind_one<'c>(files: &Files<'c>, spec: &ModelSpec, weight: Weight) -> Result<BoundWeight<'c>, ModelError> {
    let checkpoint = files.checkpoint;
    let family = Family::of(spec);
    let mut bound = BoundWeight {
        row_factors: row_factors(spec, &weight),
        weight,
        dtype: DType::F32,
        transform: Transform::None,
        checkpoint,
        parts: Vec::new(),
        picks: Vec::new(),
        factor_tensors: Vec::new(),
    };
    let weight = &bound.weight;
    if weight.constant.is_some() {
        return Ok(bound);
    }
    let (tensors, rows) = locate(checkpoint, family, weight, spec.layers.len())?;
    let is_safetensors = checkpoint.format() == Format::Safetensors;
    bound.transform = match weight.part {
        Part::A if is_safetensors => Transform::NegExp,
        part if is_safetensors && family.plus_one.contains(&part) => Transform::PlusOne,
        _ => Transform::None,
    };
    let stored = tensors.first().map_or(&[][..], |tensor| tensor.shape.dims());
    let arranged = Arranged::of(spec, weight, rows, stored);
    for &tensor in &tensors {
        let is_one_of_several = tensors.len() > 1 || is_single_expert(weight, tensor);
        let want = if is_one_of_several { &weight.shape[1..] } else { &arranged.shape[..] };
        let dims = Dims { weight, want };
        let mut module = storage::read(files, tensor, dims)?;
        if module.form == Form::AsStored {
            check_shape(files, dims, tensor)?;
        }
        match bound.transform {
            Transform::NegExp => (module.form, module.dtype) = (Form::NegExp, DType::F32),
            Transform::PlusOne => (module.form, module.dtype) = (Form::PlusOne, DType::F32),
            Transform::None => {}
        }
        if arranged.is_transposed {
            let [.., rows, cols] = arranged.shape[..] else { unreachable!("a matrix has rows and columns") };
            module = transposed(files, module, [rows, cols])?;
        }
        bound.parts.extend(storage::split(&module, dims, arranged.picks.is_empty()));
        bound.factor_tensors.extend(module.factor_tensors);
    }
    let dtypes: Vec<DType> = bound.parts.iter().map(|part| part.dtype).collect();
    bound.dtype = storage::common_type(&dtypes);
    bound.picks = arranged.picks;
    Ok(bound)
}

/// A module that is stored with rows and columns exchanged.
fn transposed<'c>(
    files: &Files<'c>,
    module: storage::Module<'c>,
    stored: [usize; 2],
) -> Result<storage::Module<'c>, ModelError> {
    match module.form == Form::AsStored && module.dtype.block_elems() == 1 && module.row_scales.is_none() {
        true => Ok(storage::Module { form: Form::Transposed(stored), ..module }),
        false => Err(files.unsupported(module.codes, "is quantised and stored transposed".to_owned())),
    }
}

/// The family's factor on every row; none where all are 1.
fn row_factors(spec: &ModelSpec, weight: &Weight) -> Vec<f32> {
    let part = if weight.part == Part::TiedHead { Part::Head } else { weight.part };
    let Some(factor) = spec.factor(part) else { return Vec::new() };
    if factor.rows.iter().all(|(_, factor)| *factor == 1.0) {
        return Vec::new();
    }
    let rows = match weight.shape[..] {
        [.., rows, _] => rows,
        _ => weight.shape[0],
    };
    let all = factor.rows.iter().flat_map(|(count, factor)| std::iter::repeat_n(*factor, (*count).min(rows)));
    all.take(rows).collect()
}

fn check_shape(files: &Files, dims: Dims, tensor: &TensorInfo) -> Result<(), ModelError> {
    let Dims { weight, want } = dims;
    let got = tensor.shape.dims();
    let fits = match weight.part.usage() {
        // Files differ in how they fold small weights; only their order counts.
        WeightUse::Vector if want.len() == 1 => tensor.shape.elems() == want[0],
        WeightUse::Vector => got.iter().filter(|&&d| d != 1).eq(want.iter().filter(|&&d| d != 1)),
        // A matrix of one row may be stored as that row.
        _ => got == want || want.split_first() == Some((&1, got)),
    };
    match fits {
        true => Ok(()),
        false => Err(files.wrong_shape(tensor, dims, format!("{want:?}"))),
    }
}

/// Whether the tensor is the one expert of a layer, stored without the dimension of experts.
fn is_single_expert(weight: &Weight, tensor: &TensorInfo) -> bool {
    weight.part.usage() == WeightUse::Experts && weight.shape[0] == 1 && tensor.shape.rank() == 2
}
