// Reads memory in a plain loop: what any kernel that streams weights can reach at best.
#include "common.cuh"

KERNEL bandwidth(const __grid_constant__ BandwidthParams p) {
    uint4 sum = make_uint4(0, 0, 0, 0);
    u64 stride = (u64)gridDim.x * blockDim.x;
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (; at + 3 * stride < p.vectors; at += 4 * stride) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint4 words = load_streamed(p.data + 16 * (at + i * stride));
            sum.x ^= words.x;
            sum.y ^= words.y;
            sum.z ^= words.z;
            sum.w ^= words.w;
        }
    }
    // Never so, but the compiler cannot know that the loads are for nothing.
    if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x9e3779b9u) *p.never = sum.x;
}
