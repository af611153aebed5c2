// How blocks of a fused layer of experts multiply. An item is a unit of 16 outputs of an expert times a tile of rows.
// Every block has an even share of all items, of which its groups of four warps take turns; a warp streams the weights of
// its slice, item after item, through a ring in shared memory.
//
// Items of the shared expert come first, since they are known before the rows are.
#pragma once
#include "experts.cuh"
#include "stages.cuh"

// -DGROUPS of four warps, of which a multiprocessor runs two blocks where registers allow it.
#define GROUP_THREADS (SLICES * 32)
#define THREADS (GROUPS * GROUP_THREADS)
#if __CUDA_ARCH__ >= 900
#define BLOCKS 2
#else
#define BLOCKS 1
#endif
DEVICE u32 share_start(u32 items, u32 block) {
    return items * block / gridDim.x;
}

// The items of a block, numbered from 0.
struct Share {
    u32 shared_first, shared_count, routed_first, count;

    DEVICE void of_shared(u32 items) {
        shared_first = share_start(items, blockIdx.x);
        count = shared_count = share_start(items, blockIdx.x + 1) - shared_first;
    }
    DEVICE void and_routed(u32 items) {
        routed_first = share_start(items, blockIdx.x);
        count = shared_count + share_start(items, blockIdx.x + 1) - routed_first;
    }
    DEVICE bool is_shared(u32 item) const {
        return item < shared_count;
    }
    // An item's number among all of the shared expert, or of the chosen ones.
    DEVICE u32 index(u32 item) const {
        return is_shared(item) ? shared_first + item : routed_first + item - shared_count;
    }
};

#define UNKNOWN 0xffffffffu

// The weights of a warp's slice in the order in which it needs them.
struct Feed {
    // The next item, its unit and tile of rows and the tile's expert, as far as they are known.
    u32 item, unit, tile, expert;
    // What is left of the slice, and where that is.
    u32 left;
    const u8* from;

    DEVICE void begin(u32 group) {
        item = group, unit = UNKNOWN, left = 0;
    }
    // Finds the slice of the next item that has any.
    template <class Params>
    DEVICE bool find(const Params& p, const Share& share, u32 slice) {
        while (left == 0) {
            if (item >= share.count) return false;
            bool is_shared = share.is_shared(item), is_first_routed = !is_shared && item - share.shared_count < GROUPS;
            u32 units = is_shared ? p.shared.units : p.routed.units, col_tiles = is_shared ? p.shared.col_tiles : p.routed.col_tiles;
            if (unit == UNKNOWN || is_first_routed) {
                u32 index = share.index(item);
                tile = index / units, unit = index % units, expert = is_shared ? 0 : UNKNOWN;
            }
            if (expert == UNKNOWN) expert = load_fresh(p.tiles + tile * TILE_WORDS);
            u32 first = slice_start(slice, col_tiles);
            left = slice_start(slice + 1, col_tiles) - first;
            from = (is_shared ? p.shared.tiles : p.routed.tiles) + ((u64)(expert * units + unit) * col_tiles + first) * TILE_BYTES;
            item += GROUPS;
            for (unit += GROUPS; unit >= units; unit -= units) tile++, expert = is_shared ? 0 : UNKNOWN;
        }
        return true;
    }
    // Starts copies to all stages that are free.
    template <class Params>
    DEVICE void fill(const Params& p, const Share& share, Ring& ring, u32 slice) {
        while (ring.free > 0 && find(p, share, slice)) {
            u32 count = min(left, p.streams.stage_tiles);
            ring.copy(p.streams, from, count * TILE_BYTES);
            from += count * TILE_BYTES;
            left -= count;
        }
    }
};

// Consecutive items of a block that have a tile of rows in common: what all of them need, in shared memory, where it takes
// no registers.
struct Segment {
    bool is_shared;
    // Its unit of its first item, and the items where it starts and ends.
    u32 unit, start, end, count;
    u32 places[ROWS];
    float scales[ROWS];
    const float* factors;

    // All threads find the tile of the segment that starts at an item; the first one keeps the rest.
    template <class Params>
    DEVICE void of(const Params& p, const Share& share, u32 first_item, ExpertTile& tile) {
        bool of_shared = share.is_shared(first_item);
        u32 units = of_shared ? p.shared.units : p.routed.units, index = share.index(first_item);
        if (of_shared) tile.of_tokens(index / units * ROWS, p.step->rows);
        else tile.load(p.tiles, index / units);
        // All groups are done with the rows before.
        __syncthreads();
        if (threadIdx.x != 0) return;
        is_shared = of_shared, unit = index % units, start = first_item, count = tile.count;
        end = start + min(units - unit, (of_shared ? share.shared_count : share.count) - start);
        factors = of_shared ? p.shared.factors : p.routed.factors + (u64)tile.expert * units * TILE_ROWS;
    }
    // The column of this thread's output of an item.
    DEVICE u32 col(u32 item) const {
        return (unit + item - start) * TILE_ROWS + threadIdx.x % TILE_ROWS;
    }
};

// The products of an item with the rows at x, of which lanes name their own.
template <class Params>
DEVICE void multiply_item(const Params& p, const Share& share, Feed& feed, Ring& ring, u32 slice, u32 col_tiles, u32 x, float (&sums)[PARTS][4]) {
    u32 first = slice_start(slice, col_tiles), end = slice_start(slice + 1, col_tiles);
#pragma unroll 1
    for (u32 tile = first; tile < end; tile += p.streams.stage_tiles) {
        multiply_tiles(ring.wait(p.streams), min(end - tile, p.streams.stage_tiles), threadIdx.x % 32, x + tile * (2 * TILE_COLS), 2 * TILE_COLS * col_tiles, sums);
        ring.advance(p.streams);
        feed.fill(p, share, ring, slice);
    }
}
