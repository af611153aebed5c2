// First kernel of a fused layer of experts: norm and rounding of the rows, the router's logits, and the choice of experts.
//
// A block has OUTPUTS of the router's outputs, whose weights it has in shared memory before its inputs are ready, and every
// gridDim.y-th row, which it norms by itself; one block more rounds the rows. The last block to end chooses, and groups the
// chosen pairs by expert.
// The arithmetic is that of rms_norm, of matmul_plain and of moe_route.
// Bytes: the router once per gridDim.y, from L2 after the first. FLOPs: 2 per weight and row.
#include "moe_choice.cuh"
#include "norm.cuh"
#include "ring.cuh"
#include "experts.cuh"

// -DTHREADS: those that rms_norm has for rows of this width. -DOUTPUTS of a block.
#define WARPS (THREADS / 32)
#define LANE_COLS 128
#define MOST_COLS (HELD * THREADS)
#define MOST_PAIRS 512

struct Grouping {
    u32 count[EXPERTS], first_tile[EXPERTS];
    u16 expert[MOST_PAIRS], rank[MOST_PAIRS];
};

// Sums over the lanes up to and with this one.
DEVICE u32 scan(u32 value, u32 lane) {
    for (u32 distance = 1; distance < 32; distance *= 2) {
        u32 before = __shfl_up_sync(ALL_LANES, value, distance);
        if (lane >= distance) value += before;
    }
    return value;
}

// Norms a row into shared memory, f32 with zeros up to whole lanes; the block that has no outputs writes it down, rounded,
// and what was normed, because its memory may be used again before it is added at the end.
DEVICE void norm_row(const ExpertsRouteParams& p, const HeldRow<THREADS>& weight, u32 row, float* x, float (*scratch)[WARPS]) {
    HeldRow<THREADS> values;
    values.load(f32_row(p.x, row), p.cols);
    bool rounds = blockIdx.x + 1 == gridDim.x;
    if (rounds)
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            u32 col = threadIdx.x + i * THREADS;
            if (col < p.cols) p.residual[row * p.cols + col] = values.values[i];
        }
    float factor = rms_factor<THREADS>(held_squares(values), p.cols, p.eps, scratch[0]);
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        u32 col = threadIdx.x + i * THREADS;
        values.values[i] = values.values[i] * factor * weight.values[i];
        if (col < p.padded_cols) x[col] = values.values[i];
    }
    if (rounds) round_row<THREADS>(values, x, p.cols, p.rounded + (u64)row * p.rounded_stride, ROUNDED_F16, scratch[1]);
}

// The product of a row with a router's output, in every lane.
DEVICE float logit(const float4* weights, const float4* x, u32 padded_cols, u32 lane) {
    float sum = 0.0f;
#pragma unroll 4
    for (u32 at = lane; at < padded_cols / 4; at += 32) {
        float4 a = weights[at], b = x[at];
        sum = fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
    }
    return warp_sum(sum);
}

// Chooses for every row, a warp a row.
DEVICE void choose_all(const ExpertsRouteParams& p, const float (&bias)[SLOTS], Choice* choices, Grouping& grouping, u32 rows) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (u32 row = warp; row < rows; row += WARPS) {
        float score[SLOTS];
#pragma unroll
        for (int i = 0; i < SLOTS; i++) {
            u32 expert = lane + 32 * i;
            score[i] = __uint_as_float(expert < EXPERTS ? load_fresh(p.logits + row * EXPERTS + expert) : 0xff800000u);
        }
        float divisor = choose_experts(score, bias, choices[warp], lane);
        for (u32 k = lane; k < TOP_K; k += 32) {
            u32 expert = choices[warp].ids[k];
            float weight = choices[warp].weight(k, divisor, p.scale);
            grouping.expert[row * TOP_K + k] = (u16)expert;
            p.pair_weights[row * TOP_K + k] = weight;
            i32_row(p.ids, row)[k] = (int)expert;
            f32_row(p.weights, row)[k] = weight;
        }
        __syncwarp();
    }
}

// Writes the tiles of every expert's rows. Within an expert rows come in any order: each depends on itself alone.
DEVICE void group_all(const ExpertsRouteParams& p, Grouping& grouping, u32 pairs) {
    u32 lane = threadIdx.x % 32;
    for (u32 pair = threadIdx.x; pair < pairs; pair += THREADS)
        grouping.rank[pair] = (u16)atomicAdd(&grouping.count[grouping.expert[pair]], 1u);
    __syncthreads();
    if (threadIdx.x < 32) {
        u32 tiles = 0;
        for (u32 first = 0; first < EXPERTS; first += 32) {
            u32 expert = first + lane;
            u32 needed = expert < EXPERTS ? (grouping.count[expert] + p.tile_rows - 1) / p.tile_rows : 0;
            u32 end = tiles + scan(needed, lane);
            if (expert < EXPERTS) grouping.first_tile[expert] = end - needed;
            tiles = __shfl_sync(ALL_LANES, end, 31);
        }
        if (lane == 0) *p.tile_count = tiles;
    }
    __syncthreads();
    for (u32 pair = threadIdx.x; pair < pairs; pair += THREADS) {
        u32 expert = grouping.expert[pair], rank = grouping.rank[pair], in_tile = rank % p.tile_rows;
        u32* tile = p.tiles + (grouping.first_tile[expert] + rank / p.tile_rows) * TILE_WORDS;
        tile[2 + in_tile] = pair;
        if (in_tile != 0) continue;
        tile[0] = expert;
        tile[1] = min(grouping.count[expert] - rank, p.tile_rows);
    }
}

// The same for one row, whose experts all differ.
DEVICE void tiles_of_one(const ExpertsRouteParams& p, const Grouping& grouping) {
    for (u32 k = threadIdx.x; k < TOP_K; k += THREADS) {
        u32* tile = p.tiles + k * TILE_WORDS;
        tile[0] = grouping.expert[k], tile[1] = 1, tile[2] = k;
    }
    if (threadIdx.x == 0) *p.tile_count = TOP_K;
}

KERNEL __launch_bounds__(THREADS) experts_route(const __grid_constant__ ExpertsRouteParams p) {
    extern __shared__ __align__(128) u8 memory[];  // the weights of OUTPUTS outputs
    __shared__ __align__(16) float x[MOST_COLS];
    __shared__ u64 barriers[OUTPUTS];
    __shared__ float scratch[2][WARPS], factors[OUTPUTS];
    __shared__ Choice choices[WARPS];
    __shared__ Grouping grouping;
    __shared__ u32 arrived;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, first_out = blockIdx.x * OUTPUTS;
    const float* weights = (const float*)memory;
    for (u32 o = warp; o < OUTPUTS && first_out + o < EXPERTS; o += WARPS) {
        u32 barrier = shared_address(&barriers[o]);
        if (lane == 0) barrier_init(barrier, COPY_ARRIVALS);
        barrier_init_fence();
        __syncwarp();
        const u8* from = (const u8*)(p.router + (u64)(first_out + o) * p.padded_cols);
        warp_copy(shared_address(memory) + o * p.padded_cols * 4, from, p.padded_cols * 4, barrier, lane);
    }
    start_dependents();
    HeldRow<THREADS> norm_weight;
    norm_weight.load(p.norm_weight, p.cols);
    for (u32 expert = threadIdx.x; expert < EXPERTS; expert += THREADS) grouping.count[expert] = 0;
    float bias[SLOTS];
    load_experts(bias, p.bias, 0.0f);
    if (threadIdx.x < OUTPUTS && first_out + threadIdx.x < EXPERTS) factors[threadIdx.x] = p.router_factors[first_out + threadIdx.x];
    wait_for_inputs();
    u32 rows = p.step->rows;
    for (u32 o = warp; o < OUTPUTS && first_out + o < EXPERTS; o += WARPS) barrier_wait(shared_address(&barriers[o]), 0);
    for (u32 row = blockIdx.y; row < rows; row += gridDim.y) {
        __syncthreads();
        norm_row(p, norm_weight, row, x, scratch);
        __syncthreads();
        for (u32 o = warp; o < OUTPUTS && first_out + o < EXPERTS; o += WARPS) {
            float sum = logit((const float4*)(weights + o * p.padded_cols), (const float4*)x, p.padded_cols, lane);
            if (lane == 0) p.logits[row * EXPERTS + first_out + o] = sum * factors[o];
        }
    }
    if (!is_last_of(p.arrivals, gridDim.x * gridDim.y, arrived)) return;
    if (threadIdx.x == 0) *p.arrivals = 0;
    for (u32 i = threadIdx.x; i < p.cleared; i += THREADS) p.clear[i] = 0;
    choose_all(p, bias, choices, grouping, rows);
    __syncthreads();
    if (rows == 1) tiles_of_one(p, grouping);
    else group_all(p, grouping, rows * TOP_K);
}
