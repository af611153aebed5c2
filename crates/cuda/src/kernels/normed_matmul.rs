//! `rms_norm` and the products that read its rounded row, as one launch for one token. The bits are those of the calls.

use mambo_kernel::{BackendError, Call, Elem, Epilogue, Op, RowBase};
use mambo_tensor::DType;

use super::binding::{Binding, Weight, narrow};
use super::matmul::{Form, MatmulParams, Packed, RowTile, TILE_COLS, TILE_ROWS, Tiles, tiles_of};
use super::round::{HELD, row_threads};
use crate::activation::F16;
use crate::arch::Arch;
use crate::launch::Launch;
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Expects, Source, Specialisation};
use crate::step_table::StepTable;

c_struct! {
    /// One of the products.
    struct NormedProduct { tiles: Ptr<u8>, factors: Ptr<f32>, out: View, units: u32, unused: u32 }

    struct NormedParams {
        step: Ptr<StepTable>,
        x: View,
        weight: Ptr<f32>,
        first: NormedProduct,
        second: NormedProduct,
        third: NormedProduct,
        first_blocks: u32,
        second_blocks: u32,
        col_tiles: u32,
        eps: f32,
    }
}

static SOURCE: Source = Source {
    stem: "normed_matmul",
    text: include_str!("../../kernels/normed_matmul.cu"),
    structs: &[RowTile::c_text, MatmulParams::c_text, NormedProduct::c_text, NormedParams::c_text],
};

/// Units of outputs of a block.
const UNITS: usize = 2;
const THREADS: u32 = 256;
/// The most products.
pub(crate) const MOST_PRODUCTS: usize = 3;
/// Blocks for each multiprocessor up to which each block's own norm costs less than a launch.
const MOST_BLOCKS: usize = 4;

fn kernel(tiles: Tiles, norm_threads: u32) -> Specialisation {
    let kernel = tiles.define(Specialisation::new(&SOURCE, "normed_matmul"));
    let kernel = kernel.define("PARTS", 1).define("EXPERTS", 0).define("NORM_THREADS", norm_threads);
    kernel.expecting(Expects::Mma)
}

/// The kernels, at the sizes that are met most.
pub(crate) fn specialisations(_: Arch) -> Vec<Specialisation> {
    let types = [DType::Q4_0, DType::Q8_0, DType::Q4K, DType::NVFP4].into_iter().filter_map(tiles_of);
    types.map(|tiles| kernel(tiles, 512)).collect()
}

/// Whether calls are a norm and products of it alone.
pub(crate) fn is_normed(calls: &[Call]) -> bool {
    let [norm, products @ ..] = calls else { return false };
    let counts_tokens = |call: &Call| call.outputs[0].rows.base == RowBase::Tokens;
    let is_product = |call: &Call| {
        matches!(call.op, Op::Matmul { epilogue: Epilogue::None, .. })
            && norm.rounded == Some(call.inputs[0])
            && call.rounded.is_none()
    };
    matches!(norm.op, Op::RmsNorm { .. })
        && norm.rounded.is_some_and(|rounded| rounded.elem == F16)
        && norm.inputs[0].elem == Elem::F32
        && calls.iter().all(counts_tokens)
        && products.iter().all(is_product)
}

/// The tiles of a product's weight.
fn packed<'a>(binding: &'a Binding) -> Option<(&'a Packed, Tiles)> {
    let [Weight::Packed(packed)] = &binding.weights[..] else { return None };
    match packed.form {
        Form::Tiles(tiles) if tiles.parts == 1 => Some((packed, tiles)),
        _ => None,
    }
}

fn units(packed: &Packed) -> usize {
    packed.dims()[1].div_ceil(TILE_ROWS)
}

/// Whether one row of both operands of two calls may share bytes.
fn share_bytes(a: View, b: View) -> bool {
    let range = |view: View| view.data.address()..view.data.address() + u64::from(view.stride);
    let (a, b) = (range(a), range(b));
    a.start < b.end && b.start < a.end
}

/// The launches of a norm and its products, by call; none where they have to run one by one.
pub(crate) fn bind(calls: &[Binding]) -> Result<Option<Vec<Vec<Launch>>>, BackendError> {
    let [norm, products @ ..] = calls else { return Ok(None) };
    let Op::RmsNorm { eps } = norm.call.op else { return Ok(None) };
    let Some(weights) = products.iter().map(packed).collect::<Option<Vec<_>>>() else { return Ok(None) };
    let (x, cols) = (norm.input(0), norm.call.inputs[0].cols);
    let norm_threads = row_threads(x.cols);
    let (col_tiles, tiles) = (cols.div_ceil(TILE_COLS), weights[0].1);
    let blocks: Vec<usize> = weights.iter().map(|(packed, _)| units(packed).div_ceil(UNITS)).collect();
    let shared = UNITS * col_tiles * tiles.tile_bytes() + col_tiles * 2 * TILE_COLS;
    let fits = norm.bucket.tokens == 1
        && cols <= HELD * norm_threads as usize
        && weights.iter().all(|(packed, other)| *other == tiles && packed.dims()[2] == cols)
        && blocks.iter().sum::<usize>() <= MOST_BLOCKS * norm.facts.processors as usize
        && shared <= norm.facts.shared_bytes as usize / 3
        && !products.iter().any(|product| share_bytes(product.output(0), x));
    if !fits {
        return Ok(None);
    }
    let nothing =
        NormedProduct { tiles: Ptr::NULL, factors: Ptr::NULL, out: View::NONE, units: 0, unused: 0 };
    let mut all = [nothing; MOST_PRODUCTS];
    for ((own, product), (packed, _)) in all.iter_mut().zip(products).zip(&weights) {
        let (tiles, factors) = (packed.values.ptr(), packed.factors.ptr());
        *own =
            NormedProduct { tiles, factors, out: product.output(0), units: narrow(units(packed)), unused: 0 };
    }
    let [first, second, third] = all;
    let params = NormedParams {
        step: norm.step,
        x,
        weight: norm.vector(0, cols)?,
        first,
        second,
        third,
        first_blocks: narrow(blocks[0]),
        second_blocks: narrow(blocks.get(1).copied().unwrap_or(0)),
        col_tiles: narrow(col_tiles),
        eps,
    };
    let grid = [narrow(blocks.iter().sum()), 1, 1];
    let launch =
        Launch::new(kernel(tiles, norm_threads), &params).grid(grid).block(THREADS).shared(narrow(shared));
    let mut launches = vec![Vec::new(); calls.len()];
    launches[1].push(launch);
    Ok(Some(launches))
}
