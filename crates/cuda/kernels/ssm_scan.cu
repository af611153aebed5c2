// ssm_scan: the Mamba-2 recurrence over segments of any length (ssm_chunk.cuh). Inputs xBC after the convolution and
// dt after softplus.
//
// A block has a segment and 32 channels of a head and walks the segment's chunks with its part of the state in
// registers. `ssm_scan_store` fills the ring when all have read it.
#include "ssm_chunk.cuh"

extern __shared__ __align__(16) unsigned char shared_bytes[];

#define INNER (HEADS * HEAD_DIM)
#define GROUP_STATE (GROUPS * STATE)

KERNEL __launch_bounds__(CHUNK_THREADS, 1) ssm_scan(const __grid_constant__ SsmScanParams p) {
    ChunkShared& shared = *(ChunkShared*)shared_bytes;
    ScanHead own;
    own.head = blockIdx.x / PARTS, own.part = blockIdx.x % PARTS;
    own.a = p.a[own.head], own.d = p.d[own.head];
    u32 group = own.head / (HEADS / GROUPS);
    start_dependents();
    wait_for_inputs();
    for (u32 index = blockIdx.y; index < p.step->segment_count; index += gridDim.y) {
        SegmentEntry segment = p.step->segments[index];
        own.slot = slot_part(p.slots, segment.slot);
        u32 capacity = p.slots.ring_capacity;
        auto row = [&](u32 position) { return f32_row(p.xbc, segment.first_row + (position - segment.position)); };
        auto b = [&](u32 position, u32 n) {
            u32 column = group * STATE + n;
            if (position >= segment.position) return row(position)[INNER + column];
            return own.slot[p.slots.ring_b + position % capacity * GROUP_STATE + column];
        };
        auto c = [&](u32 position, u32 n) { return row(position)[INNER + GROUP_STATE + group * STATE + n]; };
        auto x = [&](u32 position, u32 channel) {
            u32 column = own.head * HEAD_DIM + channel;
            if (position >= segment.position) return row(position)[column];
            return own.slot[p.slots.ring_x + position % capacity * INNER + column];
        };
        auto dt = [&](u32 position) {
            if (position >= segment.position)
                return f32_row(p.dt, segment.first_row + (position - segment.position))[own.head];
            return own.slot[p.slots.ring_dt + position % capacity * HEADS + own.head];
        };
        auto out = [&](u32 position, u32 channel, float value) {
            f32_row(p.out, segment.first_row + (position - segment.position))[own.head * HEAD_DIM + channel] = value;
        };
        scan_segment(shared, p.slots, segment, own, b, c, x, dt, out);
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
