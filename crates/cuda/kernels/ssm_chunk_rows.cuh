// How the rows of a chunk of a scan come into shared memory, and what their step sizes lead to.
#pragma once
#include "ssm_chunk.cuh"

// Whether rows of B, C and x can be read four values at a time.
#define IN_FOURS (STATE % 4 == 0 && HEAD_DIM % 4 == 0)
#define WIDTH (IN_FOURS ? 4 : 1)

// WIDTH neighbouring columns of a row.
struct Columns {
    float value[WIDTH];

    // Zeros where there is no row or column.
    DEVICE void fetch(bool is_there, const float* from) {
#if IN_FOURS
        float4 values = is_there ? *(const float4*)from : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        value[0] = values.x, value[1] = values.y, value[2] = values.z, value[3] = values.w;
#else
        value[0] = is_there ? *from : 0.0f;
#endif
    }

    DEVICE void put_into(Split<N_PITCH>& to, u32 position, u32 column) const {
#if IN_FOURS
        uint2 high, low;
        split_bf16(value[0], value[1], high.x, low.x);
        split_bf16(value[2], value[3], high.y, low.y);
        *(uint2*)&to.high[position][column] = high;
        *(uint2*)&to.low[position][column] = low;
#else
        put(to, position, column, value[0]);
#endif
    }
};

#define ROW_VECTORS (N_PADDED / WIDTH)
#define FETCHED_VECTORS (SSM_CHUNK * ROW_VECTORS / CHUNK_THREADS)
#define FETCHED_X ((SSM_CHUNK * PART_CHANNELS + CHUNK_THREADS - 1) / CHUNK_THREADS)

// Neighbouring rows of xBC, from the first on: B of a group, which C stands GROUPS * STATE values behind, and x of a head.
struct ChunkRun {
    const float *b, *x;
    u32 stride;
};

// What a thread brings of a chunk.
//
// The rows come from memory, or from a computation value by value. `Rows` has
//   is_stored(position); b(position), c(position), x(position): the rows that are stored, of the block's group or head
//   b_value(position, n), c_value(position, n), x_value(position, channel): values of rows that are not
//   dt(position): the head's step size
struct Fetched {
    Columns b[FETCHED_VECTORS], c[FETCHED_VECTORS];
    float x[FETCHED_X];

    // Reads positions 0 .. end of the chunk at `start`, of which `fresh` on are computed now; what is not there is zero.
    template <class Rows>
    DEVICE void fetch(const Rows& rows, u32 part, u32 start, u32 fresh, u32 end) {
#pragma unroll
        for (u32 i = 0; i < FETCHED_VECTORS; i++) {
            u32 at = i * CHUNK_THREADS + threadIdx.x, s = at / ROW_VECTORS, n = at % ROW_VECTORS * WIDTH;
            bool is_stored = s < end && rows.is_stored(start + s) && n < STATE, has_c = is_stored && s >= fresh;
            b[i].fetch(is_stored, is_stored ? rows.b(start + s) + n : 0);
            c[i].fetch(has_c, has_c ? rows.c(start + s) + n : 0);
        }
#pragma unroll
        for (u32 i = 0; i < FETCHED_X; i++) {
            u32 at = i * CHUNK_THREADS + threadIdx.x, s = at / PART_CHANNELS;
            u32 channel = part * PART_CHANNELS + at % PART_CHANNELS;
            bool is_stored = s < end && channel < HEAD_DIM && rows.is_stored(start + s);
            x[i] = is_stored ? rows.x(start + s)[channel] : 0.0f;
        }
    }

    // The same of `end` rows that stand one after the other: an address each, and constants from there.
    DEVICE void fetch_run(const ChunkRun& run, u32 part, u32 end) {
        constexpr u32 ROWS = CHUNK_THREADS / ROW_VECTORS, X_ROWS = CHUNK_THREADS / PART_CHANNELS;
        static_assert(CHUNK_THREADS % ROW_VECTORS == 0, "a thread's vectors stand under each other");
        u32 row = threadIdx.x / ROW_VECTORS, n = threadIdx.x % ROW_VECTORS * WIDTH;
        const u8* at = (const u8*)(run.b + n) + (u64)row * run.stride;
#pragma unroll
        for (u32 i = 0; i < FETCHED_VECTORS; i++) {
            bool is_there = row + i * ROWS < end && n < STATE;
            b[i].fetch(is_there, (const float*)at);
            c[i].fetch(is_there, (const float*)at + GROUPS * STATE);
            at += (u64)ROWS * run.stride;
        }
        row = threadIdx.x / PART_CHANNELS;
        u32 channel = part * PART_CHANNELS + threadIdx.x % PART_CHANNELS;
        at = (const u8*)(run.x + channel) + (u64)row * run.stride;
#pragma unroll
        for (u32 i = 0; i < FETCHED_X; i++) {
            x[i] = row + i * X_ROWS < end && channel < HEAD_DIM ? *(const float*)at : 0.0f;
            at += (u64)X_ROWS * run.stride;
        }
    }

    DEVICE void put_into(ChunkShared& shared) const {
#pragma unroll
        for (u32 i = 0; i < FETCHED_VECTORS; i++) {
            u32 at = i * CHUNK_THREADS + threadIdx.x, s = at / ROW_VECTORS, n = at % ROW_VECTORS * WIDTH;
            b[i].put_into(shared.b, s, n);
            c[i].put_into(shared.c, s, n);
        }
#pragma unroll
        for (u32 i = 0; i < FETCHED_X; i++) {
            u32 at = i * CHUNK_THREADS + threadIdx.x, s = at / PART_CHANNELS, channel = at % PART_CHANNELS;
            if (s >= SSM_CHUNK) break;
            shared.plain_x[s][channel] = x[i];
            put(shared.x, s, fragment_column(channel), x[i]);
        }
    }

    // x with the steps to the end of a full chunk.
    DEVICE void put_stepped(ChunkShared& shared, const Decays& decays) const {
#pragma unroll
        for (u32 i = 0; i < FETCHED_X; i++) {
            u32 at = i * CHUNK_THREADS + threadIdx.x, s = at / PART_CHANNELS, channel = at % PART_CHANNELS;
            if (s >= SSM_CHUNK) break;
            put(shared.stepped, s, fragment_column(channel), __fmul_rn(decays.steps[s], x[i]));
        }
    }
};

// Computes the rows of a chunk that are not stored, in the place of the zeros that stand for them.
template <class Rows>
DEVICE void compute_rows(ChunkShared& shared, const Rows& rows, u32 part, u32 start, u32 fresh, u32 end) {
    constexpr u32 COLUMNS = 2 * STATE + PART_CHANNELS;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < (end - fresh) * COLUMNS; i += CHUNK_THREADS) {
        u32 s = fresh + i / COLUMNS, column = i % COLUMNS;
        if (column < STATE) {
            put(shared.b, s, column, rows.b_value(start + s, column));
        } else if (column < 2 * STATE) {
            put(shared.c, s, column - STATE, rows.c_value(start + s, column - STATE));
        } else if (part * PART_CHANNELS + (column - 2 * STATE) < HEAD_DIM) {
            u32 channel = column - 2 * STATE;
            float value = rows.x_value(start + s, part * PART_CHANNELS + channel);
            shared.plain_x[s][channel] = value;
            put(shared.x, s, fragment_column(channel), value);
        }
    }
}

// Finds what a chunk's step sizes lead to, a lane a position; by a warp.
DEVICE void sum_decays(Decays& to, float dt, float a) {
    u32 s = threadIdx.x % 32;
    float product = __fmul_rn(dt, a), sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < SSM_CHUNK; i++) {
        float next = __shfl_sync(ALL_LANES, product, i);
        sum = i <= s ? __fadd_rn(sum, next) : sum;
    }
    float last = __shfl_sync(ALL_LANES, sum, SSM_CHUNK - 1);
    to.dt[s] = dt;
    to.sums[s] = sum;
    to.decays[s] = expf(sum);
    to.steps[s] = __fmul_rn(expf(__fsub_rn(last, sum)), dt);
}

// The step size of a lane's position in the chunk at `start`; zero from `stop` on.
template <class Rows>
DEVICE float chunk_dt(const Rows& rows, u32 start, u32 stop) {
    u32 position = start + threadIdx.x % 32;
    return position < stop ? rows.dt(position) : 0.0f;
}

// The warp that finds the decays of the next chunk: one with nothing to weigh, where there are so many.
#define DECAY_WARP (CHUNK_WARPS > 2 ? 2 : 0)
