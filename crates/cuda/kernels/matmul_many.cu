// matmul and moe_matmul of many rows on Hopper: y^T = W x^T with warpgroup products.
//
// Persistent blocks take tiles of 64 outputs for each of their CONSUMERS warpgroups and of up to TOKENS rows. The warps of
// a producer warpgroup take turns at filling a ring of stages of 64 columns: weights by bulk copies, as they are held,
// rows by 16-byte copies that place them as products read them, whichever rows they are. Consumers unpack weights in
// registers while the products of the stage before are computed. They start some stages apart and stay so: while one
// stores its sums or adds up slices, the others use the matrix units.
// Bytes: weights once per tile of rows, rows once per tile of outputs, nearly all from L2, which sets the pace: hence
// tiles that are large in both directions. FLOPs: 2 per weight and row.
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
// Stages that a producer's warp copies at a time, and stages from one consumer to the next: a stage is handed over when
// its warp has started the copies of its next, which must not need what the last consumer has yet to begin with.
#define FLIGHTS (STAGES >= 2 * PRODUCERS ? 2 : 1)
#define SKEW (STAGES >= 2 * PRODUCERS ? min(2, (STAGES - PRODUCERS - 1) / (CONSUMERS - 1)) : 0)
// Registers of a thread: together no more than the block starts with.
#define CONSUMER_REGISTERS (CONSUMERS == 2 ? 216 : 152)
#define PRODUCER_REGISTERS (CONSUMERS == 2 ? 64 : 56)

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
    const MatmulParams& p;
    Barriers barriers;
    u32 stages_at, lane;
    u8* memory;  // at stages_at
    u32* rows;   // of the tile, in units of 16 bytes

    // Starts copying weights: lanes start bulk copies one after the other. One arrival.
    DEVICE void copy_weights(const Tile& tile, u32 col_tile, u32 stage) const {
        u32 full = barriers.full_at(stage), units = min(p.units - tile.first_unit, (u32)TILE_UNITS);
        if (lane == 0) barrier_expect(full, units * TILE_BYTES);
        __syncwarp();
        if (lane < units) {
            u64 unit = (u64)tile.rows.expert * p.units + tile.first_unit + lane;
            const u8* from = p.tiles + (unit * p.col_tiles + col_tile) * TILE_BYTES;
            copy_bulk(stages_at + stage * STAGE_BYTES + WEIGHTS_AT + lane * TILE_BYTES, from, TILE_BYTES, full);
        }
    }

    // Notes where the rows of a tile are.
    DEVICE void find_rows(const Tile& tile) const {
        __syncwarp();
#pragma unroll 1
        for (u32 token = lane; token < TOKENS; token += 32) {
            // Rows beyond the tile's are read from its last; what they give is not stored.
            u32 row = output_row(p, tile.rows, min(token, tile.rows.count - 1));
            rows[token] = (u32)((input_row(p, row) - p.x.data) / 16);
        }
        __syncwarp();
    }

    // Starts copying 64 columns of the rows.
    DEVICE void copy_rows(const Tile& tile, u32 col_tile, u32 stage) const {
        u32 chunk = lane & 7, first = lane >> 3, to = stages_at + stage * STAGE_BYTES + first * 128;
        const u8* from = p.x.data + col_tile * 128 + chunk * 16;
        u32 computed = computed_rows(tile.rows.count);
#pragma unroll 1
        for (u32 row = first; row < computed; row += 16, to += 2048)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                // Rows 4 apart: their chunks change places by 4.
                u32 place = to + i * 512 + ((chunk ^ (first + i % 2 * 4)) << 4);
                const u8* at = from + (u64)rows[row + 4 * i] * 16;
#pragma unroll
                for (int part = 0; part < PARTS; part++) copy_async(place + part * ROWS_BYTES, at + part * PART_BYTES(p));
            }
    }

    // Tells consumers what the tile is, and what its rows are.
    DEVICE void name_tile(const Tile& tile, u32 stage) const {
        u32* words = (u32*)(memory + stage * STAGE_BYTES + TILE_AT);
        if (lane < 3) words[lane] = lane == 0 ? tile.rows.expert : lane == 1 ? tile.rows.count : tile.first_unit;
    }
    DEVICE void name_rows(const Tile& tile, u32 stage) const {
        TileRow* known = (TileRow*)(memory + stage * STAGE_BYTES + KNOWN_AT);
#pragma unroll 1
        for (u32 token = lane; token < computed_rows(tile.rows.count); token += 32) known[token] = find_row(p, tile.rows, token);
    }

    // Hands a stage over whose copies have ended.
    DEVICE void hand_over(u32 stage) const {
        fence_for_products();
        __syncwarp();
        if (lane == 0) barrier_arrive(barriers.full_at(stage));
    }

    DEVICE void run(u32 warp);
};

DEVICE void Producer::run(u32 warp) {
    u32 unit_tiles = (p.units + TILE_UNITS - 1) / TILE_UNITS;
    // With one tile of rows the first tile, and so its weights, are known before the inputs are.
    u32 ahead = 0;
    if (!EXPERTS && p.most_rows <= TOKENS && blockIdx.x < unit_tiles) {
        Tile tile = {{0, 0, 0, 0}, blockIdx.x * TILE_UNITS};
        ahead = min(p.col_tiles, (u32)STAGES);
        for (u32 i = warp; i < ahead; i += PRODUCERS) copy_weights(tile, i, i);
    }
    wait_for_inputs();
    Work work = Work::of(p);
    // Without rows, copies must still have ended before the block does.
    if (blockIdx.x >= work.count())
        for (u32 i = warp; i < ahead; i += PRODUCERS) {
            if (lane == 0) barrier_arrive(barriers.full_at(i));
            barrier_wait(barriers.full_at(i), 0);
        }
    Ring ring = {warp, 1};
    u32 count = warp;  // stages before this one
    u32 col_tile = warp;
    for (u32 index = blockIdx.x; index < work.count(); index += gridDim.x) {
        Tile tile = work.at(p, index);
        if (col_tile < p.col_tiles) find_rows(tile);
        for (; col_tile < p.col_tiles; col_tile += PRODUCERS) {
            if (count >= STAGES) barrier_wait(barriers.empty_at(ring.stage), ring.parity);
            if (count >= ahead) copy_weights(tile, col_tile, ring.stage);
            copy_rows(tile, col_tile, ring.stage);
            end_copies();
            if (col_tile == 0) name_tile(tile, ring.stage);
            if (col_tile + 1 == p.col_tiles) name_rows(tile, ring.stage);
            // The copies before these go on while these start.
            if (count >= (FLIGHTS - 1) * PRODUCERS) {
                wait_for_copies<FLIGHTS - 1>();
                hand_over(ring.before((FLIGHTS - 1) * PRODUCERS));
            }
            count += PRODUCERS;
            ring.advance(PRODUCERS);
        }
        col_tile -= p.col_tiles;
    }
    wait_for_copies<0>();
    if (FLIGHTS > 1 && count >= PRODUCERS) hand_over(ring.before(PRODUCERS));
}

// --- The consumers ----------------------------------------------------------------------------------------------

struct Consumer {
    Ring ring;
    Barriers barriers;
    u32 stages_at, weights_at, lane;

    DEVICE void release(u32 stage) {
        if (lane == 0) barrier_arrive(barriers.empty_at(stage));
    }

    // Unpacks the weights of the next stage.
    DEVICE void prepare(u32 (&a)[16]) {
        barrier_wait(barriers.full_at(ring.stage), ring.parity);
        Fragment fragment;
        load_fragment(FromShared{stages_at + ring.stage * STAGE_BYTES + weights_at}, lane, fragment);
        unpack_tile(fragment, a);
        ring.advance(1);
    }

    // Starts the products of the stage that was unpacked last; `a` and the stage must stay until they are computed.
    template <int N>
    DEVICE void start(const u32 (&a)[16], float (&sums)[PARTS][N / 2], bool adds) {
        u32 stage_at = stages_at + ring.before(1) * STAGE_BYTES;
        products_begin();
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            u64 rows = swizzled_rows(stage_at + part * ROWS_BYTES);
#pragma unroll
            for (int kk = 0; kk < 4; kk++) multiply_rows<N, IS_BF16>(sums[part], a + 4 * kk, rows + 2 * kk, kk > 0 || adds);
        }
        products_commit();
    }

    // The sums of a tile over all columns. The tile's last stage is not released.
    template <int N>
    DEVICE void multiply(u32 col_tiles, float (&total)[N / 2]) {
        // Registers without a value here would be held from the kernel's beginning.
        float sums[PARTS][N / 2] = {};
        u32 even[16], odd[16] = {};
        // Nothing, to which adding gives the same bits.
#pragma unroll
        for (int i = 0; i < N / 2; i++) total[i] = -0.0f;
        prepare(even);
        u32 tile = 0;
#pragma unroll 1
        for (u32 slice = 0; slice < SLICES; slice++) {
            u32 end = slice_start(slice + 1, col_tiles);
            if (tile == end) {
#pragma unroll
                for (int i = 0; i < N / 2; i++) total[i] += 0.0f;
                continue;
            }
            // Products of a stage are computed while the weights of the next are unpacked.
            for (bool adds = false;; adds = true) {
                start<N>(even, sums, adds);
                products_wait<1>();
                if (adds) release(ring.before(2));
                if (++tile < col_tiles) prepare(odd);
                if (tile == end) {
                    products_wait<0>();
#pragma unroll
                    for (int i = 0; i < 16; i++) even[i] = odd[i];
                    break;
                }
                start<N>(odd, sums, true);
                products_wait<1>();
                release(ring.before(2));
                if (++tile < col_tiles) prepare(even);
                if (tile == end) {
                    products_wait<0>();
                    break;
                }
            }
            // The next stage's weights are unpacked, if there is one.
            if (tile < col_tiles) release(ring.before(2));
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
        if constexpr (N > 16)
            if (tile.rows.count <= N - 16) return compute<N - 16>(p, tile, unit);
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

KERNEL __launch_bounds__(THREADS, 1) matmul_many(const __grid_constant__ MatmulParams p) {
    extern __shared__ u8 memory[];
    __shared__ __align__(8) u64 barrier_words[2 * STAGES];
    __shared__ u32 rows[PRODUCERS][TOKENS];
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
        u8* stages = memory + (stages_at - shared_address(memory));
        Producer{p, barriers, stages_at, threadIdx.x & 31, stages, rows[warp]}.run(warp);
    } else {
        take_registers<CONSUMER_REGISTERS>();
        consume(p, stages_at, barriers);
    }
}
