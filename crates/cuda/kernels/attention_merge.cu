// Puts together what blocks found of a row's positions: units into splits, splits into the row's result, in order. A block
// has a head of a row, a thread a channel.
// Defines: those of attention.cuh.
#include "attention.cuh"

// Most items of a row; the host allows no more.
#define MOST_ITEMS 256
#define MERGE_THREADS ((HEAD_DIM + 31) / 32 * 32)
// Items whose values are loaded at once.
#define AT_ONCE 32

// Factors on what was merged before, and on what is added.
struct MergeShared {
    Sums items[MOST_ITEMS], splits[MOST_ITEMS];
    MergeFactors in_split[MOST_ITEMS], in_whole[MOST_ITEMS];
};

// The items of a split.
DEVICE void items_of_split(const Division& division, u32 split, u32& begin, u32& end) {
    begin = split, end = split + 1;
    if (division.units_per_item != 1) return;
    u32 unit = (division.first_unit / UNITS_PER_SPLIT + split) * UNITS_PER_SPLIT;
    begin = max(unit, division.first_unit) - division.first_unit;
    end = min(unit + UNITS_PER_SPLIT, division.last_unit + 1) - division.first_unit;
}

DEVICE u32 split_of_item(const Division& division, u32 item) {
    if (division.units_per_item != 1) return item;
    return (division.first_unit + item) / UNITS_PER_SPLIT - division.first_unit / UNITS_PER_SPLIT;
}

// The factors of splits: the largest score before each is a maximum over those before. By a warp.
DEVICE void find_split_factors(MergeShared& shared, u32 splits) {
    u32 lane = threadIdx.x;
    float carry = MINUS_INFINITY;
    for (u32 first = 0; first < splits; first += 32) {
        u32 split = first + lane;
        float largest = split < splits ? shared.splits[split].largest : MINUS_INFINITY;
        for (u32 distance = 1; distance < 32; distance *= 2) {
            float other = __shfl_up_sync(ALL_LANES, largest, distance);
            if (lane >= distance) largest = fmaxf(largest, other);
        }
        float before = __shfl_up_sync(ALL_LANES, largest, 1);
        before = lane == 0 ? carry : fmaxf(carry, before);
        Sums sums = {before, 0.0f};
        if (split < splits) shared.in_whole[split] = merge(sums, shared.splits[split]);
        carry = fmaxf(carry, __shfl_sync(ALL_LANES, largest, 31));
    }
}

DEVICE void find_factors(MergeShared& shared, const Division& division, const float* results, u32 splits) {
    for (u32 item = threadIdx.x; item < division.items; item += MERGE_THREADS) {
        const float* result = results + item * (HEAD_DIM + 2);
        shared.items[item] = Sums{result[0], result[1]};
    }
    __syncthreads();
    for (u32 item = threadIdx.x; item < division.items; item += MERGE_THREADS) {
        u32 begin, end;
        items_of_split(division, split_of_item(division, item), begin, end);
        Sums sums = NO_SUMS;
        for (u32 before = begin; before < item; before++) sums.largest = fmaxf(sums.largest, shared.items[before].largest);
        shared.in_split[item] = merge(sums, shared.items[item]);
    }
    __syncthreads();
    for (u32 split = threadIdx.x; split < splits; split += MERGE_THREADS) {
        u32 begin, end;
        items_of_split(division, split, begin, end);
        Sums sums = NO_SUMS;
        for (u32 item = begin; item < end; item++) {
            sums.sum = merged(sums.sum, shared.items[item].sum, shared.in_split[item]);
            sums.largest = fmaxf(sums.largest, shared.items[item].largest);
        }
        shared.splits[split] = sums;
    }
    __syncthreads();
    if (threadIdx.x < 32) find_split_factors(shared, splits);
    __syncthreads();
}

// Values of AT_ONCE items from `first` on.
DEVICE void load_items(float (&values)[AT_ONCE], const float* results, u32 first, u32 items, u32 d) {
#pragma unroll
    for (u32 i = 0; i < AT_ONCE; i++)
        values[i] = first + i < items && d < HEAD_DIM ? results[(first + i) * (HEAD_DIM + 2) + 2 + d] : 0.0f;
}

KERNEL __launch_bounds__(MERGE_THREADS) attention_merge(const __grid_constant__ AttentionParams p) {
    __shared__ MergeShared shared;
    start_dependents();
    u32 row = blockIdx.x, head = blockIdx.y, d = threadIdx.x;
    // The step's table is there before any kernel.
    SegmentEntry segment = {};
    if (row < p.step->rows) segment = p.step->segments[p.appends ? row : p.step->row_segment[row]];
    u32 last = segment.position + (row - segment.first_row), first = first_seen(p, last);
    Division division(p, row, first, last);
    wait_for_inputs();
    if (segment.rows == 0 || segment.rows >= p.tile_rows || division.is_whole()) return;
    u32 splits = last / SPLIT - first / SPLIT + 1, items = division.items;
    const float* results = item_result(p, row, head, 0);
    float values[AT_ONCE];
    load_items(values, results, 0, items, d);
    find_factors(shared, division, results, splits);
    Sums whole = NO_SUMS;
    float whole_value = 0.0f, value = 0.0f;
    u32 split = 0;
    for (u32 base = 0; base < items; base += AT_ONCE) {
        if (base > 0) load_items(values, results, base, items, d);
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            u32 item = base + i;
            if (item >= items) break;
            value = merged(value, values[i], shared.in_split[item]);
            bool ends = division.units_per_item != 1 || (division.first_unit + item + 1) % UNITS_PER_SPLIT == 0;
            if (!ends && item + 1 < items) continue;
            MergeFactors factors = shared.in_whole[split];
            whole_value = merged(whole_value, value, factors);
            whole.sum = merged(whole.sum, shared.splits[split].sum, factors);
            whole.largest = fmaxf(whole.largest, shared.splits[split].largest);
            value = 0.0f;
            split++;
        }
    }
    if (d < HEAD_DIM) f32_row(p.out, row)[head * HEAD_DIM + d] = __fmul_rn(whole_value, final_factor(p, whole, head));
}
