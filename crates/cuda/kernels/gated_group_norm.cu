// gated_group_norm: v = y · SiLU(z), then rms_norm of each group of channels, times a weight.
//
// A block normalises a row. 12 bytes read and 4 (and 2, where it is rounded too) written per channel.
#include "ssm.cuh"

extern __shared__ float kept_values[];

KERNEL __launch_bounds__(NORM_BLOCK) gated_group_norm(const __grid_constant__ GatedGroupNormParams p) {
    __shared__ float scratch[NORM_BLOCK / 32];
    start_dependents();
    wait_for_inputs();
    u32 row = blockIdx.x;
    if (row >= row_count(p.step, p.out)) return;
    gate_and_normalize(f32_row(p.y, row), f32_row(p.z, row), p.weight, f32_row(p.out, row), byte_row(p.rounded, row),
                       p.rounded_kind, p.out.cols, p.groups, p.eps, kept_values, scratch);
}
