// What the three kernels of a fused layer of experts share (src/kernels/experts/): rows grouped by expert.
//
// A tile of rows is TILE_WORDS words: the expert, the number of rows, and each row's place among the pairs of token and
// chosen expert. The first kernel writes tiles, the others read them; the last one before its wait, which is allowed
// because the second lets it start only when the first has ended.
#pragma once
#include "common.cuh"

#define TILE_WORDS 8
// The most rows of a tile.
#define MOST_ROWS 4

struct ExpertTile {
    u32 words[TILE_WORDS];

    DEVICE void load(const u32* tiles, u32 index) {
        load_fresh4(words, tiles + index * TILE_WORDS);
        load_fresh4(words + 4, tiles + index * TILE_WORDS + 4);
    }
    DEVICE u32 expert() const { return words[0]; }
    DEVICE u32 count() const { return words[1]; }
};

// Whether this block is the last of so many to come here; `before` is in shared memory. What all wrote before, the last
// one may read by load_fresh().
DEVICE bool is_last_of(u32* count, u32 blocks, u32& before) {
    __syncthreads();
    if (threadIdx.x == 0) before = count_arrival(count);
    __syncthreads();
    return before + 1 == blocks;
}
