// moe_combine: y[t] = sum over j of w[t,j] * x[t,j], rounded, plus the residual if there is one.
#include "common.cuh"

KERNEL moe_combine(const __grid_constant__ MoeCombineParams p) {
    start_dependents();
    wait_for_inputs();
    u32 row = blockIdx.x;
    if (row >= row_count(p.step, p.out)) return;
    const float* weights = f32_row(p.weights, row);
    const float* residual = p.residual.data ? f32_row(p.residual, row) : (const float*)0;
    float* out = f32_row(p.out, row);
    for (u32 col = blockIdx.y * blockDim.x + threadIdx.x; col < p.out.cols; col += gridDim.y * blockDim.x) {
        float sum = 0.0f;
        for (u32 j = 0; j < p.top_k; j++) sum = fmaf(weights[j], f32_row(p.x, row * p.top_k + j)[col], sum);
        out[col] = residual ? sum + residual[col] : sum;
    }
}
