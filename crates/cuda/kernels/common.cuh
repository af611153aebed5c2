// What kernels share: rows of views, number formats, reductions.
//
// Rules of every kernel:
// - Its grid is sized for a bucket of rows; it leaves beyond the rows of the step, but never before wait_for_inputs().
// - Every block calls wait_for_inputs() before it reads or writes anything another kernel of the step touches, also where
//   it leaves early: a kernel that ends without having waited lets the one after it start too soon. Before, it may read
//   weights, what the caches held before the step, and of the step's table what no kernel writes: all but token ids and
//   hidden rows. Nothing is written before.
// - start_dependents() may be called at any time; it lets the next kernel's blocks begin up to their own wait.
// - A row's arithmetic depends on the row's own data and its position alone: no float atomics, no split by grid size.
#pragma once
#include "ptx.cuh"
#include "step.cuh"

// Rows of a view in this step.
DEVICE u32 row_count(const StepTable* step, const View& view) {
    return (view.counts_wanted ? step->wanted_rows : step->rows) * view.times;
}

DEVICE float* f32_row(const View& view, u32 row) {
    return (float*)(view.data + (u64)row * view.stride);
}

DEVICE int* i32_row(const View& view, u32 row) {
    return (int*)(view.data + (u64)row * view.stride);
}

DEVICE u8* byte_row(const View& view, u32 row) {
    return view.data + (u64)row * view.stride;
}

// The position in its sequence of a token's row.
DEVICE u32 row_position(const StepTable* step, u32 row) {
    SegmentEntry segment = step->segments[step->row_segment[row]];
    return segment.position + (row - segment.first_row);
}

// --- Number formats ---------------------------------------------------------------------------------------------

DEVICE float bf16_value(u16 bits) {
    return __uint_as_float((u32)bits << 16);
}

// Nearest bf16, ties to even; one NaN for all.
DEVICE u16 bf16_bits(float value) {
    u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// --- Reductions -------------------------------------------------------------------------------------------------

// The sum over a warp, the same in every lane; the order is fixed.
DEVICE float warp_sum(float value) {
    for (int distance = 16; distance > 0; distance >>= 1) value += __shfl_xor_sync(ALL_LANES, value, distance);
    return value;
}

DEVICE float warp_max(float value) {
    for (int distance = 16; distance > 0; distance >>= 1)
        value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, distance));
    return value;
}

// The sum over a block of WARPS warps, the same in every thread. `scratch` has WARPS floats of shared memory, which
// may be used again after the next barrier.
template <int WARPS>
DEVICE float block_sum(float value, float* scratch) {
    value = warp_sum(value);
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = value;
    __syncthreads();
    value = (threadIdx.x & 31) < WARPS ? scratch[threadIdx.x & 31] : 0.0f;
    return warp_sum(value);
}

// The same for the largest value.
template <int WARPS>
DEVICE float block_max(float value, float* scratch) {
    value = warp_max(value);
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = value;
    __syncthreads();
    value = (threadIdx.x & 31) < WARPS ? scratch[threadIdx.x & 31] : scratch[0];
    return warp_max(value);
}

// --- Rows of scaled f16 -----------------------------------------------------------------------------------------
// The private type `f16` of src/activation.rs: f16 values, zeros up to a multiple of 64 columns, then one f32 scale, a
// power of two, that they are multiplied with. The largest magnitude of a row becomes a number in [2^14, 2^15).

DEVICE u32 padded_cols(u32 cols) {
    return (cols + 63) & ~63u;
}

DEVICE float* f16_row_scale(u8* row, u32 cols) {
    return (float*)(row + 2 * padded_cols(cols));
}

// The scale of a row with this largest magnitude; 1 for zero, NaN and infinity.
DEVICE float f16_scale(float largest) {
    int exponent = (int)((__float_as_uint(largest) >> 23) & 0xff);
    if (largest == 0.0f || exponent == 0xff) return 1.0f;
    // Within what can be inverted; rows of smaller numbers lose digits that no product could show.
    exponent = max(exponent - 14, 27);
    return __uint_as_float((u32)exponent << 23);
}

// What values are multiplied with before they are rounded.
DEVICE float f16_inverse_scale(float scale) {
    return __uint_as_float((254u << 23) - __float_as_uint(scale));
}
