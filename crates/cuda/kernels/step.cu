// The ends of a step: inputs that earlier steps left on the device, and choices for later steps and the host.
#include "common.cuh"

// Fills in the tokens that an earlier step chose, and copies hidden rows of the step before. One block a row.
KERNEL step_begin(const __grid_constant__ StepBeginParams p) {
    start_dependents();
    wait_for_inputs();
    const StepTable* step = p.step;
    u32 row = blockIdx.x;
    if (row >= step->rows) return;
    if (threadIdx.x == 0) {
        u32 id = step->token_ids[row];
        if (id & CHOSEN) {
            u32 token = step->chosen_before[id & ~CHOSEN];
            step->token_ids[row] = token == NO_TOKEN ? 0 : token;
        }
    }
    if (step->hidden_from) {
        const float* from = (const float*)(step->hidden_from + step->hidden_rows[row] * step->hidden_stride);
        float* to = step->hidden + (u64)row * step->hidden_cols;
        for (u32 col = threadIdx.x; col < step->hidden_cols; col += blockDim.x) to[col] = from[col];
    }
}

// Keeps the choices for later steps and gives them to the host.
KERNEL step_end(const __grid_constant__ StepEndParams p) {
    start_dependents();
    wait_for_inputs();
    const StepTable* step = p.step;
    u32 row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= step->wanted_rows) return;
    u32 token = (u32)*i32_row(p.choices, row);
    step->chosen_here[row] = token;
    step->chosen_host[row] = token;
}
