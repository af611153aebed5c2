//! How products of few rows are cut into workgroups (`kernels/few.wgsl`); a value has the same bits in all of them.

use crate::source::Specialisation;
use crate::stored::BLOCK;

/// Threads of a workgroup (`THREADS` in few.wgsl), each with so many outputs.
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

/// So many rows, threads of a team, and blocks at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Few {
    pub rows: usize,
    pub team: usize,
    pub round: usize,
}

impl Few {
    /// The cut for a row, or for the few rows that workgroup memory holds, of so many blocks.
    pub fn of(single: bool, blocks: usize, outputs: usize, workgroup_bytes: usize) -> Few {
        // Vectors of x and of sums, beside a few words.
        let fits = |[rows, team, round]: [usize; 3]| {
            rows * round * 16 * (8 + THREADS / team) + 256 <= workgroup_bytes
        };
        let waste = |team: usize| blocks.next_multiple_of(team) * 7 / 8;
        let least = blocks.next_multiple_of(32);
        let teams = [128, 64, 32].into_iter();
        let is_useful = |team: &usize| waste(*team) <= least || outputs <= FEW_OUTPUTS;
        let team = match single {
            true => teams.filter(|team| fits([1, *team, *team])).find(is_useful).unwrap_or(32),
            false => 32,
        };
        let rows = if single {
            1
        } else if fits([4, team, team]) {
            4
        } else {
            2
        };
        let rounds = (1..=(128 / (rows * team)).max(1)).rev().map(|n| n * team);
        let whole = blocks.next_multiple_of(team);
        let round = rounds.filter(|round| *round <= whole).find(|round| fits([rows, team, *round]));
        Few { rows, team, round: round.unwrap_or(team) }
    }

    /// Outputs of a workgroup.
    pub fn outputs(self) -> usize {
        THREADS / self.team * THREAD_OUTPUTS
    }

    /// Whether a workgroup has room for the norm of so many columns, in so many groups.
    pub fn takes_norm(self, cols: usize, groups: usize, workgroup_bytes: usize) -> bool {
        let bytes = self.round * 16 * (8 + THREADS / self.team) + groups * (THREADS + 32) * 4 + 256;
        cols.is_multiple_of(4 * groups) && self.round >= cols.div_ceil(BLOCK) && bytes <= workgroup_bytes
    }

    /// A kernel with the constants of few.wgsl.
    pub fn define(self, kernel: Specialisation, norm: NormShape) -> Specialisation {
        let Few { rows, team, round } = self;
        kernel
            .define("TILE_ROWS", rows)
            .define("TEAM", team)
            .define("ROUND", round)
            .define("NORM_GROUPS", norm.groups)
            .define("NORM_SIZE", norm.size)
            .define("SQUARES", (norm.groups * THREADS).max(1))
            .define("SIXTEENS", (norm.groups * 16).max(1))
            .define("X_VECTORS", rows * round * 8)
            .define("SUM_VECTORS", rows * round * (THREADS / team))
    }
}

/// Outputs up to which a norm in every workgroup costs less than a dispatch.
const MOST_NORMED: usize = 16 << 10;

/// Whether a product of one row can do the norm of its columns, in so many groups.
pub(crate) fn takes_norm(cols: usize, out: usize, groups: usize, workgroup_bytes: usize) -> bool {
    if out > MOST_NORMED {
        return false;
    }
    Few::of(true, cols.div_ceil(BLOCK), out, workgroup_bytes).takes_norm(cols, groups, workgroup_bytes)
}
