// attention over f16 caches for prompts: a warp has a tile, the block's warps share the units they read.
// Defines: those of attention.cuh; TILE_WARPS.
#include "attention_f16.cuh"

extern __shared__ __align__(16) unsigned char shared_bytes[];

#define TILE_THREADS (32 * TILE_WARPS)
// Rows of the step that a warp and a block have.
#define WARP_ROWS (TILE / GROUP)
#define BLOCK_ROWS (TILE_WARPS * WARP_ROWS)
#define O_PITCH (HEAD_DIM + 4)

struct TileShared {
    UnitShared units[2];
    QueryShared queries[TILE_WARPS];
    // The splits merged so far.
    float whole[TILE_WARPS][TILE][O_PITCH];
};

// A warp's tile: rows g and g + 8 are the query heads of some rows of the step.
struct TileRows {
    u32 row[2], head[2], first[2], last[2];
    bool is_there[2];
};

// One unit for a warp's tile, merged into the split.
DEVICE void run_tile_unit(const AttentionParams& p, const QueryShared& queries, const UnitShared& unit, u32 number,
                          const TileRows& rows, Sums* split_sums, float (*split)[4]) {
    u32 lane = threadIdx.x % 32, g = lane / 4;
    float scale[2] = {queries.scale[g], queries.scale[g + 8]};
    float score[UNIT / 8][4], largest[2] = {MINUS_INFINITY, MINUS_INFINITY};
    multiply_keys<UNIT / 8>(score, queries, unit, 0);
#pragma unroll
    for (int i = 0; i < UNIT / 16; i++)
        score_keys(p, score + 2 * i, scale, rows.first, rows.last, number * UNIT + 16 * i, largest);
    largest[0] = row_max(largest[0]), largest[1] = row_max(largest[1]);
    u32 high[UNIT / 16][4], low[UNIT / 16][4];
    Sums sums[2] = {{largest[0], 0.0f}, {largest[1], 0.0f}};
#pragma unroll
    for (int i = 0; i < UNIT / 16; i++) {
        float sum[2];
        weigh_keys(score + 2 * i, largest, high[i], low[i], sum);
        sums[0].sum = i == 0 ? sum[0] : __fadd_rn(sums[0].sum, sum[0]);
        sums[1].sum = i == 0 ? sum[1] : __fadd_rn(sums[1].sum, sum[1]);
    }
    MergeFactors factors[2] = {merge(split_sums[0], sums[0]), merge(split_sums[1], sums[1])};
#pragma unroll
    for (int column = 0; column < HEAD_DIM / 8; column += 2) {
        float mixed[2][4] = {};
#pragma unroll
        for (int i = 0; i < UNIT / 16; i++) multiply_values(mixed, high[i], low[i], unit, 16 * i, 8 * column);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                split[column + i][j] = merged(split[column + i][j], mixed[i][j], factors[j / 2]);
    }
}

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

// The rows lo .. hi of one segment.
DEVICE void run_rows(const AttentionParams& p, TileShared& shared, const SegmentEntry& segment, u32 kv_head, u32 lo,
                     u32 hi, u32 block_row) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    QueryShared& queries = shared.queries[warp];
    float(*whole)[O_PITCH] = shared.whole[warp];
    TileRows rows;
    for (u32 i = 0; i < TILE; i++) {
        u32 row = block_row + warp * WARP_ROWS + i / GROUP;
        bool is_there = row >= lo && row < hi;
        load_query(queries, i, is_there ? f32_row(p.q, row) + (kv_head * GROUP + i % GROUP) * HEAD_DIM : 0, p.scale);
        for (u32 d = lane; d < O_PITCH; d += 32) whole[i][d] = 0.0f;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 i = g + 8 * half, row = block_row + warp * WARP_ROWS + i / GROUP;
        rows.row[half] = row, rows.head[half] = kv_head * GROUP + i % GROUP;
        rows.is_there[half] = row >= lo && row < hi;
        rows.last[half] = segment.position + (row - segment.first_row);
        rows.first[half] = first_seen(p, rows.last[half]);
        // Sees nothing.
        if (!rows.is_there[half]) rows.first[half] = 1, rows.last[half] = 0;
    }
    u32 first = first_seen(p, segment.position + (lo - segment.first_row));
    u32 last = segment.position + (hi - 1 - segment.first_row);
    // What this warp's own rows see.
    u32 own_lo = max(lo, block_row + warp * WARP_ROWS), own_hi = min(hi, block_row + (warp + 1) * WARP_ROWS);
    u32 own_first = own_lo < own_hi ? first_seen(p, segment.position + (own_lo - segment.first_row)) : 1;
    u32 own_last = own_lo < own_hi ? segment.position + (own_hi - 1 - segment.first_row) : 0;
    Sums whole_sums[2] = {NO_SUMS, NO_SUMS}, split_sums[2] = {NO_SUMS, NO_SUMS};
    float split[HEAD_DIM / 8][4] = {};
    u32 begin = first / UNIT, end = last / UNIT + 1;
    copy_unit<TILE_THREADS>(shared.units[begin % 2], p, segment, kv_head, begin, first, last);
    for (u32 unit = begin; unit < end; unit++) {
        if (unit + 1 < end)
            copy_unit<TILE_THREADS>(shared.units[(unit + 1) % 2], p, segment, kv_head, unit + 1, first, last);
        else
            end_copies();
        wait_for_copies<1>();
        __syncthreads();
        if (own_first / UNIT <= unit && unit <= own_last / UNIT && own_lo < own_hi) {
            run_tile_unit(p, queries, shared.units[unit % 2], unit, rows, split_sums, split);
            if (unit == own_last / UNIT || (unit + 1) % UNITS_PER_SPLIT == 0)
                end_split(whole, whole_sums, split_sums, split);
        }
        __syncthreads();
    }
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

// Blocks count rows from the last, which see most.
KERNEL __launch_bounds__(TILE_THREADS, 1) attention_tile(const __grid_constant__ AttentionParams p) {
    TileShared& shared = *(TileShared*)shared_bytes;
    start_dependents();
    wait_for_inputs();
    u32 rows = p.step->rows, blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS, kv_head = blockIdx.y;
    if (blockIdx.x >= blocks) return;
    u32 block_row = (blocks - 1 - blockIdx.x) * BLOCK_ROWS, row = block_row;
    while (row < min(rows, block_row + BLOCK_ROWS)) {
        SegmentEntry segment = p.step->segments[p.step->row_segment[row]];
        u32 end = min(min(segment.first_row + segment.rows, block_row + BLOCK_ROWS), rows);
        __syncthreads();
        if (segment.rows >= p.tile_rows) run_rows(p, shared, segment, kv_head, row, end, block_row);
        row = end;
    }
}
