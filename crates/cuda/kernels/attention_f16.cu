// attention over f16 caches, on tensor cores. Queries and weights are the sums of two f16 each, keys and values are
// themselves: products as exact as f32's. A tile is 16 query heads (of one row, or of several rows) against a unit.
//
// `attention_split` is for rows of short segments: a block has a row and a tile of heads and some units (the warps share
// each), so that a long context is read by many blocks; `attention_merge` puts their results together.
// `attention_tile` is for prompts: a warp has a tile, the block's warps share the units they read.
// All three follow the order of attention.cuh, so they give the same bits.
// Defines: those of attention.cuh; TILE_WARPS.
#include "attention.cuh"
#include "mma.cuh"

#define TILE 16
#define HEAD_TILES ((GROUP + TILE - 1) / TILE)
// 16 more bytes let eight lanes read eight rows at once.
#define K_PITCH (HEAD_DIM + 8)
#define W_PITCH (UNIT + 8)
#define SPLIT_WARPS 4
#define SPLIT_THREADS (32 * SPLIT_WARPS)
// Columns of the result that a warp of attention_split has, in tiles of 8.
#define OWN_TILES (HEAD_DIM / 8 / SPLIT_WARPS)
#define UNITS_PER_SPLIT (SPLIT / UNIT)

// Keys and values of a unit.
struct UnitShared {
    u16 k[UNIT][K_PITCH], v[UNIT][K_PITCH];
};

// Queries of a tile, times a power of two that brings the largest of a head to [1, 2).
struct QueryShared {
    u16 high[TILE][K_PITCH], low[TILE][K_PITCH];
    // What products are multiplied with to become scores.
    float scale[TILE];
};

DEVICE void copy_16(u16* to, const void* from, bool is_there) {
    u32 address = (u32)__cvta_generic_to_shared(to);
    int bytes = is_there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
}

DEVICE void end_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until all but the latest `PENDING` groups of copies have arrived.
template <int PENDING>
DEVICE void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Starts bringing a unit; positions outside first ..= last are zero.
template <int THREAD_COUNT>
DEVICE void copy_unit(UnitShared& to, const AttentionParams& p, const SegmentEntry& segment, u32 kv_head, u32 unit,
                      u32 first, u32 last) {
    constexpr u32 VECTORS = HEAD_DIM / 8;
    UnitPages pages(p, segment, unit, last);
#pragma unroll
    for (u32 i = threadIdx.x; i < UNIT * VECTORS; i += THREAD_COUNT) {
        u32 j = i / VECTORS, d = i % VECTORS * 8, position = unit * UNIT + j;
        bool is_there = position >= first && position <= last;
        u8* page = pages.of(j);
        u32 offset = 2 * (position % PAGE_TOKENS * HEAD_DIM + d);
        copy_16(&to.k[j][d], key_head(page, kv_head) + offset, is_there);
        copy_16(&to.v[j][d], value_head(page, kv_head) + offset, is_there);
    }
    end_copies();
}

// Brings the query of one head; by a warp.
DEVICE void load_query(QueryShared& to, u32 at, const float* q, float scale) {
    u32 lane = threadIdx.x % 32;
    float largest = 0.0f;
    for (u32 d = lane; q && d < HEAD_DIM; d += 32) largest = fmaxf(largest, fabsf(q[d]));
    u32 exponent = __float_as_uint(warp_max(largest)) >> 23;
    exponent = min(max(exponent, 27u), 227u);
    float inverse = __uint_as_float((254u - exponent) << 23);
    for (u32 d = 2 * lane; d < HEAD_DIM; d += 64) {
        u32 high, low;
        split_f16(q ? __fmul_rn(q[d], inverse) : 0.0f, q ? __fmul_rn(q[d + 1], inverse) : 0.0f, high, low);
        *(u32*)&to.high[at][d] = high;
        *(u32*)&to.low[at][d] = low;
    }
    if (lane == 0) to.scale[at] = __fmul_rn(scale, __uint_as_float(exponent << 23));
}

// Products of a tile of queries with TILES tiles of 8 keys from `first_key` on.
template <int TILES>
DEVICE void multiply_keys(float (*product)[4], const QueryShared& queries, const UnitShared& unit, u32 first_key) {
    u32 lane = threadIdx.x % 32;
    const u16* high = &queries.high[lane % 16][lane / 16 * 8];
    const u16* low = &queries.low[lane % 16][lane / 16 * 8];
    const u16* keys = &unit.k[first_key + lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8];
#pragma unroll
    for (int i = 0; i < TILES; i++)
        for (int j = 0; j < 4; j++) product[i][j] = 0.0f;
#pragma unroll(TILES > 2 ? 2 : HEAD_DIM / 16)
    for (int d = 0; d < HEAD_DIM; d += 16) {
        u32 qh[4], ql[4];
        load_matrices(qh, high + d);
        load_matrices(ql, low + d);
#pragma unroll
        for (int i = 0; i < TILES; i += 2) {
            u32 k[4];
            load_matrices(k, keys + 8 * i * K_PITCH + d);
            mma_f16(product[i], qh, k[0], k[1]);
            mma_f16(product[i + 1], qh, k[2], k[3]);
            mma_f16(product[i], ql, k[0], k[1]);
            mma_f16(product[i + 1], ql, k[2], k[3]);
        }
    }
}

// Adds a unit's values by weight: two tiles of 8 columns from `column` on.
DEVICE void multiply_values(float (*mixed)[4], const u32* weights_high, const u32* weights_low, const UnitShared& unit,
                            u32 first_key, u32 column) {
    u32 lane = threadIdx.x % 32, v[4];
    load_matrices_transposed(v, &unit.v[first_key + lane / 8 % 2 * 8 + lane % 8][column + lane / 16 * 8]);
    mma_f16(mixed[0], weights_high, v[0], v[1]);
    mma_f16(mixed[1], weights_high, v[2], v[3]);
    mma_f16(mixed[0], weights_low, v[0], v[1]);
    mma_f16(mixed[1], weights_low, v[2], v[3]);
}

// Scores of two tiles of 8 keys: element j of tile i is key `first + 8i + 2q + j % 2`, seen between the bounds of the
// row of element j / 2. Returns the largest of each row over the four lanes that share it.
DEVICE void score_keys(const AttentionParams& p, float (*score)[4], const float* scale, const u32* first_position,
                       const u32* last_position, u32 first_key, float* largest) {
    u32 q = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u32 position = first_key + 8 * i + 2 * q + j % 2;
            bool is_seen = position >= first_position[j / 2] && position <= last_position[j / 2];
            score[i][j] = is_seen ? score_of(p, score[i][j], scale[j / 2]) : MINUS_INFINITY;
            largest[j / 2] = fmaxf(largest[j / 2], score[i][j]);
        }
    }
}

DEVICE float row_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 1));
    return fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 2));
}

DEVICE float row_sum(float value) {
    value = __fadd_rn(value, __shfl_xor_sync(ALL_LANES, value, 1));
    return __fadd_rn(value, __shfl_xor_sync(ALL_LANES, value, 2));
}

// Scores of 16 keys become weights, split as the first factor of a product; returns the sum of row g or g + 8.
DEVICE void weigh_keys(float (*score)[4], const float* largest, u32* high, u32* low, float* sum) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        // A row that sees none of the unit's keys.
        float top = largest[half] == MINUS_INFINITY ? 0.0f : largest[half];
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float first = expf(__fsub_rn(score[i][2 * half], top));
            float second = expf(__fsub_rn(score[i][2 * half + 1], top));
            split_f16(first, second, high[2 * i + half], low[2 * i + half]);
            total = i == 0 ? __fadd_rn(first, second) : __fadd_rn(__fadd_rn(total, first), second);
        }
        sum[half] = row_sum(total);
    }
}

// --- Short segments -------------------------------------------------------------------------------------------------

// How the positions that a row sees are divided among blocks; the same in attention_split and attention_merge.
struct Division {
    u32 first_unit, last_unit;
    // Units of a block's item: 1, those of a split, or all.
    u32 items, units_per_item;

    DEVICE Division(const AttentionParams& p, u32 row, u32 first, u32 last) {
        first_unit = first / UNIT, last_unit = last / UNIT;
        u32 units = last_unit - first_unit + 1, splits = last / SPLIT - first / SPLIT + 1;
        if (row < p.divided_rows && units <= p.most_blocks && units <= p.most_items)
            items = units, units_per_item = 1;
        else if (row < p.divided_rows && splits <= p.most_items)
            items = splits, units_per_item = UNITS_PER_SPLIT;
        else
            items = 1, units_per_item = 0;
    }

    // The units of an item.
    DEVICE u32 begin(u32 item) const {
        if (units_per_item == 0) return first_unit;
        if (units_per_item == 1) return first_unit + item;
        return max(first_unit, (first_unit / UNITS_PER_SPLIT + item) * UNITS_PER_SPLIT);
    }
    DEVICE u32 end(u32 item) const {
        if (units_per_item == 0) return last_unit + 1;
        if (units_per_item == 1) return first_unit + item + 1;
        return min(last_unit + 1, (first_unit / UNITS_PER_SPLIT + item + 1) * UNITS_PER_SPLIT);
    }
};

struct SplitShared {
    UnitShared units[2];
    QueryShared queries;
    u16 weights_high[TILE][W_PITCH], weights_low[TILE][W_PITCH];
    float largest[SPLIT_WARPS][TILE], sums[SPLIT_WARPS][TILE];
};

extern __shared__ __align__(16) unsigned char shared_bytes[];

// One warp's columns of a tile's result, by rows g and g + 8.
struct OwnPart {
    Sums sums[2];
    float mixed[OWN_TILES][4];

    DEVICE void clear() {
        sums[0] = sums[1] = NO_SUMS;
        for (int i = 0; i < OWN_TILES; i++)
            for (int j = 0; j < 4; j++) mixed[i][j] = 0.0f;
    }

    DEVICE void add(const OwnPart& other) {
        MergeFactors factors[2] = {merge(sums[0], other.sums[0]), merge(sums[1], other.sums[1])};
#pragma unroll
        for (int i = 0; i < OWN_TILES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) mixed[i][j] = merged(mixed[i][j], other.mixed[i][j], factors[j / 2]);
    }
};

// One unit of a row, the block's warps together.
DEVICE void run_unit(const AttentionParams& p, SplitShared& shared, const UnitShared& unit, u32 number, u32 first,
                     u32 last, OwnPart& part) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
    u32 firsts[2] = {first, first}, lasts[2] = {last, last};
    float scale[2] = {shared.queries.scale[g], shared.queries.scale[g + 8]};
    float score[2][4], largest[2] = {MINUS_INFINITY, MINUS_INFINITY};
    multiply_keys<2>(score, shared.queries, unit, 16 * warp);
    score_keys(p, score, scale, firsts, lasts, number * UNIT + 16 * warp, largest);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        largest[half] = row_max(largest[half]);
        if (lane % 4 == 0) shared.largest[warp][g + 8 * half] = largest[half];
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < SPLIT_WARPS; i++) largest[half] = fmaxf(largest[half], shared.largest[i][g + 8 * half]);
    u32 high[4], low[4];
    float sum[2];
    weigh_keys(score, largest, high, low, sum);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 column = 16 * warp + i / 2 * 8 + lane % 4 * 2;
        *(u32*)&shared.weights_high[g + i % 2 * 8][column] = high[i];
        *(u32*)&shared.weights_low[g + i % 2 * 8][column] = low[i];
    }
    if (lane % 4 == 0) shared.sums[warp][g] = sum[0], shared.sums[warp][g + 8] = sum[1];
    __syncthreads();
    part.clear();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float total = shared.sums[0][g + 8 * half];
        for (int i = 1; i < SPLIT_WARPS; i++) total = __fadd_rn(total, shared.sums[i][g + 8 * half]);
        part.sums[half] = Sums{largest[half], total};
    }
#pragma unroll
    for (int key = 0; key < UNIT; key += 16) {
        load_matrices(high, &shared.weights_high[lane % 16][key + lane / 16 * 8]);
        load_matrices(low, &shared.weights_low[lane % 16][key + lane / 16 * 8]);
#pragma unroll
        for (int i = 0; i < OWN_TILES; i += 2)
            multiply_values(part.mixed + i, high, low, unit, key, 8 * (warp * OWN_TILES + i));
    }
}

// Where an item's result goes: largest score, sum, and the values.
DEVICE float* item_result(const AttentionParams& p, u32 row, u32 head, u32 item) {
    return p.results + (((u64)row * Q_HEADS + head) * p.most_items + item) * (HEAD_DIM + 2);
}

DEVICE void write_part(const AttentionParams& p, const OwnPart& part, u32 row, u32 first_head, u32 heads, u32 item,
                       bool is_whole) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 head = first_head + g + 8 * half;
        if (g + 8 * half >= heads) continue;
        float* result = is_whole ? 0 : item_result(p, row, head, item);
        float* to = is_whole ? f32_row(p.out, row) + head * HEAD_DIM : result + 2;
        float factor = is_whole ? final_factor(p, part.sums[half], head) : 1.0f;
        if (!is_whole && warp == 0 && q == 0) result[0] = part.sums[half].largest, result[1] = part.sums[half].sum;
#pragma unroll
        for (int i = 0; i < OWN_TILES; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float value = part.mixed[i][2 * half + j];
                to[8 * (warp * OWN_TILES + i) + 2 * q + j] = is_whole ? __fmul_rn(value, factor) : value;
            }
    }
}

// One item of a row: units merged into splits, splits into the whole.
DEVICE void run_item(const AttentionParams& p, SplitShared& shared, const SegmentEntry& segment, u32 row, u32 kv_head,
                     u32 first_head, u32 heads, const Division& division, u32 item, u32 first, u32 last) {
    OwnPart whole, split, part;
    whole.clear();
    split.clear();
    u32 begin = division.begin(item), end = division.end(item);
    bool is_whole = division.units_per_item == 0;
    copy_unit<SPLIT_THREADS>(shared.units[0], p, segment, kv_head, begin, first, last);
    for (u32 unit = begin; unit < end; unit++) {
        u32 at = (unit - begin) % 2;
        if (unit + 1 < end)
            copy_unit<SPLIT_THREADS>(shared.units[1 - at], p, segment, kv_head, unit + 1, first, last);
        else
            end_copies();
        wait_for_copies<1>();
        __syncthreads();
        run_unit(p, shared, shared.units[at], unit, first, last, part);
        split.add(part);
        if (is_whole && (unit + 1 == end || (unit + 1) % UNITS_PER_SPLIT == 0)) {
            whole.add(split);
            split.clear();
        }
        __syncthreads();
    }
    if (is_whole)
        write_part(p, whole, row, first_head, heads, item, true);
    else
        write_part(p, split, row, first_head, heads, item, false);
}

KERNEL __launch_bounds__(SPLIT_THREADS, 1) attention_split(const __grid_constant__ AttentionParams p) {
    SplitShared& shared = *(SplitShared*)shared_bytes;
    start_dependents();
    wait_for_inputs();
    u32 kv_head = blockIdx.y / HEAD_TILES, tile = blockIdx.y % HEAD_TILES;
    u32 first_head = kv_head * GROUP + tile * TILE, heads = min((u32)TILE, GROUP - tile * TILE);
    for (u32 row = blockIdx.x; row < p.step->rows; row += gridDim.x) {
        SegmentEntry segment = p.step->segments[p.step->row_segment[row]];
        if (segment.rows >= p.tile_rows) continue;
        u32 last = segment.position + (row - segment.first_row), first = first_seen(p, last);
        Division division(p, row, first, last);
        if (blockIdx.z >= division.items) continue;
        __syncthreads();
        for (u32 i = threadIdx.x / 32; i < TILE; i += SPLIT_WARPS)
            load_query(shared.queries, i, i < heads ? f32_row(p.q, row) + (first_head + i) * HEAD_DIM : 0, p.scale);
        for (u32 item = blockIdx.z; item < division.items; item += gridDim.z) {
            __syncthreads();
            run_item(p, shared, segment, row, kv_head, first_head, heads, division, item, first, last);
        }
    }
}

// Most items of a row; the host allows no more.
#define MOST_ITEMS 256

// How the items of a row are merged into splits, and these into the whole: factors on what was merged before, and on what
// is added.
struct MergeShared {
    Sums items[MOST_ITEMS], splits[MOST_ITEMS];
    MergeFactors in_split[MOST_ITEMS], in_whole[MOST_ITEMS];
};

// The items of a split, of which there are `splits`.
DEVICE void items_of_split(const Division& division, u32 split, u32& begin, u32& end) {
    begin = split, end = split + 1;
    if (division.units_per_item != 1) return;
    u32 unit = (division.first_unit / UNITS_PER_SPLIT + split) * UNITS_PER_SPLIT;
    begin = max(unit, division.first_unit) - division.first_unit;
    end = min(unit + UNITS_PER_SPLIT, division.last_unit + 1) - division.first_unit;
}

// Finds all factors. The largest score so far is a maximum, so that every split can find its own.
DEVICE void find_factors(MergeShared& shared, const Division& division, const float* results, u32 splits) {
    for (u32 item = threadIdx.x; item < division.items; item += HEAD_DIM) {
        const float* result = results + item * (HEAD_DIM + 2);
        shared.items[item] = Sums{result[0], result[1]};
    }
    __syncthreads();
    for (u32 split = threadIdx.x; split < splits; split += HEAD_DIM) {
        u32 begin, end;
        items_of_split(division, split, begin, end);
        Sums sums = NO_SUMS;
        for (u32 item = begin; item < end; item++) shared.in_split[item] = merge(sums, shared.items[item]);
        shared.splits[split] = sums;
    }
    __syncthreads();
    for (u32 split = threadIdx.x; split < splits; split += HEAD_DIM) {
        Sums before = NO_SUMS;
        for (u32 i = 0; i < split; i++) before.largest = fmaxf(before.largest, shared.splits[i].largest);
        shared.in_whole[split] = merge(before, shared.splits[split]);
    }
    __syncthreads();
}

// A block has a head of a row, a thread a channel.
KERNEL __launch_bounds__(HEAD_DIM) attention_merge(const __grid_constant__ AttentionParams p) {
    __shared__ MergeShared shared;
    start_dependents();
    wait_for_inputs();
    u32 row = blockIdx.x, head = blockIdx.y, d = threadIdx.x;
    if (row >= p.step->rows) return;
    SegmentEntry segment = p.step->segments[p.step->row_segment[row]];
    if (segment.rows >= p.tile_rows) return;
    u32 last = segment.position + (row - segment.first_row), first = first_seen(p, last);
    Division division(p, row, first, last);
    if (division.units_per_item == 0) return;
    u32 splits = last / SPLIT - first / SPLIT + 1;
    const float* results = item_result(p, row, head, 0);
    find_factors(shared, division, results, splits);
    Sums whole = NO_SUMS;
    float whole_value = 0.0f;
#pragma unroll 4
    for (u32 split = 0; split < splits; split++) {
        u32 begin, end;
        items_of_split(division, split, begin, end);
        float values[UNITS_PER_SPLIT], value = 0.0f;
#pragma unroll
        for (u32 i = 0; i < UNITS_PER_SPLIT; i++)
            values[i] = begin + i < end ? results[(begin + i) * (HEAD_DIM + 2) + 2 + d] : 0.0f;
#pragma unroll
        for (u32 i = 0; i < UNITS_PER_SPLIT; i++)
            if (begin + i < end) value = merged(value, values[i], shared.in_split[begin + i]);
        MergeFactors factors = shared.in_whole[split];
        whole_value = merged(whole_value, value, factors);
        whole.sum = merged(whole.sum, shared.splits[split].sum, factors);
        whole.largest = fmaxf(whole.largest, shared.splits[split].largest);
    }
    f32_row(p.out, row)[head * HEAD_DIM + d] = __fmul_rn(whole_value, final_factor(p, whole, head));
}

// --- Prompts --------------------------------------------------------------------------------------------------------

#if TILE_WARPS > 0
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
#endif
