// attention: appends k and v of the step's rows to the cache, rounded to its types; then for every query head and row
// y = Σ_s softmax_s(score(q·k_s·scale))·v_s over the positions that the row sees.
//
// `attention_append` has a warp for a key or value of one head. `attention` is for every cache type and head size, in
// f32: a block has a row and up to HEAD_TILE query heads of one key head, and walks the positions unit by unit.
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
    Sums sums[HEAD_TILE];
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
    UnitPages pages(p, segment, unit, reach.last);
#pragma unroll 8
    for (u32 i = threadIdx.x; i < UNIT * HEAD_DIM; i += THREADS) {
        u32 j = i / HEAD_DIM, d = i % HEAD_DIM, position = unit * UNIT + j;
        float value = 0.0f;
        if (position >= reach.first && position <= reach.last) {
            u8* page = pages.of(j);
            const u8* head = IS_KEY ? key_head(page, kv_head) : value_head(page, kv_head);
            value = load_value<ELEM>(head, position % PAGE_TOKENS, d, IS_KEY ? p.k_scale : p.v_scale);
        }
        shared.tile[j][d] = value;
    }
}

// Scores of a unit's keys for all heads of the tile.
DEVICE void score_unit(AttentionShared& shared, const AttentionParams& p, u32 unit, Reach reach) {
    constexpr u32 HEADS = HEAD_TILE * UNIT / THREADS;
    u32 j = threadIdx.x % UNIT, first = threadIdx.x / UNIT * HEADS, position = unit * UNIT + j;
    float product[HEADS] = {};
    for (u32 d = 0; d < HEAD_DIM; d++) {
        float k = shared.tile[j][d];
#pragma unroll
        for (u32 i = 0; i < HEADS; i++) product[i] = __fmaf_rn(shared.q[first + i][d], k, product[i]);
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
        low = expf(__fsub_rn(low, sums.largest)), high = expf(__fsub_rn(high, sums.largest));
        sums.sum = warp_sum(__fadd_rn(low, high));
        shared.weights[head][lane] = low;
        shared.weights[head][lane + 32] = high;
        if (lane == 0) shared.factors[head] = merge(shared.sums[head], sums);
    }
}

KERNEL __launch_bounds__(THREADS, 1) attention(const __grid_constant__ AttentionParams p) {
    AttentionShared& shared = *(AttentionShared*)shared_bytes;
    constexpr u32 OUTPUTS = (HEAD_TILE * HEAD_DIM + THREADS - 1) / THREADS;
    start_dependents();
    wait_for_inputs();
    u32 row = blockIdx.x, kv_head = blockIdx.y / HEAD_TILES, first_head = blockIdx.y % HEAD_TILES * HEAD_TILE;
    if (row >= p.step->rows) return;
    SegmentEntry segment = p.step->segments[p.step->row_segment[row]];
    u32 position = segment.position + (row - segment.first_row);
    Reach reach = {first_seen(p, position), position};
    u32 heads = min((u32)HEAD_TILE, GROUP - first_head);
    first_head += kv_head * GROUP;
    for (u32 i = threadIdx.x; i < HEAD_TILE * HEAD_DIM; i += THREADS)
        shared.q[i / HEAD_DIM][i % HEAD_DIM] =
            i / HEAD_DIM < heads ? f32_row(p.q, row)[first_head * HEAD_DIM + i] : 0.0f;
    if (threadIdx.x < HEAD_TILE) shared.sums[threadIdx.x] = NO_SUMS;
    float mixed[OUTPUTS] = {};
    for (u32 unit = reach.first / UNIT; unit <= reach.last / UNIT; unit++) {
        __syncthreads();
        load_tile<K_ELEM, true>(shared, p, segment, kv_head, unit, reach);
        __syncthreads();
        score_unit(shared, p, unit, reach);
        __syncthreads();
        load_tile<V_ELEM, false>(shared, p, segment, kv_head, unit, reach);
        weigh_unit(shared);
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < OUTPUTS; i++) {
            u32 at = i * THREADS + threadIdx.x, head = at / HEAD_DIM, d = at % HEAD_DIM;
            if (head >= HEAD_TILE) continue;
            float sum = 0.0f;
            for (u32 j = 0; j < UNIT; j++) sum = __fmaf_rn(shared.weights[head][j], shared.tile[j][d], sum);
            mixed[i] = merged(mixed[i], sum, shared.factors[head]);
        }
    }
#pragma unroll
    for (u32 i = 0; i < OUTPUTS; i++) {
        u32 at = i * THREADS + threadIdx.x, head = at / HEAD_DIM;
        if (head < heads)
            f32_row(p.out, row)[first_head * HEAD_DIM + at] =
                __fmul_rn(mixed[i], final_factor(p, shared.sums[head], first_head + head));
    }
}
