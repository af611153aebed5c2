//! `ssm_step` and the product of its rounded row, for one token: the product's kernel normalises. The bits are those of the
//! calls.

use mambo_kernel::{BackendError, Call, Epilogue, Op, RowBase};
use mambo_tensor::DType;

use super::binding::{Binding, Weight, narrow};
use super::matmul::{Form, MatmulParams, RowTile, TILE_COLS, TILE_ROWS, Tiles, tiles_of};
use super::ssm_step::{Gated, bind_gated};
use crate::activation::F16;
use crate::arch::Arch;
use crate::launch::Launch;
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Expects, Source, Specialisation};
use crate::step_table::StepTable;

c_struct! {
    struct GatedParams {
        step: Ptr<StepTable>,
        tiles: Ptr<u8>,
        factors: Ptr<f32>,
        out: View,
        residual: View,
        /// What `ssm_row` left.
        gated: Ptr<f32>,
        norm: Ptr<f32>,
        sums: Ptr<f32>,
        raw: Ptr<f32>,
        raw_at: Ptr<u64>,
        raw_cols: u32,
        cols: u32,
        col_tiles: u32,
        has_residual: u32,
        eps: f32,
        unused: u32,
    }
}

static SOURCE: Source = Source {
    stem: "gated_matmul",
    text: include_str!("../../kernels/gated_matmul.cu"),
    structs: &[super::slot::SlotView::c_text, RowTile::c_text, MatmulParams::c_text, GatedParams::c_text],
};

const THREADS: u32 = 128;
/// The most vectors of four columns that a thread holds.
const MOST_VECTORS: usize = 8;
/// Shared memory of a block beside weights and the row.
const FIXED_SHARED: usize = 2 << 10;

fn kernel(tiles: Tiles, groups: usize, vectors: usize) -> Specialisation {
    let kernel = tiles.define(Specialisation::new(&SOURCE, "gated_matmul")).define("PARTS", 1);
    let kernel = kernel.define("EXPERTS", 0).define("GROUPS", groups).define("HELD_VECTORS", vectors);
    kernel.expecting(Expects::Mma)
}

/// The kernels, at the sizes that are met most.
pub(crate) fn specialisations(_: Arch) -> Vec<Specialisation> {
    let types = [DType::Q4_0, DType::Q8_0, DType::Q4K, DType::NVFP4].into_iter().filter_map(tiles_of);
    types.map(|tiles| kernel(tiles, 8, MOST_VECTORS)).collect()
}

/// Whether calls are a step of a mixer and the product of its rounded row alone.
pub(crate) fn is_gated(calls: &[Call]) -> bool {
    let [step, product] = calls else { return false };
    let counts_tokens = |call: &Call| call.outputs[0].rows.base == RowBase::Tokens;
    matches!(step.op, Op::SsmStep { .. })
        && matches!(product.op, Op::Matmul { epilogue: Epilogue::None | Epilogue::Residual, .. })
        && step.rounded.is_some_and(|rounded| rounded.elem == F16)
        && step.rounded == Some(product.inputs[0])
        && product.rounded.is_none()
        && calls.iter().all(counts_tokens)
}

/// The launches of a step and its product, by call; none where they have to run one by one.
pub(crate) fn bind(calls: &[Binding]) -> Result<Option<Vec<Vec<Launch>>>, BackendError> {
    let [step, product] = calls else { return Ok(None) };
    let ([Weight::Packed(packed)], Op::Matmul { epilogue, .. }) = (&product.weights[..], product.call.op)
    else {
        return Ok(None);
    };
    let Form::Tiles(tiles) = packed.form else { return Ok(None) };
    let Some(gated) = bind_gated(step)? else { return Ok(None) };
    let (vectors, col_tiles) =
        ((gated.cols / 4).div_ceil(THREADS) as usize, (gated.cols as usize).div_ceil(TILE_COLS));
    let shared = col_tiles * (tiles.tile_bytes() + 2 * TILE_COLS);
    let fits = tiles.parts == 1
        && vectors <= MOST_VECTORS
        && packed.dims()[2] == gated.cols as usize
        && shared + FIXED_SHARED <= step.facts.shared_bytes as usize / 2;
    if !fits {
        return Ok(None);
    }
    let Gated { launch, values, norm, sums, raw, raw_at, raw_cols, cols, groups, eps } = gated;
    let has_residual = epilogue == Epilogue::Residual;
    let params = GatedParams {
        step: product.step,
        tiles: packed.values.ptr(),
        factors: packed.factors.ptr(),
        out: product.output(0),
        residual: if has_residual { product.input(1) } else { View::NONE },
        gated: values,
        norm,
        sums,
        raw,
        raw_at,
        raw_cols,
        cols,
        col_tiles: narrow(col_tiles),
        has_residual: u32::from(has_residual),
        eps,
        unused: 0,
    };
    let units = narrow(packed.dims()[1].div_ceil(TILE_ROWS));
    let matmul = Launch::new(kernel(tiles, groups, vectors), &params).grid([units, 1, 1]);
    Ok(Some(vec![vec![launch], vec![matmul.block(THREADS).shared(narrow(shared))]]))
}
