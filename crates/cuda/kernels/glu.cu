// glu: y = activation(gate) * x, element by element; also rounded. One block of THREADS threads a row.
// ACTIVATION: 0 SiLU, 1 sigmoid, 2 GELU by tanh, 3 GELU, 4 clamped SiLU.
#include "round.cuh"

DEVICE float gated(float g, float x, float alpha, float limit) {
#if ACTIVATION == 0
    return g / (1.0f + expf(-g)) * x;
#elif ACTIVATION == 1
    return x / (1.0f + expf(-g));
#elif ACTIVATION == 2
    float inner = 0.7978845608028654f * fmaf(0.044715f * g * g, g, g);
    return 0.5f * g * (1.0f + tanhf(inner)) * x;
#elif ACTIVATION == 3
    return 0.5f * g * (1.0f + erff(g * 0.7071067811865476f)) * x;
#else
    g = fminf(g, limit);
    x = fminf(fmaxf(x, -limit), limit);
    return g / (1.0f + expf(-alpha * g)) * (x + 1.0f);
#endif
}

KERNEL glu(const __grid_constant__ GluParams p) {
    __shared__ float scratch[THREADS / 32];
    start_dependents();
    wait_for_inputs();
    u32 row = blockIdx.x;
    if (row >= row_count(p.step, p.out)) return;
    const float* gate = f32_row(p.gate, row);
    const float* x = f32_row(p.x, row);
    float* out = f32_row(p.out, row);
    for (u32 col = threadIdx.x; col < p.out.cols; col += THREADS)
        out[col] = gated(gate[col], x[col], p.alpha, p.limit);
    if (p.rounded_kind != ROUNDED_NONE)
        round_row<THREADS>(out, p.out.cols, byte_row(p.rounded, row), p.rounded_kind, scratch);
}
