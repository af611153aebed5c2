// A slice of a unit of outputs times up to eight rows, by a warp: one chain of sums over its tiles of columns.
#pragma once
#include "matmul.cuh"

// Multiplies a tile of weights with 64 columns of the rows.
DEVICE void multiply_tile(u32 weights_at, u32 lane, u32 x, u32 part_bytes, float (&sums)[PARTS][4]) {
    Fragment fragment;
    load_fragment(FromShared{weights_at}, lane, fragment);
    u32 a[16];
    unpack_tile(fragment, a);
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        u32 b[8];
        load_matrices(b, x + part * part_bytes);
        load_matrices(b + 4, x + part * part_bytes + 64);
#pragma unroll
        for (int kk = 0; kk < 4; kk++) multiply_step(sums[part], a + 4 * kk, b[2 * kk], b[2 * kk + 1]);
    }
}

// Floats from one row's sums to the next; so that lanes meet in no bank.
#define SUMS_STRIDE 20

// Lays a warp's sums down for those who add the slices: [slice][row][output].
DEVICE void store_sums(float* group, u32 slice, u32 tile_rows, u32 lane, const float (&sums)[PARTS][4]) {
    u32 g = lane >> 2, q = lane & 3;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 r = 2 * q + i % 2;
        float sum = PARTS == 2 ? sums[0][i] + sums[PARTS - 1][i] : sums[0][i];
        if (r < tile_rows) group[(slice * tile_rows + r) * SUMS_STRIDE + g + i / 2 * 8] = sum;
    }
}

// The slices of an output of a row, added in order.
DEVICE float add_slices(const float* group, u32 tile_rows, u32 r, u32 out) {
    float sum = group[r * SUMS_STRIDE + out];
#pragma unroll
    for (int slice = 1; slice < SLICES; slice++) sum += group[(slice * tile_rows + r) * SUMS_STRIDE + out];
    return sum;
}
