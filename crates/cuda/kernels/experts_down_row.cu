// Third and last kernel of a fused layer of experts for one row: the products down, their weighted sum, and what is added
// to it, in the order of moe_combine and of the product that would have followed it.
//
// A block has a unit of 16 outputs of all experts, so that nothing is left to others. A chain is a slice of the columns of
// one expert. The first four warps have those of the shared expert, the others share those of the chosen ones; their
// weights are on their way before the inputs are ready. Every block rounds all rows.
// Bytes: the weights of each chosen expert once, the rows once per block, those from L2. FLOPs: 2 per weight.
#include "experts_round.cuh"
#include "experts_row.cuh"

#define WARPS 16
#define THREADS (WARPS * 32)
#define ROUTED_WARPS (WARPS - SLICES)
// Terms of the sum: the shared expert's and those of the chosen ones.
#define TERMS (TOP_K + 1)
#define CHAINS (TERMS * SLICES)
static_assert(TERMS * TILE_ROWS <= THREADS, "a thread for every term of every output");

// A warp's chains, in the order in which it needs them: the shared expert's slices are the first four of all.
struct Chains {
    u32 next, left;
    const u8* from;

    DEVICE static u32 after(u32 chain) {
        return chain < SLICES ? CHAINS : chain + ROUTED_WARPS;
    }
    // Tiles of columns before those of a chain, and of it.
    DEVICE static u32 first(const ExpertWeights& weights, u32 chain) {
        return slice_start(chain % SLICES, weights.col_tiles);
    }
    DEVICE static u32 tiles(const ExpertWeights& weights, u32 chain) {
        return slice_start(chain % SLICES + 1, weights.col_tiles) - first(weights, chain);
    }
    // Starts copies to all stages that are free.
    DEVICE void fill(const ExpertsDownParams& p, const u32* ids, Ring& ring) {
        while (ring.free > 0) {
            for (; left == 0; next = after(next)) {
                if (next >= CHAINS) return;
                const ExpertWeights& weights = next < SLICES ? p.shared : p.routed;
                left = tiles(weights, next);
                u64 unit = (next < SLICES ? 0 : ids[next / SLICES - 1]) * weights.units + blockIdx.x;
                from = weights.tiles + (unit * weights.col_tiles + first(weights, next)) * TILE_BYTES;
            }
            u32 now = min(left, p.streams.stage_tiles);
            ring.copy(p.streams, from, now * TILE_BYTES);
            from += now * TILE_BYTES;
            left -= now;
        }
    }
};

KERNEL __launch_bounds__(THREADS, BLOCKS) experts_down_row(const __grid_constant__ ExpertsDownParams p) {
    extern __shared__ __align__(128) u8 memory[];  // rings of all warps, rows, sums of all chains
    __shared__ u64 barriers[WARPS][MOST_STAGES];
    __shared__ Choice choice;
    __shared__ float terms[TERMS][TILE_ROWS], weights_of[TOP_K], residuals[TILE_ROWS];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    u32 warp_bytes = p.streams.warp_tiles * TILE_BYTES, rows_at = WARPS * warp_bytes;
    u32 shared_stride = 2 * TILE_COLS * p.shared.col_tiles + 16, routed_stride = 2 * TILE_COLS * p.routed.col_tiles + 16;
    float* sums_of = (float*)(memory + p.streams.sums_at);
    Ring ring;
    ring.begin(p.streams, shared_address(memory) + warp * warp_bytes, barriers[warp]);
    start_dependents();
    if (p.step->rows == 0) {
        wait_for_inputs();
        return;
    }
    // The kernel before this one lets it start only when the one that made the logits has ended.
    if (warp == 0) {
        float bias[SLOTS];
        load_experts(bias, p.bias, 0.0f);
        float divisor = choose(p.logits, bias, choice);
        for (u32 k = lane; k < TOP_K; k += 32) weights_of[k] = choice.weight(k, divisor, p.scale);
    }
    __syncthreads();
    Chains chains;
    chains.next = warp, chains.left = 0;
    chains.fill(p, choice.ids, ring);
    if (warp == 0) fetch_ahead(p.ahead, blockIdx.x, gridDim.x);
    // Those of this thread's term and output.
    u32 term = threadIdx.x / TILE_ROWS, col = blockIdx.x * TILE_ROWS + threadIdx.x % TILE_ROWS;
    const ExpertWeights& own = term == 0 ? p.shared : p.routed;
    float factor = term < TERMS ? own.factors[(u64)(term == 0 ? 0 : choice.ids[term - 1]) * own.units * TILE_ROWS + col] : 0.0f;
    bool is_stored = threadIdx.x < TILE_ROWS && col < p.out.cols;
    if (is_stored) residuals[threadIdx.x] = __uint_as_float(load_fresh(p.residual + col));
    wait_for_inputs();
    const u32* largest = term == 0 ? p.shared_largest : p.routed_largest + term - 1;
    float scale = f16_scale(__uint_as_float(term < TERMS ? load_fresh(largest) : 0u));
    u32 all[4] = {0, 0, 0, 0};
    round_rows<1, THREADS>(memory + rows_at, shared_stride, p.shared_x, p.shared_largest, all, 1, p.shared_cols, p.shared.col_tiles);
    u8* routed_rows = memory + rows_at + shared_stride;
    for (u32 k = 0; k < TOP_K; k += 4) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) all[i] = k + i;
        round_rows<4, THREADS>(routed_rows + k * routed_stride, routed_stride, p.routed_x, p.routed_largest, all, min(TOP_K - k, 4u), p.routed_cols, p.routed.col_tiles);
    }
    __syncthreads();
    for (u32 chain = warp; chain < CHAINS; chain = Chains::after(chain)) {
        const ExpertWeights& weights = chain < SLICES ? p.shared : p.routed;
        u32 x = shared_address(memory) + rows_at + (chain < SLICES ? 0 : shared_stride + (chain / SLICES - 1) * routed_stride);
        u32 tile = Chains::first(weights, chain), end = tile + Chains::tiles(weights, chain);
        float sums[PARTS][4] = {};
        for (; tile < end; tile += p.streams.stage_tiles) {
            u32 at = x + tile * (2 * TILE_COLS) + (lane >> 3) * 16;
            multiply_tiles(ring.wait(p.streams), min(end - tile, p.streams.stage_tiles), lane, at, 2 * TILE_COLS * weights.col_tiles, sums);
            ring.advance(p.streams);
            chains.fill(p, choice.ids, ring);
        }
        store_sums(sums_of + chain / SLICES * (SLICES * SUMS_STRIDE), chain % SLICES, 1, lane, sums);
    }
    __syncthreads();
    if (term < TERMS) {
        float value = add_slices(sums_of + term * (SLICES * SUMS_STRIDE), 1, 0, threadIdx.x % TILE_ROWS) * factor * scale;
        terms[term][threadIdx.x % TILE_ROWS] = value;
    }
    __syncthreads();
    if (!is_stored) return;
    float sum = 0.0f;
    for (u32 k = 1; k <= TOP_K; k++) sum = fmaf(weights_of[k - 1], terms[k][threadIdx.x], sum);
    // moe_combine adds terms by eights; those that do not exist are zeros with weight zero.
    if (TOP_K % 8 != 0) sum = fmaf(0.0f, 0.0f, sum);
    f32_row(p.out, 0)[col] = __fadd_rn(terms[0][threadIdx.x], __fadd_rn(sum, residuals[threadIdx.x]));
}
