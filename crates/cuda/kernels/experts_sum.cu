// Last kernel of a fused layer of experts: the weighted sum of the products down, and what is added to it, in the order of
// moe_combine and of the product that would have followed it.
// Bytes: every term once. FLOPs: 2 per term.
#include "common.cuh"

KERNEL experts_sum(const __grid_constant__ ExpertsDownParams p) {
    start_dependents();
    wait_for_inputs();
    u32 col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y, cols = p.out.cols;
    if (row >= p.step->rows || col >= cols) return;
    float residual = p.residual[(u64)row * cols + col], shared = p.shared_out[(u64)row * cols + col];
    // Terms that do not exist are zeros with weight zero.
    float sum = 0.0f;
    for (u32 first = 0; first < p.top_k; first += 8) {
        float y[8], weight[8];
#pragma unroll
        for (u32 j = 0; j < 8; j++) {
            bool exists = first + j < p.top_k;
            u32 at = row * p.top_k + first + j;
            y[j] = exists ? p.routed_out[(u64)at * cols + col] : 0.0f;
            weight[j] = exists ? p.pair_weights[at] : 0.0f;
        }
#pragma unroll
        for (u32 j = 0; j < 8; j++) sum = fmaf(weight[j], y[j], sum);
    }
    f32_row(p.out, row)[col] = __fadd_rn(shared, __fadd_rn(sum, residual));
}
