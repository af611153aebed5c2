// Rows of private types (src/activation.rs) from rows of f32, by a block.
#pragma once
#include "common.cuh"

#define ROUNDED_NONE 0u
#define ROUNDED_F16 1u
#define ROUNDED_BF16X2 2u

// Writes a row that the block has just computed a second time. Thread t of BLOCK wrote, or may read, the values
// y[t], y[t + BLOCK] and so on. `scratch` has BLOCK / 32 floats of shared memory that nobody uses meanwhile.
template <int BLOCK>
DEVICE void round_row(const float* y, u32 cols, u8* out, u32 kind, float* scratch) {
    u16* values = (u16*)out;
    u32 padded = padded_cols(cols);
    if (kind == ROUNDED_F16) {
        float largest = 0.0f;
        for (u32 col = threadIdx.x; col < cols; col += BLOCK) largest = fmaxf(largest, fabsf(y[col]));
        float scale = f16_scale(block_max<BLOCK / 32>(largest, scratch));
        float inverse = f16_inverse_scale(scale);
        for (u32 col = threadIdx.x; col < padded; col += BLOCK)
            values[col] = col < cols ? f16_bits(y[col] * inverse) : (u16)0;
        if (threadIdx.x == 0) *f16_row_scale(out, cols) = scale;
    } else if (kind == ROUNDED_BF16X2) {
        for (u32 col = threadIdx.x; col < padded; col += BLOCK) {
            float value = col < cols ? y[col] : 0.0f;
            u16 upper = bf16_bits(value);
            values[col] = upper;
            values[padded + col] = bf16_bits(value - bf16_value(upper));
        }
    }
}
