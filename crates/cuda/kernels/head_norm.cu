// head_norm: rms_norm of every head of a row on its own, all times one weight vector. One warp a head.
#include "common.cuh"

KERNEL head_norm(const __grid_constant__ HeadNormParams p) {
    start_dependents();
    wait_for_inputs();
    u32 row = blockIdx.x;
    u32 heads = p.out.cols / p.head_dim;
    u32 head = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= row_count(p.step, p.out) || head >= heads) return;
    const float* x = f32_row(p.x, row) + head * p.head_dim;
    float* out = f32_row(p.out, row) + head * p.head_dim;
    u32 lane = threadIdx.x & 31;
    float squares = 0.0f;
    for (u32 col = lane; col < p.head_dim; col += 32) squares = fmaf(x[col], x[col], squares);
    float factor = 1.0f / sqrtf(warp_sum(squares) / (float)p.head_dim + p.eps);
    for (u32 col = lane; col < p.head_dim; col += 32) out[col] = x[col] * factor * p.weight[col];
}
