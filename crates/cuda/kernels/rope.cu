// rope: every pair (a, b) of channels becomes m*(a*cos - b*sin, b*cos + a*sin) of its angle at the row's position;
// channels beyond the rotary ones are copied. The angle is a product in f64 that is reduced to a part of a turn there,
// so sine and cosine are as exact at position a million as at one. NEIGHBOURS: pairs are channels 2i and 2i + 1.
#include "common.cuh"

KERNEL rope(const __grid_constant__ RopeParams p) {
    __shared__ float sines[MAX_PAIRS], cosines[MAX_PAIRS];
    start_dependents();
    wait_for_inputs();
    u32 row = blockIdx.x;
    if (row >= row_count(p.step, p.out)) return;
    double position = (double)row_position(p.step, row / p.out.times);
    for (u32 pair = threadIdx.x; pair < p.pairs; pair += blockDim.x) {
        double turns = position * p.turns.values[pair];
        if (p.factors) turns /= (double)p.factors[pair];
        float sine, cosine;
        sincospif((float)(2.0 * (turns - rint(turns))), &sine, &cosine);
        sines[pair] = sine * p.magnitude;
        cosines[pair] = cosine * p.magnitude;
    }
    __syncthreads();
    const float* x = f32_row(p.x, row);
    float* out = f32_row(p.out, row);
    u32 rotary = 2 * p.pairs;
    for (u32 col = threadIdx.x; col < p.out.cols; col += blockDim.x) {
        u32 channel = col % p.head_dim;
        if (channel >= rotary) {
            out[col] = x[col];
            continue;
        }
#if NEIGHBOURS
        u32 pair = channel / 2, is_second = channel & 1, other = is_second ? col - 1 : col + 1;
#else
        u32 is_second = channel >= p.pairs, pair = is_second ? channel - p.pairs : channel;
        u32 other = is_second ? col - p.pairs : col + p.pairs;
#endif
        float sine = is_second ? sines[pair] : -sines[pair];
        out[col] = fmaf(x[col], cosines[pair], x[other] * sine);
    }
}
