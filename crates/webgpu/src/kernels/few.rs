//! How products of few rows are cut into workgroups (`kernels/few_f32.wgsl`, `few_i8.wgsl`); a value has the same bits in
//! all of them.

use crate::source::Specialisation;
use crate::stored::BLOCK;

/// Threads of a workgroup (`THREADS` in few_norm.wgsl), each with so many outputs.
pub(super) const THREADS: usize = 128;
pub(super) const THREAD_OUTPUTS: usize = 4;
/// Outputs up to which a workgroup has as few of them as it can, so that there are workgroups enough.
const FEW_OUTPUTS: usize = 1024;

/// The norm that products of a single row do first: groups of so many columns; none of them for no norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NormShape {
    pub groups: usize,
    pub size: usize,
}

impl NormShape {
    pub const NONE: NormShape = NormShape { groups: 0, size: 4 };
}

/// Vectors of a block of x in workgroup memory, as floats and rounded.
const FLOAT_VECTORS: usize = 8;
const ROUNDED_VECTORS: usize = 3;

/// So many rows, threads of a team, and blocks at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Few {
    pub rows: usize,
    pub team: usize,
    pub round: usize,
    is_integer: bool,
}

impl Few {
    /// The cut for a row, or for the few rows that workgroup memory holds, of so many blocks.
    pub fn of(is_integer: bool, single: bool, blocks: usize, outputs: usize, workgroup_bytes: usize) -> Few {
        let fits =
            |[rows, team]: [usize; 2]| Few { rows, team, round: team, is_integer }.bytes() <= workgroup_bytes;
        let waste = |team: usize| blocks.next_multiple_of(team) * 7 / 8;
        let least = blocks.next_multiple_of(32);
        let teams = [128, 64, 32].into_iter();
        let is_useful = |team: &usize| waste(*team) <= least || outputs <= FEW_OUTPUTS;
        let team = match single {
            true => teams.filter(|team| fits([1, *team])).find(is_useful).unwrap_or(32),
            false => 32,
        };
        // Values of integers need no registers for further rows.
        let most: &[usize] = if is_integer { &[8, 4] } else { &[4] };
        let rows = match single {
            true => 1,
            false => most.iter().copied().find(|rows| fits([*rows, team])).unwrap_or(2),
        };
        Few::of_team(is_integer, [rows, team], blocks, workgroup_bytes)
    }

    /// The cut for a row whose workgroups have a block of outputs each.
    pub fn of_blocks(blocks: usize, workgroup_bytes: usize) -> Few {
        Few::of_team(true, [1, THREADS * THREAD_OUTPUTS / BLOCK], blocks, workgroup_bytes)
    }

    fn of_team(is_integer: bool, [rows, team]: [usize; 2], blocks: usize, workgroup_bytes: usize) -> Few {
        let few = |round: usize| Few { rows, team, round, is_integer };
        let rounds = (1..=(128 / (rows * team)).max(1)).rev().map(|n| n * team);
        let whole = blocks.next_multiple_of(team);
        let round =
            rounds.filter(|round| *round <= whole).find(|round| few(*round).bytes() <= workgroup_bytes);
        few(round.unwrap_or(team))
    }

    fn x_vectors(self) -> usize {
        self.rows * self.round * if self.is_integer { ROUNDED_VECTORS } else { FLOAT_VECTORS }
    }

    /// Vectors of sums; where the row of a norm is rounded here it stands in their place first.
    fn sum_vectors(self, norm: NormShape) -> usize {
        let sums = self.rows * self.round * (THREADS / self.team);
        let stands_here = self.is_integer && norm.groups > 0;
        if stands_here { sums.max(self.round * FLOAT_VECTORS) } else { sums }
    }

    /// Bytes of vectors of x and of sums, beside a few words.
    fn bytes(self) -> usize {
        (self.x_vectors() + self.sum_vectors(NormShape::NONE)) * 16 + 256
    }

    /// Outputs of a workgroup.
    pub fn outputs(self) -> usize {
        THREADS / self.team * THREAD_OUTPUTS
    }

    /// Whether a workgroup has room for the norm of so many columns, in so many groups.
    pub fn takes_norm(self, cols: usize, groups: usize, workgroup_bytes: usize) -> bool {
        let norm = NormShape { groups, size: cols };
        let bytes = (self.x_vectors() + self.sum_vectors(norm)) * 16 + groups * (THREADS + 32) * 4 + 256;
        cols.is_multiple_of(4 * groups) && self.round >= cols.div_ceil(BLOCK) && bytes <= workgroup_bytes
    }

    /// A kernel with the constants of few_f32.wgsl or few_i8.wgsl.
    pub fn define(self, kernel: Specialisation, norm: NormShape) -> Specialisation {
        let Few { rows, team, round, .. } = self;
        kernel
            .choose("SUMS", if self.is_integer { "i8" } else { "f32" })
            .define("TILE_ROWS", rows)
            .define("TEAM", team)
            .define("ROUND", round)
            .define("NORM_GROUPS", norm.groups)
            .define("NORM_SIZE", norm.size)
            .define("SQUARES", (norm.groups * THREADS).max(1))
            .define("SIXTEENS", (norm.groups * 16).max(1))
            .define("X_VECTORS", self.x_vectors())
            .define("SUM_VECTORS", self.sum_vectors(norm))
    }
}

/// Outputs up to which a norm in every workgroup costs less than a dispatch.
const MOST_NORMED: usize = 16 << 10;

/// Whether a product of one row can do the norm of its columns, in so many groups.
pub(crate) fn takes_norm(
    is_integer: bool,
    [cols, out]: [usize; 2],
    groups: usize,
    workgroup_bytes: usize,
) -> bool {
    if out > MOST_NORMED {
        return false;
    }
    Few::of(is_integer, true, cols.div_ceil(BLOCK), out, workgroup_bytes).takes_norm(
        cols,
        groups,
        workgroup_bytes,
    )
}
