// gated_group_norm: v = y · SiLU(z), then rms_norm of each group of channels, times a weight.
//
// A block normalises a row. 12 bytes read and 4 (and 2, where it is rounded too) written per channel. `even_group_norm` is
// for rows of whole pieces and vectors, whose values it keeps in registers.
// Defines: HELD_VECTORS, of four channels that a thread of `even_group_norm` has.
#include "ssm.cuh"

extern __shared__ float kept_values[];

KERNEL __launch_bounds__(NORM_BLOCK) gated_group_norm(const __grid_constant__ GatedGroupNormParams p) {
    __shared__ float scratch[NORM_BLOCK / 32];
    start_dependents();
    wait_for_inputs();
    u32 row = blockIdx.x;
    if (row >= row_count(p.step, p.out)) return;
    gate_and_normalize(f32_row(p.y, row), f32_row(p.z, row), p.weight, f32_row(p.out, row), byte_row(p.rounded, row),
                       p.rounded_kind, p.out.cols, p.groups, p.eps, kept_values, scratch);
}

#define EVEN_THREADS 256

KERNEL __launch_bounds__(EVEN_THREADS) even_group_norm(const __grid_constant__ GatedGroupNormParams p) {
    __shared__ float scratch[EVEN_THREADS / 32];
    start_dependents();
    u32 cols = p.out.cols, size = cols / p.groups, pieces = pieces_of(size), row = blockIdx.x;
    // Of every piece, then of every group.
    float *piece_sums = kept_values, *scales = kept_values + cols / NORM_PIECE;
    wait_for_inputs();
    if (row >= row_count(p.step, p.out)) return;
    const float4 *y = (const float4*)f32_row(p.y, row), *z = (const float4*)f32_row(p.z, row);
    float4 value[HELD_VECTORS], weight[HELD_VECTORS];
#pragma unroll
    for (u32 i = 0; i < HELD_VECTORS; i++) {
        u32 vector = i * EVEN_THREADS + threadIdx.x;
        bool is_there = vector < cols / 4;
        float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        value[i] = is_there ? y[vector] : none;
        // The gate, until it has been used.
        weight[i] = is_there ? z[vector] : none;
    }
#pragma unroll
    for (u32 i = 0; i < HELD_VECTORS; i++) {
        u32 vector = i * EVEN_THREADS + threadIdx.x;
        value[i].x = gated(value[i].x, weight[i].x), value[i].y = gated(value[i].y, weight[i].y);
        value[i].z = gated(value[i].z, weight[i].z), value[i].w = gated(value[i].w, weight[i].w);
        weight[i] = vector < cols / 4 ? ((const float4*)p.weight)[vector] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        float sum = piece_squares(value[i]);
        if (threadIdx.x % 4 == 0 && vector < cols / 4) piece_sums[vector / 4] = sum;
    }
    __syncthreads();
    for (u32 group = threadIdx.x / 32; group < p.groups; group += EVEN_THREADS / 32) {
        float scale = group_scale(piece_sums + group * pieces, size, p.eps);
        if (threadIdx.x % 32 == 0) scales[group] = scale;
    }
    __syncthreads();
    normalize_held<EVEN_THREADS>(value, weight, scales, size, cols, f32_row(p.out, row), byte_row(p.rounded, row),
                                 p.rounded_kind, scratch);
}
