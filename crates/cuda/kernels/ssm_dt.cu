// ssm_dt: y = softplus(dt + bias). A thread computes one value.
#include "ssm.cuh"

KERNEL ssm_dt(const __grid_constant__ SsmDtParams p) {
    start_dependents();
    wait_for_inputs();
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    u32 row = at / p.out.cols, head = at % p.out.cols;
    if (row >= row_count(p.step, p.out)) return;
    f32_row(p.out, row)[head] = softplus(__fadd_rn(f32_row(p.dt, row)[head], p.bias[head]));
}
