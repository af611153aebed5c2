// moe_matmul, second step for many rows on Hopper: the rows of activations in the order of their experts, so that the
// hardware can copy the rows of a tile as a box.
//
// A warp copies a row, 16 bytes a lane.
// Bytes: a row read, mostly from L2, and written.
#include "common.cuh"

#define WARPS 8
#define FLIGHT 4

KERNEL __launch_bounds__(WARPS * 32) moe_gather(const __grid_constant__ MoeGatherParams p) {
    start_dependents();
    u32 lane = threadIdx.x & 31, place = blockIdx.x * WARPS + threadIdx.x / 32;
    wait_for_inputs();
    if (place >= row_count(p.step, p.to)) return;
    const u8* from = byte_row(p.from, p.from.times == p.to.times ? p.order[place] : p.order[place] / p.to.times);
    u8* to = byte_row(p.to, place);
    for (u32 at = lane * 16; at < p.from.stride; at += FLIGHT * 512) {
        uint4 words[FLIGHT];
#pragma unroll
        for (int i = 0; i < FLIGHT; i++)
            if (at + i * 512 < p.from.stride) words[i] = *(const uint4*)(from + at + i * 512);
#pragma unroll
        for (int i = 0; i < FLIGHT; i++)
            if (at + i * 512 < p.from.stride) *(uint4*)(to + at + i * 512) = words[i];
    }
}
