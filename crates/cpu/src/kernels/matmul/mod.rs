//! `matmul`: `y[o] = Σ_i W[o,i]·x[i]` for every row, then the epilogue.
//!
//! A work item is a group of panels times a block of rows (`multiply.rs`). With few rows the panels are streamed, in
//! runs of many items; with many rows a block of their columns is unpacked and stays in cache for all rows.
//! Bytes: the packed weight at most once per row block; FLOPs: 2 per weight and row.

mod affine;
mod bf16;
mod coded;
mod decoded;
mod format;
mod iq2_xxs;
mod lines;
mod many_codes;
mod many_floats;
mod many_tiles;
mod multiply;
mod nvfp4;
mod outliers;
mod pack;
mod pair_sums;
mod plain;
mod products;
mod q4_0;
mod q5_0;
mod q6_k;
mod q8_0;
mod round_output;
mod steps;
mod task;
mod tiles;

use mambo_kernel::{Arithmetic, Elem, Epilogue, KernelRow, Op, OpKind, Operand, Site};
use mambo_tensor::{DType, blocks};

use affine::AffineFormat;
use bf16::Bf16Format;
use coded::CodedFormat;
use decoded::Decoded;
use format::Format;
use iq2_xxs::Iq2Xxs;
use lines::{LineFormat, Nested, Single};
pub(super) use multiply::{RowCounts, TaskScratch};
use nvfp4::Nvfp4;
pub(crate) use pack::Packed;
use plain::PlainFormat;
pub(super) use products::Products;
use q4_0::Q4_0;
use q5_0::Q5_0;
use q6_k::Q6K;
use q8_0::Q8_0;
use steps::{Iq4Nl, Iq4Xs, Mxfp4, StepFormat};
pub(super) use task::{Task, TaskRows};

use super::declaration::{Bind, Binding, Declaration, WeightForm};
use super::{Cx, Kernel, Scratch, ScratchNeed};
use crate::activation;
use crate::isa::Isa;
use crate::stored::{E4m3, F16, F32};

/// The stored types that have their own format, with the activations they are multiplied with.
pub(crate) const TYPES: [(DType, Elem); 17] = [
    (DType::Q4_0, activation::Q8),
    (DType::Q5_0, activation::Q8),
    (DType::Q8_0, activation::Q8),
    (DType::Q4K, activation::Q8),
    (DType::Q6K, activation::Q8),
    (DType::Q4_1, activation::Q8),
    (DType::Q5_1, activation::Q8),
    (DType::Q5K, activation::Q8),
    (DType::IQ4_NL, activation::Q8),
    (DType::IQ4_XS, activation::Q8),
    (DType::MXFP4, activation::Q8),
    (DType::IQ2_XXS, activation::Q8),
    (DType::NVFP4, Elem::F32),
    (DType::F8E4M3, Elem::F32),
    (DType::BF16, Elem::F32),
    (DType::F16, Elem::F32),
    (DType::F32, Elem::F32),
];

/// Whether a type has no format of its own and is decoded on use.
pub(crate) fn is_decoded(dtype: DType) -> bool {
    let stored_weight = dtype.is_quantized() || matches!(dtype, DType::F8E4M3 | DType::F8E5M2);
    stored_weight && affine_bits(dtype).is_none() && !TYPES.iter().any(|(known, _)| *known == dtype)
}

/// Code widths of affine groups that have their own format.
pub(crate) const AFFINE_BITS: [usize; 2] = [4, 8];

/// The code width of an affine type, if it has its own format.
pub(crate) fn affine_bits(dtype: DType) -> Option<usize> {
    let DType::Affine(affine) = dtype else { return None };
    Some(affine.bits()).filter(|bits| AFFINE_BITS.contains(bits))
}

/// Whether a stored type can be multiplied.
pub(crate) fn is_supported(dtype: DType) -> bool {
    let has_format = TYPES.iter().any(|(known, _)| *known == dtype);
    has_format || is_decoded(dtype) || affine_bits(dtype).is_some()
}

/// Whether an instruction set multiplies a stored type with tile registers.
fn goes_through_tiles(isa: Isa, dtype: DType) -> bool {
    isa == Isa::Amx && dtype == DType::BF16
}

/// The activation type that a stored type is multiplied with.
pub(crate) fn input(isa: Isa, dtype: DType) -> Elem {
    if goes_through_tiles(isa, dtype) {
        return activation::BF16X2;
    }
    TYPES.iter().find(|(known, _)| *known == dtype).map_or(Elem::F32, |(_, elem)| *elem)
}

/// The types that can be multiplied, for error messages.
pub(crate) fn supported() -> String {
    let single = DType::all().filter(|d| is_supported(*d) && !matches!(d, DType::Affine(_)));
    let names: Vec<_> = single.map(DType::name).collect();
    format!("{} or affine groups", names.join(", "))
}

/// Generic code to run with the format of a stored type.
pub(super) trait WithFormat {
    type Output;
    fn run<F: Format>(self) -> Self::Output;
}

/// The one place that maps stored types to formats; for bf16 `multiplier` may pick another way to multiply.
pub(super) fn with_format<W: WithFormat>(dtype: DType, what: W) -> Option<W::Output> {
    Some(match dtype {
        DType::F32 => what.run::<PlainFormat<F32>>(),
        DType::F16 => what.run::<PlainFormat<F16>>(),
        DType::BF16 => what.run::<Bf16Format>(),
        DType::Q4_0 => what.run::<CodedFormat<Q4_0>>(),
        DType::Q5_0 => what.run::<CodedFormat<Q5_0>>(),
        DType::Q8_0 => what.run::<CodedFormat<Q8_0>>(),
        DType::F8E4M3 => what.run::<PlainFormat<E4m3>>(),
        DType::Q4_1 => what.run::<CodedFormat<LineFormat<Single<blocks::Q4_1>>>>(),
        DType::Q5_1 => what.run::<CodedFormat<LineFormat<Single<blocks::Q5_1>>>>(),
        DType::Q4K => what.run::<CodedFormat<LineFormat<Nested<blocks::Q4K>>>>(),
        DType::Q5K => what.run::<CodedFormat<LineFormat<Nested<blocks::Q5K>>>>(),
        DType::IQ4_NL => what.run::<CodedFormat<StepFormat<Iq4Nl>>>(),
        DType::IQ4_XS => what.run::<CodedFormat<StepFormat<Iq4Xs>>>(),
        DType::MXFP4 => what.run::<CodedFormat<StepFormat<Mxfp4>>>(),
        DType::IQ2_XXS => what.run::<CodedFormat<Iq2Xxs>>(),
        DType::NVFP4 => what.run::<Nvfp4>(),
        DType::Q6K => what.run::<CodedFormat<Q6K>>(),
        DType::Affine(affine) if affine.bits() == 4 => what.run::<AffineFormat<4>>(),
        DType::Affine(affine) if affine.bits() == 8 => what.run::<AffineFormat<8>>(),
        _ if is_decoded(dtype) => what.run::<Decoded>(),
        _ => return None,
    })
}

/// A matmul call's parts.
struct MatmulCall {
    pub x: Operand,
    pub residual: Option<Operand>,
    pub out: Operand,
    /// Where the quantised output goes.
    pub rounded: Option<Operand>,
    pub epilogue: Epilogue,
}

struct Matmul {
    call: MatmulCall,
    products: Products,
}

/// Operations per second of one thread.
const FLOPS: f64 = 100e9;

/// The activations that a call's weights are multiplied with.
fn activations(b: &Binding) -> Elem {
    b.packed_type(0).map_or(Elem::F32, |dtype| input(b.isa, dtype))
}

/// The rows of a product: one for each stored type, for widths of affine groups, and for types that are decoded.
pub(super) fn declare_products(isa: Isa, op: OpKind, bind: Bind) -> Vec<Declaration> {
    let row = |types: &str, arithmetic: Arithmetic, x: Elem, accepts: fn(DType, &str) -> bool| {
        let name = types.to_owned();
        // A gate has the type of its product.
        let is_for = move |site: &Site| match site.weight_types {
            [dtype] => accepts(*dtype, &name),
            [dtype, gate] => accepts(*dtype, &name) && gate == dtype,
            _ => false,
        };
        // Tasks write whole blocks of columns, of which only blocks of codes can be made.
        let rounds = |_: &Site, to: Elem| to == activation::Q8;
        let change = |row: KernelRow| row.reading(x).computing(arithmetic).accepting(is_for).rounding(rounds);
        Declaration::new(isa, op, types, bind).offering(change).shared().at(FLOPS).holding(WeightForm::Packed)
    };
    let arithmetic = |x: Elem| match x {
        x if x == activation::Q8 => Arithmetic::Integer,
        x if x == activation::BF16X2 => Arithmetic::Bf16InF32,
        _ => Arithmetic::F32,
    };
    let mut rows = Vec::new();
    for (dtype, _) in TYPES {
        let x = input(isa, dtype);
        rows.push(row(dtype.name(), arithmetic(x), x, |dtype, name| dtype.name() == name));
    }
    for bits in AFFINE_BITS {
        let is_affine =
            |dtype, name: &str| affine_bits(dtype).is_some_and(|bits| name == format!("affine{bits}"));
        rows.push(row(&format!("affine{bits}"), Arithmetic::F32, Elem::F32, is_affine));
    }
    rows.push(row("decoded", Arithmetic::F32, Elem::F32, |dtype, _| is_decoded(dtype)));
    rows
}

pub(super) fn declare(isa: Isa) -> Vec<Declaration> {
    let bind = |b: &Binding| match b.call.op {
        Op::Matmul { out: rows, epilogue } => {
            let products = Products::bind(b, [1, rows, b.x().cols])?;
            let (residual, rounded) = (b.call.inputs.get(1).copied(), b.call.rounded);
            let call = MatmulCall { x: b.x(), residual, out: b.out(), rounded, epilogue };
            Ok(Box::new(Matmul { call, products }) as Box<dyn Kernel>)
        }
        _ => b.wrong_op(),
    };
    declare_products(isa, OpKind::Matmul, bind)
}

impl Kernel for Matmul {
    fn run(&self, cx: &Cx, scratch: &mut Scratch) {
        let (call, weight, multiplier) = (&self.call, &*self.products.weight, &self.products.multiplier);
        let (x, out) = (cx.view(&call.x), cx.view(&call.out));
        let residual = call.residual.as_ref().map(|r| cx.view(r));
        let rounded = call.rounded.as_ref().map(|r| cx.view(r));
        let rows = out.rows();
        if rows == 0 {
            return;
        }
        let row_block = multiplier.row_block(weight.cols()).min(rows);
        let row_blocks = rows.div_ceil(row_block);
        let panels = weight.panels();
        let cut = multiplier.cut(weight, RowCounts { usual: rows, most: rows }, cx.threads);
        let cut = cut.for_rounding(rounded.is_some());
        // Row blocks of one panel group are consecutive items, so its weights are read from memory once.
        while let Some(items) = cut.next(cx, panels.div_ceil(cut.panels) * row_blocks) {
            let groups = items.start / row_blocks..items.end.div_ceil(row_blocks);
            let first = items.start % row_blocks * row_block;
            let task = Task {
                weight,
                expert: 0,
                panels: groups.start * cut.panels..panels.min(groups.end * cut.panels),
                rows: TaskRows::Range(first..rows.min(first + row_block)),
                x,
                residual,
                out,
                rounded,
                epilogue: call.epilogue,
            };
            let Scratch { floats, words, bytes } = &mut *scratch;
            self.products.multiply(&task, TaskScratch { words, floats, bytes });
        }
    }

    fn scratch(&self, max_tokens: usize) -> ScratchNeed {
        self.products.multiplier.scratch_need(self.products.weight.cols(), max_tokens)
    }
}
