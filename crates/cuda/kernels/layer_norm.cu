// layer_norm: y = (x - mean(x)) * w / sqrt(var(x) + eps) + b, over a row; also rounded. One block of THREADS threads a row.
#include "round.cuh"

KERNEL layer_norm(const __grid_constant__ NormParams p) {
    __shared__ float scratch[3][THREADS / 32];
    start_dependents();
    wait_for_inputs();
    u32 row = blockIdx.x;
    if (row >= row_count(p.step, p.out)) return;
    const float* x = f32_row(p.x, row);
    float* out = f32_row(p.out, row);
    u32 cols = p.out.cols;
    float sum = 0.0f;
    for (u32 col = threadIdx.x; col < cols; col += THREADS) sum += x[col];
    float mean = block_sum<THREADS / 32>(sum, scratch[0]) / (float)cols;
    float squares = 0.0f;
    for (u32 col = threadIdx.x; col < cols; col += THREADS) {
        float distance = x[col] - mean;
        squares = fmaf(distance, distance, squares);
    }
    float variance = block_sum<THREADS / 32>(squares, scratch[1]) / (float)cols;
    float factor = 1.0f / sqrtf(variance + p.eps);
    for (u32 col = threadIdx.x; col < cols; col += THREADS)
        out[col] = fmaf((x[col] - mean) * factor, p.weight[col], p.bias[col]);
    if (p.rounded_kind != ROUNDED_NONE)
        round_row<THREADS>(out, cols, byte_row(p.rounded, row), p.rounded_kind, scratch[2]);
}
