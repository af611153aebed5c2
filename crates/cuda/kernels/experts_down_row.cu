// Third and last kernel of a fused layer of experts for one row: the products down, their weighted sum, and what is added to it.
//
// A block has two units of 16 outputs of a chosen expert and up to four rows, or one of the shared expert, which is wider;
// four warps share a unit, a slice of the columns each, whose weights are on their way before the inputs are ready. Rows
// are rounded as they are brought to shared memory. The last block of two units adds everything up, in the order of
// moe_combine and of the product that would have followed it.
// Bytes: the weights of each chosen expert once per four rows. FLOPs: 2 per weight and row.
#include "chain.cuh"
#include "experts.cuh"
#include "experts_round.cuh"

// Blocks that a multiprocessor is to run at once.
#define BLOCKS (__CUDA_ARCH__ >= 900 ? 4 : 3)

#define UNITS 2
#define THREADS (UNITS * SLICES * 32)
#define PAIR_COLS (UNITS * TILE_ROWS)

// Adds what all blocks left for two units of every row.
DEVICE void add_up(const ExpertsDownParams& p, u32 pair, u32 rows) {
    u32 col = pair * PAIR_COLS + threadIdx.x % PAIR_COLS, cols = p.out.cols;
    if (col >= cols) return;
    for (u32 row = threadIdx.x / PAIR_COLS; row < rows; row += THREADS / PAIR_COLS) {
        float residual = p.residual[(u64)row * cols + col];
        float shared = __uint_as_float(load_fresh(p.shared_out + (u64)row * cols + col));
        // Terms that do not exist are zeros with weight zero.
        float sum = 0.0f;
        for (u32 first = 0; first < p.top_k; first += 8) {
            float y[8], weight[8];
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                bool exists = first + j < p.top_k;
                u32 at = row * p.top_k + first + j;
                y[j] = exists ? __uint_as_float(load_fresh(p.routed_out + (u64)at * cols + col)) : 0.0f;
                weight[j] = exists ? p.pair_weights[at] : 0.0f;
            }
#pragma unroll
            for (u32 j = 0; j < 8; j++) sum = fmaf(weight[j], y[j], sum);
        }
        f32_row(p.out, row)[col] = __fadd_rn(shared, __fadd_rn(sum, residual));
    }
}

// Adds the slices of a tile's rows, and stores them for whoever adds everything up.
DEVICE void finish(const ExpertsDownParams& p, const ExpertTile& tile, const float* sums, bool is_shared, u32 unit, float factor, float scale) {
    u32 thread = threadIdx.x % (SLICES * 32), out = thread % TILE_ROWS, own = thread / TILE_ROWS;
    u32 col = unit * TILE_ROWS + out, cols = p.out.cols;
    if (own >= tile.count || col >= cols) return;
    u32 row = tile.row(own);
    (is_shared ? p.shared_out : p.routed_out)[(u64)row * cols + col] = add_slices(sums, ROWS, own, out) * factor * scale;
}

KERNEL __launch_bounds__(THREADS, BLOCKS) experts_down_row(const __grid_constant__ ExpertsDownParams p) {
    extern __shared__ __align__(128) u8 memory[];  // weights of all units, rows, sums
    __shared__ u64 barriers[UNITS * SLICES];
    __shared__ u32 arrived;
    u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, group = warp / SLICES, slice = warp % SLICES;
    bool is_shared = blockIdx.x < p.shared.units * p.shared_tiles;
    ExpertWeights weights = is_shared ? p.shared : p.routed;
    u32 index = is_shared ? blockIdx.x : blockIdx.x - p.shared.units * p.shared_tiles;
    u32 blocks = is_shared ? weights.units : p.routed_blocks;
    u32 tile_index = index / blocks, unit = is_shared ? index % blocks : index % blocks * UNITS + group;
    bool has_unit = unit < weights.units && !(is_shared && group > 0);
    u32 value_bytes = 2 * TILE_COLS * weights.col_tiles, stride = value_bytes + 16, unit_bytes = weights.col_tiles * TILE_BYTES;
    Chain chain;
    chain.of_slice(slice, weights.col_tiles, has_unit);
    chain.at = shared_address(memory) + (is_shared ? 0 : group * unit_bytes) + chain.first * TILE_BYTES;
    chain.barrier = shared_address(&barriers[warp]), chain.lane = lane, chain.parity = 0;
    float* sums_at = (float*)(memory + p.streams.sums_at) + group * SLICES * ROWS * SUMS_STRIDE;
    if (lane == 0) barrier_init(chain.barrier, COPY_ARRIVALS);
    barrier_init_fence();
    __syncwarp();
    start_dependents();
    // Which experts were chosen is known already (experts.cuh).
    ExpertTile tile;
    u32 tile_count = load_fresh(p.tile_count);
    bool is_there = is_shared || tile_index < tile_count;
    if (is_shared || !is_there) tile.of_tokens(0, 0);
    else tile.load(p.tiles, tile_index);
    if (is_there) chain.start(weights.tiles + ((u64)tile.expert * weights.units + unit) * unit_bytes);
    wait_for_inputs();
    if (!is_there) return;
    u32 rows = p.step->rows;
    if (is_shared) {
        tile.of_tokens(tile_index * ROWS, rows);
        if (tile.count == 0) {
            // Copies must have ended before the block does.
            chain.wait();
            return;
        }
    }
    u32 pair = is_shared ? unit / UNITS : index % blocks;
    u32 shared_blocks = min(p.shared.units - pair * UNITS, (u32)UNITS);
    // Of many tiles of rows a block has several, one after the other.
    for (;;) {
        u64 place = (u64)tile.expert * weights.units + unit;
        float factor = has_unit ? weights.factors[place * TILE_ROWS + threadIdx.x % TILE_ROWS] : 0.0f;
        const float* from = is_shared ? p.shared_x : p.routed_x;
        const u32* largest = is_shared ? p.shared_largest : p.routed_largest;
        u32 cols = is_shared ? p.shared_cols : p.routed_cols;
        round_rows<ROWS, THREADS>(memory + p.rows_at, stride, from, largest, tile.rows, tile.count, cols, weights.col_tiles);
        // That of this thread's row.
        float scale = f16_scale(__uint_as_float(load_fresh(largest + tile.row(threadIdx.x % (SLICES * 32) / TILE_ROWS))));
        __syncthreads();
        // Lanes without a row of their own read the last one; their sums are not stored.
        u32 rows_at = shared_address(memory) + p.rows_at + min(lane & 7, tile.count - 1) * stride + (lane >> 3) * 16;
        float sums[PARTS][4] = {};
        chain.wait();
        chain.multiply(rows_at, value_bytes, sums);
        // The next weights are on their way while these sums are stored and counted.
        ExpertTile done = tile;
        tile_index += p.tiles_at_once;
        bool goes_on = !is_shared && tile_index < tile_count;
        if (goes_on) {
            tile.load(p.tiles, tile_index);
            chain.parity ^= 1;
            __syncwarp();
            chain.start(weights.tiles + ((u64)tile.expert * weights.units + unit) * unit_bytes);
        }
        if (has_unit) store_sums(sums_at, slice, ROWS, lane, sums);
        unit_barrier(group);
        if (has_unit) finish(p, done, sums_at, is_shared, unit, factor, scale);
        if (is_last_of(p.arrivals + pair, tile_count + shared_blocks, arrived)) add_up(p, pair, 1);
        if (!goes_on) return;
    }
}
