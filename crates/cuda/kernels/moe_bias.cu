// moe_bias: y[t,j] = x[t,j] + b[id[t,j]].
#include "common.cuh"

KERNEL moe_bias(const __grid_constant__ MoeBiasParams p) {
    start_dependents();
    wait_for_inputs();
    u32 row = blockIdx.x;
    if (row >= row_count(p.step, p.out)) return;
    u32 expert = (u32)i32_row(p.ids, row / p.top_k)[row % p.top_k];
    const float* x = f32_row(p.x, row);
    const float* bias = p.bias + (u64)expert * p.out.cols;
    float* out = f32_row(p.out, row);
    for (u32 col = blockIdx.y * blockDim.x + threadIdx.x; col < p.out.cols; col += gridDim.y * blockDim.x)
        out[col] = x[col] + bias[col];
}
