// matmul and moe_matmul of many rows on GPUs other than Hopper: tiles of 128 outputs and TOKENS rows with mma.sync.
//
// Eight warps take a unit of 16 outputs each. Rows pass through a ring of stages of 64 columns in shared memory, filled
// by 16-byte copies whichever rows they are; a warp loads its own weights to registers two tiles ahead.
// Bytes: weights once per tile of rows, rows once per tile of outputs, nearly all from L2. FLOPs: 2 per weight and row.
#define TILE_UNITS 8
#include "matmul_tile.cuh"

#define THREADS (32 * TILE_UNITS)
#define STAGES 4
#define ROWS_BYTES (TOKENS * 2 * TILE_COLS)
#define STAGE_BYTES (PARTS * ROWS_BYTES)
#define PASSES (TOKENS / 32)
#define AHEAD 2

// Copies of a tile's rows, a chunk of 16 bytes of every 32nd row a thread.
struct RowCopies {
    u32 rows[PASSES];  // in units of 16 bytes
    u32 place, stages_at;

    DEVICE void begin(const MatmulParams& p, const RowTile& tile, u32 at) {
        u32 chunk = threadIdx.x & 7, first = threadIdx.x >> 3;
        stages_at = at;
        place = first * 128 + ((chunk ^ (first & 7)) << 4);
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            // Rows beyond the tile's are read from its last; what they give is not stored.
            u32 token = min(first + 32 * pass, tile.count - 1);
            rows[pass] = (u32)((input_row(p, output_row(p, tile, token)) - p.x.data) / 16) + chunk;
        }
    }
    // Starts the copies of a column tile, if there is one; always a group of copies.
    DEVICE void start(const MatmulParams& p, u32 col_tile) {
        if (col_tile < p.col_tiles)
#pragma unroll
            for (int part = 0; part < PARTS; part++)
#pragma unroll
                for (int pass = 0; pass < PASSES; pass++)
                    copy_async(stages_at + col_tile % STAGES * STAGE_BYTES + part * ROWS_BYTES + place + pass * 4096,
                               p.x.data + (u64)rows[pass] * 16 + (part * PART_BYTES(p) + col_tile * 128));
        end_copies();
    }
};

// Multiplies a tile of weights with 64 columns of the rows.
DEVICE void multiply_tile(const Fragment& weights, u32 stage_at, u32 lane, float (&sums)[PARTS][TOKENS / 2]) {
    u32 a[16];
    unpack_tile(weights, a);
    u32 row = lane & 7, chunk = lane >> 3;
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
        for (int j = 0; j < TOKENS / 8; j++) {
            u32 b[8], at = stage_at + part * ROWS_BYTES + (j * 8 + row) * 128;
            load_matrices(b, at + ((chunk ^ row) << 4));
            load_matrices(b + 4, at + (((chunk + 4) ^ row) << 4));
#pragma unroll
            for (int kk = 0; kk < 4; kk++)
                multiply_step(sums[part] + 4 * j, a + 4 * kk, b[2 * kk], b[2 * kk + 1]);
        }
}

KERNEL __launch_bounds__(THREADS, 1) matmul_tiled(const __grid_constant__ MatmulParams p) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ __align__(16) TileRow known[TOKENS];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    start_dependents();
    wait_for_inputs();
    Work work = Work::of(p);
    for (u32 index = blockIdx.x; index < work.count(); index += gridDim.x) {
        Tile tile = work.at(p, index);
        // A warp without outputs reads the weights of the last; its sums are not stored.
        u64 unit = (u64)tile.rows.expert * p.units + min(tile.first_unit + warp, p.units - 1);
        const u8* weights_at = p.tiles + unit * p.col_tiles * TILE_BYTES;
        RowCopies copies;
        __syncthreads();
        copies.begin(p, tile.rows, shared_address(memory));
        for (u32 stage = 0; stage < STAGES - 1; stage++) copies.start(p, stage);
        if (threadIdx.x < TOKENS) known[threadIdx.x] = find_row(p, tile.rows, threadIdx.x);
        Fragment weights[AHEAD + 1];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (i < p.col_tiles) load_fragment(FromGlobal{weights_at + i * TILE_BYTES}, lane, weights[i]);
        float total[TOKENS / 2];
        u32 col_tile = 0;
#pragma unroll 1
        for (u32 slice = 0; slice < SLICES; slice++) {
            float sums[PARTS][TOKENS / 2] = {};
            for (u32 end = slice_start(slice + 1, p.col_tiles); col_tile < end; col_tile++) {
                if (col_tile + AHEAD < p.col_tiles)
                    load_fragment(FromGlobal{weights_at + (col_tile + AHEAD) * TILE_BYTES}, lane, weights[AHEAD]);
                wait_for_copies<STAGES - 2>();
                __syncthreads();
                copies.start(p, col_tile + STAGES - 1);
                multiply_tile(weights[0], shared_address(memory) + col_tile % STAGES * STAGE_BYTES, lane, sums);
#pragma unroll
                for (int i = 0; i < AHEAD; i++) weights[i] = weights[i + 1];
            }
#pragma unroll
            for (int i = 0; i < TOKENS / 2; i++) {
                float sum = PARTS == 2 ? sums[0][i] + sums[PARTS - 1][i] : sums[0][i];
                total[i] = slice == 0 ? sum : total[i] + sum;
            }
        }
        __syncthreads();
        store_sums(p, tile, shared_address(known), tile.first_unit + warp, total);
    }
    wait_for_copies<0>();
}
