// The norm that ends ssm_row and a product of its row, for one row: every block normalises and rounds by itself what
// ssm_row gated, which takes less than waiting for one block that does it for all.
//
// A block has a unit of 16 outputs, its four warps a slice of the columns each, whose weights are on their way before the
// inputs are ready. The arithmetic is that of ssm_row and of matmul.
// Bytes: every weight once, the row once per block from L2. FLOPs: 2 per weight.
#include "chain.cuh"
#include "ssm.cuh"

// -DGROUPS of the norm, -DHELD_VECTORS of four columns that a thread has.
#define WARPS SLICES
#define THREADS (32 * WARPS)

// A thread's part of a row of vectors.
DEVICE void load_held(float4 (&to)[HELD_VECTORS], const float* from, u32 cols) {
#pragma unroll
    for (u32 i = 0; i < HELD_VECTORS; i++) {
        u32 vector = i * THREADS + threadIdx.x;
        to[i] = vector < cols / 4 ? ((const float4*)from)[vector] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

// Normalises the row and rounds it to shared memory; its scale.
DEVICE float normalize_row(const GatedParams& p, float4 (&value)[HELD_VECTORS], const float4 (&weight)[HELD_VECTORS],
                           const float* scales, u8* x, float* scratch) {
    float largest = 0.0f;
#pragma unroll
    for (u32 i = 0; i < HELD_VECTORS; i++) {
        u32 vector = i * THREADS + threadIdx.x;
        if (vector >= p.cols / 4) continue;
        float scale = scales[4 * vector / (p.cols / GROUPS)];
        value[i].x = __fmul_rn(__fmul_rn(value[i].x, scale), weight[i].x);
        value[i].y = __fmul_rn(__fmul_rn(value[i].y, scale), weight[i].y);
        value[i].z = __fmul_rn(__fmul_rn(value[i].z, scale), weight[i].z);
        value[i].w = __fmul_rn(__fmul_rn(value[i].w, scale), weight[i].w);
        largest = fmaxf(largest, fmaxf(fabsf(value[i].x), fabsf(value[i].y)));
        largest = fmaxf(largest, fmaxf(fabsf(value[i].z), fabsf(value[i].w)));
    }
    float scale = f16_scale(block_max<WARPS>(largest, scratch)), inverse = f16_inverse_scale(scale);
#pragma unroll
    for (u32 i = 0; i < HELD_VECTORS; i++) {
        u32 vector = i * THREADS + threadIdx.x;
        if (vector < p.cols / 4) round_four(x, 4 * vector, p.cols, ROUNDED_F16, value[i], inverse);
    }
    return scale;
}

KERNEL __launch_bounds__(THREADS, 3) gated_matmul(const __grid_constant__ GatedParams p) {
    extern __shared__ __align__(128) u8 memory[];  // weights of the unit, the row
    __shared__ u64 barriers[WARPS];
    __shared__ float scales[GROUPS], scratch[WARPS], slice_sums[SLICES * SUMS_STRIDE];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, unit = blockIdx.x, unit_bytes = p.col_tiles * TILE_BYTES;
    Chain chain;
    chain.of_slice(warp, p.col_tiles, true);
    chain.at = shared_address(memory) + chain.first * TILE_BYTES;
    chain.barrier = shared_address(&barriers[warp]), chain.lane = lane, chain.parity = 0;
    if (lane == 0) barrier_init(chain.barrier, COPY_ARRIVALS);
    barrier_init_fence();
    __syncwarp();
    chain.start(p.tiles + (u64)unit * unit_bytes);
    start_dependents();
    float4 weight[HELD_VECTORS], value[HELD_VECTORS];
    load_held(weight, p.norm, p.cols);
    u32 col = unit * TILE_ROWS + threadIdx.x;
    bool stores = threadIdx.x < TILE_ROWS && col < p.out.cols;
    float factor = stores ? p.factors[col] : 0.0f;
    wait_for_inputs();
    if (p.step->rows == 0) {
        // Copies must have ended before the block does.
        chain.wait();
        return;
    }
    load_held(value, p.gated, p.cols);
    float residual = stores && p.has_residual ? f32_row(p.residual, 0)[col] : 0.0f;
    u32 group_cols = p.cols / GROUPS;
    for (u32 group = warp; group < GROUPS; group += WARPS) {
        float scale = group_scale(p.sums + group * pieces_of(group_cols), group_cols, p.eps);
        if (lane == 0) scales[group] = scale;
    }
    // All blocks of ssm_row have read the columns that these replace.
    for (u32 i = unit * THREADS + threadIdx.x; i < p.raw_cols; i += gridDim.x * THREADS) ((float*)*p.raw_at)[i] = p.raw[i];
    __syncthreads();
    u8* x = memory + unit_bytes;
    float scale = normalize_row(p, value, weight, scales, x, scratch);
    __syncthreads();
    float sums[PARTS][4] = {};
    chain.wait();
    chain.multiply(shared_address(x) + (lane >> 3) * 16, 2 * TILE_COLS * p.col_tiles, sums);
    store_sums(slice_sums, warp, 1, lane, sums);
    __syncthreads();
    if (!stores) return;
    float y = add_slices(slice_sums, 1, 0, threadIdx.x) * factor * scale;
    f32_row(p.out, 0)[col] = p.has_residual ? y + residual : y;
}
