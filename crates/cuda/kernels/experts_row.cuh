// What the products of a fused layer of experts share where there is one row: every block chooses the experts by itself,
// and has the whole slices of its warps under way at once, or nearly so.
#pragma once
#include "experts.cuh"
#include "moe_choice.cuh"
#include "stages.cuh"

#if __CUDA_ARCH__ >= 900
#define BLOCKS 2
#else
#define BLOCKS 1
#endif

// Chooses by logits of a kernel that has ended, by one warp; what the weights are divided by.
DEVICE float choose(const float* logits, const float (&bias)[SLOTS], Choice& choice) {
    u32 lane = threadIdx.x % 32;
    float score[SLOTS];
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        u32 expert = lane + 32 * i;
        score[i] = __uint_as_float(expert < EXPERTS ? load_fresh(logits + expert) : 0xff800000u);
    }
    return choose_experts(score, bias, choice, lane);
}

// A slice of the columns of a unit, whose weights a warp streams.
struct Slice {
    // Tiles of columns before it and where it ends, and what is to be copied next.
    u32 first, end, next;
    bool has_unit;

    DEVICE Slice(const ExpertWeights& weights, u32 slice, bool has_unit) : has_unit(has_unit) {
        first = next = slice_start(slice, weights.col_tiles);
        end = has_unit ? slice_start(slice + 1, weights.col_tiles) : first;
    }
    // Starts copies of a unit, counted over all experts, all of which has room.
    DEVICE void start(const Streams& streams, Ring& ring, const ExpertWeights& weights, u32 unit) {
        const u8* tiles = weights.tiles + (u64)unit * weights.col_tiles * TILE_BYTES;
        for (; next < end; next += streams.stage_tiles)
            ring.copy(streams, tiles + next * TILE_BYTES, min(end - next, streams.stage_tiles) * TILE_BYTES);
    }
    // Adds up the products with the row at x, of which lanes name their part.
    DEVICE void multiply(const Streams& streams, Ring& ring, u32 x, u32 part_bytes, float (&sums)[PARTS][4]) const {
        for (u32 tile = first; tile < end; tile += streams.stage_tiles) {
            multiply_tiles(ring.wait(streams), min(end - tile, streams.stage_tiles), threadIdx.x % 32, x + tile * (2 * TILE_COLS), part_bytes, sums);
            ring.advance(streams);
        }
    }
};
