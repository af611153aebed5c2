// attention over f16 caches for rows of short segments: a block of `attention_split` has a row and a tile of heads and some
// units (its warps share each), so that a long context is read by many blocks; `attention_merge` puts their results
// together.
// Defines: those of attention.cuh.
#include "attention_f16.cuh"

#define HEAD_TILES ((GROUP + TILE - 1) / TILE)
#define W_PITCH (UNIT + 8)
#define SPLIT_WARPS 4
#define SPLIT_THREADS (32 * SPLIT_WARPS)
// Columns of the result that a warp has, in tiles of 8.
#define OWN_TILES (HEAD_DIM / 8 / SPLIT_WARPS)

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
