// Tensor core products of 16-bit values with f32 sums, and how f32 values are split for them.
#pragma once
#include "common.cuh"

DEVICE void load_matrices(u32* words, const u16* row) {
    load_matrices(words, shared_address(row));
}

DEVICE void load_matrices_transposed(u32* words, const u16* row) {
    load_matrices_transposed(words, shared_address(row));
}

// Two values as sums of two bf16: 16 digits, with the range of f32.
DEVICE void split_bf16(float first, float second, u32& high, u32& low) {
    high = bf16_pair(first, second);
    float first_high = __uint_as_float(high << 16), second_high = __uint_as_float(high & 0xffff0000u);
    low = bf16_pair(__fsub_rn(first, first_high), __fsub_rn(second, second_high));
}

// Two values as sums of two f16: 22 digits, within f16's range.
DEVICE void split_f16(float first, float second, u32& high, u32& low) {
    high = f16_pair(first, second);
    float first_high = f16_value((u16)high), second_high = f16_value((u16)(high >> 16));
    low = f16_pair(__fsub_rn(first, first_high), __fsub_rn(second, second_high));
}
