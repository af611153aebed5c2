// quantize: f32 rows to rows of a private type. One block of THREADS threads a row.
#include "round.cuh"

KERNEL quantize(const __grid_constant__ QuantizeParams p) {
    __shared__ float scratch[THREADS / 32];
    start_dependents();
    wait_for_inputs();
    u32 row = blockIdx.x;
    if (row >= row_count(p.step, p.x)) return;
    round_row<THREADS>(f32_row(p.x, row), p.x.cols, byte_row(p.out, row), p.kind, scratch);
}
