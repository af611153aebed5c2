// concat: the columns of the first input, then those of the second.
#include "common.cuh"

KERNEL concat(const __grid_constant__ ConcatParams p) {
    start_dependents();
    wait_for_inputs();
    u32 row = blockIdx.x;
    if (row >= row_count(p.step, p.out)) return;
    const float* a = f32_row(p.a, row);
    const float* b = f32_row(p.b, row);
    float* out = f32_row(p.out, row);
    for (u32 col = blockIdx.y * blockDim.x + threadIdx.x; col < p.out.cols; col += gridDim.y * blockDim.x)
        out[col] = col < p.a.cols ? a[col] : b[col - p.a.cols];
}
