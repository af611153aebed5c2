// moe_matmul, first step for many rows: the (token, expert) pairs by expert, and the tiles of each expert's rows.
//
// One block counts the pairs of every expert, gives experts their places one after the other, then places the pairs.
// Within an expert pairs come in any order: every product depends on its own pair alone.
#include "common.cuh"

#define THREADS 1024

DEVICE u32 pair_expert(const MoeSortParams& p, u32 pair) {
    return (u32)i32_row(p.ids, pair / p.ids.cols)[pair % p.ids.cols];
}

// Sums over the lanes up to and with this one.
DEVICE u32 scan(u32 value, u32 lane) {
    for (u32 distance = 1; distance < 32; distance *= 2) {
        u32 before = __shfl_up_sync(ALL_LANES, value, distance);
        if (lane >= distance) value += before;
    }
    return value;
}

KERNEL __launch_bounds__(THREADS) moe_sort(const __grid_constant__ MoeSortParams p) {
    extern __shared__ u32 places[];  // of every expert: its pairs, then where the next one goes
    u32 lane = threadIdx.x & 31;
    start_dependents();
    wait_for_inputs();
    u32 pairs = p.step->rows * p.ids.cols;
    for (u32 expert = threadIdx.x; expert < p.experts; expert += THREADS) places[expert] = 0;
    __syncthreads();
#pragma unroll 4
    for (u32 pair = threadIdx.x; pair < pairs; pair += THREADS) atomicAdd(&places[pair_expert(p, pair)], 1u);
    __syncthreads();
    if (threadIdx.x < 32) {
        u32 rows = 0, tiles = 0;
        for (u32 first = 0; first < p.experts; first += 32) {
            u32 expert = first + lane, count = expert < p.experts ? places[expert] : 0;
            u32 needed = (count + p.tile_rows - 1) / p.tile_rows;
            u32 row_end = rows + scan(count, lane), tile_end = tiles + scan(needed, lane);
            u32 row = row_end - count, tile = tile_end - needed;
            if (expert < p.experts) places[expert] = row;
            // As few tiles as hold the rows, of about as many each: products compute multiples of 16.
            u32 size = needed == 0 ? 0 : min(((count + needed - 1) / needed + 15) & ~15u, p.tile_rows);
            for (u32 i = 0; i < needed; i++) {
                u32 before = i * size;
                p.row_tiles[tile + i] = {expert, row + before, min(count - before, size), 0};
            }
            rows = __shfl_sync(ALL_LANES, row_end, 31);
            tiles = __shfl_sync(ALL_LANES, tile_end, 31);
        }
        if (lane == 0) *p.row_tile_count = tiles;
    }
    __syncthreads();
#pragma unroll 4
    for (u32 pair = threadIdx.x; pair < pairs; pair += THREADS)
        p.order[atomicAdd(&places[pair_expert(p, pair)], 1u)] = pair;
}
