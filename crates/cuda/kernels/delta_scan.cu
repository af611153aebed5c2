// delta_scan: the gated delta rule over segments of any length. With c the running sum of g from the chunk's start and
// S0 the state there:
//   u_t = beta_t·(v_t - exp(c_t)·S0ᵀk_t - Σ_{s<t} exp(c_t - c_s)·(k_s·k_t)·u_s)
//   y_t = exp(c_t)·S0ᵀq_t + Σ_{s<=t} exp(c_t - c_s)·(k_s·q_t)·u_s
//   S1  = exp(c_Q)·S0 + Σ_s exp(c_Q - c_s)·k_s ⊗ u_s at the chunk's end.
//
// A block has a segment and 32 channels of a head and walks the segment's chunks with its part of the state in shared
// memory; channels are independent of each other, so the triangular system is solved by one warp, a channel a lane.
// All in f32, every sum in one thread. `delta_scan_store` fills what several blocks read of the ring.
// Defines: HEADS, HEAD_DIM, STATE, GROUPS, STATE_ELEM, SHARED_BYTES.
#include "ssm.cuh"

#define INNER (HEADS * HEAD_DIM)
#define GROUP_STATE (GROUPS * STATE)
#define PART_CHANNELS 32
#define PARTS ((HEAD_DIM + PART_CHANNELS - 1) / PART_CHANNELS)
#define THREADS 256
// An odd pitch lets 32 lanes read 32 rows at once.
#define ROW_PITCH (STATE | 1)
#define PITCH (PART_CHANNELS + 1)
#define NORM_EPS 1e-6f

struct DeltaShared {
    float k[SSM_CHUNK][ROW_PITCH], q[SSM_CHUNK][ROW_PITCH];
    float state[STATE][PITCH];
    float u[SSM_CHUNK][PITCH];
    // What the state gives for k and q, by position.
    float carried_k[SSM_CHUNK][PITCH], carried_q[SSM_CHUNK][PITCH];
    // Weights of u_s in u_t and in y_t, [t][s].
    float in_u[SSM_CHUNK][PITCH], in_y[SSM_CHUNK][PITCH];
    float sums[SSM_CHUNK], decays[SSM_CHUNK], steps[SSM_CHUNK], strengths[SSM_CHUNK];
};
static_assert(sizeof(DeltaShared) <= SHARED_BYTES, "shared memory of a chunk");

extern __shared__ __align__(16) unsigned char shared_bytes[];

// `1 / sqrt((|x|² + eps)·factor)` of a group's vector, the same in every lane of a warp.
DEVICE float unit_scale(const float* x, float factor) {
    float sum = 0.0f;
    for (u32 n = threadIdx.x % 32; n < STATE; n += 32) sum = __fmaf_rn(x[n], x[n], sum);
    sum = warp_sum(sum);
    return __fdiv_rn(1.0f, __fsqrt_rn(__fmul_rn(__fadd_rn(sum, NORM_EPS), factor)));
}

DEVICE float decay_of(const DeltaScanParams& p, u32 row, u32 head) {
    return __fmul_rn(p.a[head], softplus(__fadd_rn(f32_row(p.decay, row)[head], p.dt_bias[head])));
}

struct DeltaBlock {
    const DeltaScanParams& p;
    DeltaShared& shared;
    SegmentEntry segment;
    float* slot;
    u32 head, part, group;
    // Positions 0 .. end of the chunk at `start` are known, from `fresh` on they are computed now.
    u32 start, fresh, end;

    DEVICE u32 row(u32 s) const { return segment.first_row + (start + s - segment.position); }
    DEVICE u32 entry(u32 s) const { return (start + s) % p.slots.ring_capacity; }
    DEVICE u32 channel(u32 lane) const { return part * PART_CHANNELS + lane; }

    // k, q, earlier u, decays and write strengths.
    DEVICE void load() {
        u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        for (u32 s = warp; s < end; s += THREADS / 32) {
            if (s < fresh) {
                const float* k = slot + p.slots.ring_b + entry(s) * GROUP_STATE + group * STATE;
                for (u32 n = lane; n < STATE; n += 32) shared.k[s][n] = k[n];
                if (channel(lane) < HEAD_DIM)
                    shared.u[s][lane] = slot[p.slots.ring_x + entry(s) * INNER + head * HEAD_DIM + channel(lane)];
                continue;
            }
            const float* q = f32_row(p.qkv, row(s)) + group * STATE;
            const float* k = q + GROUP_STATE;
            float k_scale = unit_scale(k, 1.0f), q_scale = unit_scale(q, (float)STATE);
            for (u32 n = lane; n < STATE; n += 32) {
                shared.k[s][n] = __fmul_rn(k[n], k_scale);
                shared.q[s][n] = __fmul_rn(q[n], q_scale);
            }
        }
        if (warp == 0) {
            u32 s = lane;
            float g = 0.0f, strength = 0.0f, sum = 0.0f;
            if (s < fresh) g = slot[p.slots.ring_dt + entry(s) * HEADS + head];
            if (s >= fresh && s < end) {
                g = decay_of(p, row(s), head);
                strength = __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-f32_row(p.strength, row(s))[head])));
            }
            for (u32 i = 0; i < SSM_CHUNK; i++) {
                float next = __shfl_sync(ALL_LANES, g, i);
                sum = i <= s ? __fadd_rn(sum, next) : sum;
            }
            float last = __shfl_sync(ALL_LANES, sum, SSM_CHUNK - 1);
            shared.sums[s] = sum;
            shared.decays[s] = expf(sum);
            shared.steps[s] = expf(__fsub_rn(last, sum));
            shared.strengths[s] = strength;
        }
    }

    // Weights of earlier u, and what the state gives.
    DEVICE void weigh(bool has_state) {
        for (u32 i = threadIdx.x; i < SSM_CHUNK * SSM_CHUNK; i += THREADS) {
            u32 t = i / SSM_CHUNK, s = i % SSM_CHUNK;
            if (t < fresh || t >= end || s > t) continue;
            float of_k = 0.0f, of_q = 0.0f;
            for (u32 n = 0; n < STATE; n++) {
                of_k = __fmaf_rn(shared.k[t][n], shared.k[s][n], of_k);
                of_q = __fmaf_rn(shared.q[t][n], shared.k[s][n], of_q);
            }
            float decay = expf(__fsub_rn(shared.sums[t], shared.sums[s]));
            shared.in_u[t][s] = -__fmul_rn(decay, of_k);
            shared.in_y[t][s] = __fmul_rn(decay, of_q);
        }
        for (u32 i = threadIdx.x; i < SSM_CHUNK * PART_CHANNELS; i += THREADS) {
            u32 t = i / PART_CHANNELS, lane = i % PART_CHANNELS;
            if (t < fresh || t >= end) continue;
            float of_k = 0.0f, of_q = 0.0f;
            for (u32 n = 0; has_state && n < STATE; n++) {
                of_k = __fmaf_rn(shared.state[n][lane], shared.k[t][n], of_k);
                of_q = __fmaf_rn(shared.state[n][lane], shared.q[t][n], of_q);
            }
            shared.carried_k[t][lane] = of_k;
            shared.carried_q[t][lane] = of_q;
        }
    }

    // u and outputs, position by position; by one warp.
    DEVICE void solve() {
        u32 lane = threadIdx.x, column = head * HEAD_DIM + channel(lane);
        bool is_there = channel(lane) < HEAD_DIM;
        for (u32 t = fresh; t < end; t++) {
            float v = is_there ? f32_row(p.qkv, row(t))[2 * GROUP_STATE + column] : 0.0f;
            float decay = shared.decays[t];
            float u = __fsub_rn(v, __fmul_rn(decay, shared.carried_k[t][lane]));
            float y = __fmul_rn(decay, shared.carried_q[t][lane]);
            for (u32 s = 0; s < t; s++) {
                float earlier = shared.u[s][lane];
                u = __fmaf_rn(shared.in_u[t][s], earlier, u);
                y = __fmaf_rn(shared.in_y[t][s], earlier, y);
            }
            u = __fmul_rn(shared.strengths[t], u);
            shared.u[t][lane] = u;
            if (!is_there) continue;
            f32_row(p.out, row(t))[column] = __fmaf_rn(shared.in_y[t][t], u, y);
            slot[p.slots.ring_x + entry(t) * INNER + column] = u;
        }
    }

    // The state at the end of a full chunk.
    DEVICE void advance(bool has_state, bool is_stored) {
        u32 next = start + SSM_CHUNK, seed = state_seed(p.slots.layer, head, next / SSM_CHUNK);
        float* words = state_words(p.slots, slot, next, head, HEADS);
        float keep = shared.decays[SSM_CHUNK - 1];
        for (u32 i = threadIdx.x; i < STATE * PART_CHANNELS; i += THREADS) {
            u32 n = i / PART_CHANNELS, lane = i % PART_CHANNELS;
            if (channel(lane) >= HEAD_DIM) continue;
            float value = has_state ? __fmul_rn(keep, shared.state[n][lane]) : 0.0f;
            for (u32 s = 0; s < SSM_CHUNK; s++)
                value = __fmaf_rn(__fmul_rn(shared.steps[s], shared.k[s][n]), shared.u[s][lane], value);
            u32 index = n * HEAD_DIM + channel(lane);
            value = rounded_state<STATE_ELEM>(value, seed, index);
            shared.state[n][lane] = value;
            if (is_stored) store_state<STATE_ELEM>(words, index, value);
        }
    }
};

KERNEL __launch_bounds__(THREADS, 1) delta_scan(const __grid_constant__ DeltaScanParams p) {
    DeltaShared& shared = *(DeltaShared*)shared_bytes;
    start_dependents();
    wait_for_inputs();
    u32 head = blockIdx.x / PARTS, part = blockIdx.x % PARTS;
    for (u32 index = blockIdx.y; index < p.step->segment_count; index += gridDim.y) {
        SegmentEntry segment = p.step->segments[index];
        float* slot = slot_part(p.slots, segment.slot);
        DeltaBlock block{p, shared, segment, slot, head, part, head / (HEADS / GROUPS), 0, 0, 0};
        u32 position = segment.position, stop = segment.position + segment.rows;
        bool has_state = position >= SSM_CHUNK;
        const float* words = state_words(p.slots, slot, position, head, HEADS);
        __syncthreads();
        for (u32 i = threadIdx.x; i < STATE * PART_CHANNELS; i += THREADS) {
            u32 n = i / PART_CHANNELS, channel = block.channel(i % PART_CHANNELS);
            bool is_there = has_state && channel < HEAD_DIM;
            shared.state[n][i % PART_CHANNELS] =
                is_there ? load_state<STATE_ELEM>(words, n * HEAD_DIM + channel) : 0.0f;
        }
        while (position < stop) {
            block.start = position / SSM_CHUNK * SSM_CHUNK;
            block.fresh = position - block.start;
            block.end = min(stop - block.start, SSM_CHUNK);
            block.load();
            __syncthreads();
            block.weigh(has_state);
            __syncthreads();
            if (threadIdx.x < 32) block.solve();
            __syncthreads();
            position = block.start + block.end;
            if (block.end == SSM_CHUNK) {
                block.advance(has_state, is_kept(p.slots, position, stop));
                has_state = true;
            }
            __syncthreads();
        }
    }
}

// k and g of the last positions; a block has a row.
KERNEL delta_scan_store(const __grid_constant__ DeltaScanParams p) {
    start_dependents();
    wait_for_inputs();
    u32 capacity = p.slots.ring_capacity, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (u32 index = blockIdx.y; index < p.step->segment_count; index += gridDim.y) {
        SegmentEntry segment = p.step->segments[index];
        float* slot = slot_part(p.slots, segment.slot);
        u32 kept = min(segment.rows, capacity);
        for (u32 i = segment.rows - kept + blockIdx.x; i < segment.rows; i += gridDim.x) {
            u32 row = segment.first_row + i, entry = (segment.position + i) % capacity;
            for (u32 group = warp; group < GROUPS; group += blockDim.x / 32) {
                const float* k = f32_row(p.qkv, row) + GROUP_STATE + group * STATE;
                float scale = unit_scale(k, 1.0f);
                float* to = slot + p.slots.ring_b + entry * GROUP_STATE + group * STATE;
                for (u32 n = lane; n < STATE; n += 32) to[n] = __fmul_rn(k[n], scale);
            }
            for (u32 head = threadIdx.x; head < HEADS; head += blockDim.x)
                slot[p.slots.ring_dt + entry * HEADS + head] = decay_of(p, row, head);
        }
    }
}
