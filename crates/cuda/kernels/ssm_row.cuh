// What a block of ssm_row.cu reads: of the chunk so far, which earlier steps left, and of its row.
// Defines: those of ssm_row.cu.
#pragma once
#include "ssm_chunk_products.cuh"

#define INNER (HEADS * HEAD_DIM)
#define GROUP_STATE (GROUPS * STATE)
#define CONV_DIM (INNER + 2 * GROUP_STATE)
#define GROUP_SIZE (INNER / GROUPS)
#define ROW_PIECES (INNER / NORM_PIECE)

// Where a block works.
struct RowPlace {
    u32 row, position, head, group, part;
    // Position within the chunk.
    u32 t;
    float* slot;
    // The chunk's first entry in the rings.
    u32 first_entry;
    // The row's column of xBC in its ring.
    u32 column;

    DEVICE RowPlace(const SsmStepParams& p, const SegmentEntry* segments, u32 own_row) {
        row = own_row, head = blockIdx.x / PARTS, part = blockIdx.x % PARTS, group = head / (HEADS / GROUPS);
        SegmentEntry segment = segments[row];
        position = segment.position, t = position % SSM_CHUNK;
        slot = slot_part(p.slots, segment.slot);
        // A power of two, as the host makes sure.
        first_entry = (position / SSM_CHUNK & (p.slots.chunks - 1)) * SSM_CHUNK;
        column = position % p.slots.conv_capacity;
    }

    // The head's state at the chunk's start.
    DEVICE float* state(const SsmStepParams& p) const {
        return slot + p.slots.state + (first_entry / SSM_CHUNK * HEADS + head) * p.slots.head_stride;
    }
    DEVICE float* ring_b(const SsmStepParams& p, u32 s) const {
        return slot + p.slots.ring_b + (first_entry + s) * GROUP_STATE + group * STATE;
    }
    DEVICE float* ring_x(const SsmStepParams& p, u32 s) const {
        return slot + p.slots.ring_x + (first_entry + s) * INNER + head * HEAD_DIM + part * PART_CHANNELS;
    }
    DEVICE float* ring_dt(const SsmStepParams& p, u32 s) const {
        return slot + p.slots.ring_dt + (first_entry + s) * HEADS + head;
    }
    // The column of xBC that stands `back` positions before the row's, up to TAPS - 1.
    DEVICE float* raw(const SsmStepParams& p, u32 back) const {
        u32 at = column >= back ? column - back : column + p.slots.conv_capacity - back;
        return slot + p.slots.conv + at * CONV_DIM;
    }
    DEVICE const float* xbc(const SsmStepParams& p) const { return f32_row(p.x, row) + INNER; }
};

// A channel's convolution, but for its newest column.
struct Convolution {
    float weight[TAPS], columns[TAPS - 1], bias;

    DEVICE void fetch(const SsmStepParams& p, const RowPlace& at, u32 channel, bool is_there) {
        bias = is_there ? p.conv_bias[channel] : 0.0f;
#if TAPS == 4
        float4 all = is_there ? ((const float4*)p.conv_weight)[channel] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        weight[0] = all.x, weight[1] = all.y, weight[2] = all.z, weight[3] = all.w;
#else
#pragma unroll
        for (u32 k = 0; k < TAPS; k++) weight[k] = is_there ? p.conv_weight[channel * TAPS + k] : 0.0f;
#endif
#pragma unroll
        for (u32 k = 0; k + 1 < TAPS; k++) {
            u32 back = TAPS - 1 - k;
            columns[k] = is_there && at.position >= back ? at.raw(p, back)[channel] : 0.0f;
        }
    }

    // Adds up all but the newest column, so that two numbers are left; the order is that of `convolve`.
    DEVICE void add_up() {
        for (int k = 0; k + 1 < TAPS; k++) bias = __fmaf_rn(weight[k], columns[k], bias);
    }

    DEVICE float of(float newest) const { return silu(__fmaf_rn(weight[TAPS - 1], newest, bias)); }
};

// Split pairs of 32 neighbouring values, as a warp holds them in a fragment: pair i are the values 8i + 2q and the next.
struct Pairs {
    u32 high[4], low[4];

    DEVICE void split(const float2 (&values)[4]) {
#pragma unroll
        for (int i = 0; i < 4; i++) split_bf16(values[i].x, values[i].y, high[i], low[i]);
    }
};

// The chunk's B in fragments: positions 16·(warp % 2) + 8i + g, and the 32 state rows of the warp.
struct ChunkB {
    Pairs rows[2];

    DEVICE u32 position(const ChunkPlace& place, u32 i) const { return place.channel + 8 * i + place.g; }

    typedef float2 Values[2][4];
    DEVICE void fetch(Values& values, const SsmStepParams& p, const RowPlace& at, const ChunkPlace& place) const {
        const float* first = at.ring_b(p, position(place, 0)) + 32 * place.block + 2 * place.q;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            u32 s = position(place, i);
            const float* from = first + 8 * i * GROUP_STATE;
#pragma unroll
            for (u32 j = 0; j < 4; j++)
                values[i][j] = s < at.t ? *(const float2*)(from + 8 * j) : make_float2(0.0f, 0.0f);
        }
    }
    DEVICE void take(const Values& values) {
        rows[0].split(values[0]);
        rows[1].split(values[1]);
    }

    // Puts the row's own B in its place.
    DEVICE void insert(const float* b, const RowPlace& at, const ChunkPlace& place) {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            if (position(place, i) != at.t) continue;
            float2 values[4];
            for (u32 j = 0; j < 4; j++) values[j] = *(const float2*)(b + 32 * place.block + 8 * j + 2 * place.q);
            rows[i].split(values);
        }
    }

    DEVICE void put_into(Split<N_PITCH>& to, const ChunkPlace& place) const {
#pragma unroll
        for (u32 i = 0; i < 2; i++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                u32 s = position(place, i), n = 32 * place.block + 8 * j + 2 * place.q;
                *(u32*)&to.high[s][n] = rows[i].high[j];
                *(u32*)&to.low[s][n] = rows[i].low[j];
            }
    }
};

// The chunk's x of 16 channels, as `finish` in ssm_chunk_products.cuh reads them: word 2i + r of k are positions 16k + 8i + 2q and
// the next of channel 2g + r.
struct ChunkX {
    u32 high[2][4], low[2][4];

    typedef float2 Values[8];
    DEVICE void fetch(Values& values, const SsmStepParams& p, const RowPlace& at, const ChunkPlace& place) const {
        const float* first = at.ring_x(p, 2 * place.q) + place.channel + 2 * place.g;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            u32 row = i / 2 * 8 + i % 2;
            bool is_there = 2 * place.q + row < at.t;
            values[i] = is_there ? *(const float2*)(first + row * INNER) : make_float2(0.0f, 0.0f);
        }
    }
    DEVICE void take(const Values& values) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            float2 first = values[2 * i], second = values[2 * i + 1];
            split_bf16(first.x, second.x, high[i / 2][i % 2 * 2], low[i / 2][i % 2 * 2]);
            split_bf16(first.y, second.y, high[i / 2][i % 2 * 2 + 1], low[i / 2][i % 2 * 2 + 1]);
        }
    }

    // Registers are few: the words wait in shared memory, each where only its own thread looks.
    DEVICE void park(u32 (*words)[32], const ChunkPlace& place) const {
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            words[2 * i][place.lane] = high[i / 4][i % 4];
            words[2 * i + 1][place.lane] = low[i / 4][i % 4];
        }
    }
    DEVICE void fetch_parked(const u32 (*words)[32], const ChunkPlace& place) {
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            high[i / 4][i % 4] = words[2 * i][place.lane];
            low[i / 4][i % 4] = words[2 * i + 1][place.lane];
        }
    }

    DEVICE void insert(float2 x, const RowPlace& at, const ChunkPlace& place) {
        u32 own_high[2], own_low[2];
        split_bf16(x.x, x.x, own_high[0], own_low[0]);
        split_bf16(x.y, x.y, own_high[1], own_low[1]);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 first = i * 8 + 2 * place.q;
            u32 mask = at.t == first ? 0xffffu : at.t == first + 1 ? 0xffff0000u : 0;
#pragma unroll
            for (u32 r = 0; r < 2; r++) {
                u32 &h = high[i / 2][i % 2 * 2 + r], &l = low[i / 2][i % 2 * 2 + r];
                h = (h & ~mask) | (own_high[r] & mask);
                l = (l & ~mask) | (own_low[r] & mask);
            }
        }
    }
};

// Step sizes of the chunk by lane, and the running sums of dt·A.
struct ChunkSteps {
    float dt, sum;

    DEVICE void fetch(const SsmStepParams& p, const RowPlace& at) {
        u32 s = threadIdx.x % 32;
        dt = s < at.t ? *at.ring_dt(p, s) : 0.0f;
    }
    DEVICE void add_up(float a) {
        u32 s = threadIdx.x % 32;
        float product = __fmul_rn(dt, a);
        sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < SSM_CHUNK; i++) {
            float next = __shfl_sync(ALL_LANES, product, i);
            sum = i <= s ? __fadd_rn(sum, next) : sum;
        }
    }

    // Adds the row's own; the sum up to it.
    DEVICE float insert(float own, const RowPlace& at, float a) {
        float before = __shfl_sync(ALL_LANES, sum, (at.t + 31) % 32);
        float here = __fadd_rn(at.t == 0 ? 0.0f : before, __fmul_rn(own, a));
        if (threadIdx.x % 32 == at.t) dt = own, sum = here;
        return here;
    }
};
