// moe_route: the experts of every token and their weights (moe_choice.cuh). A warp has a row.
#include "moe_choice.cuh"

#define WARPS 4

KERNEL __launch_bounds__(32 * WARPS) moe_route(const __grid_constant__ MoeRouteParams p) {
    __shared__ Choice choices[WARPS];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x * WARPS + warp;
    start_dependents();
    float bias[SLOTS], score[SLOTS];
    load_experts(bias, p.bias, 0.0f);
    wait_for_inputs();
    if (row >= row_count(p.step, p.ids)) return;
    load_experts(score, f32_row(p.logits, row), __uint_as_float(0xff800000u));
    float divisor = choose_experts(score, bias, choices[warp], lane);
    for (u32 k = lane; k < TOP_K; k += 32) {
        i32_row(p.ids, row)[k] = (int)choices[warp].ids[k];
        f32_row(p.weights, row)[k] = choices[warp].weight(k, divisor, p.scale);
    }
}
