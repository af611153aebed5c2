// What the recurrent ops share: their slots, the convolution, step sizes, stored states and the gated norm. `ssm_step`
// gives the bits of the four ops it stands for because all of them call these.
//
// Where bits have to agree, products and sums are written as the intrinsics that no compiler joins or divides.
#pragma once
#include "round.cuh"

DEVICE float silu(float x) {
    return __fdiv_rn(x, __fadd_rn(1.0f, expf(-x)));
}

DEVICE float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

// One layer's part of a slot.
DEVICE float* slot_part(const SlotView& slots, u32 slot) {
    return slots.parts + (u64)slot * slots.stride;
}

// --- Convolution ------------------------------------------------------------------------------------------------

DEVICE float* conv_column(const SlotView& slots, float* part, u32 position, u32 channels) {
    return part + slots.conv + (position % slots.conv_capacity) * channels;
}

// `bias + Σ_k weight[k]·column[k]`, oldest first; columns before the sequence are zero.
template <int TAP_COUNT>
DEVICE float convolve(const float* weight, float bias, const float* columns) {
    float sum = bias;
#pragma unroll
    for (int k = 0; k < TAP_COUNT; k++) sum = __fmaf_rn(weight[k], columns[k], sum);
    return sum;
}

// --- Stored states ----------------------------------------------------------------------------------------------

#define STATE_F32 0
#define STATE_F16 1
#define STATE_BF16 2

DEVICE u32 mix(u32 x) {
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
}

#define SPREAD 0x9e3779b9u

// Where the random bits of a head's state at the start of a chunk begin.
DEVICE u32 state_seed(u32 layer, u32 head, u32 chunk) {
    u32 seed = mix(SPREAD ^ layer) + SPREAD;
    seed = mix(seed ^ head) + SPREAD;
    return mix(seed ^ chunk) + SPREAD;
}

// One of the two f16 next to a value, by the top thirteen random bits.
DEVICE u16 f16_stochastic(float value, u32 random) {
    if (value != value) return 0x7e00;
    float size = fminf(fabsf(value), 65504.0f);
    float offset = size < 6.103515625e-5f ? 6.103515625e-5f : 0.0f;
    u32 bits = __float_as_uint(__fadd_rn(size, offset)) + (random >> 19);
    float kept = __fsub_rn(__uint_as_float(bits & ~0x1fffu), offset);
    return f16_bits(copysignf(kept, value));
}

// The first word of a head's state at the start of the chunk that holds a position.
DEVICE float* state_words(const SlotView& slots, float* part, u32 position, u32 head, u32 heads) {
    return part + slots.state + ((position / SSM_CHUNK % slots.chunks) * heads + head) * slots.head_stride;
}

template <int ELEM>
DEVICE float load_state(const float* words, u32 index) {
    if (ELEM == STATE_F32) return words[index];
    u16 bits = ((const u16*)words)[index];
    return ELEM == STATE_F16 ? f16_value(bits) : bf16_value(bits);
}

// What a value becomes when it is stored.
template <int ELEM>
DEVICE float rounded_state(float value, u32 seed, u32 index) {
    if (ELEM == STATE_F32) return value;
    if (ELEM == STATE_BF16) return bf16_value(bf16_bits(value));
    return f16_value(f16_stochastic(value, mix(index * SPREAD + seed)));
}

// Stores a rounded value.
template <int ELEM>
DEVICE void store_state(float* words, u32 index, float value) {
    if (ELEM == STATE_F32) words[index] = value;
    if (ELEM == STATE_F16) ((u16*)words)[index] = f16_bits(value);
    if (ELEM == STATE_BF16) ((u16*)words)[index] = bf16_bits(value);
}

// Two neighbouring elements, the first at an even index.
template <int ELEM>
DEVICE float2 load_state_pair(const float* words, u32 index) {
    if (ELEM == STATE_F32) return *(const float2*)(words + index);
    u32 pair = ((const u32*)words)[index / 2];
    if (ELEM == STATE_F16) return make_float2(f16_value((u16)pair), f16_value((u16)(pair >> 16)));
    return make_float2(bf16_value((u16)pair), bf16_value((u16)(pair >> 16)));
}

// Stores two rounded values.
template <int ELEM>
DEVICE void store_state_pair(float* words, u32 index, float2 values) {
    if (ELEM == STATE_F32) *(float2*)(words + index) = values;
    if (ELEM == STATE_F16) ((u32*)words)[index / 2] = f16_pair(values.x, values.y);
    if (ELEM == STATE_BF16) ((u32*)words)[index / 2] = (u32)bf16_bits(values.x) | (u32)bf16_bits(values.y) << 16;
}

// Whether the state at this start of a chunk is one that the slot still holds when the sequence has run so far.
DEVICE bool is_kept(const SlotView& slots, u32 chunk_start, u32 end) {
    return chunk_start + slots.chunks * SSM_CHUNK > end / SSM_CHUNK * SSM_CHUNK;
}

// --- The gated norm of a row --------------------------------------------------------------------------------------

// Threads that normalise a group, whatever else the block does: they decide the order of its sum.
#define NORM_THREADS 128
#define NORM_GROUPS 8
#define NORM_BLOCK (NORM_THREADS * NORM_GROUPS)

struct NormShared {
    float sums[NORM_BLOCK / 32];
    float scratch[NORM_BLOCK / 32];
};

// `rms_norm(y·SiLU(z))·weight` of every group of a row, by a block of NORM_BLOCK threads; `kept` has a float of shared
// memory for every channel.
DEVICE void gate_and_normalize(const float* y, const float* z, const float* weight, float* out, u8* rounded,
                               u32 rounded_kind, u32 cols, u32 groups, float eps, NormShared& shared, float* kept) {
    u32 size = cols / groups, lane = threadIdx.x % NORM_THREADS, team = threadIdx.x / NORM_THREADS;
    for (u32 first = 0; first < groups; first += NORM_GROUPS) {
        u32 group = first + team;
        bool is_used = group < groups;
        float sum = 0.0f;
        for (u32 i = lane; is_used && i < size; i += NORM_THREADS) {
            float value = __fmul_rn(y[group * size + i], silu(z[group * size + i]));
            kept[group * size + i] = value;
            sum = __fmaf_rn(value, value, sum);
        }
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) shared.sums[threadIdx.x / 32] = sum;
        __syncthreads();
        if (is_used) {
            const float* sums = shared.sums + team * (NORM_THREADS / 32);
            float total = sums[0];
            for (int i = 1; i < NORM_THREADS / 32; i++) total = __fadd_rn(total, sums[i]);
            float mean = __fdiv_rn(total, (float)size);
            float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
            for (u32 i = lane; i < size; i += NORM_THREADS) {
                u32 at = group * size + i;
                float value = __fmul_rn(__fmul_rn(kept[at], scale), weight[at]);
                out[at] = value;
                kept[at] = value;
            }
        }
        __syncthreads();
    }
    if (rounded_kind != ROUNDED_NONE) round_row<NORM_BLOCK>(kept, cols, rounded, rounded_kind, shared.scratch);
}
