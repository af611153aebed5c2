// matmul of f32 weights for many rows: the sums of matmul_plain.cu, bit for bit, in tiles of ROWS rows and OUTPUTS outputs.
//
// A warp takes 8 rows and 8 outputs, so that what it reads of shared memory keeps it no longer than its multiplications.
// Rows and weights pass through a ring of stages of 128 columns. Lanes share the additions of the tree over them.
// Bytes: weights once per ROWS rows, rows once per OUTPUTS outputs, from L2. FLOPs: 2 per weight and row.
#include "common.cuh"

#define ROWS 32
#define OUTPUTS 32
#define OWN 8
#define WARPS (ROWS / OWN * OUTPUTS / OWN)
#define THREADS (32 * WARPS)
#define LANE_COLS 128
#define STAGES 3
#define EPILOGUE_RELU2 1
#define EPILOGUE_RESIDUAL 2

struct Stage {
    float4 x[ROWS][32], weights[OUTPUTS][32];
};

extern __shared__ __align__(16) unsigned char shared_bytes[];

DEVICE float multiply_add(float4 a, float4 b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// Starts copying 128 columns; rows, outputs and columns that are not there are zero.
DEVICE void copy_stage(const MatmulPlainParams& p, Stage& to, u32 first_row, u32 rows, u32 first_out, u32 col, u32 padded) {
    u32 lane = threadIdx.x & 31, own_col = col + 4 * lane;
    for (u32 i = threadIdx.x / 32; col < padded && i < ROWS; i += WARPS) {
        bool is_there = first_row + i < rows && own_col < p.x.cols;
        copy_async_or_zero(shared_address(&to.x[i][lane]), f32_row(p.x, first_row + i) + own_col, is_there);
    }
    for (u32 i = threadIdx.x / 32; col < padded && i < OUTPUTS; i += WARPS) {
        const float* from = p.weights + (u64)(first_out + i) * padded + own_col;
        copy_async_or_zero(shared_address(&to.weights[i][lane]), from, first_out + i < p.out.cols);
    }
    end_copies();
}

// The sums over lanes of 2·KEPT values: of value 2·lane in the first, and of the one after it in the second.
template <int KEPT>
DEVICE void sum_lanes(float* values, u32 lane) {
    bool is_upper = lane & KEPT / 2;
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        float sent = is_upper ? values[i] : values[i + KEPT], own = is_upper ? values[i + KEPT] : values[i];
        values[i] = own + __shfl_xor_sync(ALL_LANES, sent, KEPT / 2);
    }
    if constexpr (KEPT > 2) sum_lanes<KEPT / 2>(values, lane);
}

DEVICE void store_value(const MatmulPlainParams& p, u32 row, u32 col, float sum) {
    float value = sum * p.factors[col];
    if (p.epilogue == EPILOGUE_RELU2) {
        value = fmaxf(value, 0.0f);
        value *= value;
    }
    if (p.epilogue == EPILOGUE_RESIDUAL) value += f32_row(p.residual, row)[col];
    f32_row(p.out, row)[col] = value;
}

KERNEL __launch_bounds__(THREADS, 1) matmul_plain_many(const __grid_constant__ MatmulPlainParams p) {
    Stage* stages = (Stage*)shared_bytes;
    u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, own_row = warp % (ROWS / OWN) * OWN, own_out = warp / (ROWS / OWN) * OWN;
    u32 padded = (p.x.cols + LANE_COLS - 1) / LANE_COLS * LANE_COLS;
    u32 first_out = blockIdx.x * OUTPUTS, first_row = blockIdx.y * ROWS;
    start_dependents();
    wait_for_inputs();
    u32 rows = row_count(p.step, p.out);
    if (first_row >= rows) return;
    for (u32 i = 0; i < STAGES - 1; i++) copy_stage(p, stages[i], first_row, rows, first_out, i * LANE_COLS, padded);
    float sums[OWN * OWN] = {};
    for (u32 block = 0; block < padded / LANE_COLS; block++) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        u32 next = block + STAGES - 1;
        copy_stage(p, stages[next % STAGES], first_row, rows, first_out, next * LANE_COLS, padded);
        const Stage& stage = stages[block % STAGES];
        float4 weights[OWN];
#pragma unroll
        for (int o = 0; o < OWN; o++) weights[o] = stage.weights[own_out + o][lane];
#pragma unroll
        for (int r = 0; r < OWN; r++) {
            float4 values = stage.x[own_row + r][lane];
#pragma unroll
            for (int o = 0; o < OWN; o++) sums[r * OWN + o] = multiply_add(weights[o], values, sums[r * OWN + o]);
        }
    }
    wait_for_copies<0>();
    sum_lanes<OWN * OWN / 2>(sums, lane);
    u32 row = first_row + own_row + lane / 4, col = first_out + own_out + lane % 4 * 2;
    if (row >= rows) return;
    if (col < p.out.cols) store_value(p, row, col, sums[0]);
    if (col + 1 < p.out.cols) store_value(p, row, col + 1, sums[1]);
}
