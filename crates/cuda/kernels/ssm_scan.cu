// ssm_scan: the Mamba-2 recurrence over segments of any length (ssm_chunk.cuh). Inputs xBC after the convolution and
// dt after softplus.
//
// A block has a segment and 32 channels of a head and walks the segment's chunks with its part of the state in
// registers. `ssm_scan_store` fills the ring when all have read it.
#include "ssm_chunk.cuh"

extern __shared__ __align__(16) unsigned char shared_bytes[];

#define INNER (HEADS * HEAD_DIM)
#define GROUP_STATE (GROUPS * STATE)

// The rows of a segment: of this step, and before that of the ring.
struct ScanRows {
    const SsmScanParams& p;
    SegmentEntry segment;
    float* slot;
    u32 head, group;

    DEVICE u32 entry(u32 position) const { return position % p.slots.ring_capacity; }
    DEVICE u32 row(u32 position) const { return segment.first_row + (position - segment.position); }
    DEVICE const float* xbc(u32 position) const { return f32_row(p.xbc, row(position)); }

    DEVICE bool is_stored(u32) const { return true; }
    DEVICE const float* b(u32 position) const {
        if (position >= segment.position) return xbc(position) + INNER + group * STATE;
        return slot + p.slots.ring_b + entry(position) * GROUP_STATE + group * STATE;
    }
    DEVICE const float* c(u32 position) const { return xbc(position) + INNER + GROUP_STATE + group * STATE; }
    DEVICE const float* x(u32 position) const {
        if (position >= segment.position) return xbc(position) + head * HEAD_DIM;
        return slot + p.slots.ring_x + entry(position) * INNER + head * HEAD_DIM;
    }
    DEVICE float b_value(u32, u32) const { return 0.0f; }
    DEVICE float c_value(u32, u32) const { return 0.0f; }
    DEVICE float x_value(u32, u32) const { return 0.0f; }
    DEVICE float dt(u32 position) const {
        if (position >= segment.position) return f32_row(p.dt, row(position))[head];
        return slot[p.slots.ring_dt + entry(position) * HEADS + head];
    }
};

KERNEL __launch_bounds__(CHUNK_THREADS, 1) ssm_scan(const __grid_constant__ SsmScanParams p) {
    ChunkShared& shared = *(ChunkShared*)shared_bytes;
    ScanHead own;
    own.head = blockIdx.x / PARTS, own.part = blockIdx.x % PARTS;
    own.a = p.a[own.head], own.d = p.d[own.head];
    start_dependents();
    wait_for_inputs();
    for (u32 index = blockIdx.y; index < p.step->segment_count; index += gridDim.y) {
        SegmentEntry segment = p.step->segments[index];
        own.slot = slot_part(p.slots, segment.slot);
        ScanRows rows{p, segment, own.slot, own.head, own.head / (HEADS / GROUPS)};
        auto out = [&](u32 position, u32 channel, float value) {
            f32_row(p.out, rows.row(position))[own.head * HEAD_DIM + channel] = value;
        };
        scan_segment(shared, p.slots, segment, own, rows, out);
        __syncthreads();
    }
}

KERNEL ssm_scan_store(const __grid_constant__ SsmScanParams p) {
    start_dependents();
    wait_for_inputs();
    u32 capacity = p.slots.ring_capacity;
    for (u32 index = blockIdx.y; index < p.step->segment_count; index += gridDim.y) {
        SegmentEntry segment = p.step->segments[index];
        float* slot = slot_part(p.slots, segment.slot);
        u32 kept = min(segment.rows, capacity);
        for (u32 row = segment.rows - kept + blockIdx.x; row < segment.rows; row += gridDim.x) {
            const float* xbc = f32_row(p.xbc, segment.first_row + row);
            const float* dt = f32_row(p.dt, segment.first_row + row);
            u32 entry = (segment.position + row) % capacity;
            for (u32 i = threadIdx.x; i < INNER; i += blockDim.x) slot[p.slots.ring_x + entry * INNER + i] = xbc[i];
            for (u32 i = threadIdx.x; i < GROUP_STATE; i += blockDim.x)
                slot[p.slots.ring_b + entry * GROUP_STATE + i] = xbc[INNER + i];
            for (u32 i = threadIdx.x; i < HEADS; i += blockDim.x) slot[p.slots.ring_dt + entry * HEADS + i] = dt[i];
        }
    }
}
