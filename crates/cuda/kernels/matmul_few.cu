// matmul and moe_matmul of few rows: y = W x for up to eight rows at a time, or for the rows of each chosen expert.
//
// A work item is a unit of 16 outputs times a tile of up to eight rows. Four warps share it, a slice of the columns
// each; blocks take consecutive items, so that most have one tile of rows, which waits in shared memory. A warp holds
// DEPTH tiles of weights in registers and loads the next into each as soon as it is used, across items; without experts
// the first are on their way before the kernel's inputs are ready.
// Bytes: every weight once per tile of rows. FLOPs: 2 per weight and row, of which the matrix units take eight at once.
#include "matmul.cuh"

#define GROUPS 2
#define GROUP_THREADS (32 * SLICES)
#define THREADS (GROUPS * GROUP_THREADS)
#define MOST_ROWS 8
// Floats from one row's sums to the next; so that lanes meet in no bank.
#define SUMS_STRIDE 20
#define NO_ITEM 0xffffffffu
// Chosen experts that a block sorts by itself; more are sorted by a kernel before.
#define MOST_PAIRS 512
#define MOST_EXPERTS 512

struct Shared {
    float sums[2][GROUPS][SLICES][MOST_ROWS][SUMS_STRIDE];
    u32 rows[MOST_ROWS];
    float scales[MOST_ROWS];
};

// Output rows by expert, and the tiles of each.
struct ByExpert {
    u32 tiles;
    u16 order[MOST_PAIRS];
    u16 rank[MOST_PAIRS];
    u16 tile_expert[MOST_PAIRS];
    u16 tile_first[MOST_PAIRS];
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

// Sorts the output rows by expert, in one warp; within an expert they keep their order.
DEVICE void sort_by_expert(const MatmulParams& p, ByExpert& by, u32 pairs, u32 lane) {
    for (u32 expert = lane; expert < p.experts; expert += 32) by.count[expert] = 0;
    __syncwarp();
    for (u32 first = 0; first < pairs; first += 32) {
        u32 pair = first + lane;
        u32 expert = pair < pairs ? expert_of(p, pair) : MOST_EXPERTS + lane;
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
            by.tile_expert[tile_end - needed + i] = (u16)expert;
            by.tile_first[tile_end - needed + i] = (u16)(row_end - count + i * p.tile_rows);
        }
        rows = __shfl_sync(ALL_LANES, row_end, 31);
        tiles = __shfl_sync(ALL_LANES, tile_end, 31);
    }
    __syncwarp();
    for (u32 pair = lane; pair < pairs; pair += 32) by.order[by.first[expert_of(p, pair)] + by.rank[pair]] = (u16)pair;
    if (lane == 0) by.tiles = tiles;
}

// Copies 16 bytes to shared memory without waiting.
DEVICE void copy_async(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

DEVICE void wait_for_copies() {
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
}

DEVICE void group_barrier(u32 group) {
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(GROUP_THREADS) : "memory");
}

// A group's items in a block's share: every GROUPS-th of those of one tile of rows, then of the next tile.
struct Items {
    u32 units, first, end, group;

    DEVICE u32 tile_end(u32 item) const {
        return min((item / units + 1) * units, end);
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

// A warp's weights: the tiles of its slice, of one item after the other, DEPTH at a time.
struct Weights {
    const u8* tiles;
    u64 unit_bytes;
    u32 slice_tiles;
    u32 lane;
    Fragment held[DEPTH];

    DEVICE FromGlobal at(u32 unit, u32 round) const {
        return FromGlobal{tiles + unit * unit_bytes + round * (DEPTH * TILE_BYTES)};
    }
    DEVICE u32 count(u32 round) const {
        return min(slice_tiles - round * DEPTH, (u32)DEPTH);
    }
    DEVICE void load(FromGlobal from, int d) {
        load_fragment(FromGlobal{from.at + d * TILE_BYTES}, lane, held[d]);
    }
};

// Multiplies a tile of weights with 64 columns of the rows.
DEVICE void multiply_tile(const Fragment& weights, u32 x, u32 part_bytes, float (&sums)[PARTS][4]) {
    u32 a[16];
    unpack_tile(weights, a);
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        u32 b[8];
        load_matrices(x + part * part_bytes, b);
        load_matrices(x + part * part_bytes + 64, b + 4);
#pragma unroll
        for (int kk = 0; kk < 4; kk++) multiply_step(sums[part], a + 4 * kk, b[2 * kk], b[2 * kk + 1]);
    }
}

// Brings the rows of a tile to shared memory. All threads of the block take part.
DEVICE void load_rows(const MatmulParams& p, const RowTile& tile, const ByExpert* by, Shared& shared, u8* x, u32 stride) {
    for (u32 r = 0; r < tile.count; r++) {
        u32 row = tile.first + r;
        if (EXPERTS) row = p.order != nullptr ? p.order[row] : by->order[row];
        const u8* from = input_row(p, row);
        for (u32 at = threadIdx.x * 16; at < VALUE_BYTES(p); at += THREADS * 16)
            copy_async(shared_address(x + r * stride + at), from + at);
        if (threadIdx.x == r) {
            shared.rows[r] = row;
            shared.scales[r] = row_scale(p, from);
        }
    }
    wait_for_copies();
}

// Adds the slices of an item and stores its outputs.
DEVICE void finish_item(const MatmulParams& p, const RowTile& tile, u32 unit, Shared& shared, u32 parity, u32 group) {
    u32 thread = threadIdx.x % GROUP_THREADS;
    u32 r = thread / TILE_ROWS, out = thread % TILE_ROWS, col = unit * TILE_ROWS + out;
    if (r >= tile.count || col >= p.out.cols) return;
    float sum = shared.sums[parity][group][0][r][out];
#pragma unroll
    for (int slice = 1; slice < SLICES; slice++) sum += shared.sums[parity][group][slice][r][out];
    float factor = p.factors[((u64)tile.expert * p.units + unit) * TILE_ROWS + out];
    store_output(p, shared.rows[r], col, sum, factor, shared.scales[r]);
}

KERNEL __launch_bounds__(THREADS, BLOCKS) matmul_few(const __grid_constant__ MatmulParams p) {
    extern __shared__ __align__(16) u8 x[];
    __shared__ Shared shared;
#if EXPERTS
    __shared__ ByExpert by_expert;
    ByExpert* by = &by_expert;
#else
    ByExpert* by = nullptr;
#endif
    u32 lane = threadIdx.x & 31, group = threadIdx.x / GROUP_THREADS, slice = threadIdx.x / 32 % SLICES;
    u32 first_tile = slice_start(slice, p.col_tiles);
    Weights weights;
    weights.unit_bytes = (u64)p.col_tiles * TILE_BYTES;
    weights.tiles = p.tiles + (u64)first_tile * TILE_BYTES;
    weights.slice_tiles = slice_start(slice + 1, p.col_tiles) - first_tile;
    weights.lane = lane;
    u32 rounds = max((weights.slice_tiles + DEPTH - 1) / DEPTH, 1u);
    start_dependents();

    // With one tile of rows the shares of the blocks, and so the first weights, are known before the inputs are.
    bool is_one_tile = !EXPERTS && p.most_rows <= p.tile_rows;
    Items items = {p.units, 0, 0, group};
    auto share = [&](u32 row_tiles) {
        u64 total = (u64)row_tiles * p.units;
        items.first = (u32)(total * blockIdx.x / gridDim.x);
        items.end = (u32)(total * (blockIdx.x + 1) / gridDim.x);
    };
    auto tile_at = [&](u32 index, u32 rows) -> RowTile {
        if (!EXPERTS) return {0, index * p.tile_rows, min(rows - index * p.tile_rows, p.tile_rows), 0};
        if (p.row_tiles != nullptr) return p.row_tiles[index];
        u32 expert = by->tile_expert[index], first = by->tile_first[index];
        return {expert, first, min(by->first[expert] + by->count[expert] - first, p.tile_rows), 0};
    };
    auto unit_of = [&](u32 item) -> u32 {
        u32 expert = EXPERTS ? (p.row_tiles != nullptr ? p.row_tiles[item / p.units].expert : by->tile_expert[item / p.units]) : 0;
        return expert * p.units + item % p.units;
    };
    auto begin = [&]() -> u32 {
        u32 item = items.from_tile(items.first);
        if (item == NO_ITEM) return item;
        FromGlobal from = weights.at(unit_of(item), 0);
        u32 count = weights.count(0);
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
            if (d < count) weights.load(from, d);
        return item;
    };
    u32 item = NO_ITEM;
    if (is_one_tile) {
        share(1);
        item = begin();
    }
    wait_for_inputs();
    u32 rows = row_count(p.step, p.out);
    if (rows == 0) return;
    if (!is_one_tile) {
        u32 row_tiles = (rows + p.tile_rows - 1) / p.tile_rows;
        if (EXPERTS && p.row_tiles == nullptr) {
            if (threadIdx.x < 32) sort_by_expert(p, *by, rows, lane);
            __syncthreads();
            row_tiles = by->tiles;
        } else if (EXPERTS) {
            row_tiles = *p.row_tile_count;
        }
        share(row_tiles);
        item = begin();
    }

    u32 stride = VALUE_BYTES(p) + 16, parity = 0;
    for (u32 start = items.first; start < items.end; start = items.tile_end(start)) {
        RowTile tile = tile_at(start / p.units, rows);
        __syncthreads();
        load_rows(p, tile, by, shared, x, stride);
        __syncthreads();
        // Lanes without a row of their own read the last one; their sums are not stored.
        u32 rows_at = shared_address(x) + min(lane & 7, tile.count - 1) * stride + (lane >> 3) * 16;
        u32 stop = items.tile_end(start);
        while (item < stop) {
            u32 unit = item % p.units, next = items.after(item);
            float sums[PARTS][4] = {};
            for (u32 round = 0; round < rounds; round++) {
                bool is_last = round + 1 == rounds;
                u32 count = weights.count(round), next_round = is_last ? 0 : round + 1;
                u32 next_count = is_last && next == NO_ITEM ? 0 : weights.count(next_round);
                FromGlobal from = weights.at(next_count == 0 ? 0 : unit_of(is_last ? next : item), next_round);
                u32 x_at = rows_at + (first_tile + round * DEPTH) * (2 * TILE_COLS);
#pragma unroll
                for (int d = 0; d < DEPTH; d++) {
                    if (d < count) multiply_tile(weights.held[d], x_at + d * (2 * TILE_COLS), PART_BYTES(p), sums);
                    if (d < next_count) weights.load(from, d);
                }
            }
            u32 g = lane >> 2, q = lane & 3;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float sum = PARTS == 2 ? sums[0][i] + sums[PARTS - 1][i] : sums[0][i];
                shared.sums[parity][group][slice][2 * q + i % 2][g + i / 2 * 8] = sum;
            }
            group_barrier(group);
            finish_item(p, tile, unit, shared, parity, group);
            parity ^= 1;
            item = next;
        }
    }
}
