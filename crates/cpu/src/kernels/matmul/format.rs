//! How a weight is laid out for multiplication: panels of sixteen output rows, one SIMD lane per row.
//!
//! Each stored type defines how a row is packed into a lane of a panel, how a panel is multiplied with a few
//! activation rows, and how a block of its columns is unpacked for many. A lane sums over the columns in one fixed
//! order, whatever the blocking.

use std::ops::Range;

use mambo_tensor::DType;

use super::coded::Kind;
use super::outliers::Outlier;
use crate::isa::Fetch;
use crate::shared::View;
use crate::simd::Simd;

/// Output rows of a panel.
pub(crate) const PANEL_ROWS: usize = 16;

/// What many rows are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Many {
    /// Unpacked tiles of codes, from some number of rows on.
    Codes(Kind),
    /// Unpacked floats, from the same number of rows on.
    Floats,
    /// Unpacked floats, whatever the number of rows.
    OnlyFloats,
    /// Pairs of bf16 in tile registers.
    Tiles,
    /// The packed panels, as with few rows.
    Packed,
}

/// A part of a panel to unpack.
pub(crate) struct PanelSlice<'a> {
    pub dtype: DType,
    pub panel: &'a [u8],
    pub cols: usize,
    /// Tiles of codes, columns of floats, or groups of columns of pairs.
    pub range: Range<usize>,
}

/// One stored type.
pub(crate) trait Format: Send + Sync + 'static {
    /// The type in whose module its code is compiled, see [`crate::isa::Vectorized::Home`].
    type Home;

    /// An activation row as [`Format::product`] reads it.
    type Row<'a>: Copy;

    /// Words prepared per tile of an activation row.
    const PREPARED: usize;
    /// What many rows are multiplied with.
    const MANY: Many;
    /// Whether codes use all eight bits.
    const WIDE: bool = false;
    /// Whether few rows are multiplied with several panels at once, to hide the latency of dependent additions.
    /// Otherwise panels are read one after the other as a single stream, which suits the prefetchers best.
    const SIDE_BY_SIDE: bool = true;

    /// Bytes of a panel of `cols` columns, a multiple of 64.
    fn panel_bytes(dtype: DType, cols: usize) -> usize;

    /// Packs stored rows into consecutive lanes of a zeroed panel.
    fn pack(dtype: DType, panel: &mut [u8], cols: usize, first_lane: usize, rows: &[&[u8]]);

    /// Finds the weights of a row that the packed panel cannot represent.
    fn outliers(_panel: &[u8], _lane: usize, _row: &[u8], _found: &mut Vec<Outlier>) {}

    /// Unpacks tiles of a panel into codes, or columns into floats or pairs, as [`Format::MANY`] says.
    fn unpack<S: Simd>(_panel: &PanelSlice, _out: &mut [u8]) {}

    /// Computes what [`Format::row`] needs in addition to the row itself.
    #[inline(always)]
    fn prepare<S: Simd>(_x: &View, _row: usize, _prepared: &mut [i32]) {}

    /// A row of the input, with the data prepared for it.
    fn row<'a>(x: &View<'a>, row: usize, prepared: &'a [i32]) -> Self::Row<'a>;

    /// The products of `N` panels with `R` rows. `fetch` says what may be prefetched.
    fn product<S: Simd, const R: usize, const N: usize>(
        panels: [&[u8]; N],
        cols: usize,
        x: &[Self::Row<'_>; R],
        fetch: Fetch,
    ) -> [[S::F; R]; N];
}

/// Prefetches what lies ahead of a part of a panel.
#[inline(always)]
pub(super) fn fetch_ahead<S: Simd>(part: &[u8], fetch: Fetch) {
    let lines = (0..part.len()).step_by(64);
    match fetch {
        Fetch::Nothing => {}
        Fetch::Near(ahead) => {
            for line in lines {
                S::prefetch_near(part, ahead + line);
            }
        }
        Fetch::Far(ahead) => {
            for line in lines {
                S::prefetch(part, ahead + line);
            }
        }
    }
}
