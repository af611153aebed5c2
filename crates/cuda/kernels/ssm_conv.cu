// ssm_conv: y[t,c] = SiLU(bias[c] + Σ_k w[c,k]·xBC[t-K+1+k, c]); the raw columns go into the slot's ring.
//
// A thread of `ssm_conv` has ROWS rows of one channel: it reads them at once where they are of one segment, and else walks
// them with the columns before each in registers. `ssm_conv_store` runs when all have read the ring. 8 bytes per value.
// Defines: TAPS, ROWS.
#include "ssm.cuh"

// The column of a channel at a position: of this step, of the ring, or zero before the sequence.
DEVICE float column_at(const ConvParams& p, const SegmentEntry& segment, int position, u32 channel) {
    if (position < 0) return 0.0f;
    if (position >= (int)segment.position)
        return f32_row(p.x, segment.first_row + (position - segment.position))[channel];
    return conv_column(p.slots, slot_part(p.slots, segment.slot), position, p.x.cols)[channel];
}

// ROWS rows of one segment: all that they read is on its way at once.
DEVICE void convolve_rows(const ConvParams& p, const SegmentEntry& segment, u32 first, u32 channel,
                          const float (&weight)[TAPS], float bias) {
    float columns[TAPS - 1 + ROWS];
    int position = (int)(segment.position + (first - segment.first_row));
#pragma unroll
    for (int i = 0; i < ROWS; i++) columns[TAPS - 1 + i] = f32_row(p.x, first + i)[channel];
#pragma unroll
    for (int k = 0; k + 1 < TAPS; k++) columns[k] = column_at(p, segment, position - (TAPS - 1) + k, channel);
#pragma unroll
    for (int i = 0; i < ROWS; i++) f32_row(p.out, first + i)[channel] = silu(convolve<TAPS>(weight, bias, columns + i));
}

KERNEL ssm_conv(const __grid_constant__ ConvParams p) {
    u32 channel = blockIdx.x * blockDim.x + threadIdx.x;
    float weight[TAPS], bias = 0.0f;
    if (channel < p.x.cols) {
        bias = p.bias[channel];
#pragma unroll
        for (int k = 0; k < TAPS; k++) weight[k] = p.weight[channel * TAPS + k];
    }
    start_dependents();
    wait_for_inputs();
    if (channel >= p.x.cols) return;
    u32 rows = p.step->rows, end = min(rows, (blockIdx.y + 1) * ROWS), first = blockIdx.y * ROWS;
    if (ROWS > 1 && first + ROWS <= rows) {
        u32 index = p.step->row_segment[first];
        if (p.step->row_segment[first + ROWS - 1] == index) {
            convolve_rows(p, p.step->segments[index], first, channel, weight, bias);
            return;
        }
    }
    u32 known = 0xffffffffu;
    SegmentEntry segment;
    float columns[TAPS];
    for (u32 row = first; row < end; row++) {
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
        columns[TAPS - 1] = f32_row(p.x, row)[channel];
        f32_row(p.out, row)[channel] = silu(convolve<TAPS>(weight, bias, columns));
    }
}

KERNEL ssm_conv_store(const __grid_constant__ ConvParams p) {
    start_dependents();
    wait_for_inputs();
    u32 channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= p.x.cols) return;
    for (u32 index = blockIdx.y; index < p.step->segment_count; index += gridDim.y) {
        SegmentEntry segment = p.step->segments[index];
        float* part = slot_part(p.slots, segment.slot);
        u32 kept = min(segment.rows, p.slots.conv_capacity);
        for (u32 row = segment.rows - kept; row < segment.rows; row++)
            conv_column(p.slots, part, segment.position + row, p.x.cols)[channel] =
                f32_row(p.x, segment.first_row + row)[channel];
    }
}
