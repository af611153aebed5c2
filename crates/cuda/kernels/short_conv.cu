// short_conv: with the input [b c x], y[t] = c[t] · (bias + Σ_k w[·,k]·(b·x)[t-K+1+k]); the products b·x go into the
// slot's ring.
//
// As ssm_conv: a thread walks ROWS rows of one channel, and `short_conv_store` runs when all have read the ring.
// Defines: TAPS, ROWS.
#include "ssm.cuh"

// The product b·x of a channel in a row of the step.
DEVICE float product(const ConvParams& p, u32 row, u32 channel) {
    const float* x = f32_row(p.x, row);
    return __fmul_rn(x[channel], x[2 * p.out.cols + channel]);
}

DEVICE float column_at(const ConvParams& p, const SegmentEntry& segment, int position, u32 channel) {
    if (position < 0) return 0.0f;
    if (position >= (int)segment.position)
        return product(p, segment.first_row + (position - segment.position), channel);
    return conv_column(p.slots, slot_part(p.slots, segment.slot), position, p.out.cols)[channel];
}

KERNEL short_conv(const __grid_constant__ ConvParams p) {
    u32 channel = blockIdx.x * blockDim.x + threadIdx.x, channels = p.out.cols;
    float weight[TAPS], bias = 0.0f;
    if (channel < channels) {
        bias = p.bias[channel];
#pragma unroll
        for (int k = 0; k < TAPS; k++) weight[k] = p.weight[channel * TAPS + k];
    }
    start_dependents();
    wait_for_inputs();
    if (channel >= channels) return;
    u32 rows = p.step->rows, end = min(rows, (blockIdx.y + 1) * ROWS);
    u32 known = 0xffffffffu;
    SegmentEntry segment;
    float columns[TAPS];
    for (u32 row = blockIdx.y * ROWS; row < end; row++) {
        u32 index = p.step->row_segment[row];
        bool is_new = index != known;
        if (is_new) {
            known = index;
            segment = p.step->segments[index];
        }
        int position = (int)(segment.position + (row - segment.first_row));
#pragma unroll
        for (int k = 0; k + 1 < TAPS; k++)
            columns[k] = is_new ? column_at(p, segment, position - (TAPS - 1) + k, channel) : columns[k + 1];
        columns[TAPS - 1] = product(p, row, channel);
        f32_row(p.out, row)[channel] =
            __fmul_rn(f32_row(p.x, row)[channels + channel], convolve<TAPS>(weight, bias, columns));
    }
}

KERNEL short_conv_store(const __grid_constant__ ConvParams p) {
    start_dependents();
    wait_for_inputs();
    u32 channel = blockIdx.x * blockDim.x + threadIdx.x, channels = p.out.cols;
    if (channel >= channels) return;
    for (u32 index = blockIdx.y; index < p.step->segment_count; index += gridDim.y) {
        SegmentEntry segment = p.step->segments[index];
        float* part = slot_part(p.slots, segment.slot);
        u32 kept = min(segment.rows, p.slots.conv_capacity);
        for (u32 row = segment.rows - kept; row < segment.rows; row++)
            conv_column(p.slots, part, segment.position + row, channels)[channel] =
                product(p, segment.first_row + row, channel);
    }
}
