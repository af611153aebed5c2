// quantize: f32 rows to rows of a private type. One block of THREADS threads a row; of many short rows to f16 a warp each,
// which holds it and never meets others, in an order where one is given. 4 bytes read and 2 written per value.
#include "round.cuh"

// Four values at a time that a lane of quantize_many holds, and rows of its blocks.
#define VECTORS 16
#define WARPS 8

KERNEL quantize(const __grid_constant__ QuantizeParams p) {
    __shared__ float scratch[THREADS / 32];
    start_dependents();
    wait_for_inputs();
    u32 row = blockIdx.x;
    if (row >= row_count(p.step, p.x)) return;
    round_row<THREADS>(f32_row(p.x, row), p.x.cols, byte_row(p.out, row), p.kind, scratch);
}

KERNEL __launch_bounds__(32 * WARPS) quantize_many(const __grid_constant__ QuantizeParams p) {
    start_dependents();
    wait_for_inputs();
    u32 row = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x & 31, cols = p.x.cols;
    if (row >= row_count(p.step, p.x)) return;
    const float4* x = (const float4*)f32_row(p.x, p.order ? p.order[row] : row);
    u8* out = byte_row(p.out, row);
    float4 values[VECTORS];
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
        values[i] = 32 * i + lane < cols / 4 ? x[32 * i + lane] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        float first = fmaxf(fabsf(values[i].x), fabsf(values[i].y)), second = fmaxf(fabsf(values[i].z), fabsf(values[i].w));
        largest = fmaxf(largest, fmaxf(first, second));
    }
    float scale = f16_scale(warp_max(largest)), inverse = f16_inverse_scale(scale);
    if (lane == 0) *f16_row_scale(out, cols) = scale;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        u32 first = f16_pair(values[i].x * inverse, values[i].y * inverse);
        u32 second = f16_pair(values[i].z * inverse, values[i].w * inverse);
        if (32 * i + lane < padded_cols(cols) / 4)
            ((float2*)out)[32 * i + lane] = make_float2(__uint_as_float(first), __uint_as_float(second));
    }
}
