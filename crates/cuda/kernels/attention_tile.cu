// attention over f16 caches for prompts: a warp has a tile, the block's warps share the units they read.
// Defines: those of attention.cuh; TILE_WARPS.
#if __CUDA_ARCH__ == 900 && HEAD_DIM == 128 && TILE_WARPS == 8
#include "attention_tile_hopper.cuh"
#else
#include "attention_tile.cuh"

struct TileShared {
    UnitShared units[2];
    QueryShared queries[TILE_WARPS];
    // The splits merged so far.
    float whole[TILE_WARPS][TILE][O_PITCH];
};

#define TILE_ALIGNMENT 16u

DEVICE void begin_block(TileShared&) {}

// One unit for a warp's tile, merged into the split.
DEVICE void run_tile_unit(const AttentionParams& p, const QueryShared& queries, const UnitShared& unit, u32 number,
                          const TileRows& rows, Sums* split_sums, float (*split)[4]) {
    u32 lane = threadIdx.x % 32, g = lane / 4;
    float scale[2] = {queries.scale[g], queries.scale[g + 8]};
    float score[UNIT / 8][4];
    multiply_keys<UNIT / 8>(score, queries, unit, 0);
    UnitWeights weights(p, score, scale, rows.seen, number);
    MergeFactors factors[2] = {merge(split_sums[0], weights.sums[0]), merge(split_sums[1], weights.sums[1])};
#pragma unroll
    for (int column = 0; column < HEAD_DIM / 8; column += 2) {
        float mixed[2][4] = {};
#pragma unroll
        for (int i = 0; i < UNIT / 16; i++) multiply_values(mixed, weights.of[i], unit, 16 * i, 8 * column);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                split[column + i][j] = merged(split[column + i][j], mixed[i][j], factors[j / 2]);
    }
}

// The rows lo .. hi of one segment.
DEVICE void run_rows(const AttentionParams& p, TileShared& shared, const SegmentEntry& segment, u32 kv_head, u32 lo,
                     u32 hi, u32 block_row, u32&) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    QueryShared& queries = shared.queries[warp];
    float(*whole)[O_PITCH] = shared.whole[warp];
    TileRows rows;
    for (u32 i = 0; i < TILE; i++) {
        u32 row = block_row + warp * WARP_ROWS + i / GROUP;
        bool is_there = row >= lo && row < hi;
        load_query(queries, i, is_there ? f32_row(p.q, row) + (kv_head * GROUP + i % GROUP) * HEAD_DIM : 0, p.scale);
        for (u32 d = lane; d < O_PITCH; d += 32) whole[i][d] = 0.0f;
    }
    rows.find(p, segment, kv_head, lo, hi, block_row + warp * WARP_ROWS);
    u32 first = first_seen(p, segment.position + (lo - segment.first_row));
    u32 last = segment.position + (hi - 1 - segment.first_row);
    SeenUnits own(p, segment, max(lo, block_row + warp * WARP_ROWS), min(hi, block_row + (warp + 1) * WARP_ROWS));
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
        if (own.begin <= unit && unit < own.end) {
            run_tile_unit(p, queries, shared.units[unit % 2], unit, rows, split_sums, split);
            if (unit + 1 == own.end || (unit + 1) % UNITS_PER_SPLIT == 0)
                end_split(whole, whole_sums, split_sums, split);
        }
        __syncthreads();
    }
    store_tile(p, rows, whole, whole_sums);
}
#endif

extern __shared__ __align__(16) unsigned char shared_bytes[];

// Blocks count rows from the last, which see most.
KERNEL __launch_bounds__(TILE_THREADS, 1) attention_tile(const __grid_constant__ AttentionParams p) {
    TileShared& shared = *(TileShared*)(shared_bytes + (-shared_address(shared_bytes) & (TILE_ALIGNMENT - 1)));
    start_dependents();
    wait_for_inputs();
    u32 rows = p.step->rows, blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS, kv_head = blockIdx.y;
    if (blockIdx.x >= blocks) return;
    u32 block_row = (blocks - 1 - blockIdx.x) * BLOCK_ROWS, row = block_row, units = 0;
    begin_block(shared);
    while (row < min(rows, block_row + BLOCK_ROWS)) {
        SegmentEntry segment = p.step->segments[p.step->row_segment[row]];
        u32 end = min(min(segment.first_row + segment.rows, block_row + BLOCK_ROWS), rows);
        __syncthreads();
        if (segment.rows >= p.tile_rows) run_rows(p, shared, segment, kv_head, row, end, block_row, units);
        row = end;
    }
}
