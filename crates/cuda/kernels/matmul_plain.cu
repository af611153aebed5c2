// matmul and moe_matmul of f32 weights, in f32: for small matrices that must be exact, such as routers.
//
// A warp takes OUTPUTS outputs times ROWS rows. Lane l sums the columns 4·l to 4·l + 3 of every 128, in order, then the
// lanes are added in a tree: the same for every number of rows. Weights are held as rows padded with zeros to 128
// columns; a warp holds CHUNK columns of its outputs in registers and loads the next as it goes.
// Bytes: every weight once per ROWS rows. FLOPs: 2 per weight and row.
#include "common.cuh"

#define WARPS 8
#define THREADS (32 * WARPS)
#define LANE_COLS 128
#define SUBS (CHUNK / LANE_COLS)
#define EPILOGUE_RELU2 1
#define EPILOGUE_RESIDUAL 2

// The weights of the outputs of a warp, CHUNK columns at a time.
struct Weights {
    const float* rows[OUTPUTS];
    float4 held[OUTPUTS][SUBS];

    DEVICE void load(int output, int sub, u32 col, u32 padded) {
        if (col + sub * LANE_COLS < padded) held[output][sub] = __ldg((const float4*)(rows[output] + col + sub * LANE_COLS));
    }
};

DEVICE float multiply_add(float4 a, float4 b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

KERNEL __launch_bounds__(THREADS) matmul_plain(const __grid_constant__ MatmulPlainParams p) {
    __shared__ float4 x[ROWS][CHUNK / 4];
    u32 lane = threadIdx.x & 31, first_out = (blockIdx.x * WARPS + threadIdx.x / 32) * OUTPUTS;
    u32 padded = (p.x.cols + LANE_COLS - 1) / LANE_COLS * LANE_COLS;
    u32 first_row = blockIdx.y * ROWS;
    start_dependents();
    Weights weights;
    auto begin = [&](u64 expert) {
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            weights.rows[o] = p.weights + (expert * p.out.cols + min(first_out + o, p.out.cols - 1)) * padded + lane * 4;
#pragma unroll
            for (int sub = 0; sub < SUBS; sub++) weights.load(o, sub, 0, padded);
        }
    };
    if (!EXPERTS) begin(0);
    wait_for_inputs();
    u32 rows = row_count(p.step, p.out);
    if (first_row >= rows) return;
    u32 count = min(rows - first_row, (u32)ROWS);
    // With experts a block has one row.
    u64 expert = EXPERTS ? i32_row(p.ids, first_row / p.out.times)[first_row % p.out.times] : 0;
    if (EXPERTS) begin(expert);
    float sums[OUTPUTS][ROWS] = {};
    for (u32 start = 0; start < padded; start += CHUNK) {
        __syncthreads();
        for (u32 at = threadIdx.x; at < ROWS * CHUNK; at += THREADS) {
            u32 r = at / CHUNK, col = start + at % CHUNK, row = first_row + r;
            if (EXPERTS && p.x.times != p.out.times) row /= p.out.times;
            ((float*)x[r])[at % CHUNK] = r < count && col < p.x.cols ? f32_row(p.x, row)[col] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int sub = 0; sub < SUBS; sub++) {
            if (start + sub * LANE_COLS >= padded) break;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float4 values = x[r][sub * 32 + lane];
#pragma unroll
                for (int o = 0; o < OUTPUTS; o++) sums[o][r] = multiply_add(weights.held[o][sub], values, sums[o][r]);
            }
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) weights.load(o, sub, start + CHUNK, padded);
        }
    }
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float sum = warp_sum(sums[o][r]);
            u32 col = first_out + o, row = first_row + r;
            if (lane != 0 || col >= p.out.cols || r >= count) continue;
            float value = sum * p.factors[expert * p.out.cols + col];
            if (p.epilogue == EPILOGUE_RELU2) {
                value = fmaxf(value, 0.0f);
                value *= value;
            }
            if (p.epilogue == EPILOGUE_RESIDUAL) value += f32_row(p.residual, row)[col];
            f32_row(p.out, row)[col] = value;
        }
}
