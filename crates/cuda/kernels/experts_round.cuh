// Rows of a layer of experts between its products: f32 whose largest magnitudes are known, rounded to f16.
#pragma once
#include "common.cuh"
#include "fragments.cuh"

// Values that a thread loads before it rounds any.
#define AT_ONCE 4

// Rounds up to MOST rows, by a block of BLOCK threads, to f16 in shared memory, with zeros up to whole tiles.
template <u32 MOST, u32 BLOCK>
DEVICE void round_rows(u8* to, u32 stride, const float* from, const u32* largest, const u32 (&rows)[4], u32 count, u32 cols, u32 col_tiles) {
    const u32 steps = AT_ONCE / MOST;
    float inverse[MOST];
#pragma unroll
    for (u32 r = 0; r < MOST; r++)
        inverse[r] = f16_inverse_scale(f16_scale(__uint_as_float(r < count ? load_fresh(largest + rows[r]) : 0u)));
    const float4 zeros = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (u32 start = threadIdx.x * 4; start < col_tiles * TILE_COLS; start += steps * BLOCK * 4) {
        // A latency for all of it.
        float4 values[MOST][steps];
#pragma unroll
        for (u32 r = 0; r < MOST; r++)
#pragma unroll
            for (u32 i = 0; i < steps; i++) {
                u32 at = start + i * BLOCK * 4;
                values[r][i] = r < count && at < cols ? *(const float4*)(from + (u64)rows[r] * cols + at) : zeros;
            }
#pragma unroll
        for (u32 r = 0; r < MOST; r++)
#pragma unroll
            for (u32 i = 0; i < steps; i++) {
                u32 at = start + i * BLOCK * 4;
                if (r >= count || at >= col_tiles * TILE_COLS) continue;
                u32* words = (u32*)(to + r * stride + 2 * at);
                float4 v = values[r][i];
                words[0] = f16_pair(__fmul_rn(v.x, inverse[r]), __fmul_rn(v.y, inverse[r]));
                words[1] = f16_pair(__fmul_rn(v.z, inverse[r]), __fmul_rn(v.w, inverse[r]));
            }
    }
}
