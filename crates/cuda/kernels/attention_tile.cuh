// What both forms of attention_tile share: a warp's tile is 16 query heads of some rows of the step.
#pragma once
#include "attention_f16.cuh"

#define TILE_THREADS (32 * TILE_WARPS)
// Rows of the step that a warp and a block have.
#define WARP_ROWS (TILE / GROUP)
#define BLOCK_ROWS (TILE_WARPS * WARP_ROWS)
#define O_PITCH (HEAD_DIM + 4)

// A warp's tile: rows g and g + 8 are the query heads of some rows of the step.
struct TileRows {
    u32 row[2], head[2];
    bool is_there[2];
    SeenKeys seen;

    // Of the rows lo .. hi of a segment; what is not there sees nothing.
    DEVICE void find(const AttentionParams& p, const SegmentEntry& segment, u32 kv_head, u32 lo, u32 hi, u32 warp_row) {
        u32 g = threadIdx.x % 32 / 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 i = g + 8 * half;
            row[half] = warp_row + i / GROUP, head[half] = kv_head * GROUP + i % GROUP;
            is_there[half] = row[half] >= lo && row[half] < hi;
            seen.last[half] = segment.position + (row[half] - segment.first_row);
            seen.first[half] = first_seen(p, seen.last[half]);
            if (!is_there[half]) seen.first[half] = 1, seen.last[half] = 0;
        }
    }
};

// What a unit's products become: weights by 16 keys, as the first factors of products, and their sums.
struct UnitWeights {
    u32 of[UNIT / 16][4];
    Sums sums[2];

    DEVICE UnitWeights(const AttentionParams& p, float (*product)[4], const float* scale, const SeenKeys& seen, u32 unit) {
        float largest[2] = {MINUS_INFINITY, MINUS_INFINITY};
        if (seen.has_all(unit))
            score_all<true>(p, product, scale, seen, unit, largest);
        else
            score_all<false>(p, product, scale, seen, unit, largest);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            largest[half] = __fmul_rn(row_max(largest[half]), factor_of(scale[half]));
            sums[half].largest = largest[half];
        }
#pragma unroll
        for (int i = 0; i < UNIT / 16; i++) {
            float sum[2];
            weigh_keys(product + 2 * i, scale, largest, of[i], sum);
#pragma unroll
            for (int half = 0; half < 2; half++)
                sums[half].sum = i == 0 ? sum[half] : __fadd_rn(sums[half].sum, sum[half]);
        }
        sums[0].sum = row_sum(sums[0].sum), sums[1].sum = row_sum(sums[1].sum);
    }

    template <bool ALL_SEEN>
    DEVICE static void score_all(const AttentionParams& p, float (*product)[4], const float* scale, const SeenKeys& seen,
                                 u32 unit, float* largest) {
#pragma unroll
        for (int i = 0; i < UNIT / 16; i++)
            score_keys<ALL_SEEN>(p, product + 2 * i, scale, seen, unit * UNIT + 16 * i, largest);
    }
};

// Merges a split into the whole, which is in shared memory, and starts a new one.
DEVICE void end_split(float (*whole)[O_PITCH], Sums* whole_sums, Sums* split_sums, float (*split)[4]) {
    u32 lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    MergeFactors factors[2] = {merge(whole_sums[0], split_sums[0]), merge(whole_sums[1], split_sums[1])};
    split_sums[0] = split_sums[1] = NO_SUMS;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float& value = whole[g + j / 2 * 8][8 * i + 2 * q + j % 2];
            value = merged(value, split[i][j], factors[j / 2]);
            split[i][j] = 0.0f;
        }
}

// Stores a warp's tile.
DEVICE void store_tile(const AttentionParams& p, const TileRows& rows, const float (*whole)[O_PITCH], const Sums* whole_sums) {
    u32 lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (!rows.is_there[half]) continue;
        float factor = final_factor(p, whole_sums[half], rows.head[half]);
        float* out = f32_row(p.out, rows.row[half]) + rows.head[half] * HEAD_DIM;
        for (int i = 0; i < HEAD_DIM / 8; i++)
            for (int j = 0; j < 2; j++)
                out[8 * i + 2 * q + j] = __fmul_rn(whole[g + 8 * half][8 * i + 2 * q + j], factor);
    }
}

// The units that rows lo .. hi of a segment see, as the first and the one after the last; none without rows.
struct SeenUnits {
    u32 begin, end;

    DEVICE SeenUnits(const AttentionParams& p, const SegmentEntry& segment, u32 lo, u32 hi) {
        begin = end = 0;
        if (lo >= hi) return;
        begin = first_seen(p, segment.position + (lo - segment.first_row)) / UNIT;
        end = (segment.position + (hi - 1 - segment.first_row)) / UNIT + 1;
    }
};
