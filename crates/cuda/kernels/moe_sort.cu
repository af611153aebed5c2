// moe_matmul, first step for many rows: the (token, expert) pairs by expert, and the tiles of each expert's rows.
//
// One block counts the pairs of every expert, gives experts their places one after the other, then places the pairs.
// Counting says what number a pair has within its expert; threads keep that of their first pairs, so that they are read
// and counted once, many at a time. Within an expert pairs come in any order: every product depends on its own pair alone.
#include "common.cuh"

#define THREADS 1024
// Pairs that a thread keeps, and of these so many are read at a time.
#define KEPT 24
#define READ 8

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

// Gives experts their places, and lists their tiles; by a warp. `places` has the pairs of every expert.
DEVICE void place_experts(const MoeSortParams& p, u32* places, u32 lane) {
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

KERNEL __launch_bounds__(THREADS) moe_sort(const __grid_constant__ MoeSortParams p) {
    extern __shared__ u32 places[];  // of every expert: its pairs, then where its first goes, then where the next goes
    u32 lane = threadIdx.x & 31;
    start_dependents();
    wait_for_inputs();
    u32 pairs = p.step->rows * p.ids.cols;
    for (u32 expert = threadIdx.x; expert < p.experts; expert += THREADS) places[expert] = 0;
    __syncthreads();
    u32 kept[KEPT];  // an expert, and a number among its pairs above 16 bits
#pragma unroll
    for (int i = 0; i < KEPT; i += READ) {
        if (i * THREADS >= pairs) break;
        u32 experts[READ];
#pragma unroll
        for (int j = 0; j < READ; j++) {
            u32 pair = (i + j) * THREADS + threadIdx.x;
            experts[j] = pair < pairs ? pair_expert(p, pair) : 0;
        }
#pragma unroll
        for (int j = 0; j < READ; j++)
            if ((i + j) * THREADS + threadIdx.x < pairs) kept[i + j] = experts[j] | atomicAdd(&places[experts[j]], 1u) << 16;
    }
    // Pairs beyond those are numbered when they are placed, after the others.
    __syncthreads();
    u32 beyond = KEPT * THREADS;
    // How many of an expert's pairs are kept, above the experts' places.
    u32* before = places + p.experts;
    for (u32 expert = threadIdx.x; expert < p.experts; expert += THREADS) before[expert] = places[expert];
    __syncthreads();
    for (u32 pair = beyond + threadIdx.x; pair < pairs; pair += THREADS) atomicAdd(&places[pair_expert(p, pair)], 1u);
    __syncthreads();
    if (threadIdx.x < 32) place_experts(p, places, lane);
    __syncthreads();
    // Sorted in shared memory where they fit, so that writes to global memory are coalesced.
    bool has_room = pairs <= p.room;
    u32* order = has_room ? before + p.experts : p.order;
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        u32 pair = i * THREADS + threadIdx.x;
        if (pair < pairs) order[places[kept[i] & 0xffffu] + (kept[i] >> 16)] = pair;
    }
    for (u32 pair = beyond + threadIdx.x; pair < pairs; pair += THREADS) {
        u32 expert = pair_expert(p, pair);
        order[places[expert] + atomicAdd(&before[expert], 1u)] = pair;
    }
    if (!has_room) return;
    __syncthreads();
    for (u32 i = threadIdx.x; i < pairs; i += THREADS) p.order[i] = order[i];
}
