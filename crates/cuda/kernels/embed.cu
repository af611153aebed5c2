// embed: y[t] = table[id[t]], widened to f32, times the row's factor. STORED is how a value is stored: 0 f32, 1 f16, 2 bf16.
#include "common.cuh"

KERNEL embed(const __grid_constant__ EmbedParams p) {
    start_dependents();
    wait_for_inputs();
    u32 row = blockIdx.x;
    if (row >= p.step->rows) return;
    u64 id = p.step->token_ids[row];
    float scale = p.scales ? p.scales[id] : 1.0f;
    float* out = f32_row(p.out, row);
    u64 first = id * p.out.cols;
    for (u32 col = blockIdx.y * blockDim.x + threadIdx.x; col < p.out.cols; col += gridDim.y * blockDim.x) {
#if STORED == 0
        float value = ((const float*)p.table)[first + col];
#elif STORED == 1
        float value = f16_value(((const u16*)p.table)[first + col]);
#else
        float value = bf16_value(((const u16*)p.table)[first + col]);
#endif
        out[col] = value * scale;
    }
}
