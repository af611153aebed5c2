// rms_norm and up to three products of the normed row, for one row: every block norms it by itself.
//
// A block has two units of 16 outputs; four warps share a unit, a slice of the columns each, whose weights are on their way
// before the inputs are ready. The norm's sums are those of rms_norm: its NORM_THREADS threads stand in for by these.
// Bytes: every weight once, the row once per block from L2. FLOPs: 2 per weight.
#include "chain.cuh"
#include "norm.cuh"

// -DNORM_THREADS: those that rms_norm has for rows of this width.
#define UNITS 2
#define THREADS (UNITS * SLICES * 32)
#define WARPS (THREADS / 32)
#define NORM_WARPS (NORM_THREADS / 32)
// Threads of rms_norm that each thread here stands for: t, t + THREADS and so on.
#define STAND_INS ((NORM_THREADS + THREADS - 1) / THREADS)

// The values of a row that the threads of rms_norm would hold.
struct Values {
    float values[STAND_INS][HELD];

    DEVICE static u32 col(int own, int i) {
        return threadIdx.x + own * THREADS + i * NORM_THREADS;
    }
    DEVICE static bool stands_in(int own) {
        return threadIdx.x + own * THREADS < NORM_THREADS;
    }
    DEVICE void load(const float* from, u32 cols) {
#pragma unroll
        for (int own = 0; own < STAND_INS; own++)
#pragma unroll
            for (int i = 0; i < HELD; i++)
                values[own][i] = stands_in(own) && col(own, i) < cols ? from[col(own, i)] : 0.0f;
    }
};

// The factor on the row, from sums in the order of rms_norm. `scratch` has NORM_WARPS floats.
DEVICE float row_factor(const Values& row, u32 cols, float eps, float* scratch) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int own = 0; own < STAND_INS; own++) {
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < HELD; i++) squares = fmaf(row.values[own][i], row.values[own][i], squares);
        squares = warp_sum(squares);
        if (lane == 0 && warp + own * WARPS < NORM_WARPS) scratch[warp + own * WARPS] = squares;
    }
    __syncthreads();
    float mean = warp_sum(lane < NORM_WARPS ? scratch[lane] : 0.0f) / (float)cols;
    return 1.0f / sqrtf(mean + eps);
}

// Norms the row and rounds it to f16 in shared memory, with zeros up to whole tiles. Its scale.
DEVICE float norm_row(const NormedParams& p, const Values& weight, u8* x, float (*scratch)[16]) {
    Values row;
    row.load(f32_row(p.x, 0), p.x.cols);
    float factor = row_factor(row, p.x.cols, p.eps, scratch[0]), largest = 0.0f;
#pragma unroll
    for (int own = 0; own < STAND_INS; own++)
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            row.values[own][i] = row.values[own][i] * factor * weight.values[own][i];
            largest = fmaxf(largest, fabsf(row.values[own][i]));
        }
    float scale = f16_scale(block_max<WARPS>(largest, scratch[1])), inverse = f16_inverse_scale(scale);
    u32 padded = padded_cols(p.x.cols);
#pragma unroll
    for (int own = 0; own < STAND_INS; own++)
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (Values::stands_in(own) && Values::col(own, i) < padded)
                ((u16*)x)[Values::col(own, i)] = f16_bits(row.values[own][i] * inverse);
    return scale;
}

KERNEL __launch_bounds__(THREADS, __CUDA_ARCH__ >= 900 ? 4 : 3) normed_matmul(const __grid_constant__ NormedParams p) {
    extern __shared__ __align__(128) u8 memory[];  // weights of both units, the row
    __shared__ u64 barriers[WARPS];
    __shared__ float scratch[2][16];
    __shared__ float sums_of[UNITS][SLICES * SUMS_STRIDE];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, group = warp / SLICES, slice = warp % SLICES;
    u32 index = blockIdx.x;
    NormedProduct product = p.first;
    if (index >= p.first_blocks) {
        index -= p.first_blocks;
        product = p.second;
        if (index >= p.second_blocks) {
            index -= p.second_blocks;
            product = p.third;
        }
    }
    u32 unit = index * UNITS + group, unit_bytes = p.col_tiles * TILE_BYTES;
    Chain chain;
    chain.of_slice(slice, p.col_tiles, unit < product.units);
    chain.at = shared_address(memory) + group * unit_bytes + chain.first * TILE_BYTES;
    chain.barrier = shared_address(&barriers[warp]), chain.lane = lane, chain.parity = 0;
    if (lane == 0) barrier_init(chain.barrier, COPY_ARRIVALS);
    barrier_init_fence();
    __syncwarp();
    chain.start(product.tiles + (u64)unit * unit_bytes);
    start_dependents();
    Values weight;
    weight.load(p.weight, p.x.cols);
    u32 thread = threadIdx.x % (SLICES * 32), col = unit * TILE_ROWS + thread;
    bool stores = thread < TILE_ROWS && unit < product.units && col < product.out.cols;
    float factor = stores ? product.factors[col] : 0.0f;
    wait_for_inputs();
    if (p.step->rows == 0) {
        // Copies must have ended before the block does.
        chain.wait();
        return;
    }
    u8* x = memory + UNITS * unit_bytes;
    float scale = norm_row(p, weight, x, scratch);
    __syncthreads();
    float sums[PARTS][4] = {};
    chain.wait();
    chain.multiply(shared_address(x) + (lane >> 3) * 16, 2 * TILE_COLS * p.col_tiles, sums);
    store_sums(sums_of[group], slice, 1, lane, sums);
    unit_barrier(group);
    if (stores) f32_row(product.out, 0)[col] = add_slices(sums_of[group], 1, 0, thread) * factor * scale;
}
