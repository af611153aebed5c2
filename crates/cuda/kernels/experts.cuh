// What the kernels of a fused layer of experts share (src/kernels/experts/): rows grouped by expert.
//
// A tile of rows is TILE_WORDS words: the expert, the number of rows, and each row's place among the pairs of token and
// chosen expert. The first kernel writes tiles, those of products read them; that of products down before its wait, which
// is allowed because the one before lets it start only when the first has ended.
#pragma once
#include "common.cuh"

#define TILE_WORDS 8

// -DROWS: the most rows of a tile, at most 4.
#ifdef ROWS
struct ExpertTile {
    u32 expert, count;
    u32 rows[4];

    DEVICE void load(const u32* tiles, u32 index) {
        u32 words[8];
        load_fresh4(words, tiles + index * TILE_WORDS);
        if (ROWS > 2) load_fresh4(words + 4, tiles + index * TILE_WORDS + 4);
        expert = words[0], count = words[1];
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) rows[r] = words[2 + r];
    }
    // Tokens from `first` on, of those that there are.
    DEVICE void of_tokens(u32 first, u32 tokens) {
        expert = 0;
        count = first < tokens ? min(tokens - first, (u32)ROWS) : 0;
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) rows[r] = first + r;
    }
    // The place of row r, or of the last one.
    DEVICE u32 row(u32 r) const {
        u32 last = min(r, count - 1);
        if (ROWS == 1 || last == 0) return rows[0];
        if (ROWS == 2 || last == 1) return rows[1];
        return last == 2 ? rows[2] : rows[3];
    }
};
#endif

// Whether this block is the last of so many to come here; `before` is in shared memory. What all wrote before, the last
// one may read by load_fresh().
DEVICE bool is_last_of(u32* count, u32 blocks, u32& before) {
    __syncthreads();
    if (threadIdx.x == 0) before = count_arrival(count);
    __syncthreads();
    return before + 1 == blocks;
}
