// soft_cap: y = cap * tanh(x / cap), element by element.
#include "common.cuh"

KERNEL soft_cap(const __grid_constant__ PointwiseParams p) {
    start_dependents();
    wait_for_inputs();
    u32 row = blockIdx.x;
    if (row >= row_count(p.step, p.out)) return;
    const float* x = f32_row(p.x, row);
    float* out = f32_row(p.out, row);
    for (u32 col = blockIdx.y * blockDim.x + threadIdx.x; col < p.out.cols; col += gridDim.y * blockDim.x)
        out[col] = p.number * tanhf(x[col] / p.number);
}
