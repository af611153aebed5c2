// matmul of few rows: y = W x for up to eight rows, where all units of outputs are under way at once or nearly so.
//
// A block has one unit of 16 outputs, its four warps a slice of the columns each. A slice's weights come by one copy, and
// so do the unit's factors, all before the kernel's inputs are ready: what is left then is the rows, a chain of products
// a warp and their sum. Blocks are small, so that as many multiprocessors take part as there are units.
// Bytes: every weight once, the rows once per block, those from L2. FLOPs: 2 per weight and row, of which the matrix
// units take eight rows at once.
#include "chain.cuh"

#define THREADS (32 * SLICES)

// -DBLOCKS of a multiprocessor that have room for their registers.
#if __CUDA_ARCH__ >= 900
#define BLOCKS_AT_ONCE BLOCKS
#else
#define BLOCKS_AT_ONCE (BLOCKS / 2)
#endif

// Brings the rows to shared memory. All threads of the block take part.
DEVICE void load_rows(const MatmulParams& p, u32 rows, u32 x, u32 stride) {
    u32 chunks = VALUE_BYTES(p) / 16;
    for (u32 r = 0; r < rows; r++) {
        const u8* from = byte_row(p.x, r);
        for (u32 i = threadIdx.x; i < chunks; i += THREADS) copy_async(x + r * stride + i * 16, from + i * 16);
    }
    end_copies();
}

KERNEL __launch_bounds__(THREADS, BLOCKS_AT_ONCE) matmul_unit(const __grid_constant__ MatmulParams p) {
    extern __shared__ __align__(128) u8 memory[];  // weights of all warps, rows, sums
    __shared__ u64 barriers[SLICES];
    u32 lane = threadIdx.x & 31, slice = threadIdx.x / 32, unit = blockIdx.x;
    u32 first = slice_start(slice, p.col_tiles), count = slice_start(slice + 1, p.col_tiles) - first;
    u32 weights = shared_address(memory) + slice * p.slice_tiles * TILE_BYTES, barrier = shared_address(&barriers[slice]);
    u32 x_offset = SLICES * p.slice_tiles * TILE_BYTES, stride = VALUE_BYTES(p) + 16;
    u32 x = shared_address(memory) + x_offset;
    if (lane == 0) barrier_init(barrier, COPY_ARRIVALS);
    barrier_init_fence();
    __syncwarp();
    if (count > 0)
        warp_copy(weights, p.tiles + ((u64)unit * p.col_tiles + first) * TILE_BYTES, count * TILE_BYTES, barrier, lane);
    start_dependents();
    // The output that this thread will store.
    u32 r = threadIdx.x / TILE_ROWS, out = threadIdx.x % TILE_ROWS, col = unit * TILE_ROWS + out;
    float factor = p.factors[col];

    wait_for_inputs();
    u32 rows = row_count(p.step, p.out);
    if (rows == 0) {
        // Copies must have ended before the block does.
        if (count > 0) barrier_wait(barrier, 0);
        return;
    }
    load_rows(p, rows, x, stride);
    bool is_stored = r < rows && col < p.out.cols;
    float scale = is_stored ? row_scale(p, byte_row(p.x, r)) : 0.0f;
    float residual = is_stored && p.epilogue == EPILOGUE_RESIDUAL ? f32_row(p.residual, r)[col] : 0.0f;
    wait_for_copies<0>();
    __syncthreads();
    if (count > 0) barrier_wait(barrier, 0);

    // Lanes without a row of their own read the last one; their sums are not stored.
    u32 x_at = x + min(lane & 7, rows - 1) * stride + (lane >> 3) * 16 + first * (2 * TILE_COLS), part = PART_BYTES(p);
    float sums[PARTS][4] = {};
    u32 tile = 0;
    // Whole fours without branches, so that tiles are unpacked while others are multiplied.
    for (; tile + 4 <= count; tile += 4)
#pragma unroll
        for (int i = 0; i < 4; i++)
            multiply_tile(weights + (tile + i) * TILE_BYTES, lane, x_at + (tile + i) * (2 * TILE_COLS), part, sums);
    for (; tile < count; tile++)
        multiply_tile(weights + tile * TILE_BYTES, lane, x_at + tile * (2 * TILE_COLS), part, sums);
    float* all_sums = (float*)(memory + x_offset + p.tile_rows * stride);
    store_sums(all_sums, slice, p.tile_rows, lane, sums);
    __syncthreads();
    if (is_stored)
        f32_row(p.out, r)[col] = finished(p, add_slices(all_sums, p.tile_rows, r, out), factor, scale, residual);
}
