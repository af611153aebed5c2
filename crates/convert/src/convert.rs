//! The weights of an open model in other types, row by row, and how far each comes from its source. Must not
//! know files.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use mambo_kernel::{WeightPart, WeightSource, WeightUse};
use mambo_model::{BoundWeight, Order, WeightTable};
use mambo_tensor::blocks::{E2M1_MAX, pairs};
use mambo_tensor::{DType, F8_E4M3_MAX, decode_row, encode_row_weighted};

use crate::{Content, ConvertError, Importance, Layout, Planned, Source};

/// Converts the weights of a model.
pub struct Converter<'a, 'c> {
    weights: &'a WeightTable<'c>,
    importance: Option<&'a Importance>,
    /// Factors of the weights that need them, one for each expert.
    factors: HashMap<&'a str, Vec<f32>>,
    errors: Mutex<BTreeMap<String, SquaredError>>,
}

/// How far a weight in its new type is from its source.
#[derive(Clone, Copy, Debug, Default)]
pub struct SquaredError {
    error: f64,
    values: f64,
}

impl SquaredError {
    fn add(&mut self, other: SquaredError) {
        self.error += other.error;
        self.values += other.values;
    }

    fn of(values: &[f32], became: &[f32]) -> SquaredError {
        let pairs = values.iter().zip(became).map(|(&v, &b)| (f64::from(v), f64::from(b)));
        pairs.fold(SquaredError::default(), |sum, (v, b)| SquaredError {
            error: sum.error + (v - b) * (v - b),
            values: sum.values + v * v,
        })
    }

    /// The error as a share of the values, both as root mean squares.
    pub fn relative(&self) -> f64 {
        if self.values > 0.0 { (self.error / self.values).sqrt() } else { 0.0 }
    }
}

impl<'a, 'c> Converter<'a, 'c> {
    /// Reads what has to be known of whole weights before their first row can be written.
    pub fn new(
        weights: &'a WeightTable<'c>,
        layout: &'a Layout,
        importance: Option<&'a Importance>,
        threads: usize,
    ) -> Result<Self, ConvertError> {
        let mut seen = HashSet::new();
        let needs_factors = |tensor: &&Planned| matches!(tensor.content, Content::FactorsOf(_));
        let wanted = layout.tensors.iter().filter(needs_factors).filter(|t| seen.insert(t.weight.as_str()));
        let wanted: Vec<&Planned> = wanted.collect();
        let next = AtomicUsize::new(0);
        let found = Mutex::new(HashMap::new());
        let work = || -> Result<(), ConvertError> {
            while let Some(tensor) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                let mut factors = Vec::new();
                for name in std::iter::once(&tensor.weight).chain(&tensor.second) {
                    let own = factors_of(bound(weights, name)?, tensor.encoding()).map_err(|error| {
                        ConvertError::Weight { weight: name.clone(), source: Box::new(error) }
                    })?;
                    factors.resize(own.len(), 0.0);
                    factors.iter_mut().zip(own).for_each(|(all, own): (&mut f32, f32)| *all = all.max(own));
                }
                found.lock().expect("no worker panics").insert(tensor.weight.as_str(), factors);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
        })?;
        let factors = found.into_inner().expect("no worker panics");
        Ok(Converter { weights, importance, factors, errors: Mutex::default() })
    }

    /// The errors of all weights written so far, summed over those whose names `key` maps to one.
    pub fn errors<K: Ord>(&self, key: impl Fn(&str) -> K) -> BTreeMap<K, SquaredError> {
        let mut sums: BTreeMap<K, SquaredError> = BTreeMap::new();
        for (weight, error) in self.errors.lock().expect("no worker panics").iter() {
            sums.entry(key(weight)).or_default().add(*error);
        }
        sums
    }

    fn note_error(&self, tensor: &Planned, error: SquaredError) {
        let mut errors = self.errors.lock().expect("no worker panics");
        errors.entry(tensor.weight.clone()).or_default().add(error);
    }

    /// The factors of the experts a tensor is about.
    fn write_factors(&self, tensor: &Planned, weight: &BoundWeight, out: &mut [u8]) {
        let factors = self.factors.get(tensor.weight.as_str()).expect("factors were read for the layout");
        let first = tensor.first_row * factors.len() / row_count(weight);
        let bytes = factors[first..].iter().flat_map(|factor| factor.to_le_bytes());
        out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = byte);
    }
}

impl Source for Converter<'_, '_> {
    fn rows(&self, tensor: &Planned, rows: Range<usize>, out: &mut [u8]) -> Result<(), ConvertError> {
        match &tensor.content {
            Content::Given(values) => {
                given(values, tensor, rows, out);
                return Ok(());
            }
            Content::FactorsOf(_) => {
                self.write_factors(tensor, bound(self.weights, &tensor.weight)?, out);
                return Ok(());
            }
            Content::Constant(value) => {
                out.copy_from_slice(&value.to_le_bytes());
                return Ok(());
            }
            _ => {}
        }
        if tensor.rows != Order::Same {
            return self.ordered_rows(tensor, rows, out);
        }
        let weight = bound(self.weights, &tensor.weight)?;
        let mut row = RowConverter::new(self, tensor, weight);
        let per_part = row.row_count / weight.part_count();
        let mut out = out.chunks_exact_mut(tensor.row_bytes());
        let (mut start, last) = (tensor.first_row + rows.start, tensor.first_row + rows.end);
        while start < last {
            let part = start / per_part;
            let end = last.min((part + 1) * per_part);
            let read = weight.part(part)?;
            let stored = read.bytes.len() / per_part;
            for (index, out) in (start..end).zip(&mut out) {
                let in_part = index - part * per_part;
                let scale = read.row_scale(in_part);
                row.convert(index, scale, &read.bytes[in_part * stored..][..stored], out)?;
            }
            // Rows come in order, so nobody asks for this part again, or only for what a neighbour still reads.
            if end == (part + 1) * per_part {
                weight.release(part);
            }
            start = end;
        }
        self.note_error(tensor, row.error);
        Ok(())
    }
}

impl Converter<'_, '_> {
    /// Rows in another order than the weight's, perhaps of two weights.
    fn ordered_rows(&self, tensor: &Planned, rows: Range<usize>, out: &mut [u8]) -> Result<(), ConvertError> {
        let names = std::iter::once(&tensor.weight).chain(&tensor.second);
        let weights = names.map(|name| bound(self.weights, name)).collect::<Result<Vec<_>, _>>()?;
        let mut converters: Vec<RowConverter> =
            weights.iter().map(|weight| RowConverter::new(self, tensor, weight)).collect();
        // Rows of one head are close together: the part they are in is read once for most of them.
        let mut read: Vec<Option<(usize, WeightPart)>> = weights.iter().map(|_| None).collect();
        for (index, out) in rows.zip(out.chunks_exact_mut(tensor.row_bytes())) {
            let (which, index) = tensor.rows.source(index);
            let (weight, row, index) = (weights[which], &mut converters[which], tensor.first_row + index);
            let per_part = row.row_count / weight.part_count();
            let part = index / per_part;
            let bytes = match read[which].take() {
                Some((own, bytes)) if own == part => bytes,
                _ => weight.part(part)?,
            };
            let (in_part, stored) = (index % per_part, bytes.bytes.len() / per_part);
            let scale = bytes.row_scale(in_part);
            row.convert(index, scale, &bytes.bytes[in_part * stored..][..stored], out)?;
            read[which] = Some((part, bytes));
        }
        converters.iter().for_each(|row| self.note_error(tensor, row.error));
        Ok(())
    }
}

/// Values that a layout brings itself.
pub(crate) fn given(values: &[f32], tensor: &Planned, rows: Range<usize>, out: &mut [u8]) {
    let bytes = values[rows.start * tensor.row_elems()..].iter().flat_map(|value| value.to_le_bytes());
    out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = byte);
}

/// Converts rows of one weight.
struct RowConverter<'a, 'c> {
    weight: &'a BoundWeight<'c>,
    content: &'a Content,
    dtype: DType,
    /// One for each expert, or none.
    factors: &'a [f32],
    /// One for each column, or for each column of each expert.
    importance: Option<&'a [f32]>,
    /// Order of the columns that are written.
    order: Order,
    /// Rows of the whole weight.
    row_count: usize,
    values: Vec<f32>,
    became: Vec<f32>,
    /// A row in the new type, where only a part of it is written.
    encoded: Vec<u8>,
    error: SquaredError,
}

impl<'a, 'c> RowConverter<'a, 'c> {
    fn new(converter: &'a Converter<'a, 'c>, tensor: &'a Planned, weight: &'a BoundWeight<'c>) -> Self {
        let dtype = tensor.encoding();
        // Codes and scales are parts of the weight's rows; other tensors may fold them anew.
        let columns = match tensor.content {
            Content::Codes | Content::BlockScales => columns(weight),
            _ => tensor.row_elems(),
        };
        let encoded = dtype.row_bytes(columns).expect("the type was chosen to divide the row");
        RowConverter {
            weight,
            content: &tensor.content,
            dtype,
            factors: converter.factors.get(tensor.weight.as_str()).map_or(&[], Vec::as_slice),
            importance: converter.importance.and_then(|i| i.of(weight.name())),
            order: tensor.columns,
            row_count: weight.shape().iter().product::<usize>() / columns,
            values: vec![0.0; columns],
            became: vec![0.0; columns],
            encoded: vec![0; encoded],
            error: SquaredError::default(),
        }
    }

    /// Row `index` of the weight, whose stored values have a scale.
    fn convert(
        &mut self,
        index: usize,
        scale: f32,
        stored: &[u8],
        out: &mut [u8],
    ) -> Result<(), ConvertError> {
        match self.content {
            Content::Codes => self.encode(index, scale, stored, |encoded| pairs::nvfp4_codes(encoded, out)),
            Content::BlockScales => {
                self.encode(index, scale, stored, |encoded| pairs::nvfp4_scales(encoded, out))
            }
            _ => self.encode(index, scale, stored, |encoded| out.copy_from_slice(encoded)),
        }
    }

    /// Hands over a row in the new type; the same type is copied, once it is known to hold numbers.
    fn encode(
        &mut self,
        index: usize,
        scale: f32,
        stored: &[u8],
        hand_over: impl FnOnce(&[u8]),
    ) -> Result<(), ConvertError> {
        let factor = self.of_expert(self.factors, 1, index).map_or(1.0, |f| f[0]);
        let is_logarithm = *self.content == Content::Logarithms;
        decode_row(self.weight.dtype(), stored, &mut self.values)?;
        let multiplier = scale / factor;
        if let Some(column) = self.values.iter().position(|value| !(value * multiplier).is_finite()) {
            return Err(self.damaged(index, column, self.values[column] * multiplier));
        }
        if self.weight.dtype() == self.dtype && scale == factor && !is_logarithm && self.order == Order::Same
        {
            hand_over(stored);
            return Ok(());
        }
        if multiplier != 1.0 {
            self.values.iter_mut().for_each(|value| *value *= multiplier);
        }
        if is_logarithm {
            self.values.iter_mut().for_each(|value| *value = f64::from(-*value).ln() as f32);
        }
        let importance = self.importance.and_then(|i| self.of_expert(i, self.values.len(), index));
        let mut importance = importance.map(Cow::Borrowed);
        if self.order != Order::Same {
            self.values = in_order(self.order, &self.values);
            importance = importance.map(|importance| Cow::Owned(in_order(self.order, &importance)));
        }
        encode_row_weighted(self.dtype, &self.values, importance.as_deref(), &mut self.encoded)?;
        hand_over(&self.encoded);
        if *self.content != Content::BlockScales {
            decode_row(self.dtype, &self.encoded, &mut self.became)?;
            let error = SquaredError::of(&self.values, &self.became);
            let square = f64::from(factor) * f64::from(factor);
            self.error.add(SquaredError { error: error.error * square, values: error.values * square });
        }
        Ok(())
    }

    fn damaged(&self, row: usize, column: usize, value: f32) -> ConvertError {
        let rows_per_part = self.row_count / self.weight.part_count();
        ConvertError::Damaged {
            file: self.weight.file().to_owned(),
            tensor: self.weight.part_tensor(row / rows_per_part).to_owned(),
            weight: self.weight.name().to_owned(),
            row,
            column,
            value,
        }
    }

    /// The `each` numbers that belong to the expert of a row, where there are some for every expert.
    fn of_expert<'n>(&self, numbers: &'n [f32], each: usize, row: usize) -> Option<&'n [f32]> {
        let experts = numbers.len() / each.max(1);
        let expert = (row * experts).checked_div(self.row_count)?;
        numbers.get(expert * each..(expert + 1) * each)
    }
}

fn in_order(order: Order, values: &[f32]) -> Vec<f32> {
    (0..values.len()).map(|column| values[order.source(column).1]).collect()
}

fn bound<'a, 'c>(weights: &'a WeightTable<'c>, name: &str) -> Result<&'a BoundWeight<'c>, ConvertError> {
    weights.get(name).ok_or_else(|| ConvertError::NoSuchWeight { weight: name.to_owned() })
}

fn columns(weight: &BoundWeight) -> usize {
    weight.shape().last().copied().unwrap_or(1)
}

fn row_count(weight: &BoundWeight) -> usize {
    weight.shape().iter().product::<usize>() / columns(weight).max(1)
}

/// The largest value a type holds without a factor.
fn largest(dtype: DType) -> f32 {
    if dtype == DType::NVFP4 { F8_E4M3_MAX * E2M1_MAX } else { F8_E4M3_MAX }
}

/// One factor for each expert: the largest that the weight has already if it is of that type, else what puts
/// its largest value at the end of the type's range.
fn factors_of(weight: &BoundWeight, dtype: DType) -> Result<Vec<f32>, ConvertError> {
    let experts = if weight.usage() == WeightUse::Experts { weight.shape()[0] } else { 1 };
    let mut factors = vec![0.0f32; experts];
    let (parts, rows) = (weight.part_count(), row_count(weight));
    let mut values = vec![0.0; columns(weight)];
    for part in 0..parts {
        let read = weight.part(part)?;
        let first = part * rows / parts;
        for (row, stored) in read.bytes.chunks_exact(read.bytes.len() * parts / rows).enumerate() {
            let scale = read.row_scale(row);
            let needed = if weight.dtype() == dtype {
                scale
            } else {
                decode_row(weight.dtype(), stored, &mut values)?;
                values.iter().fold(0.0f32, |most, v| most.max((v * scale).abs())) / largest(dtype)
            };
            let factor = &mut factors[(first + row) * experts / rows];
            *factor = factor.max(needed);
        }
        weight.release(part);
    }
    // A weight of zeros has no range to fill; neither has one whose factor would not be a normal number.
    factors.iter_mut().filter(|factor| !factor.is_normal()).for_each(|factor| *factor = 1.0);
    Ok(factors)
}
