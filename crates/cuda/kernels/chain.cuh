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

// Adds up the products of tiles that follow each other with the rows that start at x, of which lanes name their own.
DEVICE void multiply_tiles(u32 at, u32 count, u32 lane, u32 x, u32 part_bytes, float (&sums)[PARTS][4]) {
    u32 i = 0;
    // Several tiles without branches, so that some are unpacked while others are multiplied.
    for (; i + 4 <= count; i += 4)
#pragma unroll
        for (int j = 0; j < 4; j++) multiply_tile(at + (i + j) * TILE_BYTES, lane, x + (i + j) * (2 * TILE_COLS), part_bytes, sums);
    if (i + 2 <= count) {
#pragma unroll
        for (int j = 0; j < 2; j++) multiply_tile(at + (i + j) * TILE_BYTES, lane, x + (i + j) * (2 * TILE_COLS), part_bytes, sums);
        i += 2;
    }
    if (i < count) multiply_tile(at + i * TILE_BYTES, lane, x + i * (2 * TILE_COLS), part_bytes, sums);
}

// The slice's weights, brought to shared memory by one copy that may be on its way before anything else is known.
struct Chain {
    // Tiles before the slice and of it, where its weights come to, and the barrier of their copy with its phase.
    u32 first, count, at, barrier, parity, lane;

    // The slice of a warp, none of it if the warp has no unit.
    DEVICE void of_slice(u32 slice, u32 col_tiles, bool has_unit) {
        first = slice_start(slice, col_tiles);
        count = has_unit ? slice_start(slice + 1, col_tiles) - first : 0;
    }
    // Starts the copy; `unit` is where the unit's tiles are.
    DEVICE void start(const u8* unit) const {
        if (count > 0) warp_copy(at, unit + first * TILE_BYTES, count * TILE_BYTES, barrier, lane);
    }
    DEVICE void wait() const {
        if (count > 0) barrier_wait(barrier, parity);
    }
    // Adds up the slice's products with the rows that start at x, of which lanes name their own.
    DEVICE void multiply(u32 x, u32 part_bytes, float (&sums)[PARTS][4]) const {
        multiply_tiles(at, count, lane, x + first * (2 * TILE_COLS), part_bytes, sums);
    }
};

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

// A barrier of the warps that share one of two units. Its numbers are known when it is compiled, so that no others are
// reserved.
DEVICE void unit_barrier(u32 group) {
    if (group == 0) barrier_of(1, 32 * SLICES);
    else barrier_of(2, 32 * SLICES);
}

// The slices of an output of a row, added in order.
DEVICE float add_slices(const float* group, u32 tile_rows, u32 r, u32 out) {
    float sum = group[r * SUMS_STRIDE + out];
#pragma unroll
    for (int slice = 1; slice < SLICES; slice++) sum += group[(slice * tile_rows + r) * SUMS_STRIDE + out];
    return sum;
}
