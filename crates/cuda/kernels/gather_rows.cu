// gather_rows: the rows of x whose logits are wanted, in the order they are listed.
#include "common.cuh"

KERNEL gather_rows(const __grid_constant__ PointwiseParams p) {
    start_dependents();
    wait_for_inputs();
    u32 row = blockIdx.x;
    if (row >= p.step->wanted_rows) return;
    const float* x = f32_row(p.x, p.step->wanted[row]);
    float* out = f32_row(p.out, row);
    for (u32 col = blockIdx.y * blockDim.x + threadIdx.x; col < p.out.cols; col += gridDim.y * blockDim.x)
        out[col] = x[col];
}
