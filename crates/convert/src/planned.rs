//! The tensors of a file that is to be written: names, shapes, types, sizes. Must not know values, nor why a
//! type was chosen.

use mambo_kernel::KvScale;
use mambo_model::{ExportTensor, Order, Part};
use mambo_tensor::DType;

use crate::Container;

/// One tensor of the file.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Name in the file.
    pub name: String,
    /// Canonical name of the weight.
    pub weight: String,
    /// What it is there.
    pub part: Part,
    /// Shape in the file, outermost first.
    pub shape: Vec<usize>,
    /// How it is stored.
    pub dtype: DType,
    /// Row of the weight it starts with: experts may have a tensor each.
    pub first_row: usize,
    /// Canonical name of a second weight whose rows take turns with the first one's.
    pub second: Option<String>,
    /// Order of its rows.
    pub rows: Order,
    /// Order of its columns.
    pub columns: Order,
    /// Which values of the weight these are.
    pub content: Content,
}

/// What a tensor of a file holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// The weight's own values.
    Values,
    /// Values that follow from the model's description and no weight holds.
    Given(Vec<f32>),
    /// The logarithms of their magnitudes: how safetensors files keep the decay.
    Logarithms,
    /// `nvfp4` codes alone, neighbours in one byte.
    Codes,
    /// `nvfp4` scales alone, one for 16 codes.
    BlockScales,
    /// One number: a scale for a KV cache of 8-bit floats.
    Constant(f32),
    /// Factors on all values, one for each expert: what types of a small range keep beside them.
    FactorsOf(DType),
}

impl Content {
    /// Whether a tensor of this kind stands for the weight when values are counted.
    pub fn is_main(&self) -> bool {
        matches!(self, Content::Values | Content::Given(_) | Content::Logarithms | Content::Codes)
    }
}

/// All tensors of a file, in file order.
pub struct Layout {
    /// The tensors.
    pub tensors: Vec<Planned>,
    /// Where the recipe could not be followed, as sentences.
    pub notes: Vec<String>,
}

impl Planned {
    /// A tensor that holds the values of its weight in this type.
    pub fn new(tensor: ExportTensor, dtype: DType) -> Planned {
        let ExportTensor { name, weight, part, second, shape, first_row, rows, columns, values, .. } = tensor;
        let content = values.map_or(Content::Values, Content::Given);
        Planned { name, weight, part, second, shape, dtype, first_row, rows, columns, content }
    }

    fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Values of all rows.
    pub fn elems(&self) -> usize {
        self.shape.iter().product()
    }

    /// Rows, over all outer dimensions.
    pub fn row_count(&self) -> usize {
        self.elems() / self.columns()
    }

    /// Values of one row.
    pub fn row_elems(&self) -> usize {
        self.columns()
    }

    /// The type of the weight as a whole: `nvfp4` for its codes and its scales.
    pub fn encoding(&self) -> DType {
        match self.content {
            Content::Codes | Content::BlockScales => DType::NVFP4,
            Content::FactorsOf(dtype) => dtype,
            Content::Values | Content::Given(_) | Content::Logarithms | Content::Constant(_) => self.dtype,
        }
    }

    /// Bytes of one stored row.
    pub fn row_bytes(&self) -> usize {
        self.dtype.row_bytes(self.columns()).expect("the type was chosen to divide the row")
    }

    /// Bytes of the stored tensor.
    pub fn bytes(&self) -> u64 {
        self.row_count() as u64 * self.row_bytes() as u64
    }
}

impl Layout {
    /// Keeps the scales of the model's KV cache where the container has a place for them.
    pub fn keep_kv_scales(&mut self, scales: &[KvScale], container: Container) {
        if scales.iter().all(|scale| *scale == KvScale::default()) {
            return;
        }
        if container == Container::Gguf {
            self.notes
                .push("the scales for a KV cache of f8 are not kept: GGUF has no place for them".to_owned());
            return;
        }
        // Attention layers come in the order of the scales.
        let mut kept = Vec::new();
        for (part, name, of) in
            [(Part::K, "k_scale", (|s| s.k) as fn(&KvScale) -> f32), (Part::V, "v_scale", |s| s.v)]
        {
            let projections = self.tensors.iter().filter(|t| t.part == part && t.content.is_main());
            kept.extend(projections.zip(scales).map(|(projection, scale)| Planned {
                name: format!("{}.{name}", projection.name.trim_end_matches(".weight")),
                shape: vec![1],
                dtype: DType::F32,
                content: Content::Constant(of(scale)),
                ..projection.clone()
            }));
        }
        self.tensors.extend(kept);
    }

    /// Bytes of all tensors, without padding.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(Planned::bytes).sum()
    }

    /// Values of all weights.
    pub fn elems(&self) -> usize {
        let weights = self.tensors.iter().filter(|tensor| tensor.content.is_main());
        weights.map(|tensor| tensor.elems() * if tensor.content == Content::Codes { 2 } else { 1 }).sum()
    }

    /// What a value takes on average, factors included.
    pub fn bits_per_weight(&self) -> f64 {
        self.bytes() as f64 * 8.0 / self.elems() as f64
    }

    /// Tensors and bytes of each type, most bytes first.
    pub fn types(&self) -> Vec<(DType, usize, u64)> {
        let mut rows: Vec<(DType, usize, u64)> = Vec::new();
        for tensor in &self.tensors {
            let dtype = tensor.encoding();
            match rows.iter_mut().find(|row| row.0 == dtype) {
                Some(row) => {
                    row.1 += usize::from(tensor.content.is_main());
                    row.2 += tensor.bytes();
                }
                None => rows.push((dtype, usize::from(tensor.content.is_main()), tensor.bytes())),
            }
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.2));
        rows
    }
}
