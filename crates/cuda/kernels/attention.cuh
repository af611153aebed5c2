// What the kernels of attention share: where keys and values lie, which of them a row sees, and how partial results are
// put together.
//
// Sums run over units of 64 positions, by absolute position: a unit is computed on its own, units are merged in order
// into splits of 512 positions, and these into the row's result. Whichever block merges, the arithmetic is that of
// `merge`.
// Defines: Q_HEADS, KV_HEADS, HEAD_DIM, K_ELEM, V_ELEM, CAPPED.
#pragma once
#include "common.cuh"

#define UNIT 64u
#define SPLIT 512u
#define UNITS_PER_SPLIT (SPLIT / UNIT)
#define GROUP (Q_HEADS / KV_HEADS)
#define MINUS_INFINITY __uint_as_float(0xff800000u)

#define KV_F32 0
#define KV_F16 1
#define KV_BF16 2
#define KV_Q8 3
#define KV_F8 4
#define KV_BLOCK 32

// --- Stored keys and values ---------------------------------------------------------------------------------------

template <int ELEM>
struct Stored {
    static constexpr u32 code_bytes = ELEM == KV_F32 ? 4 : ELEM == KV_F16 || ELEM == KV_BF16 ? 2 : 1;
    static constexpr u32 scales = ELEM == KV_Q8 ? (HEAD_DIM + KV_BLOCK - 1) / KV_BLOCK : 0;
    // Codes of a head's positions stand first, then their scales.
    static constexpr u32 code_area = PAGE_TOKENS * HEAD_DIM * code_bytes;
    static constexpr u32 head_bytes = code_area + PAGE_TOKENS * scales * 2;
};

// The pages of a sequence, in order.
struct PageList {
    const u32* numbers;

    DEVICE PageList() {}
    DEVICE PageList(const AttentionParams& p, const SegmentEntry& segment) {
        numbers = p.step->pages + p.group * p.step->group_pages + segment.first_page;
    }

    DEVICE u8* of(const AttentionParams& p, u32 position) const {
        return p.pages + (u64)numbers[position / PAGE_TOKENS] * p.page_bytes;
    }
};

DEVICE u8* page_at(const AttentionParams& p, const SegmentEntry& segment, u32 position) {
    return PageList(p, segment).of(p, position);
}

#define UNIT_PAGES (UNIT / PAGE_TOKENS)

// The pages of a unit, looked up once; those beyond the last position that is looked at stand for nothing.
struct UnitPages {
    u8* pages[UNIT_PAGES];

    DEVICE UnitPages(const AttentionParams& p, const PageList& list, u32 unit, u32 last) {
#pragma unroll
        for (u32 i = 0; i < UNIT_PAGES; i++) pages[i] = list.of(p, min(unit * UNIT + i * PAGE_TOKENS, last));
    }

    // The page of a position, counted within the unit.
    DEVICE u8* of(u32 j) const {
        static_assert(UNIT_PAGES == 2, "a unit has two pages");
        return j < PAGE_TOKENS ? pages[0] : pages[1];
    }
};

DEVICE u8* key_head(u8* page, u32 head) {
    return page + head * Stored<K_ELEM>::head_bytes;
}

DEVICE u8* value_head(u8* page, u32 head) {
    return page + KV_HEADS * Stored<K_ELEM>::head_bytes + head * Stored<V_ELEM>::head_bytes;
}

// The first position that a token at this one sees.
DEVICE u32 first_seen(const AttentionParams& p, u32 position) {
    return p.window == 0 || position + 1 <= p.window ? 0 : position + 1 - p.window;
}

// --- Scores and sums ----------------------------------------------------------------------------------------------
//
// Scores, and all that is compared with them, are exponents of two: the host multiplies the op's factor and cap with
// log2(e), so that a weight is one instruction.

#define LOG2_E 1.4426950408889634f

// The score of a product; `scale` holds the op's factor.
DEVICE float score_of(const AttentionParams& p, float product, float scale) {
    float score = __fmul_rn(product, scale);
    return CAPPED ? __fmul_rn(p.soft_cap, tanhf(__fdiv_rn(score, p.soft_cap))) : score;
}

// A part of a softmax: the largest score, and the sum of powers below it.
struct Sums {
    float largest, sum;
};

#define NO_SUMS Sums{MINUS_INFINITY, 0.0f}

// Factors on what two parts have summed, and the sums of both in the first.
struct MergeFactors {
    float first, second;
};

DEVICE MergeFactors merge(Sums& into, const Sums& from) {
    float largest = fmaxf(into.largest, from.largest);
    MergeFactors factors;
    factors.first = into.largest == MINUS_INFINITY ? 0.0f : power_of_two(__fsub_rn(into.largest, largest));
    factors.second = from.largest == MINUS_INFINITY ? 0.0f : power_of_two(__fsub_rn(from.largest, largest));
    into.sum = __fmaf_rn(into.sum, factors.first, __fmul_rn(from.sum, factors.second));
    into.largest = largest;
    return factors;
}

DEVICE float merged(float first, float second, MergeFactors factors) {
    return __fmaf_rn(first, factors.first, __fmul_rn(second, factors.second));
}

// What the values of a head are multiplied with in the end, its sink counted in.
DEVICE float final_factor(const AttentionParams& p, Sums sums, u32 head) {
    float factor = 1.0f;
    if (p.sinks) {
        MergeFactors factors = merge(sums, Sums{__fmul_rn(p.sinks[head], LOG2_E), 1.0f});
        factor = factors.first;
    }
    return __fdiv_rn(factor, sums.sum);
}

// --- Rows that several blocks share -------------------------------------------------------------------------------

// How the positions that a row sees are divided among blocks, and in attention_merge again.
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

    // Whether an item's block has the row's result, and nothing is left to merge.
    DEVICE bool is_whole() const { return units_per_item == 0; }
};

// Where an item's result goes: largest score, sum, and the values.
DEVICE float* item_result(const AttentionParams& p, u32 row, u32 head, u32 item) {
    return p.results + (((u64)row * Q_HEADS + head) * p.most_items + item) * (HEAD_DIM + 2);
}
