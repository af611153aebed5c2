// moe_route: the experts of every token and their weights (moe_choice.cuh). A warp has a row.
#include "moe_choice.cuh"

#define WARPS 4

KERNEL __launch_bounds__(32 * WARPS) moe_route(const __grid_constant__ MoeRouteParams p) {
    __shared__ Choice choices[WARPS];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x * WARPS + warp;
    start_dependents();
    wait_for_inputs();
    if (row >= row_count(p.step, p.ids)) return;
    const float* logits = f32_row(p.logits, row);
    float score[SLOTS];
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        u32 expert = lane + 32 * i;
        score[i] = expert < EXPERTS ? logits[expert] : __uint_as_float(0xff800000u);
    }
    float divisor = choose_experts(score, p.bias, choices[warp], lane);
    for (u32 k = lane; k < TOP_K; k += 32) {
        i32_row(p.ids, row)[k] = (int)choices[warp].ids[k];
        f32_row(p.weights, row)[k] = choices[warp].weight(k, divisor, p.scale);
    }
}
