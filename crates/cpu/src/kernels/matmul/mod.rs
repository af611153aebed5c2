//! `matmul`: `y[o] = Σ_i W[o,i]·x[i]` for every row, then the epilogue.
//!
//! An item of work is a group of panels times a block of rows. Inside, a panel stays in cache while the
//! rows pass in groups that share each unpacked tile; with a single row the panels stream by. Bytes: the
//! packed weight once per row block at most; FLOPs: 2 per weight and row.
#![allow(unsafe_code)]

mod affine;
mod decoded;
mod format;
mod iq2_xxs;
mod lines;
mod nvfp4;
mod pack;
mod plain;
mod q4_0;
mod q5_0;
mod q6_k;
mod q8_0;
mod quant;
mod steps;

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use mambo_kernel::{Elem, Epilogue, Operand};
use mambo_tensor::DType;

use affine::AffineFormat;
use decoded::Decoded;
pub(crate) use format::{Format, PANEL_ROWS, UNPACK_FLOATS};
use iq2_xxs::Iq2Xxs;
use lines::{LineFormat, Nested, Single};
use nvfp4::Nvfp4;
pub(crate) use pack::Packed;
use plain::PlainFormat;
use q4_0::Q4_0;
use q5_0::Q5_0;
use q6_k::Q6K;
use q8_0::Q8_0;
use quant::TILE;
use steps::{Iq4Nl, Iq4Xs, Mxfp4, StepFormat};

use super::{Cx, Kernel, Scratch, ScratchNeed, Work, bind};
use crate::isa::Isa;
use crate::shared::View;
use crate::simd::{Math, Simd};
use crate::stored::{Bf16, E4m3, F16, F32};

/// Most rows of an item; whole groups of the largest register block.
pub(super) const ROW_BLOCK: usize = 64;
/// Bytes of activations an item may keep in cache.
const ROW_BLOCK_BYTES: usize = 256 << 10;
/// From so many rows on a panel meets enough work to be taken alone.
const STREAM_ROWS: usize = 8;
/// Bytes of weights an item streams when there are few rows.
const STREAM_BYTES: usize = 256 << 10;
/// Bytes of weights an item keeps in cache when there are many.
const PANEL_BLOCK_BYTES: usize = 192 << 10;

/// The stored types with a format of their own, with the activations they read.
pub(crate) const TYPES: [(DType, Elem); 17] = [
    (DType::Q4_0, Elem::Q8),
    (DType::Q5_0, Elem::Q8),
    (DType::Q8_0, Elem::Q8),
    (DType::Q4K, Elem::Q8),
    (DType::Q6K, Elem::Q8),
    (DType::Q4_1, Elem::Q8),
    (DType::Q5_1, Elem::Q8),
    (DType::Q5K, Elem::Q8),
    (DType::IQ4_NL, Elem::Q8),
    (DType::IQ4_XS, Elem::Q8),
    (DType::MXFP4, Elem::Q8),
    (DType::IQ2_XXS, Elem::Q8),
    (DType::NVFP4, Elem::F32),
    (DType::F8E4M3, Elem::F32),
    (DType::BF16, Elem::F32),
    (DType::F16, Elem::F32),
    (DType::F32, Elem::F32),
];

/// Whether a type without a format of its own is decoded as it is used.
pub(crate) fn is_decoded(dtype: DType) -> bool {
    let stored_weight = dtype.is_quantized() || matches!(dtype, DType::F8E4M3 | DType::F8E5M2);
    stored_weight && affine_bits(dtype).is_none() && !TYPES.iter().any(|(known, _)| *known == dtype)
}

/// Widths of affine groups that have a format of their own.
pub(crate) const AFFINE_BITS: [usize; 2] = [4, 8];

/// Bits of affine groups that have a format of their own.
pub(crate) fn affine_bits(dtype: DType) -> Option<usize> {
    let DType::Affine(affine) = dtype else { return None };
    Some(affine.bits()).filter(|bits| AFFINE_BITS.contains(bits))
}

/// The activations that a stored type is multiplied with, if it can be.
pub(crate) fn input(dtype: DType) -> Option<Elem> {
    let own = TYPES.iter().find(|(known, _)| *known == dtype).map(|(_, elem)| *elem);
    own.or((is_decoded(dtype) || affine_bits(dtype).is_some()).then_some(Elem::F32))
}

/// The types that can be multiplied, for messages.
pub(crate) fn supported() -> String {
    let single = DType::all().filter(|d| input(*d).is_some() && !matches!(d, DType::Affine(_)));
    let names: Vec<_> = single.map(DType::name).collect();
    format!("{} or affine groups", names.join(", "))
}

/// Something to do with the format of a stored type.
pub(super) trait WithFormat {
    type Output;
    fn run<F: Format>(self) -> Self::Output;
}

/// The one place that maps stored types to formats.
pub(super) fn with_format<W: WithFormat>(dtype: DType, what: W) -> Option<W::Output> {
    Some(match dtype {
        DType::F32 => what.run::<PlainFormat<F32>>(),
        DType::F16 => what.run::<PlainFormat<F16>>(),
        DType::BF16 => what.run::<PlainFormat<Bf16>>(),
        DType::Q4_0 => what.run::<Q4_0>(),
        DType::Q5_0 => what.run::<Q5_0>(),
        DType::Q8_0 => what.run::<Q8_0>(),
        DType::F8E4M3 => what.run::<PlainFormat<E4m3>>(),
        DType::Q4_1 => what.run::<LineFormat<Single<false>>>(),
        DType::Q5_1 => what.run::<LineFormat<Single<true>>>(),
        DType::Q4K => what.run::<LineFormat<Nested<false>>>(),
        DType::Q5K => what.run::<LineFormat<Nested<true>>>(),
        DType::IQ4_NL => what.run::<StepFormat<Iq4Nl>>(),
        DType::IQ4_XS => what.run::<StepFormat<Iq4Xs>>(),
        DType::MXFP4 => what.run::<StepFormat<Mxfp4>>(),
        DType::IQ2_XXS => what.run::<Iq2Xxs>(),
        DType::NVFP4 => what.run::<Nvfp4>(),
        DType::Q6K => what.run::<Q6K>(),
        DType::Affine(affine) if affine.bits() == 4 => what.run::<AffineFormat<4>>(),
        DType::Affine(affine) if affine.bits() == 8 => what.run::<AffineFormat<8>>(),
        _ if is_decoded(dtype) => what.run::<Decoded>(),
        _ => return None,
    })
}

/// A matmul call's parts.
pub(crate) struct MatmulCall {
    pub weight: Arc<Packed>,
    pub x: Operand,
    pub residual: Option<Operand>,
    pub out: Operand,
    pub epilogue: Epilogue,
}

struct Matmul<F> {
    call: MatmulCall,
    format: PhantomData<F>,
}

struct Bind(Isa, MatmulCall);

impl WithFormat for Bind {
    type Output = Box<dyn Kernel>;
    fn run<F: Format>(self) -> Box<dyn Kernel> {
        bind(self.0, Matmul::<F> { call: self.1, format: PhantomData })
    }
}

/// Binds a call to the kernel of its weight's type.
pub(crate) fn prepare(isa: Isa, call: MatmulCall) -> Box<dyn Kernel> {
    with_format(call.weight.dtype(), Bind(isa, call)).expect("only supported types are packed")
}

impl<F: Format> Work for Matmul<F> {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, scratch: &mut Scratch) {
        let call = &self.call;
        let product = Product::<F> {
            weight: &call.weight,
            expert: 0,
            x: cx.view(&call.x),
            residual: call.residual.as_ref().map(|r| cx.view(r)),
            out: cx.view(&call.out),
            epilogue: call.epilogue,
            format: PhantomData,
        };
        let rows = product.out.rows();
        if rows == 0 {
            return;
        }
        let row_block = row_block(call.weight.cols()).min(rows);
        let row_blocks = rows.div_ceil(row_block);
        let panels = call.weight.panels();
        let group = panel_group(panels, call.weight.panel_bytes(), row_blocks, cx.members);
        // Row blocks of one panel group follow each other: its weights come from memory once.
        while let Some(item) = cx.next(0, panels.div_ceil(group) * row_blocks) {
            let (group_index, block) = (item / row_blocks, item % row_blocks);
            let range = group_index * group..panels.min((group_index + 1) * group);
            let first = block * row_block;
            let count = row_block.min(rows - first);
            let Scratch { floats, words, bytes } = &mut *scratch;
            let room = Room { words, floats, panel: bytes };
            product.multiply::<S>(range, count, room, |i| (first + i, first + i));
        }
    }

    fn scratch(&self, max_tokens: usize) -> ScratchNeed {
        room_need::<F>(self.call.weight.cols(), max_tokens)
    }
}

/// Working memory of a product.
pub(super) struct Room<'a> {
    /// What is prepared for the rows.
    pub words: &'a mut [i32],
    /// On the way to an unpacked panel.
    pub floats: &'a mut [f32],
    /// An unpacked panel.
    pub panel: &'a mut [u8],
}

/// Rows of an item.
pub(super) fn row_block(cols: usize) -> usize {
    (ROW_BLOCK_BYTES / cols.max(1) / 8 * 8).clamp(8, ROW_BLOCK)
}

/// Working memory for the rows of an item.
pub(super) fn room_need<F: Format>(cols: usize, max_rows: usize) -> ScratchNeed {
    let words = row_block(cols).min(max_rows.max(1)) * cols.div_ceil(TILE) * F::PREPARED;
    let bytes = F::unpacked_bytes(cols);
    ScratchNeed { floats: if bytes > 0 { UNPACK_FLOATS } else { 0 }, words, bytes }
}

/// Panels of an item: long streams, but enough items that no member waits long for another.
pub(super) fn panel_group(panels: usize, panel_bytes: usize, row_blocks: usize, members: usize) -> usize {
    let bytes = if row_blocks == 1 { STREAM_BYTES } else { PANEL_BLOCK_BYTES };
    let fair = panels * row_blocks / (members * 6);
    let group = (bytes / panel_bytes).min(fair).max(1);
    if group > 4 { group / 4 * 4 } else { group }
}

/// One weight matrix against rows of the input.
pub(super) struct Product<'a, F> {
    pub weight: &'a Packed,
    pub expert: usize,
    pub x: View<'a>,
    pub residual: Option<View<'a>>,
    pub out: View<'a>,
    pub epilogue: Epilogue,
    pub format: PhantomData<F>,
}

impl<F: Format> Product<'_, F> {
    /// Multiplies panels with `count` rows; `rows` gives the input and the output row of each.
    #[inline(always)]
    pub fn multiply<S: Simd>(
        &self,
        panels: Range<usize>,
        count: usize,
        room: Room,
        rows: impl Fn(usize) -> (usize, usize),
    ) {
        let (weight, cols) = (self.weight, self.weight.cols());
        let Room { words, floats, panel: unpacked } = room;
        let stride = cols.div_ceil(TILE) * F::PREPARED;
        for i in 0..count {
            F::prepare::<S>(&self.x, rows(i).0, &mut words[i * stride..(i + 1) * stride]);
        }
        let words = &words[..count * stride];
        let bytes = F::unpacked_bytes(cols);
        if bytes > 0 {
            let unpacked = &mut unpacked[..bytes];
            for panel in panels {
                F::unpack(weight.dtype(), weight.panel(self.expert, panel), cols, floats, unpacked);
                self.groups::<S, 1>(panel, [unpacked], count, words, &rows);
            }
            return;
        }
        let mut panel = panels.start;
        // Few rows: weights only pass by, and four panels at once keep more of them on their way.
        while count < STREAM_ROWS && panel + 4 <= panels.end {
            let four = std::array::from_fn(|n| weight.panel(self.expert, panel + n));
            self.groups::<S, 4>(panel, four, count, words, &rows);
            panel += 4;
        }
        for panel in panel..panels.end {
            self.groups::<S, 1>(panel, [weight.panel(self.expert, panel)], count, words, &rows);
        }
    }

    /// `N` panels against all rows, as many at a time as registers hold.
    #[inline(always)]
    fn groups<S: Simd, const N: usize>(
        &self,
        panel: usize,
        bytes: [&[u8]; N],
        count: usize,
        words: &[i32],
        rows: &impl Fn(usize) -> (usize, usize),
    ) {
        let mut first = 0;
        while first < count {
            let left = count - first;
            first += if N == 1 && S::ROWS >= 8 && left >= 8 {
                self.group::<S, 8, 1>(panel, [bytes[0]], first, words, rows)
            } else if left >= 4 && S::ROWS >= N {
                self.group::<S, 4, N>(panel, bytes, first, words, rows)
            } else if left >= 2 {
                self.group::<S, 2, N>(panel, bytes, first, words, rows)
            } else {
                self.group::<S, 1, N>(panel, bytes, first, words, rows)
            };
        }
    }

    #[inline(always)]
    fn group<S: Simd, const R: usize, const N: usize>(
        &self,
        panel: usize,
        bytes: [&[u8]; N],
        first: usize,
        words: &[i32],
        rows: &impl Fn(usize) -> (usize, usize),
    ) -> usize {
        let cols = self.weight.cols();
        let stride = cols.div_ceil(TILE) * F::PREPARED;
        let x: [F::Row<'_>; R] = std::array::from_fn(|r| {
            F::row(&self.x, rows(first + r).0, &words[(first + r) * stride..(first + r + 1) * stride])
        });
        let y = F::product::<S, R, N>(bytes, cols, &x);
        for n in 0..N {
            let scale = self.weight.scale::<S>(self.expert, panel + n);
            for r in 0..R {
                self.store::<S>(panel + n, rows(first + r).1, S::mul(scale, y[n][r]));
            }
        }
        R
    }

    #[inline(always)]
    fn store<S: Simd>(&self, panel: usize, row: usize, y: S::F) {
        let cols = panel * PANEL_ROWS..self.weight.out().min((panel + 1) * PANEL_ROWS);
        let y = match self.epilogue {
            Epilogue::None => y,
            Epilogue::Relu2 => S::relu2(y),
            Epilogue::Residual => match &self.residual {
                Some(residual) => S::add(y, S::load_part(&residual.row(row)[cols.clone()])),
                None => y,
            },
        };
        // SAFETY: a panel and row belong to one item.
        S::store_part(y, unsafe { self.out.cols_mut(row, cols) });
    }
}
