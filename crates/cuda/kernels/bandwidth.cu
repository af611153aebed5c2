// Reads memory in a plain loop: what any kernel that streams weights can reach at best.
#include "common.cuh"

KERNEL bandwidth(const __grid_constant__ BandwidthParams p) {
    u32 sum[4] = {};
    u64 stride = (u64)gridDim.x * blockDim.x;
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (; at + 3 * stride < p.vectors; at += 4 * stride) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 words[4];
            load_streamed4(words, p.data + 16 * (at + i * stride));
#pragma unroll
            for (int j = 0; j < 4; j++) sum[j] ^= words[j];
        }
    }
    // Never so, but the compiler cannot know that the loads are for nothing.
    if ((sum[0] ^ sum[1] ^ sum[2] ^ sum[3]) == 0x9e3779b9u) *p.never = sum[0];
}
