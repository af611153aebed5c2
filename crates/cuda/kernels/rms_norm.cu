// rms_norm: y = x * w / sqrt(mean(x^2) + eps), over a row; also rounded. One block of THREADS threads a row.
#include "norm.cuh"

KERNEL rms_norm(const __grid_constant__ NormParams p) {
    __shared__ float scratch[2][THREADS / 32];
    start_dependents();
    u32 cols = p.out.cols;
    HeldRow<THREADS> weight, row_values;
    weight.load(p.weight, cols);
    wait_for_inputs();
    u32 row = blockIdx.x;
    if (row >= row_count(p.step, p.out)) return;
    const float* x = f32_row(p.x, row);
    float* out = f32_row(p.out, row);
    row_values.load(x, cols);
    float squares = held_squares(row_values);
    for (u32 col = threadIdx.x + HELD * THREADS; col < cols; col += THREADS) squares = fmaf(x[col], x[col], squares);
    float factor = rms_factor<THREADS>(squares, cols, p.eps, scratch[0]);
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        u32 col = threadIdx.x + i * THREADS;
        row_values.values[i] = row_values.values[i] * factor * weight.values[i];
        if (col < cols) out[col] = row_values.values[i];
    }
    for (u32 col = threadIdx.x + HELD * THREADS; col < cols; col += THREADS) out[col] = x[col] * factor * p.weight[col];
    if (p.rounded_kind != ROUNDED_NONE)
        round_row<THREADS>(row_values, out, cols, byte_row(p.rounded, row), p.rounded_kind, scratch[1]);
}
