// add: y = a + b, element by element.
#include "common.cuh"

KERNEL add(const __grid_constant__ AddParams p) {
    start_dependents();
    wait_for_inputs();
    u32 row = blockIdx.x;
    if (row >= row_count(p.step, p.out)) return;
    const float* a = f32_row(p.a, row);
    const float* b = f32_row(p.b, row);
    float* out = f32_row(p.out, row);
    for (u32 col = blockIdx.y * blockDim.x + threadIdx.x; col < p.out.cols; col += gridDim.y * blockDim.x)
        out[col] = a[col] + b[col];
}
