// matmul of f32 weights, loading: rows as they are stored, at any address, to rows padded with zeros to 128 columns.
#include "common.cuh"

#define LANE_COLS 128

KERNEL matmul_plain_pack(const __grid_constant__ MatmulPackParams p) {
    u32 row = blockIdx.x, padded = (p.cols + LANE_COLS - 1) / LANE_COLS * LANE_COLS;
    float* to = (float*)p.tiles + (u64)(p.first_row + row) * padded;
    const u8* from = p.stored + (u64)row * p.row_bytes;
    for (u32 col = threadIdx.x; col < padded; col += blockDim.x) {
        u32 word = 0;
        if (col < p.cols)
            for (u32 byte = 0; byte < 4; byte++) word |= (u32)from[4 * col + byte] << (8 * byte);
        to[col] = __uint_as_float(word);
    }
    if (threadIdx.x == 0) p.factors[p.first_row + row] = p.scale_count == 0 ? 1.0f : p.row_scales[p.scale_count == 1 ? 0 : row];
}
