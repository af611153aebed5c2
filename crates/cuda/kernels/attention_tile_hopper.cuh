// attention_tile with warpgroup products: a warpgroup has the tiles of its four warps, the block's two share units.
//
// Keys, values and queries stand in panels of 64 columns, rows of 128 bytes swizzled as products read them. A warpgroup
// may be almost a unit ahead of the other: while one makes weights of scores, the other uses the matrix units.
// The sums are those of attention_tile.cu, in the same order.
#pragma once
#include "attention_tile.cuh"
#include "wgmma.cuh"

#define PANELS (HEAD_DIM / 64)
#define PANEL_BYTES (UNIT * 128)
#define GROUP_WARPS 4
#define WARP_GROUPS (TILE_WARPS / GROUP_WARPS)

struct TileShared {
    // Of two units, keys and values.
    u8 units[2][2][PANELS][PANEL_BYTES];
    // High and low parts.
    u8 queries[WARP_GROUPS][2][PANELS][PANEL_BYTES];
    // The splits merged so far.
    float whole[TILE_WARPS][TILE][O_PITCH];
    float scale[TILE_WARPS][TILE];
    // Whether the units' places are full, and whether they are empty.
    u64 full[2], empty[2];
};

// Panels start at a multiple of this; there is as much shared memory as the other form takes.
#define TILE_ALIGNMENT 1024u
static_assert(sizeof(TileShared) + TILE_ALIGNMENT <= 2 * sizeof(UnitShared) +
                  TILE_WARPS * (sizeof(QueryShared) + sizeof(float) * TILE * O_PITCH), "shared memory of a tile");

// Where 16 bytes of a panel's row stand.
DEVICE u32 panel_place(u32 row, u32 chunk) {
    return row * 128 + ((chunk ^ (row & 7)) << 4);
}

DEVICE void begin_block(TileShared& shared) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            barrier_init(shared_address(&shared.full[i]), TILE_THREADS);
            barrier_init(shared_address(&shared.empty[i]), TILE_WARPS);
        }
        barrier_init_fence();
    }
    __syncthreads();
}

// Starts bringing the block's n-th unit; positions outside first ..= last are zero.
DEVICE void copy_panels(TileShared& shared, u32 n, const AttentionParams& p, const SegmentEntry& segment, u32 kv_head,
                        u32 unit, u32 first, u32 last) {
    constexpr u32 VECTORS = HEAD_DIM / 8;
    UnitPages pages(p, PageList(p, segment), unit, last);
    if (n >= 2) barrier_wait(shared_address(&shared.empty[n % 2]), n / 2 % 2 ^ 1);
    u32 keys = shared_address(shared.units[n % 2][0]), values = shared_address(shared.units[n % 2][1]);
#pragma unroll
    for (u32 i = threadIdx.x; i < UNIT * VECTORS; i += TILE_THREADS) {
        u32 j = i / VECTORS, chunk = i % VECTORS, position = unit * UNIT + j;
        bool is_there = position >= first && position <= last;
        u8* page = pages.of(j);
        u32 offset = 2 * (position % PAGE_TOKENS * HEAD_DIM + 8 * chunk);
        u32 place = chunk / 8 * PANEL_BYTES + panel_place(j, chunk % 8);
        copy_async_or_zero(keys + place, key_head(page, kv_head) + offset, is_there);
        copy_async_or_zero(values + place, value_head(page, kv_head) + offset, is_there);
    }
    barrier_arrive_after_copies(shared_address(&shared.full[n % 2]));
}

// Brings the queries of a warp's tile, all of them at once, as load_query() does one.
DEVICE void load_tile(TileShared& shared, const AttentionParams& p, u32 kv_head, u32 lo, u32 hi, u32 warp_row) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u8* high_at = &shared.queries[warp / GROUP_WARPS][0][0][0];
    u8* low_at = &shared.queries[warp / GROUP_WARPS][1][0][0];
    float values[TILE][2 * PANELS];
#pragma unroll
    for (int i = 0; i < TILE; i++) {
        u32 row = warp_row + i / GROUP;
        const float* q = f32_row(p.q, row) + (kv_head * GROUP + i % GROUP) * HEAD_DIM;
#pragma unroll
        for (int j = 0; j < 2 * PANELS; j++)
            values[i][j] = row >= lo && row < hi ? q[j / 2 * 64 + 2 * lane + j % 2] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < TILE; i++) {
        float largest = 0.0f;
#pragma unroll
        for (int j = 0; j < 2 * PANELS; j++) largest = fmaxf(largest, fabsf(values[i][j]));
        QueryFactors factors(warp_max(largest), p.scale);
        u32 place = panel_place(warp % GROUP_WARPS * TILE + i, lane / 4) + lane % 4 * 4;
#pragma unroll
        for (int panel = 0; panel < PANELS; panel++) {
            u32 high, low;
            split_f16(__fmul_rn(values[i][2 * panel], factors.in), __fmul_rn(values[i][2 * panel + 1], factors.in), high,
                      low);
            *(u32*)(high_at + panel * PANEL_BYTES + place) = high;
            *(u32*)(low_at + panel * PANEL_BYTES + place) = low;
        }
        if (lane == 0) shared.scale[warp][i] = factors.out;
    }
}

// The high parts of a warp's queries as left operands: two operands of 64 rows in shared memory are all that can be read
// there while a product of them is made.
struct HighQueries {
    u32 words[HEAD_DIM / 16][4];

    DEVICE void load(const TileShared& shared) {
        u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp % GROUP_WARPS * TILE + lane % 16;
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 16; d++)
            load_matrices(words[d], shared_address(shared.queries[warp / GROUP_WARPS][0][d / 4]) +
                                        panel_place(row, 2 * (d % 4) + lane / 16));
    }
};

// Products of a warpgroup's queries with a unit's keys.
DEVICE void multiply_unit_keys(float* product, const TileShared& shared, const HighQueries& queries, u32 group, u32 stage) {
    products_begin();
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; d++) {
        u32 column = 2 * (d % 4);
        u64 keys = swizzled_rows(shared_address(shared.units[stage][0][d / 4])) + column;
        u64 low = swizzled_rows(shared_address(shared.queries[group][1][d / 4])) + column;
        multiply_rows<UNIT, false>(product, queries.words[d], keys, d > 0);
        multiply_shared<UNIT>(product, low, keys, true);
    }
    products_commit();
    products_wait<0>();
    products_hold<UNIT / 2>(product);
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; d++) products_hold(queries.words[d]);
}

// One unit for the tiles of a warpgroup, merged into the split; `copy_next()` comes when the other warpgroup is about to
// need no more of the unit before.
template <class CopyNext>
DEVICE void run_unit(const AttentionParams& p, const TileShared& shared, const HighQueries& queries, u32 stage, u32 number,
                     const TileRows& rows, Sums* split_sums, float (*split)[4], CopyNext copy_next) {
    u32 warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
    float scale[2] = {shared.scale[warp][g], shared.scale[warp][g + 8]};
    float score[UNIT / 8][4] = {};
    multiply_unit_keys(score[0], shared, queries, warp / GROUP_WARPS, stage);
    UnitWeights weights(p, score, scale, rows.seen, number);
    copy_next();
    float mixed[HEAD_DIM / 2] = {};
    products_begin();
#pragma unroll
    for (int i = 0; i < UNIT / 16; i++) {
        u64 values = swizzled_columns(shared_address(shared.units[stage][1]) + i * 2048, PANEL_BYTES);
        multiply_columns<HEAD_DIM>(mixed, weights.of[i], values, i > 0);
    }
    products_commit();
    MergeFactors factors[2] = {merge(split_sums[0], weights.sums[0]), merge(split_sums[1], weights.sums[1])};
    products_wait<0>();
    products_hold<HEAD_DIM / 2>(mixed);
#pragma unroll
    for (int i = 0; i < UNIT / 16; i++) products_hold(weights.of[i]);
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) split[i][j] = merged(split[i][j], mixed[4 * i + j], factors[j / 2]);
}

// The rows lo .. hi of one segment; `n` counts the block's units.
DEVICE void run_rows(const AttentionParams& p, TileShared& shared, const SegmentEntry& segment, u32 kv_head, u32 lo,
                     u32 hi, u32 block_row, u32& n) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 warp_row = block_row + warp * WARP_ROWS, group_row = block_row + warp / GROUP_WARPS * GROUP_WARPS * WARP_ROWS;
    float(*whole)[O_PITCH] = shared.whole[warp];
    load_tile(shared, p, kv_head, lo, hi, warp_row);
    for (u32 i = lane; i < TILE * O_PITCH; i += 32) whole[i / O_PITCH][i % O_PITCH] = 0.0f;
    TileRows rows;
    rows.find(p, segment, kv_head, lo, hi, warp_row);
    u32 first = first_seen(p, segment.position + (lo - segment.first_row));
    u32 last = segment.position + (hi - 1 - segment.first_row);
    SeenUnits all(p, segment, lo, hi);
    // Of a warpgroup, whose warps multiply together: a row that sees nothing of a unit keeps its bits.
    SeenUnits own(p, segment, max(lo, group_row), min(hi, group_row + GROUP_WARPS * WARP_ROWS));
    fence_for_products();
    __syncthreads();
    HighQueries queries;
    queries.load(shared);
    Sums whole_sums[2] = {NO_SUMS, NO_SUMS}, split_sums[2] = {NO_SUMS, NO_SUMS};
    float split[HEAD_DIM / 8][4] = {};
    copy_panels(shared, n, p, segment, kv_head, all.begin, first, last);
    for (u32 unit = all.begin; unit < all.end; unit++, n++) {
        // Before more copies start, which the fence might wait for.
        barrier_wait(shared_address(&shared.full[n % 2]), n / 2 % 2);
        fence_for_products();
        auto copy_next = [&] {
            if (unit + 1 < all.end) copy_panels(shared, n + 1, p, segment, kv_head, unit + 1, first, last);
        };
        if (own.begin <= unit && unit < own.end) {
            run_unit(p, shared, queries, n % 2, unit, rows, split_sums, split, copy_next);
            if (unit + 1 == own.end || (unit + 1) % UNITS_PER_SPLIT == 0) end_split(whole, whole_sums, split_sums, split);
        } else {
            copy_next();
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&shared.empty[n % 2]));
    }
    store_tile(p, rows, whole, whole_sums);
}
