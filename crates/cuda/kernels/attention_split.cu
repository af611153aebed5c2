// attention over f16 caches for rows of short segments: a block has a row and a tile of heads and some units (its warps
// share each), so that a long context is read by many blocks; attention_merge puts their results together. Where every
// segment has one row, the block of a row's last unit appends its key and value to the cache.
// Defines: those of attention.cuh.
#include "attention_f16.cuh"

#define HEAD_TILES ((GROUP + TILE - 1) / TILE)
#define W_PITCH (UNIT + 8)
#define SPLIT_WARPS 4
#define SPLIT_THREADS (32 * SPLIT_WARPS)
// Columns of the result that a warp has, in tiles of 8.
#define OWN_TILES (HEAD_DIM / 8 / SPLIT_WARPS)

struct SplitShared {
    UnitShared units[2];
    QueryShared queries;
    u16 weights[TILE][W_PITCH];
    float largest[SPLIT_WARPS][TILE];
    // Of a warp's lanes.
    float sums[SPLIT_WARPS][TILE][4];
};

extern __shared__ __align__(16) unsigned char shared_bytes[];

// One warp's columns of a tile's result, by rows g and g + 8.
struct OwnPart {
    Sums sums[2];
    float mixed[OWN_TILES][4];

    DEVICE void clear() {
        sums[0] = sums[1] = NO_SUMS;
        for (int i = 0; i < OWN_TILES; i++)
            for (int j = 0; j < 4; j++) mixed[i][j] = 0.0f;
    }

    DEVICE void add(const OwnPart& other) {
        MergeFactors factors[2] = {merge(sums[0], other.sums[0]), merge(sums[1], other.sums[1])};
#pragma unroll
        for (int i = 0; i < OWN_TILES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) mixed[i][j] = merged(mixed[i][j], other.mixed[i][j], factors[j / 2]);
    }
};

// One unit of a row, the block's warps together.
DEVICE void run_unit(const AttentionParams& p, SplitShared& shared, const UnitShared& unit, u32 number, u32 first,
                     u32 last, OwnPart& part) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    SeenKeys seen = {{first, first}, {last, last}};
    float scale[2] = {shared.queries.scale[g], shared.queries.scale[g + 8]};
    float score[2][4], largest[2] = {MINUS_INFINITY, MINUS_INFINITY};
    multiply_keys<2>(score, shared.queries, unit, 16 * warp);
    score_keys<false>(p, score, scale, seen, number * UNIT + 16 * warp, largest);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        largest[half] = __fmul_rn(row_max(largest[half]), factor_of(scale[half]));
        if (q == 0) shared.largest[warp][g + 8 * half] = largest[half];
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < SPLIT_WARPS; i++) largest[half] = fmaxf(largest[half], shared.largest[i][g + 8 * half]);
    u32 weights[4];
    float sum[2];
    weigh_keys(score, scale, largest, weights, sum);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 column = 16 * warp + i / 2 * 8 + q * 2;
        *(u32*)&shared.weights[g + i % 2 * 8][column] = weights[i];
    }
    shared.sums[warp][g][q] = sum[0], shared.sums[warp][g + 8][q] = sum[1];
    __syncthreads();
    part.clear();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float total = shared.sums[0][g + 8 * half][q];
        for (int i = 1; i < SPLIT_WARPS; i++) total = __fadd_rn(total, shared.sums[i][g + 8 * half][q]);
        part.sums[half] = Sums{largest[half], row_sum(total)};
    }
#pragma unroll
    for (int key = 0; key < UNIT; key += 16) {
        load_matrices(weights, &shared.weights[lane % 16][key + lane / 16 * 8]);
#pragma unroll
        for (int i = 0; i < OWN_TILES; i += 2)
            multiply_values(part.mixed + i, weights, unit, key, 8 * (warp * OWN_TILES + i));
    }
}

DEVICE void write_part(const AttentionParams& p, const OwnPart& part, u32 row, u32 first_head, u32 heads, u32 item,
                       bool is_whole) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 head = first_head + g + 8 * half;
        if (g + 8 * half >= heads) continue;
        float* result = is_whole ? 0 : item_result(p, row, head, item);
        float* to = is_whole ? f32_row(p.out, row) + head * HEAD_DIM : result + 2;
        float factor = is_whole ? final_factor(p, part.sums[half], head) : 1.0f;
        if (!is_whole && warp == 0 && q == 0) result[0] = part.sums[half].largest, result[1] = part.sums[half].sum;
#pragma unroll
        for (int i = 0; i < OWN_TILES; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float value = part.mixed[i][2 * half + j];
                to[8 * (warp * OWN_TILES + i) + 2 * q + j] = is_whole ? __fmul_rn(value, factor) : value;
            }
    }
}

// A row and the positions it sees.
struct RowWork {
    u32 row, first, last;
    SegmentEntry segment;
    PageList pages;

    // Whether this kernel has the row.
    DEVICE bool find(const AttentionParams& p, u32 own_row) {
        row = own_row;
        if (row >= p.step->rows) return false;
        // Where rows append themselves every segment has one.
        segment = p.step->segments[p.appends ? row : p.step->row_segment[row]];
        pages = PageList(p, segment);
        last = segment.position + (row - segment.first_row), first = first_seen(p, last);
        return segment.rows < p.tile_rows;
    }
};

// The key and value that a row appends, a value of each a thread.
struct OwnRow {
    u16 k, v;

    DEVICE void fetch(const AttentionParams& p, u32 row, u32 kv_head) {
        if (threadIdx.x >= HEAD_DIM) return;
        k = f16_bits(f32_row(p.k, row)[kv_head * HEAD_DIM + threadIdx.x]);
        v = f16_bits(f32_row(p.v, row)[kv_head * HEAD_DIM + threadIdx.x]);
    }

    DEVICE void put_into(UnitShared& unit, u32 position) const {
        if (threadIdx.x >= HEAD_DIM) return;
        unit.k[position % UNIT][threadIdx.x] = k;
        unit.v[position % UNIT][threadIdx.x] = v;
    }

    DEVICE void store(const AttentionParams& p, const RowWork& work, u32 kv_head) const {
        if (threadIdx.x >= HEAD_DIM) return;
        u8* page = work.pages.of(p, work.last);
        u32 at = work.last % PAGE_TOKENS * HEAD_DIM + threadIdx.x;
        ((u16*)key_head(page, kv_head))[at] = k;
        ((u16*)value_head(page, kv_head))[at] = v;
    }
};

// Where a block works among the heads.
struct HeadPlace {
    u32 kv_head, tile, first, count;

    DEVICE HeadPlace() {
        kv_head = blockIdx.y / HEAD_TILES, tile = blockIdx.y % HEAD_TILES;
        first = kv_head * GROUP + tile * TILE, count = min((u32)TILE, GROUP - tile * TILE);
    }
};

DEVICE void start_unit(const AttentionParams& p, SplitShared& shared, const RowWork& work, const HeadPlace& heads,
                       const UnitPages& pages, u32 unit, u32 at) {
    copy_unit<SPLIT_THREADS>(shared.units[at], pages, heads.kv_head, unit, work.first, work.last, !p.appends);
}

DEVICE void start_item(const AttentionParams& p, SplitShared& shared, const RowWork& work, const HeadPlace& heads, u32 unit) {
    start_unit(p, shared, work, heads, UnitPages(p, work.pages, unit, work.last), unit, 0);
}

// One item of a row, whose first unit is on its way: units merged into splits, splits into the whole.
DEVICE void run_item(const AttentionParams& p, SplitShared& shared, const RowWork& work, const HeadPlace& heads,
                     const Division& division, u32 item) {
    OwnPart whole, split, part;
    whole.clear();
    split.clear();
    u32 begin = division.begin(item), end = division.end(item);
    bool appends = p.appends && end == division.last_unit + 1;
    OwnRow own;
    if (appends) own.fetch(p, work.row, heads.kv_head);
    // Looked up a unit ahead.
    UnitPages pages(p, work.pages, begin + 1, work.last);
    for (u32 unit = begin; unit < end; unit++) {
        u32 at = (unit - begin) % 2;
        if (unit + 1 < end)
            start_unit(p, shared, work, heads, pages, unit + 1, 1 - at);
        else
            end_copies();
        pages = UnitPages(p, work.pages, unit + 2, work.last);
        if (appends && unit + 1 == end) {
            own.put_into(shared.units[at], work.last);
            if (heads.tile == 0) own.store(p, work, heads.kv_head);
        }
        wait_for_copies<1>();
        __syncthreads();
        run_unit(p, shared, shared.units[at], unit, work.first, work.last, part);
        split.add(part);
        if (division.is_whole() && (unit + 1 == end || (unit + 1) % UNITS_PER_SPLIT == 0)) {
            whole.add(split);
            split.clear();
        }
        __syncthreads();
    }
    if (division.is_whole())
        write_part(p, whole, work.row, heads.first, heads.count, item, true);
    else
        write_part(p, split, work.row, heads.first, heads.count, item, false);
}

// Where rows append themselves, all that they read of the cache was there before the step: it is on its way before the
// queries are waited for. What the step's table says of rows and pages is there before any kernel.
KERNEL __launch_bounds__(SPLIT_THREADS, 1) attention_split(const __grid_constant__ AttentionParams p) {
    SplitShared& shared = *(SplitShared*)shared_bytes;
    start_dependents();
    HeadPlace heads;
    RowWork work;
    bool has_waited = false;
    for (u32 row = blockIdx.x; row < p.step->rows; row += gridDim.x) {
        if (!work.find(p, row)) continue;
        Division division(p, row, work.first, work.last);
        u32 item = blockIdx.z;
        if (item >= division.items) continue;
        if (!has_waited && !p.appends) wait_for_inputs();
        start_item(p, shared, work, heads, division.begin(item));
        if (!has_waited && p.appends) wait_for_inputs();
        has_waited = true;
        load_queries<SPLIT_WARPS>(shared.queries, f32_row(p.q, row) + heads.first * HEAD_DIM, heads.count, p.scale);
        while (true) {
            run_item(p, shared, work, heads, division, item);
            item += gridDim.z;
            if (item >= division.items) break;
            start_item(p, shared, work, heads, division.begin(item));
        }
    }
    if (!has_waited) wait_for_inputs();
}
