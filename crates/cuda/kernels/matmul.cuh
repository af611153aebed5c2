// What the kernels of products share: the order of sums, rows of activations, tiles of rows, epilogues.
//
// The rule that every kernel keeps, so that a row has the same bits whatever the number of rows: weights are the left
// operand, in f16 (bf16); the columns are cut into four slices of whole tiles; each slice is one chain of sums in f32
// over its steps of 16 columns; the slices are added in order. Where a row has two parts (bf16 + bf16), each part has a
// chain of its own and the two are added before the slices are.
#pragma once
#include "fragments.cuh"
#include "mma.cuh"
#include "ring.cuh"

// -DPARTS: of an activation, 1 for f16 and 2 for bf16 + bf16. -DEXPERTS: 1 where every row has an expert of its own.
#define SLICES 4
#define IS_BF16 (PARTS == 2)
// Bytes of a row's values, padded with zeros to whole tiles.
#define PART_BYTES(p) (2 * TILE_COLS * (p).col_tiles)
#define VALUE_BYTES(p) (PARTS * PART_BYTES(p))

#define EPILOGUE_NONE 0
#define EPILOGUE_RELU2 1
#define EPILOGUE_RESIDUAL 2

// sums += a · b, 16x16 times 16x8.
DEVICE void multiply_step(float* sums, const u32* a, u32 b0, u32 b1) {
    if (IS_BF16) mma_bf16(sums, a, b0, b1);
    else mma_f16(sums, a, b0, b1);
}

DEVICE u32 slice_start(u32 slice, u32 col_tiles) {
    return slice * col_tiles / SLICES;
}

// The factor on a row of activations, a power of two.
DEVICE float row_scale(const MatmulParams& p, const u8* row) {
    return PARTS == 1 ? *(const float*)(row + VALUE_BYTES(p)) : 1.0f;
}

// The activations that an output row is a product with: an expert's row may read its token's.
DEVICE const u8* input_row(const MatmulParams& p, u32 row) {
    return byte_row(p.x, p.x.times == p.out.times ? row : row / p.out.times);
}

// The expert of an output row.
DEVICE u32 expert_of(const MatmulParams& p, u32 row) {
    return (u32)i32_row(p.ids, row / p.out.times)[row % p.out.times];
}

// An output value: the sum of a product with its factors, and what follows it.
DEVICE float finished(const MatmulParams& p, float sum, float factor, float scale, float residual) {
    float value = sum * factor * scale;
    if (p.epilogue == EPILOGUE_RELU2) {
        value = fmaxf(value, 0.0f);
        value *= value;
    }
    return p.epilogue == EPILOGUE_RESIDUAL ? value + residual : value;
}

// Finishes an output value and stores it.
DEVICE void store_output(const MatmulParams& p, u32 row, u32 col, float sum, float factor, float scale) {
    float residual = p.epilogue == EPILOGUE_RESIDUAL ? f32_row(p.residual, row)[col] : 0.0f;
    f32_row(p.out, row)[col] = finished(p, sum, factor, scale, residual);
}
