// ssm_scan: the Mamba-2 recurrence over segments of any length (ssm_chunk.cuh). Inputs xBC after the convolution and
// dt after softplus.
//
// A block has a segment and 32 channels of a head and walks the segment's chunks with its part of the state in
// registers. One half of its warps prepares chunks, which needs no state, while the other computes with the state what
// they become: few blocks have work, so that their latency is what a scan takes. `ssm_scan_store` fills the ring when
// all have read it.
// Defines: those of ssm_chunk.cuh; CHUNKS that a block has room for.
#include "ssm_chunk_products.cuh"
#include "ssm_chunk_rows.cuh"
#include "ring.cuh"

extern __shared__ __align__(16) unsigned char shared_bytes[];

#define SCAN_THREADS (2 * CHUNK_THREADS)
// Whether registers suffice to scale x while it is held: else it is read again.
#define X_IS_HELD (__CUDA_ARCH__ == 900)
#define BARRIER_PREPARE 1
#define BARRIER_COMPUTE 2

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
    // Where a chunk begins whose rows are all of this step: B of the block's group, and x of its head.
    DEVICE ChunkRun run(u32 start) const {
        const float* first = xbc(start);
        return ChunkRun{first + INNER + group * STATE, first + head * HEAD_DIM, p.xbc.stride};
    }
    DEVICE float b_value(u32, u32) const { return 0.0f; }
    DEVICE float c_value(u32, u32) const { return 0.0f; }
    DEVICE float x_value(u32, u32) const { return 0.0f; }
    DEVICE float dt(u32 position) const {
        if (position >= segment.position) return f32_row(p.dt, row(position))[head];
        return slot[p.slots.ring_dt + entry(position) * HEADS + head];
    }
};

struct ScanShared {
    ChunkShared chunks[CHUNKS];
    u64 full[CHUNKS], empty[CHUNKS];
    // The segment, and the chunks of those before: registers are few.
    u32 index, walked;
    float a;
};
static_assert(sizeof(ScanShared) <= CHUNKS * SHARED_BYTES + 64, "shared memory of a scan");

// A walk over the chunks of a segment, and how many chunks the block has walked.
struct ChunkWalk {
    u32 start, count;

    DEVICE ChunkWalk(const SegmentEntry& segment, u32 walked) {
        count = walked, start = segment.position / SSM_CHUNK * SSM_CHUNK;
    }
    // The positions of the chunk that are computed now are those from `fresh` to `end`.
    DEVICE u32 fresh(const SegmentEntry& segment) const { return segment.position > start ? segment.position - start : 0; }
    DEVICE u32 end(const SegmentEntry& segment) const {
        return min(segment.position + segment.rows - start, SSM_CHUNK);
    }
    // Goes to the next chunk; whether there is one.
    DEVICE bool advance(const SegmentEntry& segment) {
        count++, start += SSM_CHUNK;
        return start < segment.position + segment.rows;
    }
    DEVICE u32 place() const { return count % CHUNKS; }
    DEVICE u32 parity() const { return count / CHUNKS % 2; }
    // They are found a chunk ahead, while what stood in the place is still computed with: a place has them twice.
    DEVICE Decays& decays(ChunkShared* chunks) const { return chunks[place()].decays[parity()]; }
};

// Prepares the chunks of a segment: what they are made of, the weights of x, and x with the steps to a chunk's end.
DEVICE void prepare_chunks(ScanShared& shared, const ScanRows& rows, const ScanHead& own, ChunkWalk walk) {
    const SegmentEntry& segment = rows.segment;
    ChunkPlace place;
    Fetched fetched;
    fetched.fetch(rows, own.part, walk.start, walk.fresh(segment), walk.end(segment));
    u32 stop = segment.position + segment.rows;
    // Step sizes are read a chunk ahead of the rest, and added up while other warps weigh.
    float next_dt = 0.0f;
    if (place.warp == DECAY_WARP) {
        float dt = chunk_dt(rows, walk.start, stop);
        next_dt = chunk_dt(rows, walk.start + SSM_CHUNK, stop);
        sum_decays(walk.decays(shared.chunks), dt, shared.a);
    }
    for (bool goes_on = true; goes_on;) {
        ChunkShared& chunk = shared.chunks[walk.place()];
        const Decays& decays = walk.decays(shared.chunks);
        u32 full = shared_address(&shared.full[walk.place()]);
        if (walk.count >= CHUNKS) barrier_wait(shared_address(&shared.empty[walk.place()]), walk.parity() ^ 1);
        fetched.put_into(chunk);
        barrier_of(BARRIER_PREPARE, CHUNK_THREADS);
        u32 fresh = walk.fresh(segment), end = walk.end(segment);
        if (X_IS_HELD && end == SSM_CHUNK) fetched.put_stepped(chunk, decays);
        goes_on = walk.advance(segment);
        if (goes_on) {
            fetched.fetch_run(rows.run(walk.start), own.part, walk.end(segment));
            if (place.warp == DECAY_WARP) {
                sum_decays(walk.decays(shared.chunks), next_dt, shared.a);
                next_dt = chunk_dt(rows, walk.start + SSM_CHUNK, stop);
            }
        }
        weigh(chunk, decays, place, fresh, end);
        if (!X_IS_HELD && end == SSM_CHUNK) scale_for_state(chunk, decays);
        __syncwarp();
        if (place.lane == 0) barrier_arrive(full);
    }
}

// Computes the outputs of chunks and the state.
DEVICE void compute_chunks(ScanShared& shared, const SsmScanParams& p, const ScanRows& rows, ScanHead own, ChunkWalk walk) {
    own.d = p.d[own.head];
    ChunkPlace place;
    place.warp -= CHUNK_WARPS;
    place.channel = 16 * (place.warp % 2), place.block = place.warp / 2;
    StatePiece piece;
    const SegmentEntry& segment = rows.segment;
    u32 position = segment.position;
    bool has_state = position >= SSM_CHUNK;
    if (has_state) load_piece(piece, place, own.part, state_words(p.slots, own.slot, position, own.head, HEADS));
    for (bool goes_on = true; goes_on;) {
        ChunkShared& chunk = shared.chunks[walk.place()];
        u32 empty = shared_address(&shared.empty[walk.place()]), start = walk.start;
        u32 fresh = walk.fresh(segment), end = walk.end(segment);
        barrier_wait(shared_address(&shared.full[walk.place()]), walk.parity());
        if (has_state) {
            carry(chunk, place, piece, fresh, end);
            barrier_of(BARRIER_COMPUTE, CHUNK_THREADS);
        }
        const Decays& decays = walk.decays(shared.chunks);
        finish(chunk, decays, place, own.part, fresh, end, has_state, own.d, [&](u32 t, u32 channel, float value) {
            f32_row(p.out, rows.row(start + t))[own.head * HEAD_DIM + channel] = value;
        });
        bool is_full = end == SSM_CHUNK;
        if (is_full) advance(chunk, decays.decays[SSM_CHUNK - 1], place, piece, has_state);
        __syncwarp();
        if (place.lane == 0) barrier_arrive(empty);
        if (is_full) {
            has_state = true;
            u32 next = start + SSM_CHUNK;
            round_piece(piece, place, own, p.slots.layer, next);
            if (is_kept(p.slots, next, segment.position + segment.rows))
                store_piece(piece, place, own.part, state_words(p.slots, own.slot, next, own.head, HEADS));
        }
        goes_on = walk.advance(segment);
    }
}

KERNEL __launch_bounds__(SCAN_THREADS, 1) ssm_scan(const __grid_constant__ SsmScanParams p) {
    ScanShared& shared = *(ScanShared*)shared_bytes;
    ScanHead own;
    own.head = blockIdx.x, own.part = blockIdx.z;
    if (threadIdx.x == 0) {
        for (int i = 0; i < CHUNKS; i++) {
            barrier_init(shared_address(&shared.full[i]), CHUNK_WARPS);
            barrier_init(shared_address(&shared.empty[i]), CHUNK_WARPS);
        }
        barrier_init_fence();
        shared.index = blockIdx.y, shared.walked = 0, shared.a = p.a[own.head];
    }
    start_dependents();
    wait_for_inputs();
    while (true) {
        __syncthreads();
        if (shared.index >= p.step->segment_count) return;
        SegmentEntry segment = p.step->segments[shared.index];
        own.slot = slot_part(p.slots, segment.slot);
        ScanRows rows{p, segment, own.slot, own.head, own.head / (HEADS / GROUPS)};
        ChunkWalk walk(segment, shared.walked);
        if (threadIdx.x < CHUNK_THREADS) prepare_chunks(shared, rows, own, walk);
        else compute_chunks(shared, p, rows, own, walk);
        __syncthreads();
        if (threadIdx.x == 0) {
            SegmentEntry done = p.step->segments[shared.index];
            shared.walked += (done.position % SSM_CHUNK + done.rows + SSM_CHUNK - 1) / SSM_CHUNK;
            shared.index += gridDim.y;
        }
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
