// Attention over f16 caches on tensor cores: a tile of 16 query heads (of one row, or of several rows) against a unit.
// Queries are the sums of two f16 each, keys and values are themselves: scores as exact as f32's, which powers need. A
// weight is an f16: the largest of a unit is 1, and so nothing smaller loses more than 4.9e-4 of it.
//
// attention_split.cu and attention_tile.cu differ in who computes which unit; both follow the order of attention.cuh, so
// they give the same bits.
#pragma once
#include "attention.cuh"
#include "mma.cuh"

#define TILE 16
// 16 more bytes let eight lanes read eight rows at once.
#define K_PITCH (HEAD_DIM + 8)

// Keys and values of a unit.
struct UnitShared {
    u16 k[UNIT][K_PITCH], v[UNIT][K_PITCH];
};

// Queries of a tile, times a power of two that brings the largest of a head to [1, 2), and with the sign that makes
// larger products larger scores.
struct QueryShared {
    u16 high[TILE][K_PITCH], low[TILE][K_PITCH];
    // What products are multiplied with to become scores: above zero.
    float scale[TILE];
};

// Starts bringing a unit from its pages; positions outside first ..= last are zero. The place of the last one is left alone
// if it is not stored yet.
template <int THREAD_COUNT>
DEVICE void copy_unit(UnitShared& to, const UnitPages& pages, u32 kv_head, u32 unit, u32 first, u32 last,
                      bool is_last_stored) {
    constexpr u32 VECTORS = HEAD_DIM / 8;
    static_assert(UNIT * VECTORS % THREAD_COUNT == 0, "every thread copies as much");
#pragma unroll
    for (u32 n = 0; n < UNIT * VECTORS / THREAD_COUNT; n++) {
        u32 i = n * THREAD_COUNT + threadIdx.x, j = i / VECTORS, d = i % VECTORS * 8, position = unit * UNIT + j;
        bool is_there = position >= first && position <= last;
        u8* page = pages.of(j);
        u32 offset = 2 * (j % PAGE_TOKENS * HEAD_DIM + d);
        if (position != last || is_last_stored) {
            copy_async_or_zero(shared_address(&to.k[j][d]), key_head(page, kv_head) + offset, is_there);
            copy_async_or_zero(shared_address(&to.v[j][d]), value_head(page, kv_head) + offset, is_there);
        }
    }
    end_copies();
}

// The same of a segment whose positions are all stored.
template <int THREAD_COUNT>
DEVICE void copy_unit(UnitShared& to, const AttentionParams& p, const SegmentEntry& segment, u32 kv_head, u32 unit,
                      u32 first, u32 last) {
    UnitPages pages(p, PageList(p, segment), unit, last);
    copy_unit<THREAD_COUNT>(to, pages, kv_head, unit, first, last, true);
}

// Factors on a query's values as they are stored, and on their products.
struct QueryFactors {
    float in, out;

    DEVICE QueryFactors(float largest, float scale) {
        u32 exponent = min(max(__float_as_uint(largest) >> 23, 27u), 227u);
        in = copysignf(__uint_as_float((254u - exponent) << 23), scale);
        out = fmaxf(__fmul_rn(fabsf(scale), __uint_as_float(exponent << 23)), 1.17549435e-38f);
    }
};

// Brings the query of one head; by a warp.
DEVICE void load_query(QueryShared& to, u32 at, const float* q, float scale) {
    u32 lane = threadIdx.x % 32;
    float largest = 0.0f;
    for (u32 d = lane; q && d < HEAD_DIM; d += 32) largest = fmaxf(largest, fabsf(q[d]));
    QueryFactors factors(warp_max(largest), scale);
    for (u32 d = 2 * lane; d < HEAD_DIM; d += 64) {
        u32 high, low;
        split_f16(q ? __fmul_rn(q[d], factors.in) : 0.0f, q ? __fmul_rn(q[d + 1], factors.in) : 0.0f, high, low);
        *(u32*)&to.high[at][d] = high;
        *(u32*)&to.low[at][d] = low;
    }
    if (lane == 0) to.scale[at] = factors.out;
}

// Brings the queries of neighbouring heads of a row by WARPS warps, all loads at once.
template <int WARPS>
DEVICE void load_queries(QueryShared& to, const float* q, u32 heads, float scale) {
    constexpr int OWN = TILE / WARPS, VALUES = HEAD_DIM / 32;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float values[OWN][VALUES];
#pragma unroll
    for (int i = 0; i < OWN; i++)
#pragma unroll
        for (int j = 0; j < VALUES; j++) {
            u32 head = warp * OWN + i;
            values[i][j] = head < heads ? q[head * HEAD_DIM + 32 * j + lane] : 0.0f;
        }
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        float largest = 0.0f;
#pragma unroll
        for (int j = 0; j < VALUES; j++) largest = fmaxf(largest, fabsf(values[i][j]));
        QueryFactors factors(warp_max(largest), scale);
        u32 at = warp * OWN + i;
#pragma unroll
        for (int j = 0; j < VALUES; j++) {
            u32 high, low;
            split_f16(__fmul_rn(values[i][j], factors.in), 0.0f, high, low);
            to.high[at][32 * j + lane] = (u16)high;
            to.low[at][32 * j + lane] = (u16)low;
        }
        if (lane == 0) to.scale[at] = factors.out;
    }
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
DEVICE void multiply_values(float (*mixed)[4], const u32* weights, const UnitShared& unit, u32 first_key, u32 column) {
    u32 lane = threadIdx.x % 32, v[4];
    load_matrices_transposed(v, &unit.v[first_key + lane / 8 % 2 * 8 + lane % 8][column + lane / 16 * 8]);
    mma_f16(mixed[0], weights, v[0], v[1]);
    mma_f16(mixed[1], weights, v[2], v[3]);
}

// The positions that rows g and g + 8 of a tile see.
struct SeenKeys {
    u32 first[2], last[2];

    // Whether all rows of a warp see all of a unit.
    DEVICE bool has_all(u32 unit) const {
        u32 begin = unit * UNIT, end = begin + UNIT - 1;
        return !__any_sync(ALL_LANES, begin < max(first[0], first[1]) || end > min(last[0], last[1]));
    }
};

// Factors that make scores of what score_keys() leaves.
DEVICE float factor_of(float scale) {
    return CAPPED ? 1.0f : scale;
}

// Products of two tiles of 8 keys, ready for comparison: element j of tile i is key `first_key + 8i + 2q + j % 2` and row
// j / 2, which has to see it where not all are seen. `largest` becomes that of each row among the calling lane's.
template <bool ALL_SEEN>
DEVICE void score_keys(const AttentionParams& p, float (*product)[4], const float* scale, const SeenKeys& seen,
                       u32 first_key, float* largest) {
    u32 q = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u32 position = first_key + 8 * i + 2 * q + j % 2;
            float value = CAPPED ? score_of(p, product[i][j], scale[j / 2]) : product[i][j];
            bool is_seen = ALL_SEEN || (position >= seen.first[j / 2] && position <= seen.last[j / 2]);
            product[i][j] = is_seen ? value : MINUS_INFINITY;
            largest[j / 2] = fmaxf(largest[j / 2], product[i][j]);
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

// Products of 16 keys become weights, as the first factor of a product. Returns the sums of the calling lane's in
// rows g and g + 8: row_sum() of what they add up to over all keys of a unit is the unit's.
DEVICE void weigh_keys(float (*product)[4], const float* scale, const float* largest, u32* weights, float* sum) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        // A row that sees none of the unit's keys.
        float top = largest[half] == MINUS_INFINITY ? 0.0f : -largest[half], factor = factor_of(scale[half]);
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float first = power_of_two(__fmaf_rn(product[i][2 * half], factor, top));
            float second = power_of_two(__fmaf_rn(product[i][2 * half + 1], factor, top));
            weights[2 * i + half] = f16_pair(first, second);
            total = i == 0 ? __fadd_rn(first, second) : __fadd_rn(__fadd_rn(total, first), second);
        }
        sum[half] = total;
    }
}
