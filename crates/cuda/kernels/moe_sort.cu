// moe_matmul, first step for many rows: the (token, expert) pairs sorted by expert, and the tiles of each expert's rows.
//
// One block. Every warp takes a run of consecutive pairs and counts its experts, then the warps' counts are added up in
// the order of the runs, then every warp places its pairs: within an expert, pairs keep their order.
#include "common.cuh"

#define WARPS 32

DEVICE u32 pair_expert(const MoeSortParams& p, u32 pair) {
    return (u32)i32_row(p.ids, pair / p.ids.cols)[pair % p.ids.cols];
}

// Calls `take(pair, expert, rank, same)` for the pairs of a run, 32 at a time, with the pair's rank among those of the
// same expert and how many those are.
template <class Take>
DEVICE void for_run(const MoeSortParams& p, u32 begin, u32 end, u32 lane, Take take) {
    for (u32 first = begin; first < end; first += 32) {
        u32 pair = first + lane;
        u32 expert = pair < end ? pair_expert(p, pair) : p.experts + lane;
        u32 same = __match_any_sync(ALL_LANES, expert);
        take(pair, expert, __popc(same & ((1u << lane) - 1)), __popc(same), pair < end);
        __syncwarp();
    }
}

KERNEL __launch_bounds__(32 * WARPS) moe_sort(const __grid_constant__ MoeSortParams p) {
    extern __shared__ u32 counts[];  // [WARPS][experts], then the first row and the first tile of every expert
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u32* mine = counts + warp * p.experts;
    u32* totals = counts + WARPS * p.experts;
    start_dependents();
    wait_for_inputs();
    u32 pairs = p.step->rows * p.ids.cols;
    u32 run = (pairs + WARPS - 1) / WARPS;
    u32 begin = min(warp * run, pairs), end = min(begin + run, pairs);
    for (u32 expert = lane; expert < p.experts; expert += 32) mine[expert] = 0;
    __syncwarp();
    for_run(p, begin, end, lane, [&](u32, u32 expert, u32 rank, u32 same, bool is_pair) {
        if (is_pair && rank == 0) mine[expert] += same;
    });
    __syncthreads();
    // Counts become what the warps before have; totals the counts of all.
    for (u32 expert = threadIdx.x; expert < p.experts; expert += 32 * WARPS) {
        u32 sum = 0;
        for (u32 w = 0; w < WARPS; w++) {
            u32 count = counts[w * p.experts + expert];
            counts[w * p.experts + expert] = sum;
            sum += count;
        }
        totals[expert] = sum;
    }
    __syncthreads();
    if (warp == 0) {
        u32 rows = 0, tiles = 0;
        for (u32 first = 0; first < p.experts; first += 32) {
            u32 expert = first + lane, count = expert < p.experts ? totals[expert] : 0;
            u32 needed = (count + p.tile_rows - 1) / p.tile_rows;
            u32 row_end = count, tile_end = needed;
            for (u32 distance = 1; distance < 32; distance *= 2) {
                u32 more_rows = __shfl_up_sync(ALL_LANES, row_end, distance);
                u32 more_tiles = __shfl_up_sync(ALL_LANES, tile_end, distance);
                if (lane >= distance) {
                    row_end += more_rows;
                    tile_end += more_tiles;
                }
            }
            u32 row = rows + row_end - count, tile = tiles + tile_end - needed;
            if (expert < p.experts) totals[expert] = row;
            for (u32 i = 0; i < needed; i++)
                p.row_tiles[tile + i] = {expert, row + i * p.tile_rows, min(count - i * p.tile_rows, p.tile_rows), 0};
            rows += __shfl_sync(ALL_LANES, row_end, 31);
            tiles += __shfl_sync(ALL_LANES, tile_end, 31);
        }
        if (lane == 0) *p.row_tile_count = tiles;
    }
    __syncthreads();
    for_run(p, begin, end, lane, [&](u32 pair, u32 expert, u32 rank, u32 same, bool is_pair) {
        u32 before = is_pair ? mine[expert] : 0;
        __syncwarp();
        if (is_pair) {
            p.order[totals[expert] + before + rank] = pair;
            if (rank == 0) mine[expert] = before + same;
        }
    });
}
