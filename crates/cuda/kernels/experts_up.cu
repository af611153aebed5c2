// Second kernel of a fused layer of experts: relu2 of the products up, of the shared expert and of the chosen ones.
//
// Weights of the shared expert are on their way before the inputs are ready (experts_ring.cuh). The largest value of every
// row is found for the next kernel, which rounds.
// Bytes: the weights of each chosen expert once per ROWS rows. FLOPs: 2 per weight and row.
#include "experts_ring.cuh"

// Brings the rows of a tile to shared memory.
DEVICE void load_rows(const ExpertsUpParams& p, const ExpertTile& tile, u32 per_token, Segment& segment, u32 x, u32 stride, u32 bytes) {
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        if (r >= tile.count) break;
        const u8* from = p.x + (u64)(tile.rows[r] / per_token) * p.x_stride;
        for (u32 at = threadIdx.x * 16; at < bytes; at += THREADS * 16) copy_async(x + r * stride + at, from + at);
        if (threadIdx.x == r) segment.places[r] = tile.rows[r], segment.scales[r] = *(const float*)(from + bytes);
    }
    end_copies();
    wait_for_copies<0>();
}

// Adds the slices of an item's rows, and stores them.
DEVICE void finish(const ExpertsUpParams& p, const Segment& segment, const float* sums, u32 col, float factor) {
    u32 thread = threadIdx.x % GROUP_THREADS, out = thread % TILE_ROWS, own = thread / TILE_ROWS;
    bool is_shared = segment.is_shared;
    u32 cols = is_shared ? p.shared_cols : p.routed_cols;
    // Lanes of half a warp have a row's outputs; all warps that have any take part.
    if (own / 2 * 2 >= segment.count) return;
    float value = 0.0f;
    if (own < segment.count && col < cols) {
        value = fmaxf(add_slices(sums, ROWS, own, out) * factor * segment.scales[own], 0.0f);
        value *= value;
    }
    float largest = value;
    for (u32 distance = 8; distance > 0; distance >>= 1) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, distance));
    if (own >= segment.count || col >= cols) return;
    u32 row = segment.places[own];
    (is_shared ? p.shared_out : p.routed_out)[(u64)row * cols + col] = value;
    if (out == 0) atomicMax((is_shared ? p.shared_largest : p.routed_largest) + row, __float_as_uint(largest));
}

KERNEL __launch_bounds__(THREADS, BLOCKS) experts_up(const __grid_constant__ ExpertsUpParams p) {
    extern __shared__ __align__(128) u8 memory[];  // rings of all warps, rows, two sets of sums
    __shared__ u64 barriers[GROUPS * SLICES][MOST_STAGES];
    __shared__ Share share;
    __shared__ Segment segment;
    u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, group = warp / SLICES, slice = warp % SLICES;
    u32 warp_bytes = p.streams.warp_tiles * TILE_BYTES;
    u32 x = shared_address(memory) + GROUPS * SLICES * warp_bytes, group_sums = SLICES * ROWS * SUMS_STRIDE;
    float* sums_at = (float*)(memory + p.streams.sums_at) + group * 2 * group_sums;
    Ring ring;
    ring.begin(p.streams, shared_address(memory) + warp * warp_bytes, barriers[warp]);
    if (threadIdx.x == 0) share.of_shared((p.step->rows + ROWS - 1) / ROWS * p.shared.units);
    __syncthreads();
    Feed feed;
    feed.begin(group);
    feed.fill(p, share, ring, slice);
    wait_for_inputs();
    // Not before: the next kernel reads tiles before its own wait.
    start_dependents();
    __syncthreads();
    if (threadIdx.x == 0) share.and_routed(load_fresh(p.tile_count) * p.routed.units);
    __syncthreads();
    feed.fill(p, share, ring, slice);
    u32 item = group, parity = 0;
    for (u32 start = 0; start < share.count; start = segment.end) {
        ExpertTile tile;
        segment.of(p, share, start, tile);
        bool is_shared = share.is_shared(start);
        u32 col_tiles = is_shared ? p.shared.col_tiles : p.routed.col_tiles, value_bytes = 2 * TILE_COLS * col_tiles;
        load_rows(p, tile, is_shared ? 1 : p.top_k, segment, x, value_bytes + 16, value_bytes);
        __syncthreads();
        // Lanes without a row of their own read the last one; their sums are not stored.
        u32 rows_at = x + min(lane & 7, segment.count - 1) * (value_bytes + 16) + (lane >> 3) * 16;
        for (; item < segment.end; item += GROUPS, parity ^= 1) {
            u32 col = segment.col(item);
            float factor = segment.factors[col];
            float sums[PARTS][4] = {};
            multiply_item(p, share, feed, ring, slice, col_tiles, rows_at, sums);
            // Two sets of sums, so that a warp may go on while others read.
            store_sums(sums_at + parity * group_sums, slice, ROWS, lane, sums);
            barrier_of(group + 1, GROUP_THREADS);
            finish(p, segment, sums_at + parity * group_sums, col, factor);
        }
    }
}
