// attention: appends k and v of the step's rows to the cache, rounded to its types; then for every query head and row
// y = Σ_s softmax_s(score(q·k_s·scale))·v_s over the positions that the row sees.
//
// `attention_append` has a warp for a key or value of one head. `attention` is for every cache type and head size, in
// f32: a block has a row, up to HEAD_TILE query heads of one key head and some units; attention_merge puts together what
// the blocks of a row find.
// Defines: those of attention.cuh, SHARED_BYTES.
#include "attention.cuh"

#define APPEND_WARPS 4
#define THREADS 128
#define HEAD_TILE 16
#define HEAD_TILES ((GROUP + HEAD_TILE - 1) / HEAD_TILE)
#define K_PITCH (HEAD_DIM | 1)

// Nearest f8 (e4m3), ties to even; the largest beyond its range.
DEVICE u8 e4m3_code(float value) {
    if (value != value) return 0x7f;
    u8 sign = (u8)(__float_as_uint(value) >> 31 << 7);
    float size = fminf(fabsf(value), 448.0f);
    if (size < 0.015625f) return sign | (u8)__float2int_rn(__fmul_rn(size, 512.0f));
    u32 bits = __float_as_uint(size);
    bits += 0x7ffffu + ((bits >> 20) & 1u);
    return sign | (u8)((bits >> 20) - (120u << 3));
}

DEVICE float e4m3_value(u8 code) {
    if ((code & 0x7f) == 0x7f) return __uint_as_float(0x7fc00000u);
    float size = __fmul_rn(__uint_as_float((u32)(code & 0x7f) << 20), 1.329227995784916e36f);
    return code & 0x80 ? -size : size;
}

// Stores one position of a head; by a warp.
template <int ELEM>
DEVICE void store_row(u8* head, u32 slot, const float* values, float scale) {
    u32 lane = threadIdx.x % 32;
    u8* codes = head + slot * HEAD_DIM * Stored<ELEM>::code_bytes;
    for (u32 first = 0; first < HEAD_DIM; first += 32) {
        u32 i = first + lane;
        bool is_there = i < HEAD_DIM;
        float value = is_there ? values[i] : 0.0f;
        if (ELEM == KV_Q8) {
            bool is_odd = !(fabsf(value) <= 3.402823466e38f);
            float largest = warp_max(fabsf(value));
            float poison = __any_sync(ALL_LANES, is_odd) ? __uint_as_float(0x7fc00000u) : 0.0f;
            u16 scale_bits = bf16_bits(__fadd_rn(__fdiv_rn(largest, 127.0f), poison));
            float stored = bf16_value(scale_bits);
            float inverse = stored > 1.17549435e-38f ? __fdiv_rn(1.0f, stored) : 0.0f;
            float exact = __fmul_rn(value, inverse), low = exact > -127.0f ? exact : -127.0f;
            if (is_there) codes[i] = (u8)(i8)__float2int_rn(fminf(low, 127.0f));
            u16* scales = (u16*)(head + Stored<ELEM>::code_area) + slot * Stored<ELEM>::scales;
            if (lane == 0) scales[first / KV_BLOCK] = scale_bits;
        } else if (is_there) {
            if (ELEM == KV_F32) ((float*)codes)[i] = value;
            if (ELEM == KV_F16) ((u16*)codes)[i] = f16_bits(value);
            if (ELEM == KV_BF16) ((u16*)codes)[i] = bf16_bits(value);
            if (ELEM == KV_F8) codes[i] = e4m3_code(__fdiv_rn(value, scale));
        }
    }
}

template <int ELEM>
DEVICE float load_value(const u8* head, u32 slot, u32 i, float scale) {
    u32 at = slot * HEAD_DIM + i;
    if (ELEM == KV_F32) return ((const float*)head)[at];
    if (ELEM == KV_F16) return f16_value(((const u16*)head)[at]);
    if (ELEM == KV_BF16) return bf16_value(((const u16*)head)[at]);
    if (ELEM == KV_F8) return __fmul_rn(e4m3_value(head[at]), scale);
    const u16* scales = (const u16*)(head + Stored<ELEM>::code_area) + slot * Stored<ELEM>::scales;
    return __fmul_rn((float)((const i8*)head)[at], bf16_value(scales[i / KV_BLOCK]));
}

// Values that are loaded at once.
#define STEP (HEAD_DIM % 4 == 0 ? 4 : 1)

// STEP neighbouring values, the first at a multiple of STEP.
template <int ELEM>
DEVICE void load_values(float (&to)[STEP], const u8* head, u32 slot, u32 i, float scale) {
#if HEAD_DIM % 4 == 0
    const u8* at = head + (slot * HEAD_DIM + i) * Stored<ELEM>::code_bytes;
    if (ELEM == KV_F32) {
        float4 all = *(const float4*)at;
        to[0] = all.x, to[1] = all.y, to[2] = all.z, to[3] = all.w;
    } else if (ELEM == KV_F16 || ELEM == KV_BF16) {
        uint2 pairs = *(const uint2*)at;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            u16 bits = (u16)((e < 2 ? pairs.x : pairs.y) >> (e % 2 * 16));
            to[e] = ELEM == KV_F16 ? f16_value(bits) : bf16_value(bits);
        }
    } else {
        u32 codes = *(const u32*)at;
        float factor = scale;
        if (ELEM == KV_Q8) {
            const u16* scales = (const u16*)(head + Stored<ELEM>::code_area) + slot * Stored<ELEM>::scales;
            factor = bf16_value(scales[i / KV_BLOCK]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            u8 code = (u8)(codes >> (8 * e));
            to[e] = __fmul_rn(ELEM == KV_Q8 ? (float)(i8)code : e4m3_value(code), factor);
        }
    }
#else
    to[0] = load_value<ELEM>(head, slot, i, scale);
#endif
}

KERNEL __launch_bounds__(32 * APPEND_WARPS) attention_append(const __grid_constant__ AttentionParams p) {
    start_dependents();
    wait_for_inputs();
    u32 index = blockIdx.x * APPEND_WARPS + threadIdx.x / 32;
    u32 row = index / (2 * KV_HEADS), head = index / 2 % KV_HEADS;
    if (row >= p.step->rows) return;
    SegmentEntry segment = p.step->segments[p.step->row_segment[row]];
    u32 position = segment.position + (row - segment.first_row), slot = position % PAGE_TOKENS;
    u8* page = page_at(p, segment, position);
    if (index % 2 == 0)
        store_row<K_ELEM>(key_head(page, head), slot, f32_row(p.k, row) + head * HEAD_DIM, p.k_scale);
    else
        store_row<V_ELEM>(value_head(page, head), slot, f32_row(p.v, row) + head * HEAD_DIM, p.v_scale);
}

struct AttentionShared {
    float q[HEAD_TILE][HEAD_DIM];
    // Keys of a unit, then its values.
    float tile[UNIT][K_PITCH];
    // Scores, then weights.
    float weights[HEAD_TILE][UNIT];
    // Of the split, and of all before it.
    Sums sums[HEAD_TILE], whole[HEAD_TILE];
    MergeFactors factors[HEAD_TILE];
};
static_assert(sizeof(AttentionShared) <= SHARED_BYTES, "shared memory of attention");

extern __shared__ __align__(16) unsigned char shared_bytes[];

// The positions that a block looks at.
struct Reach {
    u32 first, last;
};

// Brings a unit's keys or values; positions out of reach are zero.
template <int ELEM, bool IS_KEY>
DEVICE void load_tile(AttentionShared& shared, const AttentionParams& p, const SegmentEntry& segment, u32 kv_head,
                      u32 unit, Reach reach) {
    UnitPages pages(p, PageList(p, segment), unit, reach.last);
    constexpr u32 STEPS = HEAD_DIM / STEP;
#pragma unroll 8
    for (u32 i = threadIdx.x; i < UNIT * STEPS; i += THREADS) {
        u32 j = i / STEPS, d = i % STEPS * STEP, position = unit * UNIT + j;
        float values[STEP] = {};
        if (position >= reach.first && position <= reach.last) {
            u8* page = pages.of(j);
            const u8* head = IS_KEY ? key_head(page, kv_head) : value_head(page, kv_head);
            load_values<ELEM>(values, head, position % PAGE_TOKENS, d, IS_KEY ? p.k_scale : p.v_scale);
        }
#pragma unroll
        for (u32 e = 0; e < STEP; e++) shared.tile[j][d + e] = values[e];
    }
}

// STEP neighbouring values of a query.
DEVICE void load_step(float (&to)[STEP], const float* from) {
#if HEAD_DIM % 4 == 0
    float4 all = *(const float4*)from;
    to[0] = all.x, to[1] = all.y, to[2] = all.z, to[3] = all.w;
#else
    to[0] = from[0];
#endif
}

// Scores of a unit's keys for all heads of the tile.
DEVICE void score_unit(AttentionShared& shared, const AttentionParams& p, u32 unit, Reach reach) {
    constexpr u32 HEADS = HEAD_TILE * UNIT / THREADS;
    u32 j = threadIdx.x % UNIT, first = threadIdx.x / UNIT * HEADS, position = unit * UNIT + j;
    float product[HEADS] = {};
#pragma unroll 1
    for (u32 d = 0; d < HEAD_DIM; d += STEP) {
        float k[STEP];
#pragma unroll
        for (u32 e = 0; e < STEP; e++) k[e] = shared.tile[j][d + e];
#pragma unroll
        for (u32 i = 0; i < HEADS; i++) {
            float q[STEP];
            load_step(q, &shared.q[first + i][d]);
#pragma unroll
            for (u32 e = 0; e < STEP; e++) product[i] = __fmaf_rn(q[e], k[e], product[i]);
        }
    }
    bool is_seen = position >= reach.first && position <= reach.last;
#pragma unroll
    for (u32 i = 0; i < HEADS; i++)
        shared.weights[first + i][j] = is_seen ? score_of(p, product[i], p.scale) : MINUS_INFINITY;
}

// Scores become weights; the sums of every head are brought up to date.
DEVICE void weigh_unit(AttentionShared& shared) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (u32 head = warp; head < HEAD_TILE; head += THREADS / 32) {
        float low = shared.weights[head][lane], high = shared.weights[head][lane + 32];
        Sums sums;
        sums.largest = warp_max(fmaxf(low, high));
        low = power_of_two(__fsub_rn(low, sums.largest)), high = power_of_two(__fsub_rn(high, sums.largest));
        sums.sum = warp_sum(__fadd_rn(low, high));
        shared.weights[head][lane] = low;
        shared.weights[head][lane + 32] = high;
        if (lane == 0) shared.factors[head] = merge(shared.sums[head], sums);
    }
}

#define OUTPUTS ((HEAD_TILE * HEAD_DIM + THREADS - 1) / THREADS)

// The head and the column of a thread's output.
DEVICE u32 output_head(u32 i) {
    return min((i * THREADS + threadIdx.x) / HEAD_DIM, HEAD_TILE - 1u);
}
DEVICE u32 output_column(u32 i) {
    return (i * THREADS + threadIdx.x) % HEAD_DIM;
}

// Adds a unit's values by weight to what the split has.
DEVICE void mix_unit(const AttentionShared& shared, float (&mixed)[OUTPUTS]) {
    float sum[OUTPUTS] = {};
#pragma unroll 1
    for (u32 j = 0; j < UNIT; j += 2) {
#pragma unroll
        for (u32 i = 0; i < OUTPUTS; i++) {
            float2 weight = *(const float2*)&shared.weights[output_head(i)][j];
            u32 d = output_column(i);
            sum[i] = __fmaf_rn(weight.x, shared.tile[j][d], sum[i]);
            sum[i] = __fmaf_rn(weight.y, shared.tile[j + 1][d], sum[i]);
        }
    }
#pragma unroll
    for (u32 i = 0; i < OUTPUTS; i++) mixed[i] = merged(mixed[i], sum[i], shared.factors[output_head(i)]);
}

// Merges a split into the whole and starts a new one.
DEVICE void end_split(AttentionShared& shared, float (&whole)[OUTPUTS], float (&split)[OUTPUTS]) {
    __syncthreads();
    if (threadIdx.x < HEAD_TILE) {
        shared.factors[threadIdx.x] = merge(shared.whole[threadIdx.x], shared.sums[threadIdx.x]);
        shared.sums[threadIdx.x] = NO_SUMS;
    }
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < OUTPUTS; i++) {
        whole[i] = merged(whole[i], split[i], shared.factors[output_head(i)]);
        split[i] = 0.0f;
    }
}

// The units of an item: `split` has what the last split gave, or, where the item is the row's all, `whole` has all.
DEVICE void run_item(AttentionShared& shared, const AttentionParams& p, const SegmentEntry& segment, u32 kv_head,
                     const Division& division, u32 item, Reach reach, float (&whole)[OUTPUTS], float (&split)[OUTPUTS]) {
    if (threadIdx.x < HEAD_TILE) shared.sums[threadIdx.x] = shared.whole[threadIdx.x] = NO_SUMS;
    u32 end = division.end(item);
    for (u32 unit = division.begin(item); unit < end; unit++) {
        __syncthreads();
        load_tile<K_ELEM, true>(shared, p, segment, kv_head, unit, reach);
        __syncthreads();
        score_unit(shared, p, unit, reach);
        __syncthreads();
        load_tile<V_ELEM, false>(shared, p, segment, kv_head, unit, reach);
        weigh_unit(shared);
        __syncthreads();
        mix_unit(shared, split);
        if (division.is_whole() && (unit + 1 == end || (unit + 1) % UNITS_PER_SPLIT == 0)) end_split(shared, whole, split);
    }
}

KERNEL __launch_bounds__(THREADS, HEAD_DIM <= 128 ? 3 : 1) attention(const __grid_constant__ AttentionParams p) {
    AttentionShared& shared = *(AttentionShared*)shared_bytes;
    start_dependents();
    wait_for_inputs();
    u32 row = blockIdx.x, kv_head = blockIdx.y / HEAD_TILES, first_head = blockIdx.y % HEAD_TILES * HEAD_TILE;
    if (row >= p.step->rows) return;
    SegmentEntry segment = p.step->segments[p.step->row_segment[row]];
    u32 position = segment.position + (row - segment.first_row);
    Reach reach = {first_seen(p, position), position};
    Division division(p, row, reach.first, reach.last);
    if (blockIdx.z >= division.items) return;
    u32 heads = min((u32)HEAD_TILE, GROUP - first_head);
    first_head += kv_head * GROUP;
    for (u32 i = threadIdx.x; i < HEAD_TILE * HEAD_DIM; i += THREADS)
        shared.q[i / HEAD_DIM][i % HEAD_DIM] =
            i / HEAD_DIM < heads ? f32_row(p.q, row)[first_head * HEAD_DIM + i] : 0.0f;
    for (u32 item = blockIdx.z; item < division.items; item += gridDim.z) {
        __syncthreads();
        float whole[OUTPUTS] = {}, split[OUTPUTS] = {};
        run_item(shared, p, segment, kv_head, division, item, reach, whole, split);
#pragma unroll
        for (u32 i = 0; i < OUTPUTS; i++) {
            u32 head = (i * THREADS + threadIdx.x) / HEAD_DIM, d = output_column(i);
            if (head >= heads) continue;
            if (division.is_whole())
                f32_row(p.out, row)[(first_head + head) * HEAD_DIM + d] =
                    __fmul_rn(whole[i], final_factor(p, shared.whole[head], first_head + head));
            else
                item_result(p, row, first_head + head, item)[2 + d] = split[i];
        }
        if (!division.is_whole() && threadIdx.x < heads) {
            float* result = item_result(p, row, first_head + threadIdx.x, item);
            result[0] = shared.sums[threadIdx.x].largest, result[1] = shared.sums[threadIdx.x].sum;
        }
    }
}
