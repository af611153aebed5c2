// Second kernel of a fused layer of experts for one row: relu2 of the products up, of the shared expert and of the chosen ones.
//
// A block has UNITS units of 16 outputs of one expert and up to four rows; four warps share a unit, a slice of the columns
// each, whose weights come by one copy. Those of the shared expert are on their way before the inputs are ready. The
// largest value of every row is found for the next kernel, which rounds.
// Bytes: the weights of each chosen expert once per four rows. FLOPs: 2 per weight and row.
#include "chain.cuh"
#include "experts.cuh"

// Blocks that a multiprocessor is to run at once.
#define BLOCKS (__CUDA_ARCH__ >= 900 ? 4 : 3)

#define UNITS 2
#define THREADS (UNITS * SLICES * 32)

// Starts to bring the rows of a tile to shared memory.
DEVICE void load_rows(const ExpertsUpParams& p, const ExpertTile& tile, u32 per_token, u32 x, u32 stride, u32 bytes) {
    for (u32 r = 0; r < tile.count; r++) {
        const u8* from = p.x + (u64)(tile.row(r) / per_token) * p.x_stride;
#pragma unroll 2
        for (u32 at = threadIdx.x * 16; at < bytes; at += THREADS * 16) copy_async(x + r * stride + at, from + at);
    }
    end_copies();
}

// Adds the slices of a tile's rows, and stores them.
DEVICE void finish(const ExpertsUpParams& p, const ExpertTile& tile, const float* sums, bool is_shared, u32 unit, float factor, float scale) {
    u32 thread = threadIdx.x % (SLICES * 32), out = thread % TILE_ROWS, own = thread / TILE_ROWS;
    u32 col = unit * TILE_ROWS + out, cols = is_shared ? p.shared_cols : p.routed_cols;
    // Lanes of half a warp have a row's outputs; all warps that have any take part.
    if (own / 2 * 2 >= tile.count) return;
    float value = 0.0f;
    if (own < tile.count && col < cols) {
        value = fmaxf(add_slices(sums, ROWS, own, out) * factor * scale, 0.0f);
        value *= value;
    }
    float largest = value;
    for (u32 distance = 8; distance > 0; distance >>= 1) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, distance));
    if (own >= tile.count || col >= cols) return;
    u32 row = tile.row(own);
    (is_shared ? p.shared_out : p.routed_out)[(u64)row * cols + col] = value;
    if (out == 0) atomicMax((is_shared ? p.shared_largest : p.routed_largest) + row, __float_as_uint(largest));
}

KERNEL __launch_bounds__(THREADS, BLOCKS) experts_up_row(const __grid_constant__ ExpertsUpParams p) {
    extern __shared__ __align__(128) u8 memory[];  // weights of all units, rows, sums
    __shared__ u64 barriers[UNITS * SLICES];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, group = warp / SLICES, slice = warp % SLICES;
    bool is_shared = blockIdx.x < p.shared_blocks * p.shared_tiles;
    ExpertWeights weights = is_shared ? p.shared : p.routed;
    u32 blocks = is_shared ? p.shared_blocks : p.routed_blocks;
    u32 index = is_shared ? blockIdx.x : blockIdx.x - p.shared_blocks * p.shared_tiles;
    u32 tile_index = index / blocks, unit = index % blocks * UNITS + group;
    u32 value_bytes = 2 * TILE_COLS * weights.col_tiles, stride = value_bytes + 16, unit_bytes = weights.col_tiles * TILE_BYTES;
    Chain chain;
    chain.of_slice(slice, weights.col_tiles, unit < weights.units);
    chain.at = shared_address(memory) + group * unit_bytes + chain.first * TILE_BYTES;
    chain.barrier = shared_address(&barriers[warp]), chain.lane = lane, chain.parity = 0;
    u32 x_at = UNITS * unit_bytes;
    float* sums_at = (float*)(memory + x_at + ROWS * stride) + group * SLICES * ROWS * SUMS_STRIDE;
    if (lane == 0) barrier_init(chain.barrier, COPY_ARRIVALS);
    barrier_init_fence();
    __syncwarp();
    if (is_shared) chain.start(weights.tiles + (u64)unit * unit_bytes);
    wait_for_inputs();
    // Not before: the next kernel reads tiles before its own wait.
    start_dependents();
    ExpertTile tile;
    u32 tile_count = p.shared_tiles;
    if (is_shared) {
        tile.of_tokens(tile_index * ROWS, p.step->rows);
        if (tile.count == 0) {
            // Copies must have ended before the block does.
            chain.wait();
            return;
        }
    } else {
        tile.load(p.tiles, tile_index);
        tile_count = load_fresh(p.tile_count);
        if (tile_index >= tile_count) return;
        chain.start(weights.tiles + ((u64)tile.expert * weights.units + unit) * unit_bytes);
    }
    // Of many tiles of rows a block has several, one after the other.
    for (;;) {
        u64 place = (u64)tile.expert * weights.units + unit;
        u32 per_token = is_shared ? 1 : p.top_k;
        load_rows(p, tile, per_token, shared_address(memory) + x_at, stride, value_bytes);
        // Those of this thread's output and row.
        float factor = unit < weights.units ? weights.factors[place * TILE_ROWS + threadIdx.x % TILE_ROWS] : 0.0f;
        float scale = *(const float*)(p.x + (u64)(tile.row(threadIdx.x % (SLICES * 32) / TILE_ROWS) / per_token) * p.x_stride + value_bytes);
        wait_for_copies<0>();
        __syncthreads();
        // Lanes without a row of their own read the last one; their sums are not stored.
        u32 rows_at = shared_address(memory) + x_at + min(lane & 7, tile.count - 1) * stride + (lane >> 3) * 16;
        float sums[PARTS][4] = {};
        chain.wait();
        chain.multiply(rows_at, value_bytes, sums);
        // The next weights are on their way while these sums are stored.
        ExpertTile done = tile;
        tile_index += p.tiles_at_once;
        bool goes_on = !is_shared && tile_index < tile_count;
        if (goes_on) {
            tile.load(p.tiles, tile_index);
            chain.parity ^= 1;
            __syncwarp();
            chain.start(weights.tiles + ((u64)tile.expert * weights.units + unit) * unit_bytes);
        }
        store_sums(sums_at, slice, ROWS, lane, sums);
        unit_barrier(group);
        finish(p, done, sums_at, is_shared, unit, factor, scale);
        if (!goes_on) return;
        __syncthreads();
    }
}
