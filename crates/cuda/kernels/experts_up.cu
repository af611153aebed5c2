// Second kernel of a fused layer of experts: relu2 of the products up, of the shared expert and of the chosen ones.
//
// A block has UNITS units of 16 outputs of one expert and up to four rows; four warps share a unit, a slice of the columns
// each, whose weights come by one copy. Those of the shared expert are on their way before the inputs are ready. The
// largest value of every row is found for the next kernel, which rounds.
// Bytes: the weights of each chosen expert once per four rows. FLOPs: 2 per weight and row.
#include "chain.cuh"
#include "experts.cuh"

#define UNITS 2
#define THREADS (UNITS * SLICES * 32)

// Brings a row to shared memory.
DEVICE void copy_row(u32 to, const u8* from, u32 bytes) {
    for (u32 at = threadIdx.x * 16; at < bytes; at += THREADS * 16) copy_async(to + at, from + at);
}

KERNEL __launch_bounds__(THREADS, 4) experts_up(const __grid_constant__ ExpertsUpParams p) {
    extern __shared__ __align__(128) u8 memory[];  // weights of all warps, rows
    __shared__ u64 barriers[UNITS * SLICES];
    __shared__ float sums_of[UNITS][SLICES * MOST_ROWS * SUMS_STRIDE];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, group = warp / SLICES, slice = warp % SLICES;
    bool is_shared = blockIdx.x < p.shared_blocks * p.shared_tiles;
    ExpertWeights weights = is_shared ? p.shared : p.routed;
    u32 blocks = is_shared ? p.shared_blocks : p.routed_blocks;
    u32 index = is_shared ? blockIdx.x : blockIdx.x - p.shared_blocks * p.shared_tiles;
    u32 tile_index = index / blocks, unit = index % blocks * UNITS + group;
    u32 value_bytes = 2 * TILE_COLS * weights.col_tiles, stride = value_bytes + 16;
    Chain chain;
    chain.at = shared_address(memory) + warp * p.chain_bytes, chain.barrier = shared_address(&barriers[warp]), chain.lane = lane;
    chain.of_slice(slice, weights.col_tiles, unit < weights.units);
    u64 unit_bytes = (u64)weights.col_tiles * TILE_BYTES;
    if (lane == 0) barrier_init(chain.barrier, COPY_ARRIVALS);
    barrier_init_fence();
    __syncwarp();
    if (is_shared) chain.start(weights.tiles + unit * unit_bytes);
    wait_for_inputs();
    // Not before: the next kernel reads tiles before its own wait.
    start_dependents();
    ExpertTile tile;
    if (is_shared) {
        u32 first = tile_index * p.tile_rows, rows = p.step->rows;
        if (first >= rows) {
            // Copies must have ended before the block does.
            chain.wait();
            return;
        }
        tile.words[0] = 0;
        tile.words[1] = min(rows - first, p.tile_rows);
#pragma unroll
        for (u32 r = 0; r < MOST_ROWS; r++) tile.words[2 + r] = first + r;
    } else {
        tile.load(p.tiles, tile_index);
        if (tile_index >= load_fresh(p.tile_count)) return;
        chain.start(weights.tiles + ((u64)tile.expert() * weights.units + unit) * unit_bytes);
    }
    u32 x = shared_address(memory) + UNITS * SLICES * p.chain_bytes;
    float scales[MOST_ROWS];
#pragma unroll
    for (u32 r = 0; r < MOST_ROWS; r++) {
        if (r >= tile.count()) break;
        const u8* from = p.x + (u64)(is_shared ? tile.words[2 + r] : tile.words[2 + r] / p.top_k) * p.x_stride;
        copy_row(x + r * stride, from, value_bytes);
        scales[r] = *(const float*)(from + value_bytes);
    }
    end_copies();
    u32 thread = threadIdx.x % (SLICES * 32), out = thread % TILE_ROWS, own = thread / TILE_ROWS;
    float factor = unit < weights.units ? weights.factors[((u64)tile.expert() * weights.units + unit) * TILE_ROWS + out] : 0.0f;
    wait_for_copies<0>();
    __syncthreads();
    // Lanes without a row of their own read the last one; their sums are not stored.
    u32 rows_at = x + min(lane & 7, tile.count() - 1) * stride + (lane >> 3) * 16;
    float sums[PARTS][4] = {};
    chain.wait();
    chain.multiply(rows_at, value_bytes, sums);
    store_sums(sums_of[group], slice, p.tile_rows, lane, sums);
    unit_barrier(group);
    u32 col = unit * TILE_ROWS + out, cols = is_shared ? p.shared_cols : p.routed_cols;
    // Lanes of half a warp have a row's outputs; all warps that have any take part.
    if (own / 2 * 2 >= tile.count()) return;
    float value = 0.0f;
    if (own < tile.count() && col < cols) {
        float scale = own == 0 ? scales[0] : own == 1 ? scales[1] : own == 2 ? scales[2] : scales[3];
        value = fmaxf(add_slices(sums_of[group], p.tile_rows, own, out) * factor * scale, 0.0f);
        value *= value;
    }
    float largest = value;
    for (u32 distance = 8; distance > 0; distance >>= 1) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, distance));
    if (own >= tile.count() || col >= cols) return;
    u32 row = own == 0 ? tile.words[2] : own == 1 ? tile.words[3] : own == 2 ? tile.words[4] : tile.words[5];
    (is_shared ? p.shared_out : p.routed_out)[(u64)row * cols + col] = value;
    if (out == 0) atomicMax((is_shared ? p.shared_largest : p.routed_largest) + row, __float_as_uint(largest));
}
