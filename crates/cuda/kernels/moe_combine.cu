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
        // Eight loads at a time are on their way together; terms that do not exist are zeros with weight zero.
        float sum = 0.0f;
        for (u32 first = 0; first < p.top_k; first += 8) {
            float x[8], weight[8];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                bool exists = first + j < p.top_k;
                x[j] = exists ? f32_row(p.x, row * p.top_k + first + j)[col] : 0.0f;
                weight[j] = exists ? weights[first + j] : 0.0f;
            }
#pragma unroll
            for (int j = 0; j < 8; j++) sum = fmaf(weight[j], x[j], sum);
        }
        out[col] = residual ? sum + residual[col] : sum;
    }
}
