// matmul of some rows, more than few and too few to fill the matrix units: y = W x for ROWS rows at a time.
//
// A block takes GROUPS units of 16 outputs: four warps share one, a slice of the columns each. Weights stream through a ring
// of the warp's own, the first before the kernel's inputs are ready; rows pass through stages that all warps share, which
// hold one tile of columns of every slice.
// Bytes: every weight once per ROWS rows, the rows once per block, those from L2. FLOPs: 2 per weight and row.
#include "matmul.cuh"

// -DROWS (a multiple of 8), -DCHUNK tiles of weights that are copied at a time, -DGROUPS, -DX_STAGES.
#define GROUP_THREADS (32 * SLICES)
#define THREADS (GROUPS * GROUP_THREADS)
#define CHUNK_BYTES (CHUNK * TILE_BYTES)
#define MOST_STAGES 16
#define X_TILE_BYTES (ROWS * 2 * TILE_COLS)
#define X_STAGE_BYTES (PARTS * SLICES * X_TILE_BYTES)
#define PIECES (X_STAGE_BYTES / 16)
#define SUMS_STRIDE 20
// Blocks of a multiprocessor, where their registers allow two.
#if __CUDA_ARCH__ == 900
#define BLOCKS (ROWS <= 32 && PARTS == 1 && CODING != CODING_STEPS && BITS != 5 ? 2 : 1)
#else
#define BLOCKS 1
#endif

// The copies of 16 bytes that bring a tile of columns of every slice to shared memory.
DEVICE void copy_rows(const MatmulParams& p, u32 first_row, u32 count, u32 step, u32 x) {
#pragma unroll
    for (u32 piece = threadIdx.x; piece < PIECES; piece += THREADS) {
        u32 chunk = piece & 7, row = (piece >> 3) % ROWS, slice = piece / (8 * ROWS) % SLICES;
        u32 part = PARTS == 1 ? 0 : piece / (8 * ROWS * SLICES);
        u32 tile = slice_start(slice, p.col_tiles) + step;
        if (tile >= slice_start(slice + 1, p.col_tiles)) continue;
        // Rows beyond the last are read from it; what they give is not stored.
        const u8* from = byte_row(p.x, first_row + min(row, count - 1)) + part * PART_BYTES(p) + tile * 128 + chunk * 16;
        copy_async(x + (piece >> 3) * 128 + ((chunk ^ (row & 7)) << 4), from);
    }
}

// A warp's weights: the chunks of its slice, in a ring.
struct Weights {
    const u8* tiles;
    u32 count, stages, ring_at, barriers_at, lane;
    u32 next_tile, next_stage;
    u32 stage, parity;

    DEVICE void copy() {
        if (next_tile >= count) return;
        u32 bytes = min(count - next_tile, (u32)CHUNK) * TILE_BYTES;
        warp_copy(ring_at + next_stage * CHUNK_BYTES, tiles + next_tile * TILE_BYTES, bytes, barriers_at + 8 * next_stage, lane);
        next_tile += CHUNK;
        if (++next_stage == stages) next_stage = 0;
    }
    DEVICE void advance() {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// Multiplies a tile of weights with 64 columns of all rows.
DEVICE void multiply_tile(u32 weights_at, u32 lane, u32 x, float (&sums)[PARTS][ROWS / 8][4]) {
    Fragment fragment;
    load_fragment(FromShared{weights_at}, lane, fragment);
    u32 a[16];
    unpack_tile(fragment, a);
    u32 row = lane & 7, chunk = lane >> 3;
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
        for (int j = 0; j < ROWS / 8; j++) {
            u32 b[8], at = x + part * (SLICES * X_TILE_BYTES) + (j * 8 + row) * 128;
            load_matrices(b, at + ((chunk ^ row) << 4));
            load_matrices(b + 4, at + (((chunk + 4) ^ row) << 4));
#pragma unroll
            for (int kk = 0; kk < 4; kk++) multiply_step(sums[part][j], a + 4 * kk, b[2 * kk], b[2 * kk + 1]);
        }
}

KERNEL __launch_bounds__(THREADS, BLOCKS) matmul_some(const __grid_constant__ MatmulParams p) {
    extern __shared__ __align__(128) u8 memory[];  // stages of rows, later sums; rings of all warps
    __shared__ u64 barriers[GROUPS * SLICES][MOST_STAGES];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, group = warp / SLICES, slice = warp % SLICES;
    u32 unit = blockIdx.x * GROUPS + group, first_tile = slice_start(slice, p.col_tiles);
    u32 x = shared_address(memory);
    Weights weights;
    weights.tiles = p.tiles + ((u64)unit * p.col_tiles + first_tile) * TILE_BYTES;
    weights.count = unit < p.units ? slice_start(slice + 1, p.col_tiles) - first_tile : 0;
    weights.stages = p.ring_stages;
    weights.ring_at = x + X_STAGES * X_STAGE_BYTES + warp * p.ring_stages * CHUNK_BYTES;
    weights.barriers_at = shared_address(barriers[warp]);
    weights.lane = lane;
    weights.next_tile = weights.next_stage = weights.stage = weights.parity = 0;
    if (lane < p.ring_stages) barrier_init(weights.barriers_at + 8 * lane, COPY_ARRIVALS);
    barrier_init_fence();
    __syncwarp();
    start_dependents();
    for (u32 i = 0; i < p.ring_stages; i++) weights.copy();
    wait_for_inputs();
    u32 rows = row_count(p.step, p.out), first_row = blockIdx.y * ROWS;
    if (first_row >= rows) {
        // Copies must have ended before the block does.
        u32 started = min((weights.count + CHUNK - 1) / CHUNK, p.ring_stages);
        for (u32 i = 0; i < started; i++) barrier_wait(weights.barriers_at + 8 * i, 0);
        return;
    }
    u32 count = min(rows - first_row, (u32)ROWS);
    // The last slice is the longest.
    u32 steps = p.col_tiles - slice_start(SLICES - 1, p.col_tiles);
    for (u32 step = 0; step < X_STAGES - 1; step++) {
        if (step < steps) copy_rows(p, first_row, count, step, x + step * X_STAGE_BYTES);
        end_copies();
    }
    float sums[PARTS][ROWS / 8][4] = {};
    u32 x_stage = 0, in_chunk = 0;
    for (u32 step = 0; step < steps; step++) {
        wait_for_copies<X_STAGES - 2>();
        __syncthreads();
        u32 free = x_stage == 0 ? X_STAGES - 1 : x_stage - 1;
        if (step + X_STAGES - 1 < steps) copy_rows(p, first_row, count, step + X_STAGES - 1, x + free * X_STAGE_BYTES);
        end_copies();
        if (step < weights.count) {
            if (in_chunk == 0) barrier_wait(weights.barriers_at + 8 * weights.stage, weights.parity);
            u32 at = weights.ring_at + weights.stage * CHUNK_BYTES + in_chunk * TILE_BYTES;
            multiply_tile(at, lane, x + x_stage * X_STAGE_BYTES + slice * X_TILE_BYTES, sums);
            if (++in_chunk == CHUNK || step + 1 == weights.count) {
                in_chunk = 0;
                __syncwarp();
                weights.copy();
                weights.advance();
            }
        }
        if (++x_stage == X_STAGES) x_stage = 0;
    }
    __syncthreads();
    // [group][slice][row][output]
    float* all = (float*)memory;
    u32 g = lane >> 2, q = lane & 3;
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float sum = PARTS == 2 ? sums[0][j][i] + sums[PARTS - 1][j][i] : sums[0][j][i];
            all[(warp * ROWS + j * 8 + 2 * q + i % 2) * SUMS_STRIDE + g + i / 2 * 8] = sum;
        }
    __syncthreads();
    u32 thread = threadIdx.x % GROUP_THREADS, out = thread % TILE_ROWS, col = unit * TILE_ROWS + out;
    if (unit >= p.units || col >= p.out.cols) return;
    float factor = p.factors[unit * TILE_ROWS + out];
    const float* mine = all + group * SLICES * ROWS * SUMS_STRIDE;
    for (u32 r = thread / TILE_ROWS; r < count; r += GROUP_THREADS / TILE_ROWS) {
        float sum = mine[r * SUMS_STRIDE + out];
#pragma unroll
        for (int s = 1; s < SLICES; s++) sum += mine[(s * ROWS + r) * SUMS_STRIDE + out];
        store_output(p, first_row + r, col, sum, factor, row_scale(p, byte_row(p.x, first_row + r)));
    }
}
