// Second kernel of a fused layer of experts for one row: the choice of experts, and relu2 of the products up, of the shared
// expert and of the chosen ones.
//
// A block has UNITS units of 16 outputs of one expert; four warps share a unit, a slice of the columns each. Those of the
// shared expert start to bring their weights before the inputs are ready; the others choose first, each for itself, which
// takes less than waiting for one that chooses for all. The largest value of every row is found for the next kernel, which
// rounds; what that will read of the chosen experts is brought to L2 meanwhile.
// Bytes: the weights of each chosen expert once. FLOPs: 2 per weight.
#include "experts_row.cuh"

#define UNITS 4
#define WARPS (UNITS * SLICES)
#define THREADS (WARPS * 32)

// Starts to bring the row to shared memory.
DEVICE void load_row(const ExpertsUpParams& p, u32 x, u32 bytes) {
    for (u32 at = threadIdx.x * 16; at < bytes; at += THREADS * 16) copy_async(x + at, p.x + at);
    end_copies();
}

// Brings the block's share of what the next kernel reads of chosen experts to L2.
DEVICE void fetch_down(const ExpertsUpParams& p, const u32* ids, u32 block, u32 blocks) {
    for (u32 k = 0; k < TOP_K; k++) {
        Ahead expert = p.ahead;
        expert.from += ids[k] * expert.bytes;
        fetch_ahead(expert, block, blocks);
    }
}

// Keeps the choice for who reads it beside the layer.
DEVICE void keep_choice(const ExpertsUpParams& p, const Choice& choice, float divisor) {
    for (u32 k = threadIdx.x % 32; k < TOP_K; k += 32) {
        i32_row(p.ids, 0)[k] = (int)choice.ids[k];
        f32_row(p.weights, 0)[k] = choice.weight(k, divisor, p.scale);
    }
}

KERNEL __launch_bounds__(THREADS, BLOCKS) experts_up_row(const __grid_constant__ ExpertsUpParams p) {
    extern __shared__ __align__(128) u8 memory[];  // rings of all warps, the row
    __shared__ u64 barriers[WARPS][MOST_STAGES];
    __shared__ float sums_of[UNITS][SLICES * SUMS_STRIDE];
    __shared__ Choice choice;
    if (p.step->rows == 0) {
        wait_for_inputs();
        return;
    }
    u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, group = warp / SLICES, slice = warp % SLICES;
    u32 shared_blocks = (p.shared.units + UNITS - 1) / UNITS, blocks = (p.routed.units + UNITS - 1) / UNITS;
    bool is_shared = blockIdx.x < shared_blocks;
    const ExpertWeights& weights = is_shared ? p.shared : p.routed;
    u32 index = is_shared ? blockIdx.x : blockIdx.x - shared_blocks, k = is_shared ? 0 : index / blocks;
    u32 unit = (is_shared ? index : index % blocks) * UNITS + group;
    Slice own(weights, slice, unit < weights.units);
    u32 warp_bytes = p.streams.warp_tiles * TILE_BYTES, x = shared_address(memory) + WARPS * warp_bytes;
    Ring ring;
    ring.begin(p.streams, shared_address(memory) + warp * warp_bytes, barriers[warp]);
    if (is_shared) own.start(p.streams, ring, weights, unit);
    float bias[SLOTS];
    load_experts(bias, p.bias, 0.0f);
    wait_for_inputs();
    // Not before: the next kernel reads logits before its own wait.
    start_dependents();
    if (!is_shared) {
        if (warp == 0) {
            float divisor = choose(p.logits, bias, choice);
            if (index == 0) keep_choice(p, choice, divisor);
        }
        __syncthreads();
        unit += choice.ids[k] * weights.units;
        own.start(p.streams, ring, weights, unit);
        if (warp == WARPS - 1) fetch_down(p, choice.ids, index, blocks * TOP_K);
    }
    u32 value_bytes = 2 * TILE_COLS * weights.col_tiles;
    load_row(p, x, value_bytes);
    // That of this thread's output.
    u32 thread = threadIdx.x % (SLICES * 32);
    float factor = thread < TILE_ROWS && own.has_unit ? weights.factors[(u64)unit * TILE_ROWS + thread] : 0.0f;
    float scale = *(const float*)(p.x + value_bytes);
    wait_for_copies<0>();
    __syncthreads();
    float sums[PARTS][4] = {};
    own.multiply(p.streams, ring, x + (lane >> 3) * 16, value_bytes, sums);
    store_sums(sums_of[group], slice, 1, lane, sums);
    barrier_of(group + 1, SLICES * 32);
    if (thread >= 32 || !own.has_unit) return;
    u32 col = (is_shared ? index : index % blocks) * (UNITS * TILE_ROWS) + group * TILE_ROWS + thread, cols = is_shared ? p.shared_cols : p.routed_cols;
    bool is_stored = thread < TILE_ROWS && col < cols;
    float value = 0.0f;
    if (is_stored) {
        value = fmaxf(add_slices(sums_of[group], 1, 0, thread) * factor * scale, 0.0f);
        value *= value;
        (is_shared ? p.shared_out : p.routed_out + (u64)k * cols)[col] = value;
    }
    value = warp_max(value);
    if (thread == 0) atomicMax((is_shared ? p.shared_largest : p.routed_largest) + k, __float_as_uint(value));
}
