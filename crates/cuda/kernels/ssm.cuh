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
    // Rounded, they are their upper halves.
    if (ELEM == STATE_BF16)
        ((u32*)words)[index / 2] = __byte_perm(__float_as_uint(values.x), __float_as_uint(values.y), 0x7632);
}

// Whether the state at this start of a chunk is one that the slot still holds when the sequence has run so far.
DEVICE bool is_kept(const SlotView& slots, u32 chunk_start, u32 end) {
    return chunk_start + slots.chunks * SSM_CHUNK > end / SSM_CHUNK * SSM_CHUNK;
}

// --- The gated norm of a row --------------------------------------------------------------------------------------

// Sums of squares run over pieces of so many neighbouring channels of a group, each added up by a tree (16 is its root),
// and the pieces of a group over the lanes of a warp: ssm_row's blocks have a piece each and leave its sum to the last.
#define NORM_PIECE 16u
#define NORM_BLOCK 1024u

DEVICE u32 pieces_of(u32 group_size) {
    return (group_size + NORM_PIECE - 1) / NORM_PIECE;
}

// `y·SiLU(z)`.
DEVICE float gated(float y, float z) {
    return __fmul_rn(y, silu(z));
}

// The sum of the squares of a piece, whose channels stand in 16 neighbouring lanes; the same in each.
DEVICE float piece_squares(float value) {
    float sum = __fmul_rn(value, value);
    for (int distance = NORM_PIECE / 2; distance > 0; distance >>= 1)
        sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, distance));
    return sum;
}

// What a group's values are multiplied with, from the sums of its pieces; by a warp, the same in every lane.
DEVICE float group_scale(const float* piece_sums, u32 group_size, float eps) {
    float sum = 0.0f;
    for (u32 piece = threadIdx.x % 32; piece < pieces_of(group_size); piece += 32) sum = __fadd_rn(sum, piece_sums[piece]);
    for (int distance = 16; distance > 0; distance >>= 1)
        sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, distance));
    float mean = __fdiv_rn(sum, (float)group_size);
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}

// The same of a piece that stands in four neighbouring lanes, four channels each: the same tree.
DEVICE float piece_squares(float4 value) {
    float sums[4] = {__fmul_rn(value.x, value.x), __fmul_rn(value.y, value.y), __fmul_rn(value.z, value.z),
                     __fmul_rn(value.w, value.w)};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sums[i] = __fadd_rn(sums[i], __shfl_xor_sync(ALL_LANES, sums[i], 2));
        sums[i] = __fadd_rn(sums[i], __shfl_xor_sync(ALL_LANES, sums[i], 1));
    }
    return __fadd_rn(__fadd_rn(sums[0], sums[2]), __fadd_rn(sums[1], sums[3]));
}

// Multiplies a gated row with its groups' scales and the weight, writes it and rounds it. Thread t of THREADS holds the
// vectors of four t, t + THREADS and so on; `scratch` has a float for every warp.
template <int THREADS, int VECTORS>
DEVICE void normalize_held(float4 (&value)[VECTORS], const float4 (&weight)[VECTORS], const float* scales, u32 group_size,
                           u32 cols, float* out, u8* rounded, u32 rounded_kind, float* scratch) {
    float largest = 0.0f;
#pragma unroll
    for (u32 i = 0; i < VECTORS; i++) {
        u32 vector = i * THREADS + threadIdx.x;
        if (vector >= cols / 4) continue;
        float scale = scales[4 * vector / group_size];
        value[i].x = __fmul_rn(__fmul_rn(value[i].x, scale), weight[i].x);
        value[i].y = __fmul_rn(__fmul_rn(value[i].y, scale), weight[i].y);
        value[i].z = __fmul_rn(__fmul_rn(value[i].z, scale), weight[i].z);
        value[i].w = __fmul_rn(__fmul_rn(value[i].w, scale), weight[i].w);
        ((float4*)out)[vector] = value[i];
        largest = fmaxf(largest, fmaxf(fabsf(value[i].x), fabsf(value[i].y)));
        largest = fmaxf(largest, fmaxf(fabsf(value[i].z), fabsf(value[i].w)));
    }
    if (rounded_kind == ROUNDED_NONE) return;
    float scale = 1.0f;
    if (rounded_kind == ROUNDED_F16) {
        scale = f16_scale(block_max<THREADS / 32>(largest, scratch));
        if (threadIdx.x == 0) *f16_row_scale(rounded, cols) = scale;
    }
    float inverse = f16_inverse_scale(scale);
#pragma unroll
    for (u32 i = 0; i < VECTORS; i++) {
        u32 vector = i * THREADS + threadIdx.x;
        if (vector < cols / 4) round_four(rounded, 4 * vector, cols, rounded_kind, value[i], inverse);
    }
}

// Pieces of a row that a thread of `gate_and_normalize` loads at once.
#define PIECES_AT_ONCE 4

// `rms_norm(y·SiLU(z))·weight` of every group of a row, by a block of NORM_BLOCK threads. `kept` has a float of shared
// memory for every channel and, behind them, for every piece; `scratch` has one for every warp.
DEVICE void gate_and_normalize(const float* y, const float* z, const float* weight, float* out, u8* rounded,
                               u32 rounded_kind, u32 cols, u32 groups, float eps, float* kept, float* scratch) {
    u32 size = cols / groups, own_pieces = pieces_of(size), pieces = groups * own_pieces;
    u32 warp = threadIdx.x / 32, half = threadIdx.x % 32 / NORM_PIECE;
    float* piece_sums = kept + cols;
    // Two pieces a warp, and as many rounds at once.
    for (u32 first = 2 * warp; first < pieces; first += PIECES_AT_ONCE * (NORM_BLOCK / NORM_PIECE)) {
        float gate[PIECES_AT_ONCE], value[PIECES_AT_ONCE];
        u32 channel[PIECES_AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < PIECES_AT_ONCE; i++) {
            u32 piece = first + half + i * (NORM_BLOCK / NORM_PIECE), within = piece % own_pieces * NORM_PIECE;
            within += threadIdx.x % NORM_PIECE;
            bool is_there = piece < pieces && within < size;
            channel[i] = is_there ? piece / own_pieces * size + within : cols;
            value[i] = is_there ? y[channel[i]] : 0.0f;
            gate[i] = is_there ? z[channel[i]] : 0.0f;
        }
#pragma unroll
        for (u32 i = 0; i < PIECES_AT_ONCE; i++) {
            u32 piece = first + half + i * (NORM_BLOCK / NORM_PIECE);
            value[i] = gated(value[i], gate[i]);
            float sum = piece_squares(value[i]);
            if (channel[i] < cols) kept[channel[i]] = value[i];
            if (threadIdx.x % NORM_PIECE == 0 && piece < pieces) piece_sums[piece] = sum;
        }
    }
    __syncthreads();
    // The first piece's place takes the group's scale, once the warp has read it.
    for (u32 group = warp; group < groups; group += NORM_BLOCK / 32) {
        float scale = group_scale(piece_sums + group * own_pieces, size, eps);
        if (threadIdx.x % 32 == 0) piece_sums[group * own_pieces] = scale;
    }
    __syncthreads();
    for (u32 at = threadIdx.x; at < cols; at += NORM_BLOCK) {
        float value = __fmul_rn(__fmul_rn(kept[at], piece_sums[at / size * own_pieces]), weight[at]);
        out[at] = value;
        kept[at] = value;
    }
    if (rounded_kind != ROUNDED_NONE) round_row<NORM_BLOCK>(kept, cols, rounded, rounded_kind, scratch);
}
