// Rows of private types (src/activation.rs) from rows of f32, by a block.
#pragma once
#include "common.cuh"

#define ROUNDED_NONE 0u
#define ROUNDED_F16 1u
#define ROUNDED_BF16X2 2u

// Values of a row that a thread holds in registers: those of longer rows are read again.
#define HELD 8

// A row as the threads of a block hold it: thread t of BLOCK has the values t, t + BLOCK and so on, the first HELD of
// them in registers. Everything is loaded at once, since a row's latency is most of what a kernel of few rows takes.
template <int BLOCK>
struct HeldRow {
    float values[HELD];

    DEVICE void load(const float* from, u32 cols) {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            u32 col = threadIdx.x + i * BLOCK;
            values[i] = col < cols ? from[col] : 0.0f;
        }
    }
};

DEVICE void round_value(u8* out, u32 col, u32 padded, u32 kind, float value, float inverse) {
    u16* values = (u16*)out;
    if (kind == ROUNDED_F16) {
        values[col] = f16_bits(value * inverse);
    } else {
        u16 upper = bf16_bits(value);
        values[col] = upper;
        values[padded + col] = bf16_bits(value - bf16_value(upper));
    }
}

// The same for four neighbouring columns, a multiple of four.
DEVICE void round_four(u8* out, u32 col, u32 padded, u32 kind, float4 value, float inverse) {
    u16* values = (u16*)out;
    if (kind == ROUNDED_F16) {
        *(uint2*)(values + col) = make_uint2(f16_pair(value.x * inverse, value.y * inverse),
                                             f16_pair(value.z * inverse, value.w * inverse));
        return;
    }
    float all[4] = {value.x, value.y, value.z, value.w};
    for (int i = 0; i < 4; i++) round_value(out, col + i, padded, kind, all[i], inverse);
}

// Writes a row of a private type. `held` has the row's first values, and y the rest of them where there are more: those
// that the calling thread may read. `scratch` has BLOCK / 32 floats of shared memory that nobody uses meanwhile.
template <int BLOCK>
DEVICE void round_row(const HeldRow<BLOCK>& held, const float* y, u32 cols, u8* out, u32 kind, float* scratch) {
    u32 padded = padded_cols(cols);
    float scale = 1.0f;
    if (kind == ROUNDED_F16) {
        float largest = 0.0f;
#pragma unroll
        for (int i = 0; i < HELD; i++) largest = fmaxf(largest, fabsf(held.values[i]));
        for (u32 col = threadIdx.x + HELD * BLOCK; col < cols; col += BLOCK) largest = fmaxf(largest, fabsf(y[col]));
        scale = f16_scale(block_max<BLOCK / 32>(largest, scratch));
        if (threadIdx.x == 0) *f16_row_scale(out, cols) = scale;
    }
    float inverse = f16_inverse_scale(scale);
    // What is held beyond the last column is zero, as the padding must be.
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        u32 col = threadIdx.x + i * BLOCK;
        if (col < padded) round_value(out, col, padded, kind, held.values[i], inverse);
    }
    for (u32 col = threadIdx.x + HELD * BLOCK; col < padded; col += BLOCK)
        round_value(out, col, padded, kind, col < cols ? y[col] : 0.0f, inverse);
}

// The same of a row in memory, of which thread t wrote, or may read, the values t, t + BLOCK and so on.
template <int BLOCK>
DEVICE void round_row(const float* y, u32 cols, u8* out, u32 kind, float* scratch) {
    HeldRow<BLOCK> held;
    held.load(y, cols);
    round_row<BLOCK>(held, y, cols, out, kind, scratch);
}
