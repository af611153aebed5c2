// The arithmetic of rms_norm, for every kernel that norms a row as it reads it: the same threads, the same order of sums.
#pragma once
#include "round.cuh"

// The factor on a row of which each thread of BLOCK has added its squares. `scratch` has BLOCK / 32 floats.
template <int BLOCK>
DEVICE float rms_factor(float squares, u32 cols, float eps, float* scratch) {
    float mean = block_sum<BLOCK / 32>(squares, scratch) / (float)cols;
    return 1.0f / sqrtf(mean + eps);
}

// The squares of what a thread holds of a row.
template <int BLOCK>
DEVICE float held_squares(const HeldRow<BLOCK>& row) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < HELD; i++) squares = fmaf(row.values[i], row.values[i], squares);
    return squares;
}
