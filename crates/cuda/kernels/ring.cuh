// Copies by a warp that end a phase of a barrier in shared memory: bulk copies, or 16-byte copies where there are none.
#pragma once
#include "common.cuh"

// Arrivals that a copy by a warp makes.
#if __CUDA_ARCH__ >= 900
#define COPY_ARRIVALS 1
#else
#define COPY_ARRIVALS 32
#endif

// Copies bytes (a multiple of 16) by a warp. The barrier, of COPY_ARRIVALS, changes its phase when they have arrived.
DEVICE void warp_copy(u32 to, const u8* from, u32 bytes, u32 barrier, u32 lane) {
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
        barrier_expect(barrier, bytes);
        copy_bulk(to, from, bytes, barrier);
    }
#else
    for (u32 at = lane * 16; at < bytes; at += 512) copy_async(to + at, from + at);
    barrier_arrive_after_copies(barrier);
#endif
}
