// matmul and moe_matmul of few rows: y = W x for up to eight rows at a time, or for the rows of each chosen expert.
//
// A work item is a unit of 16 outputs times a tile of up to eight rows. Four warps share it, a slice of the columns
// each; blocks take consecutive items, so that most have one tile of rows, which waits in shared memory. A warp streams
// the weights of its slice, item after item, through a ring of its own in shared memory; without experts the first are
// on their way before the kernel's inputs are ready. Blocks take at most half of a multiprocessor, so that the next
// kernel's can begin beside them.
// Bytes: every weight once per tile of rows. FLOPs: 2 per weight and row, of which the matrix units take eight at once.
#include "chain.cuh"

// -DGROUPS of four warps, -DCHUNK tiles that are copied at a time.
#define GROUP_THREADS (32 * SLICES)
#define THREADS (GROUPS * GROUP_THREADS)
#define CHUNK_BYTES (CHUNK * TILE_BYTES)
#define MOST_STAGES 16
#define MOST_ROWS 8
#define NO_ITEM 0xffffffffu
// Chosen experts that a block sorts by itself; more are sorted by a kernel before.
#define MOST_PAIRS 512
#define MOST_EXPERTS 512

struct Shared {
    u64 barriers[GROUPS * SLICES][MOST_STAGES];
    u32 rows[MOST_ROWS];
    float scales[MOST_ROWS];
};

// Output rows by expert, and the tiles of each.
struct ByExpert {
    u32 tiles;
    u16 order[MOST_PAIRS];
    u16 expert[MOST_PAIRS];
    u16 rank[MOST_PAIRS];
    u16 tile_expert[MOST_PAIRS];
    u16 tile_first[MOST_PAIRS];
    u16 tile_count[MOST_PAIRS];
    u16 count[MOST_EXPERTS];
    u16 first[MOST_EXPERTS];
};

// Sums over the lanes up to and with this one.
DEVICE u32 scan(u32 value, u32 lane) {
    for (u32 distance = 1; distance < 32; distance *= 2) {
        u32 before = __shfl_up_sync(ALL_LANES, value, distance);
        if (lane >= distance) value += before;
    }
    return value;
}

// Groups up to 32 output rows by expert, in one warp; the rows of tile t are listed from t · tile_rows.
DEVICE void group_by_expert(const MatmulParams& p, ByExpert& by, u32 pairs, u32 lane) {
    u32 expert = lane < pairs ? expert_of(p, lane) : p.experts + lane;
    u32 same = __match_any_sync(ALL_LANES, expert);
    u32 rank = __popc(same & ((1u << lane) - 1)), in_tile = rank % p.tile_rows;
    bool is_first = lane < pairs && in_tile == 0;
    u32 firsts = __ballot_sync(ALL_LANES, is_first);
    u32 tile = __popc(firsts & ((1u << lane) - 1));
    // The tile of a row that is not first is that of the first of its tile.
    for (u32 left = 0; left < 32; left++) {
        u32 from_rank = __shfl_sync(ALL_LANES, rank, left), from_tile = __shfl_sync(ALL_LANES, tile, left);
        if ((same >> left & 1) && from_rank == rank - in_tile) tile = from_tile;
    }
    if (lane < pairs) by.order[tile * p.tile_rows + in_tile] = (u16)lane;
    if (is_first) {
        by.tile_expert[tile] = (u16)expert;
        by.tile_first[tile] = (u16)(tile * p.tile_rows);
        by.tile_count[tile] = (u16)min(__popc(same) - rank, p.tile_rows);
    }
    if (lane == 0) by.tiles = __popc(firsts);
}

// Sorts the output rows by expert, in one warp; within an expert they keep their order.
DEVICE void sort_by_expert(const MatmulParams& p, ByExpert& by, u32 pairs, u32 lane) {
    for (u32 expert = lane; expert < p.experts; expert += 32) by.count[expert] = 0;
    for (u32 pair = lane; pair < pairs; pair += 32) by.expert[pair] = (u16)expert_of(p, pair);
    __syncwarp();
    for (u32 first = 0; first < pairs; first += 32) {
        u32 pair = first + lane;
        u32 expert = pair < pairs ? by.expert[pair] : MOST_EXPERTS + lane;
        u32 same = __match_any_sync(ALL_LANES, expert);
        u32 before = pair < pairs ? by.count[expert] : 0;
        __syncwarp();
        u32 rank = __popc(same & ((1u << lane) - 1));
        if (pair < pairs) {
            by.rank[pair] = (u16)(before + rank);
            if (rank == 0) by.count[expert] = (u16)(before + __popc(same));
        }
        __syncwarp();
    }
    u32 rows = 0, tiles = 0;
    for (u32 first = 0; first < p.experts; first += 32) {
        u32 expert = first + lane;
        u32 count = expert < p.experts ? by.count[expert] : 0;
        u32 needed = (count + p.tile_rows - 1) / p.tile_rows;
        u32 row_end = rows + scan(count, lane), tile_end = tiles + scan(needed, lane);
        if (count > 0) by.first[expert] = (u16)(row_end - count);
        for (u32 i = 0; i < needed; i++) {
            u32 tile = tile_end - needed + i;
            by.tile_expert[tile] = (u16)expert;
            by.tile_first[tile] = (u16)(row_end - count + i * p.tile_rows);
            by.tile_count[tile] = (u16)min(count - i * p.tile_rows, p.tile_rows);
        }
        rows = __shfl_sync(ALL_LANES, row_end, 31);
        tiles = __shfl_sync(ALL_LANES, tile_end, 31);
    }
    __syncwarp();
    for (u32 pair = lane; pair < pairs; pair += 32) by.order[by.first[by.expert[pair]] + by.rank[pair]] = (u16)pair;
    if (lane == 0) by.tiles = tiles;
}

DEVICE void group_barrier(u32 group) {
    barrier_of(group + 1, GROUP_THREADS);
}

// A group's items in a block's share: every GROUPS-th of those of one tile of rows, then of the next tile.
struct Items {
    u32 units, first, end, group;

    // The end of the items of an item's tile of rows. With one tile there is nothing to divide.
    DEVICE u32 tile_end(u32 item) const {
        return end <= units ? end : min((item / units + 1) * units, end);
    }
    // The group's first item of the tile that starts at `begin`, or of a later one.
    DEVICE u32 from_tile(u32 begin) const {
        for (; begin < end; begin = tile_end(begin))
            if (begin + group < tile_end(begin)) return begin + group;
        return NO_ITEM;
    }
    DEVICE u32 after(u32 item) const {
        u32 stop = tile_end(item);
        return item + GROUPS < stop ? item + GROUPS : from_tile(stop);
    }
};

// Tiles of rows, and the weights that each is multiplied with.
struct RowTiles {
    const ByExpert* by;
    u32 rows;

    DEVICE RowTile at(const MatmulParams& p, u32 index) const {
        if (!EXPERTS) return {0, index * p.tile_rows, min(rows - index * p.tile_rows, p.tile_rows), 0};
        if (p.row_tiles != nullptr) return p.row_tiles[index];
        return {by->tile_expert[index], by->tile_first[index], by->tile_count[index], 0};
    }
    DEVICE u32 row(const MatmulParams& p, u32 place) const {
        if (!EXPERTS) return place;
        return p.row_tiles != nullptr ? p.order[place] : by->order[place];
    }
    // The unit of weights of an item, counted over all experts.
    DEVICE u32 unit(const MatmulParams& p, u32 item) const {
        return at(p, item / p.units).expert * p.units + item % p.units;
    }
};

// A warp's weights: the chunks of its slice, of one item after the other, in a ring.
struct Weights {
    const u8* tiles;
    u64 unit_bytes;
    u32 slice_tiles, chunks, stages, ring_at, barriers_at, lane;
    // What is copied next, and to where.
    const u8* next_from;
    u32 next_item, next_chunk, next_stage;
    // Copies before the first was waited for.
    u32 started;
    // What is read next.
    u32 stage, parity;

    DEVICE u32 count(u32 chunk) const {
        return min(slice_tiles - chunk * CHUNK, (u32)CHUNK);
    }
    // Starts the next copy, if anything is left.
    DEVICE void copy(const MatmulParams& p, const Items& items, const RowTiles& row_tiles) {
        if (next_item == NO_ITEM) return;
        u32 to = ring_at + next_stage * CHUNK_BYTES;
        warp_copy(to, next_from, count(next_chunk) * TILE_BYTES, barriers_at + 8 * next_stage, lane);
        next_from += CHUNK_BYTES;
        if (++next_stage == stages) next_stage = 0;
        if (++next_chunk == chunks) {
            next_chunk = 0;
            next_item = items.after(next_item);
            find(p, row_tiles);
        }
    }
    // Where the weights of the next item are.
    DEVICE void find(const MatmulParams& p, const RowTiles& row_tiles) {
        if (next_item != NO_ITEM) next_from = tiles + row_tiles.unit(p, next_item) * unit_bytes;
    }
    DEVICE void begin(const MatmulParams& p, const Items& items, const RowTiles& row_tiles) {
        next_item = chunks == 0 ? NO_ITEM : items.from_tile(items.first);
        find(p, row_tiles);
        for (started = 0; started < stages && next_item != NO_ITEM; started++) copy(p, items, row_tiles);
    }
    // Waits for a chunk; where it is.
    DEVICE u32 wait() const {
        barrier_wait(barriers_at + 8 * stage, parity);
        return ring_at + stage * CHUNK_BYTES;
    }
    DEVICE void advance() {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// Brings the rows of a tile to shared memory. All threads of the block take part.
DEVICE void load_rows(const MatmulParams& p, const RowTiles& row_tiles, const RowTile& tile, Shared& shared, u32 x, u32 stride) {
    for (u32 r = 0; r < tile.count; r++) {
        u32 row = row_tiles.row(p, tile.first + r);
        const u8* from = input_row(p, row);
        for (u32 at = threadIdx.x * 16; at < VALUE_BYTES(p); at += THREADS * 16) copy_async(x + r * stride + at, from + at);
        if (threadIdx.x == r) {
            shared.rows[r] = row;
            shared.scales[r] = row_scale(p, from);
        }
    }
    end_copies();
    wait_for_copies<0>();
}

// Adds the slices of an item and stores its outputs.
DEVICE void finish_item(const MatmulParams& p, const RowTile& tile, u32 unit, const Shared& shared, const float* sums) {
    u32 thread = threadIdx.x % GROUP_THREADS;
    u32 r = thread / TILE_ROWS, out = thread % TILE_ROWS, col = unit * TILE_ROWS + out;
    if (r >= tile.count || col >= p.out.cols) return;
    float sum = add_slices(sums, p.tile_rows, r, out);
    float factor = p.factors[((u64)tile.expert * p.units + unit) * TILE_ROWS + out];
    store_output(p, shared.rows[r], col, sum, factor, shared.scales[r]);
}

// Registers of older architectures do not suffice for two blocks of every type.
#if __CUDA_ARCH__ >= 900
#define BLOCKS_AT_ONCE 2
#else
#define BLOCKS_AT_ONCE 1
#endif

KERNEL __launch_bounds__(THREADS, BLOCKS_AT_ONCE) matmul_few(const __grid_constant__ MatmulParams p) {
    extern __shared__ __align__(128) u8 memory[];  // rings of all warps, rows, sums
    __shared__ Shared shared;
    RowTiles row_tiles;
#if EXPERTS
    __shared__ ByExpert by_expert;
    row_tiles.by = &by_expert;
#endif
    u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, group = warp / SLICES, slice = warp % SLICES;
    u32 first_tile = slice_start(slice, p.col_tiles);
    Weights weights;
    weights.unit_bytes = (u64)p.col_tiles * TILE_BYTES;
    weights.tiles = p.tiles + (u64)first_tile * TILE_BYTES;
    weights.slice_tiles = slice_start(slice + 1, p.col_tiles) - first_tile;
    weights.chunks = (weights.slice_tiles + CHUNK - 1) / CHUNK;
    weights.stages = p.ring_stages;
    weights.ring_at = shared_address(memory) + warp * p.ring_stages * CHUNK_BYTES;
    weights.barriers_at = shared_address(shared.barriers[warp]);
    weights.lane = lane;
    weights.next_chunk = weights.next_stage = weights.started = weights.stage = weights.parity = 0;
    u32 x = shared_address(memory) + GROUPS * SLICES * p.ring_stages * CHUNK_BYTES, stride = VALUE_BYTES(p) + 16;
    u32 group_sums = SLICES * p.tile_rows * SUMS_STRIDE;
    float* sums_at = (float*)(memory + (x - shared_address(memory)) + p.tile_rows * stride) + group * 2 * group_sums;
    if (lane < p.ring_stages) barrier_init(weights.barriers_at + 8 * lane, COPY_ARRIVALS);
    barrier_init_fence();
    __syncwarp();
    start_dependents();

    Items items = {p.units, 0, 0, group};
    auto share = [&](u32 count) {
        u64 total = (u64)count * p.units;
        items.first = (u32)(total * blockIdx.x / gridDim.x);
        items.end = (u32)(total * (blockIdx.x + 1) / gridDim.x);
    };
    // With one tile of rows the shares of the blocks, and so the first weights, are known before the inputs are.
    bool is_one_tile = !EXPERTS && p.most_rows <= p.tile_rows;
    if (is_one_tile) {
        share(1);
        weights.begin(p, items, row_tiles);
    }
    wait_for_inputs();
    row_tiles.rows = row_count(p.step, p.out);
    if (row_tiles.rows == 0) {
        // Copies must have ended before the block does.
        for (u32 i = 0; i < weights.started; i++) barrier_wait(weights.barriers_at + 8 * i, 0);
        return;
    }
    if (!is_one_tile) {
        u32 count = (row_tiles.rows + p.tile_rows - 1) / p.tile_rows;
#if EXPERTS
        if (p.row_tiles != nullptr) {
            count = *p.row_tile_count;
        } else {
            if (warp == 0 && row_tiles.rows <= 32) group_by_expert(p, by_expert, row_tiles.rows, lane);
            else if (warp == 0) sort_by_expert(p, by_expert, row_tiles.rows, lane);
            __syncthreads();
            count = by_expert.tiles;
        }
#endif
        share(count);
        weights.begin(p, items, row_tiles);
    }

    u32 item = items.from_tile(items.first), parity = 0;
    for (u32 start = items.first; start < items.end; start = items.tile_end(start)) {
        RowTile tile = row_tiles.at(p, start / p.units);
        __syncthreads();
        load_rows(p, row_tiles, tile, shared, x, stride);
        __syncthreads();
        // Lanes without a row of their own read the last one; their sums are not stored.
        u32 rows_at = x + min(lane & 7, tile.count - 1) * stride + (lane >> 3) * 16 + first_tile * (2 * TILE_COLS);
        u32 stop = items.tile_end(start);
        for (; item < stop; item = items.after(item)) {
            float sums[PARTS][4] = {};
            for (u32 chunk = 0; chunk < weights.chunks; chunk++) {
                u32 at = weights.wait(), count = weights.count(chunk);
                u32 x_at = rows_at + chunk * (CHUNK * 2 * TILE_COLS);
                // Whole chunks without branches, so that tiles are unpacked while others are multiplied.
                if (count == CHUNK) {
#pragma unroll
                    for (int i = 0; i < CHUNK; i++)
                        multiply_tile(at + i * TILE_BYTES, lane, x_at + i * (2 * TILE_COLS), PART_BYTES(p), sums);
                } else {
                    for (u32 i = 0; i < count; i++)
                        multiply_tile(at + i * TILE_BYTES, lane, x_at + i * (2 * TILE_COLS), PART_BYTES(p), sums);
                }
                __syncwarp();
                weights.copy(p, items, row_tiles);
                weights.advance();
            }
            float* group_at = sums_at + parity * group_sums;
            store_sums(group_at, slice, p.tile_rows, lane, sums);
            group_barrier(group);
            finish_item(p, tile, item % p.units, shared, group_at);
            parity ^= 1;
        }
    }
}
