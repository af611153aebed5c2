// Third kernel of a fused layer of experts: the products down of the shared expert and of the chosen ones, which
// experts_sum adds up.
//
// Weights are on their way before the inputs are ready (experts_ring.cuh). Rows are rounded as they are brought to shared
// memory.
// Bytes: the weights of each chosen expert once per ROWS rows. FLOPs: 2 per weight and row.
#include "experts_ring.cuh"
#include "experts_round.cuh"

// Adds the slices of an item's rows, and stores them.
DEVICE void finish(const ExpertsDownParams& p, const Segment& segment, const float* sums, u32 col, float factor) {
    u32 thread = threadIdx.x % GROUP_THREADS, out = thread % TILE_ROWS, own = thread / TILE_ROWS;
    if (own >= segment.count || col >= p.out.cols) return;
    float value = add_slices(sums, ROWS, own, out) * factor * segment.scales[own];
    (segment.is_shared ? p.shared_out : p.routed_out)[(u64)segment.places[own] * p.out.cols + col] = value;
}

KERNEL __launch_bounds__(THREADS, BLOCKS) experts_down(const __grid_constant__ ExpertsDownParams p) {
    extern __shared__ __align__(128) u8 memory[];  // rings of all warps, rows, two sets of sums
    __shared__ u64 barriers[GROUPS * SLICES][MOST_STAGES];
    __shared__ Share share;
    __shared__ Segment segment;
    u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, group = warp / SLICES, slice = warp % SLICES;
    u32 warp_bytes = p.streams.warp_tiles * TILE_BYTES;
    u32 x_at = GROUPS * SLICES * warp_bytes, group_sums = SLICES * ROWS * SUMS_STRIDE;
    float* sums_at = (float*)(memory + p.streams.sums_at) + group * 2 * group_sums;
    Ring ring;
    ring.begin(p.streams, shared_address(memory) + warp * warp_bytes, barriers[warp]);
    start_dependents();
    // Which experts were chosen is known already (experts.cuh).
    if (threadIdx.x == 0) {
        share.of_shared((p.step->rows + ROWS - 1) / ROWS * p.shared.units);
        share.and_routed(load_fresh(p.tile_count) * p.routed.units);
    }
    __syncthreads();
    Feed feed;
    feed.begin(group);
    feed.fill(p, share, ring, slice);
    wait_for_inputs();
    u32 item = group, parity = 0;
    for (u32 start = 0; start < share.count; start = segment.end) {
        ExpertTile tile;
        segment.of(p, share, start, tile);
        bool is_shared = share.is_shared(start);
        const float* from = is_shared ? p.shared_x : p.routed_x;
        const u32* largest = is_shared ? p.shared_largest : p.routed_largest;
        u32 col_tiles = is_shared ? p.shared.col_tiles : p.routed.col_tiles, stride = 2 * TILE_COLS * col_tiles + 16;
#pragma unroll
        for (u32 r = 0; r < ROWS; r++)
            if (threadIdx.x == r && r < tile.count)
                segment.places[r] = tile.rows[r], segment.scales[r] = f16_scale(__uint_as_float(load_fresh(largest + tile.rows[r])));
        round_rows<ROWS, THREADS>(memory + x_at, stride, from, largest, tile.rows, tile.count, is_shared ? p.shared_cols : p.routed_cols, col_tiles);
        __syncthreads();
        // Lanes without a row of their own read the last one; their sums are not stored.
        u32 rows_at = shared_address(memory) + x_at + min(lane & 7, segment.count - 1) * stride + (lane >> 3) * 16;
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
