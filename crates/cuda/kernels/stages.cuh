// A warp's ring of weights in shared memory, several copies of which may be under way.
#pragma once
#include "chain.cuh"

#define MOST_STAGES 8

// A warp's stages of weights, used one after the other. Their number and size are kernel parameters, which take no
// registers.
struct Ring {
    u32 at, barriers;
    // Stages that nothing is copied to, where the next copy goes, and what is read next.
    u32 free, next, stage, parity;

    DEVICE void begin(const Streams& streams, u32 ring_at, const u64* barriers_at) {
        at = ring_at, barriers = shared_address(barriers_at), free = streams.stages;
        next = stage = parity = 0;
        if (threadIdx.x % 32 < streams.stages) barrier_init(barriers + 8 * (threadIdx.x % 32), COPY_ARRIVALS);
        barrier_init_fence();
        __syncwarp();
    }
    DEVICE void copy(const Streams& streams, const u8* from, u32 bytes) {
        warp_copy(at + next * (streams.stage_tiles * TILE_BYTES), from, bytes, barriers + 8 * next, threadIdx.x % 32);
        free--;
        if (++next == streams.stages) next = 0;
    }
    // Waits for the oldest copy; where it is.
    DEVICE u32 wait(const Streams& streams) const {
        barrier_wait(barriers + 8 * stage, parity);
        return at + stage * (streams.stage_tiles * TILE_BYTES);
    }
    // Gives the oldest stage back, which all lanes have read.
    DEVICE void advance(const Streams& streams) {
        __syncwarp();
        free++;
        if (++stage == streams.stages) stage = 0, parity ^= 1;
    }
};
