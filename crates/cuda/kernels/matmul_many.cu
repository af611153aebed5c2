// matmul and moe_matmul of many rows on Hopper: y^T = W x^T with warpgroup products.
//
// Persistent blocks take tiles of 64 outputs for each of their CONSUMERS warpgroups and of up to TOKENS rows. The warps of
// a producer warpgroup take turns at filling a ring of stages of 64 columns: weights by bulk copies, as they are held,
// rows as boxes that are swizzled as products read them; with experts the rows stand in their order. Consumers unpack
// half of a stage's weights in registers while the products of the half before are computed. They start some stages apart
// and stay so: while one stores its sums or adds up slices, the others use the matrix units.
// Bytes: weights once per tile of rows, rows once per tile of outputs, nearly all from L2. Shared memory sets the pace:
// at the rate of the matrix units products read it half of the time, whatever the tile, and copies take the more of the
// rest the smaller it is. FLOPs: 2 per weight and row.
#define TILE_UNITS (4 * CONSUMERS)
#include "matmul_tile.cuh"
#include "wgmma.cuh"

#define GROUP_THREADS 128
#define THREADS ((CONSUMERS + 1) * GROUP_THREADS)
#define PRODUCERS 4
#define ROWS_BYTES (TOKENS * 2 * TILE_COLS)
// A stage: rows, weights, in the first stage of a tile what it is, and in its last what its rows are.
#define WEIGHTS_AT (PARTS * ROWS_BYTES)
#define TILE_AT (WEIGHTS_AT + TILE_UNITS * TILE_BYTES)
#define KNOWN_AT (TILE_AT + 16)
#define STAGE_BYTES ((KNOWN_AT + TOKENS * 8 + 1023) / 1024 * 1024)
// Stages from one consumer to the next.
#define SKEW (STAGES >= 2 * PRODUCERS ? min(2, (STAGES - PRODUCERS - 1) / (CONSUMERS - 1)) : 0)
// Registers of a thread: together no more than the block starts with.
#define CONSUMER_REGISTERS (CONSUMERS == 2 ? 216 : 160)
#define PRODUCER_REGISTERS (CONSUMERS == 2 ? 64 : 32)

// Where a ring stands.
struct Ring {
    u32 stage, parity;
    DEVICE void advance(u32 by) {
        stage += by;
        if (stage >= STAGES) {
            stage -= STAGES;
            parity ^= 1;
        }
    }
    // The stage so many before.
    DEVICE u32 before(u32 count) const {
        return stage >= count ? stage - count : stage + STAGES - count;
    }
};

// For every stage, whether it is full, then whether it is empty.
struct Barriers {
    u32 first;
    DEVICE u32 full_at(u32 stage) const {
        return first + 8 * stage;
    }
    DEVICE u32 empty_at(u32 stage) const {
        return first + 8 * (STAGES + stage);
    }
};

// Rows whose products are computed for a tile of so many: a multiple of 16.
DEVICE u32 computed_rows(u32 count) {
    return min((count + 15) & ~15u, (u32)TOKENS);
}

// --- The producer -----------------------------------------------------------------------------------------------

// One warp of the producer, which fills every PRODUCERS-th stage.
struct Producer {
    const void* map;  // of the rows
    const MatmulParams& p;
    Barriers barriers;
    u32 stages_at, lane;

    // Where this lane's unit of a tile has its weights; nowhere where it has none.
    DEVICE const u8* weights_of(const Tile& tile) const {
        u64 unit = (u64)tile.rows.expert * p.units + tile.first_unit + lane;
        bool has_unit = lane < TILE_UNITS && tile.first_unit + lane < p.units;
        return has_unit ? p.tiles + unit * p.col_tiles * TILE_BYTES : nullptr;
    }

    // Starts copying 64 columns of the lanes' units: lanes start copies one after the other. One arrival.
    DEVICE void copy_weights(const u8* weights, u32 col_tile, u32 stage) const {
        u32 full = barriers.full_at(stage), units = __popc(__ballot_sync(ALL_LANES, weights != nullptr));
        if (lane == 0) barrier_expect(full, units * TILE_BYTES);
        __syncwarp();
        if (weights != nullptr)
            copy_bulk(stages_at + stage * STAGE_BYTES + WEIGHTS_AT + lane * TILE_BYTES, weights + (u64)col_tile * TILE_BYTES,
                      TILE_BYTES, full);
    }

    // Starts copying 64 columns of the rows. One arrival.
    DEVICE void copy_rows(const Tile& tile, u32 col_tile, u32 stage) const {
        u32 full = barriers.full_at(stage), to = stages_at + stage * STAGE_BYTES;
        u32 computed = computed_rows(tile.rows.count), col = col_tile * TILE_COLS;
        // What the tile is stands in the stage before this arrives.
        __syncwarp();
        if (lane == 0) barrier_expect(full, computed * PARTS * 2 * TILE_COLS);
        __syncwarp();
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            u32 part_col = col + part * p.col_tiles * TILE_COLS;
            u32 row = lane * BOX_ROWS;
            if (row < computed) copy_box(to + part * ROWS_BYTES + row * 128, map, part_col, tile.rows.first + row, full);
        }
    }

    DEVICE u8* stage_memory(u32 stage) const {
        extern __shared__ u8 memory[];
        return memory + (stages_at - shared_address(memory)) + stage * STAGE_BYTES;
    }

    // Tells consumers what the tile is, and what its rows are.
    DEVICE void name_tile(const Tile& tile, u32 stage) const {
        u32* words = (u32*)(stage_memory(stage) + TILE_AT);
        if (lane < 3) words[lane] = lane == 0 ? tile.rows.expert : lane == 1 ? tile.rows.count : tile.first_unit;
    }
    DEVICE void name_rows(const Tile& tile, u32 stage) const {
        TileRow* known = (TileRow*)(stage_memory(stage) + KNOWN_AT);
#pragma unroll 1
        for (u32 token = lane; token < computed_rows(tile.rows.count); token += 32) {
            u32 kept = min(token, tile.rows.count - 1);
            known[token] = {output_row(p, tile.rows, kept), row_scale(p, byte_row(p.x, tile.rows.first + kept))};
        }
    }

    DEVICE void run(u32 warp);
};

DEVICE void Producer::run(u32 warp) {
    u32 unit_tiles = (p.units + TILE_UNITS - 1) / TILE_UNITS;
    // With one tile of rows the first tile, and so its weights, are known before the inputs are.
    u32 ahead = 0;
    if (!EXPERTS && p.most_rows <= TOKENS && blockIdx.x < unit_tiles) {
        Tile tile = {{0, 0, 0, 0}, blockIdx.x * TILE_UNITS};
        const u8* weights = weights_of(tile);
        ahead = min(p.col_tiles, (u32)STAGES);
#pragma unroll 1
        for (u32 i = warp; i < ahead; i += PRODUCERS) copy_weights(weights, i, i);
    }
    wait_for_inputs();
    // Without rows, copies must still have ended before the block does.
    if (blockIdx.x >= Work::of(p).count())
#pragma unroll 1
        for (u32 i = warp; i < ahead; i += PRODUCERS) {
            if (lane == 0) barrier_arrive(barriers.full_at(i));
            barrier_wait(barriers.full_at(i), 0);
        }
    // Nobody has to empty a stage for the first time: a barrier's phase before its first counts as ended.
    Ring ring = {warp, 1};
    u32 col_tile = warp;
    for (u32 index = blockIdx.x;; index += gridDim.x) {
        // Read anew, since a producer has few registers.
        Work work = Work::of(p);
        if (index >= work.count()) break;
        Tile tile = work.at(p, index);
        if (col_tile == 0) {
            barrier_wait(barriers.empty_at(ring.stage), ring.parity);
            name_tile(tile, ring.stage);
        }
        const u8* weights = weights_of(tile);
#pragma unroll 1
        for (; col_tile < p.col_tiles; col_tile += PRODUCERS) {
            barrier_wait(barriers.empty_at(ring.stage), ring.parity);
            if (index != blockIdx.x || col_tile >= ahead) copy_weights(weights, col_tile, ring.stage);
            if (col_tile + 1 == p.col_tiles) name_rows(tile, ring.stage);
            copy_rows(tile, col_tile, ring.stage);
            ring.advance(PRODUCERS);
        }
        col_tile -= p.col_tiles;
    }
}

// --- The consumers ----------------------------------------------------------------------------------------------

struct Consumer {
    Ring ring;
    Barriers barriers;
    u32 stages_at, weights_at, lane;

    DEVICE void release(u32 stage) {
        if (lane == 0) barrier_arrive(barriers.empty_at(stage));
    }

    // Reads the weights of the next stage.
    DEVICE void load(Fragment& fragment) {
        barrier_wait(barriers.full_at(ring.stage), ring.parity);
        load_fragment(FromShared{stages_at + ring.stage * STAGE_BYTES + weights_at}, lane, fragment);
    }

    // Unpacks half of a stage's weights: two steps of 16 columns.
    template <int HALF>
    DEVICE void unpack(const Fragment& fragment, u32 (&a)[8]) {
#pragma unroll
        for (int i = 0; i < 2; i++) unpack_step(fragment, 2 * HALF + i, a + 4 * i);
    }

    // Starts the products of half of a stage; `a` and the stage must stay until they are computed.
    template <int N, int HALF>
    DEVICE void start(const u32 (&a)[8], float (&sums)[PARTS][N / 2], bool adds) {
        products_begin();
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            u64 rows = swizzled_rows(stages_at + ring.stage * STAGE_BYTES + part * ROWS_BYTES) + 4 * HALF;
#pragma unroll
            for (int i = 0; i < 2; i++) multiply_rows<N, IS_BF16>(sums[part], a + 4 * i, rows + 2 * i, i > 0 || adds);
        }
        products_commit();
    }

    // The sums of a tile over all columns. The tile's last stage is not released.
    template <int N>
    DEVICE void multiply(u32 col_tiles, float (&total)[N / 2]) {
        // Registers without a value here would be held from the kernel's beginning.
        float sums[PARTS][N / 2] = {};
        u32 first[8] = {}, second[8] = {};
        Fragment fragment = {};
        // Nothing, to which adding gives the same bits.
#pragma unroll
        for (int i = 0; i < N / 2; i++) total[i] = -0.0f;
        load(fragment);
        unpack<0>(fragment, first);
        u32 tile = 0;
#pragma unroll 1
        for (u32 slice = 0; slice < SLICES; slice++) {
            u32 end = slice_start(slice + 1, col_tiles);
            if (tile == end) {
#pragma unroll
                for (int i = 0; i < N / 2; i++) total[i] += 0.0f;
                continue;
            }
            // Half of a stage is unpacked while the products of the half before it are computed.
            for (bool adds = false;; adds = true) {
                start<N, 0>(first, sums, adds);
                products_wait<1>();
                products_hold(second);
                if (adds) release(ring.before(1));
                unpack<1>(fragment, second);
                start<N, 1>(second, sums, true);
                ring.advance(1);
                if (++tile < col_tiles) load(fragment);
                products_wait<1>();
                products_hold(first);
                if (tile < col_tiles) unpack<0>(fragment, first);
                if (tile == end) break;
            }
            products_wait<0>();
            products_hold(second);
            if (tile < col_tiles) release(ring.before(1));
#pragma unroll
            for (int i = 0; i < N / 2; i++) total[i] += PARTS == 2 ? sums[0][i] + sums[PARTS - 1][i] : sums[0][i];
        }
    }

    // What the next stage begins with.
    DEVICE Tile next_tile() const {
        barrier_wait(barriers.full_at(ring.stage), ring.parity);
        u32 words[4];
        load_shared4(words, stages_at + ring.stage * STAGE_BYTES + TILE_AT);
        return {{words[0], 0, words[1], 0}, words[2]};
    }

    // Computes a tile for as many rows as it has.
    template <int N>
    DEVICE void compute(const MatmulParams& p, const Tile& tile, u32 unit) {
        // Each size more takes registers of all others, however few it needs itself.
        constexpr int LESS = N > 96 ? 96 : N > 64 ? 64 : N > 32 ? 32 : 0;
        if constexpr (LESS > 0)
            if (tile.rows.count <= LESS) return compute<LESS>(p, tile, unit);
        float total[N / 2];
        multiply<N>(p.col_tiles, total);
        u32 last = ring.before(1);
        store_sums(p, tile, stages_at + last * STAGE_BYTES + KNOWN_AT, unit, total);
        __syncwarp();
        release(last);
    }

    // Passes a tile that has no outputs for this warpgroup.
    DEVICE void skip(u32 col_tiles) {
        for (u32 tile = 0; tile < col_tiles; tile++) {
            barrier_wait(barriers.full_at(ring.stage), ring.parity);
            release(ring.stage);
            ring.advance(1);
        }
    }
};

DEVICE void consume(const MatmulParams& p, u32 stages_at, const Barriers& barriers) {
    u32 group = threadIdx.x / GROUP_THREADS, warp = threadIdx.x / 32 % 4;
    wait_for_inputs();
    Work work = Work::of(p);
    Consumer consumer;
    consumer.ring = {0, 0};
    consumer.barriers = barriers;
    consumer.stages_at = stages_at;
    consumer.weights_at = WEIGHTS_AT + (group * 4 + warp) * TILE_BYTES;
    consumer.lane = threadIdx.x & 31;
    u32 tiles = work.count() > blockIdx.x ? (work.count() - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
    if (tiles > 0 && group * SKEW < p.col_tiles) barrier_wait(barriers.full_at(group * SKEW), 0);
    for (; tiles > 0; tiles--) {
        Tile tile = consumer.next_tile();
        if (tile.first_unit + group * 4 >= p.units) consumer.skip(p.col_tiles);
        else consumer.compute<TOKENS>(p, tile, tile.first_unit + group * 4 + warp);
    }
}

KERNEL __launch_bounds__(THREADS, 1) matmul_many(const __grid_constant__ MatmulManyParams p) {
    extern __shared__ u8 memory[];
    __shared__ __align__(8) u64 barrier_words[2 * STAGES];
    u32 stages_at = (shared_address(memory) + 1023) & ~1023u;
    Barriers barriers = {shared_address(barrier_words)};
    if (threadIdx.x == 0) {
        for (u32 stage = 0; stage < STAGES; stage++) {
            // That weights are on their way, and that rows are there.
            barrier_init(barriers.full_at(stage), 2);
            barrier_init(barriers.empty_at(stage), CONSUMERS * 4);
        }
        barrier_init_fence();
    }
    __syncthreads();
    start_dependents();
    if (threadIdx.x >= CONSUMERS * GROUP_THREADS) {
        give_registers<PRODUCER_REGISTERS>();
        u32 warp = threadIdx.x / 32 % PRODUCERS;
        Producer{&p.rows, p.product, barriers, stages_at, threadIdx.x & 31}.run(warp);
    } else {
        take_registers<CONSUMER_REGISTERS>();
        consume(p.product, stages_at, barriers);
    }
}
