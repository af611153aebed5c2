// ssm_step: ssm_conv, ssm_dt, ssm_scan and gated_group_norm of segments of up to a chunk, from the input projection
// [z | x | B | C | dt].
//
// A block of `ssm_step` has a segment and 32 channels of a head, as in ssm_scan, and convolves what it reads: its own
// channels, and B and C of its group. The state is read once, and written once a chunk. `ssm_step_finish` gates and
// normalises whole rows and stores what several blocks have read: B, dt and the raw columns of B and C.
// Defines: those of ssm_chunk.cuh, and TAPS.
#include "ssm_chunk_products.cuh"
#include "ssm_chunk_rows.cuh"

extern __shared__ __align__(16) unsigned char shared_bytes[];

#define INNER (HEADS * HEAD_DIM)
#define GROUP_STATE (GROUPS * STATE)
#define CONV_DIM (INNER + 2 * GROUP_STATE)

// The columns xBC of a row of the input projection.
DEVICE const float* xbc_row(const SsmStepParams& p, u32 row) {
    return f32_row(p.x, row) + INNER;
}

// A channel of xBC after the convolution, at a position of the segment.
DEVICE float convolved(const SsmStepParams& p, const SegmentEntry& segment, float* slot, u32 position, u32 channel) {
    float columns[TAPS], weight[TAPS];
#pragma unroll
    for (int k = 0; k < TAPS; k++) {
        int at = (int)position - (TAPS - 1) + k;
        weight[k] = p.conv_weight[channel * TAPS + k];
        columns[k] = 0.0f;
        if (at >= (int)segment.position)
            columns[k] = xbc_row(p, segment.first_row + (at - segment.position))[channel];
        else if (at >= 0)
            columns[k] = conv_column(p.slots, slot, at, CONV_DIM)[channel];
    }
    return silu(convolve<TAPS>(weight, p.conv_bias[channel], columns));
}

// The step size of a head in a row.
DEVICE float step_size(const SsmStepParams& p, u32 row, u32 head) {
    return softplus(__fadd_rn(f32_row(p.x, row)[INNER + CONV_DIM + head], p.dt_bias[head]));
}

// The rows of a segment: of the ring, and from the segment on convolved.
struct StepRows {
    const SsmStepParams& p;
    SegmentEntry segment;
    float* slot;
    u32 head, group;

    DEVICE u32 entry(u32 position) const { return position % p.slots.ring_capacity; }
    DEVICE u32 row(u32 position) const { return segment.first_row + (position - segment.position); }
    DEVICE float convolve(u32 position, u32 channel) const {
        return convolved(p, segment, slot, position, channel);
    }

    DEVICE bool is_stored(u32 position) const { return position < segment.position; }
    DEVICE const float* b(u32 position) const {
        return slot + p.slots.ring_b + entry(position) * GROUP_STATE + group * STATE;
    }
    DEVICE const float* c(u32) const { return 0; }
    DEVICE float* x(u32 position) const {
        return slot + p.slots.ring_x + entry(position) * INNER + head * HEAD_DIM;
    }
    DEVICE float b_value(u32 position, u32 n) const { return convolve(position, INNER + group * STATE + n); }
    DEVICE float c_value(u32 position, u32 n) const {
        return convolve(position, INNER + GROUP_STATE + group * STATE + n);
    }
    // Goes into the ring at once: nobody else reads these channels, and what stood there has been read.
    DEVICE float x_value(u32 position, u32 channel) const {
        float value = convolve(position, head * HEAD_DIM + channel);
        x(position)[channel] = value;
        return value;
    }
    DEVICE float dt(u32 position) const {
        if (position >= segment.position) return step_size(p, row(position), head);
        return slot[p.slots.ring_dt + entry(position) * HEADS + head];
    }
};

// Runs the rows of a segment, chunk by chunk; `out(position, channel, value)` takes what comes out.
template <class Rows, class Out>
DEVICE void scan_segment(ChunkShared& shared, const SlotView& slots, const SegmentEntry& segment, const ScanHead& own,
                         const Rows& rows, Out out) {
    ChunkPlace place;
    StatePiece piece;
    u32 position = segment.position, stop = segment.position + segment.rows;
    bool has_state = position >= SSM_CHUNK;
    if (has_state) load_piece(piece, place, own.part, state_words(slots, own.slot, position, own.head, HEADS));
    Fetched fetched;
    u32 start = position / SSM_CHUNK * SSM_CHUNK, fresh = position - start, end = min(stop - start, SSM_CHUNK);
    fetched.fetch(rows, own.part, start, fresh, end);
    // Step sizes are read a chunk ahead of the rest.
    float next_dt = 0.0f;
    if (place.warp == DECAY_WARP) {
        float dt = chunk_dt(rows, start, stop);
        next_dt = chunk_dt(rows, start + SSM_CHUNK, stop);
        sum_decays(shared.decays[start / SSM_CHUNK % 2], dt, own.a);
    }
    while (true) {
        const Decays& decays = shared.decays[start / SSM_CHUNK % 2];
        __syncthreads();
        fetched.put_into(shared);
        if (!rows.is_stored(stop - 1)) {
            __syncthreads();
            compute_rows(shared, rows, own.part, start, fresh, end);
        }
        __syncthreads();
        u32 next = start + SSM_CHUNK;
        if (next < stop) fetched.fetch(rows, own.part, next, 0, min(stop - next, SSM_CHUNK));
        if (place.warp == DECAY_WARP && next < stop) {
            sum_decays(shared.decays[next / SSM_CHUNK % 2], next_dt, own.a);
            next_dt = chunk_dt(rows, next + SSM_CHUNK, stop);
        }
        weigh(shared, decays, place, fresh, end);
        if (has_state) carry(shared, place, piece, fresh, end);
        if (end == SSM_CHUNK) scale_for_state(shared, decays);
        __syncthreads();
        finish(shared, decays, place, own.part, fresh, end, has_state, own.d,
               [&](u32 t, u32 channel, float value) { out(start + t, channel, value); });
        if (end == SSM_CHUNK) {
            advance(shared, decays.decays[SSM_CHUNK - 1], place, piece, has_state);
            has_state = true;
            round_piece(piece, place, own, slots.layer, next);
            if (is_kept(slots, next, stop))
                store_piece(piece, place, own.part, state_words(slots, own.slot, next, own.head, HEADS));
        }
        if (next >= stop) break;
        start = next, fresh = 0, end = min(stop - next, SSM_CHUNK);
    }
}

KERNEL __launch_bounds__(CHUNK_THREADS, 1) ssm_step(const __grid_constant__ SsmStepParams p) {
    ChunkShared& shared = *(ChunkShared*)shared_bytes;
    ScanHead own;
    own.head = blockIdx.x / PARTS, own.part = blockIdx.x % PARTS;
    own.a = p.a[own.head], own.d = p.d[own.head];
    start_dependents();
    wait_for_inputs();
    for (u32 index = blockIdx.y; index < p.step->segment_count; index += gridDim.y) {
        SegmentEntry segment = p.step->segments[index];
        own.slot = slot_part(p.slots, segment.slot);
        StepRows rows{p, segment, own.slot, own.head, own.head / (HEADS / GROUPS)};
        u32 first = own.head * HEAD_DIM;
        auto out = [&](u32 position, u32 channel, float value) {
            f32_row(p.out, rows.row(position))[first + channel] = value;
        };
        scan_segment(shared, p.slots, segment, own, rows, out);
        __syncthreads();
        u32 kept = min(segment.rows, p.slots.conv_capacity);
        for (u32 i = threadIdx.x; i < kept * PART_CHANNELS; i += CHUNK_THREADS) {
            u32 channel = own.part * PART_CHANNELS + i % PART_CHANNELS, row = segment.rows - kept + i / PART_CHANNELS;
            if (channel < HEAD_DIM)
                conv_column(p.slots, own.slot, segment.position + row, CONV_DIM)[first + channel] =
                    xbc_row(p, segment.first_row + row)[first + channel];
        }
        __syncthreads();
    }
}

// Stores B or a raw column, a thread a channel of B and C, and dt, a thread a head.
DEVICE void store_shared(const SsmStepParams& p, const SegmentEntry& segment, u32 column) {
    float* slot = slot_part(p.slots, segment.slot);
    u32 capacity = p.slots.ring_capacity;
    if (column >= 2 * GROUP_STATE) {
        u32 head = column - 2 * GROUP_STATE;
        for (u32 row = 0; head < HEADS && row < segment.rows; row++)
            slot[p.slots.ring_dt + (segment.position + row) % capacity * HEADS + head] =
                step_size(p, segment.first_row + row, head);
        return;
    }
    if (column < GROUP_STATE)
        for (u32 row = 0; row < segment.rows; row++) {
            u32 position = segment.position + row;
            slot[p.slots.ring_b + position % capacity * GROUP_STATE + column] =
                convolved(p, segment, slot, position, INNER + column);
        }
    u32 kept = min(segment.rows, p.slots.conv_capacity);
    for (u32 row = segment.rows - kept; row < segment.rows; row++)
        conv_column(p.slots, slot, segment.position + row, CONV_DIM)[INNER + column] =
            xbc_row(p, segment.first_row + row)[INNER + column];
}

// Blocks (row, 0) normalise rows; blocks (x, y + 1) store NORM_BLOCK columns of segments.
KERNEL __launch_bounds__(NORM_BLOCK) ssm_step_finish(const __grid_constant__ SsmStepParams p) {
    __shared__ float scratch[NORM_BLOCK / 32];
    start_dependents();
    wait_for_inputs();
    if (blockIdx.y == 0) {
        u32 row = blockIdx.x;
        if (row >= p.step->rows) return;
        float* y = f32_row(p.out, row);
        gate_and_normalize(y, f32_row(p.x, row), p.norm, y, byte_row(p.rounded, row), p.rounded_kind, INNER, GROUPS,
                           p.eps, (float*)shared_bytes, scratch);
        return;
    }
    u32 column = (blockIdx.y - 1) * NORM_BLOCK + threadIdx.x;
    for (u32 index = blockIdx.x; index < p.step->segment_count; index += gridDim.x)
        store_shared(p, p.step->segments[index], column);
}
