// matmul and moe_matmul of many rows on Hopper: y^T = W x^T with warpgroup products.
//
// Persistent blocks take tiles of 128 outputs and TOKENS rows. A producer warpgroup fills a ring of stages of 64
// columns: weights by bulk copies, as they are held, rows by 16-byte copies that place them as products read them,
// whichever rows they are. Two consumer warpgroups, 64 outputs each, unpack weights in registers while the products of
// the stage before are computed.
// Bytes: weights once per tile of rows, rows once per tile of outputs, nearly all from L2. FLOPs: 2 per weight and row.
#include "matmul_tile.cuh"
#include "wgmma.cuh"

#define CONSUMERS 2
// Units whose weights a warp of the producer copies.
#define WARP_UNITS 2
#define GROUP_THREADS 128
#define THREADS ((CONSUMERS + 1) * GROUP_THREADS)
#define ROWS_BYTES (TOKENS * 2 * TILE_COLS)
#define STAGE_BYTES ((PARTS * ROWS_BYTES + TILE_UNITS * TILE_BYTES + 1023) / 1024 * 1024)

// Where a ring stands.
struct Ring {
    u32 stage, parity;
    DEVICE void advance() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

struct Barriers {
    u32 full, empty;
    DEVICE u32 full_at(u32 stage) const {
        return full + 8 * stage;
    }
    DEVICE u32 empty_at(u32 stage) const {
        return empty + 8 * stage;
    }
};

// --- The producer -----------------------------------------------------------------------------------------------

// Starts copying the weights of a stage, two units a warp: lanes start bulk copies one after the other.
DEVICE void copy_weights(const MatmulParams& p, const Tile& tile, u32 col_tile, u32 stage_at, u32 full, u32 thread) {
    u32 lane = thread & 31, first = thread / 32 * WARP_UNITS, left = p.units - tile.first_unit;
    u32 units = left > first ? min(left - first, (u32)WARP_UNITS) : 0;
    if (lane == 0) barrier_expect(full, units * TILE_BYTES);
    __syncwarp();
    if (lane < units) {
        u64 unit = (u64)tile.rows.expert * p.units + tile.first_unit + first + lane;
        const u8* from = p.tiles + (unit * p.col_tiles + col_tile) * TILE_BYTES;
        copy_bulk(stage_at + PARTS * ROWS_BYTES + (first + lane) * TILE_BYTES, from, TILE_BYTES, full);
    }
}

DEVICE void produce(const MatmulParams& p, u32 stages_at, const Barriers& barriers) {
    const u32 passes = TOKENS / 16;
    u32 thread = threadIdx.x % GROUP_THREADS, chunk = thread & 7, first_row = thread >> 3;
    u32 place = first_row * 128 + ((chunk ^ (first_row & 7)) << 4);
    u32 unit_tiles = (p.units + TILE_UNITS - 1) / TILE_UNITS;
    // With one tile of rows the first tile, and so its weights, are known before the inputs are.
    u32 ahead = 0;
    if (!EXPERTS && p.most_rows <= TOKENS && blockIdx.x < unit_tiles) {
        Tile tile = {{0, 0, 0, 0}, blockIdx.x * TILE_UNITS};
        ahead = min(p.col_tiles, (u32)STAGES);
        for (u32 i = 0; i < ahead; i++)
            copy_weights(p, tile, i, stages_at + i * STAGE_BYTES, barriers.full_at(i), thread);
    }
    wait_for_inputs();
    Work work = Work::of(p);
    // Without rows, copies must still have ended before the block does.
    if (blockIdx.x >= work.count())
        for (u32 i = 0; i < ahead; i++) {
            barrier_arrive(barriers.full_at(i));
            barrier_wait(barriers.full_at(i), 0);
        }
    Ring ring = {0, 1};
    u32 count = 0;
    for (u32 index = blockIdx.x; index < work.count(); index += gridDim.x) {
        Tile tile = work.at(p, index);
        u32 rows[passes];  // in units of 16 bytes
#pragma unroll
        for (int pass = 0; pass < passes; pass++) {
            // Rows beyond the tile's are read from its last; what they give is not stored.
            u32 token = min(first_row + 16 * pass, tile.rows.count - 1);
            rows[pass] = (u32)((input_row(p, output_row(p, tile.rows, token)) - p.x.data) / 16) + chunk;
        }
        for (u32 col_tile = 0; col_tile < p.col_tiles; col_tile++) {
            u32 stage_at = stages_at + ring.stage * STAGE_BYTES;
            if (count >= STAGES) barrier_wait(barriers.empty_at(ring.stage), ring.parity);
            if (count >= ahead) copy_weights(p, tile, col_tile, stage_at, barriers.full_at(ring.stage), thread);
#pragma unroll
            for (int part = 0; part < PARTS; part++)
#pragma unroll
                for (int pass = 0; pass < passes; pass++)
                    copy_async(stage_at + part * ROWS_BYTES + place + pass * 2048,
                               p.x.data + (u64)rows[pass] * 16 + (part * PART_BYTES(p) + col_tile * 128));
            barrier_arrive_after_copies(barriers.full_at(ring.stage));
            count++;
            ring.advance();
        }
    }
}

// --- The consumers ----------------------------------------------------------------------------------------------

struct Consumer {
    Ring ring;
    Barriers barriers;
    u32 stages_at, weights_at, lane;
    u32 held;  // the stage whose products may still be read

    DEVICE void release(u32 stage) {
        if (lane == 0) barrier_arrive(barriers.empty_at(stage));
    }

    // The products of one stage. The left operand stays in `a` until they have been computed, a stage later.
    DEVICE void step(u32 (&a)[16], float (&sums)[PARTS][TOKENS / 2], bool is_first) {
        barrier_wait(barriers.full_at(ring.stage), ring.parity);
        u32 stage_at = stages_at + ring.stage * STAGE_BYTES;
        Fragment fragment;
        load_fragment(FromShared{stage_at + weights_at}, lane, fragment);
        unpack_tile(fragment, a);
        fence_for_products();
        products_begin();
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            u64 rows = swizzled_rows(stage_at + part * ROWS_BYTES);
#pragma unroll
            for (int kk = 0; kk < 4; kk++) multiply_rows<TOKENS, IS_BF16>(sums[part], a + 4 * kk, rows + 2 * kk);
        }
        products_commit();
        products_wait<1>();
        if (!is_first) release(held);
        held = ring.stage;
        ring.advance();
    }

    // The sums of a tile over all columns.
    DEVICE void multiply(u32 col_tiles, float (&total)[TOKENS / 2]) {
#pragma unroll 1
        for (u32 slice = 0; slice < SLICES; slice++) {
            u32 tiles = slice_start(slice + 1, col_tiles) - slice_start(slice, col_tiles);
            float sums[PARTS][TOKENS / 2];
#pragma unroll
            for (int part = 0; part < PARTS; part++)
#pragma unroll
                for (int i = 0; i < TOKENS / 2; i++) sums[part][i] = 0.0f;
            u32 even[16], odd[16];
            u32 tile = 0;
            for (; tile + 1 < tiles; tile += 2) {
                step(even, sums, tile == 0);
                step(odd, sums, false);
            }
            if (tile < tiles) step(even, sums, tile == 0);
            products_wait<0>();
            if (tiles > 0) release(held);
#pragma unroll
            for (int i = 0; i < TOKENS / 2; i++) {
                float sum = PARTS == 2 ? sums[0][i] + sums[PARTS - 1][i] : sums[0][i];
                total[i] = slice == 0 ? sum : total[i] + sum;
            }
        }
    }

    // Passes a tile that has no outputs for this warpgroup.
    DEVICE void skip(u32 col_tiles) {
        for (u32 tile = 0; tile < col_tiles; tile++) {
            barrier_wait(barriers.full_at(ring.stage), ring.parity);
            release(ring.stage);
            ring.advance();
        }
    }
};

// Stores the sums of a warpgroup.
DEVICE void store_tile(const MatmulParams& p, const Tile& tile, TileRows& known, u32 group, const float (&total)[TOKENS / 2]) {
    u32 thread = threadIdx.x % GROUP_THREADS;
    barrier_of(group + 1, GROUP_THREADS);
    if (thread < TOKENS) find_row(p, tile.rows, known, thread);
    barrier_of(group + 1, GROUP_THREADS);
    store_sums(p, tile, known, tile.first_unit + group * 4 + thread / 32, total);
}

DEVICE void consume(const MatmulParams& p, u32 stages_at, const Barriers& barriers, TileRows* known) {
    u32 group = threadIdx.x / GROUP_THREADS, warp = threadIdx.x / 32 % 4;
    wait_for_inputs();
    Work work = Work::of(p);
    Consumer consumer;
    consumer.ring = {0, 0};
    consumer.barriers = barriers;
    consumer.stages_at = stages_at;
    consumer.weights_at = PARTS * ROWS_BYTES + (group * 4 + warp) * TILE_BYTES;
    consumer.lane = threadIdx.x & 31;
    for (u32 index = blockIdx.x; index < work.count(); index += gridDim.x) {
        Tile tile = work.at(p, index);
        if (tile.first_unit + group * 4 >= p.units) {
            consumer.skip(p.col_tiles);
            continue;
        }
        float total[TOKENS / 2];
        consumer.multiply(p.col_tiles, total);
        store_tile(p, tile, known[group], group, total);
    }
}

KERNEL __launch_bounds__(THREADS, 1) matmul_many(const __grid_constant__ MatmulParams p) {
    extern __shared__ u8 memory[];
    __shared__ __align__(8) u64 barrier_words[2 * STAGES];
    __shared__ TileRows known[CONSUMERS];
    u32 stages_at = (shared_address(memory) + 1023) & ~1023u;
    Barriers barriers = {shared_address(barrier_words), shared_address(barrier_words) + 8 * STAGES};
    if (threadIdx.x == 0) {
        for (u32 stage = 0; stage < STAGES; stage++) {
            barrier_init(barriers.full_at(stage), GROUP_THREADS + TILE_UNITS / WARP_UNITS);
            barrier_init(barriers.empty_at(stage), CONSUMERS * 4);
        }
        barrier_init_fence();
    }
    __syncthreads();
    start_dependents();
    // Together no more registers than the block starts with, 168 a thread.
    if (threadIdx.x >= CONSUMERS * GROUP_THREADS) {
        give_registers<64>();
        produce(p, stages_at, barriers);
    } else {
        take_registers<216>();
        consume(p, stages_at, barriers, known);
    }
}
