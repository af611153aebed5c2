// The arithmetic of one chunk of the Mamba-2 scan, shared by ssm_scan and ssm_step.
//
// With c the running sum of dt·A from the chunk's start and S0 the state there:
//   y_t = exp(c_t)·(S0·C_t) + Σ_{s<=t} exp(c_t - c_s)·dt_s·(C_t·B_s)·x_s + D·x_t
//   S1  = exp(c_Q)·S0 + Σ_s exp(c_Q - c_s)·dt_s·B_s ⊗ x_s at the chunk's end.
//
// A block has 32 channels of a head in 2·N_BLOCKS warps. Warp w keeps a piece of the state in registers: channels
// 16·(w % 2) .. of the 32, and 32 rows of the state from 32·(w / 2). All four products run on tensor cores with every
// f32 operand as the sum of two bf16 (16 digits; the product of the two low parts is left out). Sums over the state are
// made in pieces of 32, which are added in order. Each of these is a function of the position's own data, so a token
// alone and a whole chunk give the same bits: rows that are not there are zero, and add nothing.
//
// Channels stand in fragments in pairs: rows g and g+8 of a tile of 16 are channels 2g and 2g+1.
// Defines: HEADS, HEAD_DIM, STATE, GROUPS, STATE_ELEM, SHARED_BYTES.
#pragma once
#include "mma.cuh"
#include "ssm.cuh"

#define N_BLOCKS ((STATE + 31) / 32)
#define N_PADDED (32 * N_BLOCKS)
#define N_PITCH (N_PADDED + 8)
#define PART_CHANNELS 32
#define PARTS ((HEAD_DIM + PART_CHANNELS - 1) / PART_CHANNELS)
#define PITCH 40
#define CHUNK_WARPS (2 * N_BLOCKS)
#define CHUNK_THREADS (32 * CHUNK_WARPS)

// 16-bit values split in two, `[position][...]`.
template <int COLS>
struct Split {
    u16 high[SSM_CHUNK][COLS];
    u16 low[SSM_CHUNK][COLS];
};

// Step sizes of a chunk, running sums of dt·A, their exponentials, and the steps to the chunk's end.
struct Decays {
    float dt[SSM_CHUNK], sums[SSM_CHUNK], decays[SSM_CHUNK], steps[SSM_CHUNK];
};

struct ChunkShared {
    Split<N_PITCH> b, c;
    // x in the order of fragments, plain and with the step to the chunk's end.
    Split<PITCH> x, stepped;
    // Weights of x_s in y_t, [t][s].
    Split<PITCH> weights;
    float plain_x[SSM_CHUNK][PART_CHANNELS + 1];
    float carried[N_BLOCKS][SSM_CHUNK][PITCH];
    // Of this chunk, and of the next.
    Decays decays[2];
};
static_assert(sizeof(ChunkShared) <= SHARED_BYTES, "shared memory of a chunk");

// One warp's piece of the state, as the sums of four products 16x8: element [i][j] is channel 2g + j / 2 and row
// 8i + 2q + j % 2 of the piece.
struct StatePiece {
    float value[4][4];
};

struct ChunkPlace {
    u32 warp, lane, g, q;
    // First channel of the warp's 16 within the block's 32, and its block of 32 state rows.
    u32 channel, block;

    DEVICE ChunkPlace() {
        warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
        channel = 16 * (warp % 2), block = warp / 2;
    }
};

// Column in shared memory of a channel of the block's 32.
DEVICE u32 fragment_column(u32 channel) {
    return (channel & 16) + ((channel & 15) >> 1) + 8 * (channel & 1);
}

// Visits the state's elements that a warp keeps: `visit(value, index in the head's state)`.
template <class Visit>
DEVICE void each_element(StatePiece& piece, const ChunkPlace& place, u32 part, Visit visit) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u32 channel = part * PART_CHANNELS + place.channel + 2 * place.g + j / 2;
            u32 row = 32 * place.block + 8 * i + 2 * place.q + j % 2;
            if (channel < HEAD_DIM && row < STATE) visit(piece.value[i][j], row * HEAD_DIM + channel);
        }
    }
}

// Visits the pairs of channels: `visit(first, second, index of the first)`.
template <class Visit>
DEVICE void each_pair(StatePiece& piece, const ChunkPlace& place, u32 part, Visit visit) {
    u32 channel = part * PART_CHANNELS + place.channel + 2 * place.g, row = 32 * place.block + 2 * place.q;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 2; j++)
            if (channel < HEAD_DIM && row + 8 * i + j < STATE)
                visit(piece.value[i][j], piece.value[i][j + 2], (row + 8 * i + j) * HEAD_DIM + channel);
    }
}

DEVICE void load_piece(StatePiece& piece, const ChunkPlace& place, u32 part, const float* words) {
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) piece.value[i][j] = 0.0f;
#if HEAD_DIM % 2 == 0
    // One address, and constants from there.
    u32 channel = part * PART_CHANNELS + place.channel + 2 * place.g, row = 32 * place.block + 2 * place.q;
    const float* first = words + (row * HEAD_DIM + channel) / (STATE_ELEM == STATE_F32 ? 1 : 2);
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            if (channel >= HEAD_DIM || row + 8 * i + j >= STATE) continue;
            float2 pair = load_state_pair<STATE_ELEM>(first, (8 * i + j) * HEAD_DIM);
            piece.value[i][j] = pair.x, piece.value[i][j + 2] = pair.y;
        }
    }
#else
    each_element(piece, place, part, [&](float& value, u32 index) { value = load_state<STATE_ELEM>(words, index); });
#endif
}

DEVICE void store_piece(StatePiece& piece, const ChunkPlace& place, u32 part, float* words) {
#if HEAD_DIM % 2 == 0
    each_pair(piece, place, part, [&](float& first, float& second, u32 index) {
        store_state_pair<STATE_ELEM>(words, index, make_float2(first, second));
    });
#else
    each_element(piece, place, part, [&](float& value, u32 index) { store_state<STATE_ELEM>(words, index, value); });
#endif
}

// Whether rows of B, C and x can be read four values at a time.
#define IN_FOURS (STATE % 4 == 0 && HEAD_DIM % 4 == 0)
#define WIDTH (IN_FOURS ? 4 : 1)

// Puts the values of two neighbouring columns into shared memory.
template <int COLS>
DEVICE void put_pair(Split<COLS>& to, u32 position, u32 column, float first, float second) {
    u32 high, low;
    split_bf16(first, second, high, low);
    *(u32*)&to.high[position][column] = high;
    *(u32*)&to.low[position][column] = low;
}

template <int COLS>
DEVICE void put(Split<COLS>& to, u32 position, u32 column, float value) {
    u32 high, low;
    split_bf16(value, 0.0f, high, low);
    to.high[position][column] = (u16)high;
    to.low[position][column] = (u16)low;
}

// WIDTH neighbouring columns of a row.
struct Columns {
    float value[WIDTH];

    // Zeros where there is no row or column.
    DEVICE void fetch(const float* row, u32 column) {
        bool is_there = row && column < STATE;
#if IN_FOURS
        float4 values = is_there ? *(const float4*)(row + column) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        value[0] = values.x, value[1] = values.y, value[2] = values.z, value[3] = values.w;
#else
        value[0] = is_there ? row[column] : 0.0f;
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
            bool is_stored = s < end && rows.is_stored(start + s);
            b[i].fetch(is_stored ? rows.b(start + s) : 0, n);
            c[i].fetch(is_stored && s >= fresh ? rows.c(start + s) : 0, n);
        }
#pragma unroll
        for (u32 i = 0; i < FETCHED_X; i++) {
            u32 at = i * CHUNK_THREADS + threadIdx.x, s = at / PART_CHANNELS;
            u32 channel = part * PART_CHANNELS + at % PART_CHANNELS;
            bool is_stored = s < end && channel < HEAD_DIM && rows.is_stored(start + s);
            x[i] = is_stored ? rows.x(start + s)[channel] : 0.0f;
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

// Sums of a product of split operands: of the high parts, and of the high parts with the other's low ones.
struct SplitSums {
    float high[4], low[4];

    DEVICE SplitSums() {
        for (int i = 0; i < 4; i++) high[i] = low[i] = 0.0f;
    }

    DEVICE void add(const u32* a_high, const u32* a_low, const u32* b_high, const u32* b_low) {
        mma_bf16(high, a_high, b_high[0], b_high[1]);
        mma_bf16(low, a_low, b_high[0], b_high[1]);
        mma_bf16(low, a_high, b_low[0], b_low[1]);
    }

    DEVICE float operator[](int i) const { return __fadd_rn(high[i], low[i]); }
};

// Weights of x_s in y_t, for tiles of 16 t and 8 s.
DEVICE void weigh(ChunkShared& shared, const Decays& decays, const ChunkPlace& place, u32 fresh, u32 end) {
    for (u32 tile = place.warp; tile < 8; tile += CHUNK_WARPS) {
        u32 t0 = tile / 4 * 16, s0 = tile % 4 * 8;
        if (t0 + 16 <= fresh || t0 >= end) continue;
        float product[4] = {};
        if (s0 < t0 + 16) {
            const u16* a_high = &shared.c.high[t0 + place.lane % 16][place.lane / 16 * 8];
            const u16* a_low = &shared.c.low[t0 + place.lane % 16][place.lane / 16 * 8];
            const u16* b_high = &shared.b.high[s0 + place.lane % 8][place.lane / 8 * 8];
            const u16* b_low = &shared.b.low[s0 + place.lane % 8][place.lane / 8 * 8];
#pragma unroll(__CUDA_ARCH__ == 900 ? N_BLOCKS : 1)
            for (int n = 0; n < N_PADDED; n += 32) {
                u32 bh[4], bl[4], ah[4], al[4];
                SplitSums sums;
                load_matrices(bh, b_high + n);
                load_matrices(bl, b_low + n);
                load_matrices(ah, a_high + n);
                load_matrices(al, a_low + n);
                sums.add(ah, al, bh, bl);
                load_matrices(ah, a_high + n + 16);
                load_matrices(al, a_low + n + 16);
                sums.add(ah, al, bh + 2, bl + 2);
#pragma unroll
                for (int j = 0; j < 4; j++) product[j] = n == 0 ? sums[j] : __fadd_rn(product[j], sums[j]);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 t = t0 + place.g + 8 * half, s = s0 + 2 * place.q;
            float weight[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float decay = expf(__fsub_rn(decays.sums[t], decays.sums[s + j]));
                float step = __fmul_rn(decay, decays.dt[s + j]);
                weight[j] = s + j <= t && t < end ? __fmul_rn(step, product[2 * half + j]) : 0.0f;
            }
            put_pair(shared.weights, t, s, weight[0], weight[1]);
        }
    }
}

// A warp's piece of the state as the left factor of two products over 16 rows each.
struct StateFactor {
    u32 high[2][4], low[2][4];

    DEVICE StateFactor(const StatePiece& piece) {
#pragma unroll
        for (int k = 0; k < 2; k++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float* value = piece.value[2 * k + i];
                split_bf16(value[0], value[1], high[k][2 * i], low[k][2 * i]);
                split_bf16(value[2], value[3], high[k][2 * i + 1], low[k][2 * i + 1]);
            }
        }
    }

    // Its product with 32 values of C in four words.
    DEVICE void multiply(SplitSums& sums, const u32* c_high, const u32* c_low) const {
        sums.add(high[0], low[0], c_high, c_low);
        sums.add(high[1], low[1], c_high + 2, c_low + 2);
    }
};

// What the state gives for TILES times eight positions from t0 on: a warp's piece of the sum.
template <int TILES>
DEVICE void carry_tiles(ChunkShared& shared, const ChunkPlace& place, const StateFactor& state, u32 t0) {
    SplitSums sums[TILES];
#pragma unroll
    for (u32 i = 0; i < TILES; i++) {
        u32 ch[4], cl[4], t = t0 + 8 * i;
        load_matrices(ch, &shared.c.high[t + place.lane % 8][32 * place.block + place.lane / 8 * 8]);
        load_matrices(cl, &shared.c.low[t + place.lane % 8][32 * place.block + place.lane / 8 * 8]);
        state.multiply(sums[i], ch, cl);
    }
#pragma unroll
    for (u32 i = 0; i < TILES; i++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float2 pair = make_float2(sums[i][j], sums[i][j + 2]);
            *(float2*)&shared.carried[place.block][t0 + 8 * i + 2 * place.q + j][place.channel + 2 * place.g] = pair;
        }
    }
}

// The same for every position computed now.
DEVICE void carry(ChunkShared& shared, const ChunkPlace& place, const StatePiece& piece, u32 fresh, u32 end) {
    StateFactor state(piece);
    if (fresh == 0 && end == SSM_CHUNK) {
        // As many side by side as registers suffice for.
        constexpr int AT_ONCE = __CUDA_ARCH__ == 900 ? SSM_CHUNK / 8 : 2;
        for (u32 t0 = 0; t0 < SSM_CHUNK; t0 += 8 * AT_ONCE) carry_tiles<AT_ONCE>(shared, place, state, t0);
        return;
    }
    for (u32 t0 = fresh / 8 * 8; t0 < end; t0 += 8) carry_tiles<1>(shared, place, state, t0);
}

// Outputs of the positions computed now: `out(t, channel, value)`.
template <class Out>
DEVICE void finish(ChunkShared& shared, const Decays& decays, const ChunkPlace& place, u32 part, u32 fresh, u32 end,
                   bool has_state, float d, Out out) {
    u32 xh[2][4], xl[2][4];
    u32 matrix = place.lane / 8, row = matrix / 2 * 8 + place.lane % 8, column = place.channel + matrix % 2 * 8;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        load_matrices_transposed(xh[k], &shared.x.high[16 * k + row][column]);
        load_matrices_transposed(xl[k], &shared.x.low[16 * k + row][column]);
    }
    for (u32 tile = place.warp / 2; tile < 4; tile += N_BLOCKS) {
        u32 t0 = 8 * tile;
        if (t0 + 8 <= fresh || t0 >= end) continue;
        u32 wh[4], wl[4];
        load_matrices(wh, &shared.weights.high[t0 + place.lane % 8][place.lane / 8 * 8]);
        load_matrices(wl, &shared.weights.low[t0 + place.lane % 8][place.lane / 8 * 8]);
        SplitSums sums;
        sums.add(xh[0], xl[0], wh, wl);
        sums.add(xh[1], xl[1], wh + 2, wl + 2);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u32 t = t0 + 2 * place.q + j % 2, channel = place.channel + 2 * place.g + j / 2;
            if (t < fresh || t >= end || part * PART_CHANNELS + channel >= HEAD_DIM) continue;
            float y = sums[j];
            if (has_state) {
                float carried = shared.carried[0][t][channel];
#pragma unroll
                for (int block = 1; block < N_BLOCKS; block++)
                    carried = __fadd_rn(carried, shared.carried[block][t][channel]);
                y = __fmaf_rn(decays.decays[t], carried, y);
            }
            out(t, part * PART_CHANNELS + channel, __fmaf_rn(d, shared.plain_x[t][channel], y));
        }
    }
}

// x with the steps to the end of a full chunk.
DEVICE void scale_for_state(ChunkShared& shared, const Decays& decays) {
    for (u32 i = threadIdx.x; i < SSM_CHUNK * PART_CHANNELS; i += CHUNK_THREADS) {
        u32 s = i / PART_CHANNELS, channel = i % PART_CHANNELS;
        put(shared.stepped, s, fragment_column(channel), __fmul_rn(decays.steps[s], shared.plain_x[s][channel]));
    }
}

// Advances a warp's piece of the state to the end of a full chunk, whose start has a state or none; `keep` is the factor
// on that state.
template <class Shared>
DEVICE void advance(const Shared& shared, float keep, const ChunkPlace& place, StatePiece& piece, bool has_state) {
    u32 xh[2][4], xl[2][4];
    u32 matrix = place.lane / 8, row = matrix / 2 * 8 + place.lane % 8, column = place.channel + matrix % 2 * 8;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        load_matrices_transposed(xh[k], &shared.stepped.high[16 * k + row][column]);
        load_matrices_transposed(xl[k], &shared.stepped.low[16 * k + row][column]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 bh[4], bl[4];
        load_matrices_transposed(bh, &shared.b.high[place.lane][32 * place.block + 8 * i]);
        load_matrices_transposed(bl, &shared.b.low[place.lane][32 * place.block + 8 * i]);
        SplitSums sums;
        sums.add(xh[0], xl[0], bh, bl);
        sums.add(xh[1], xl[1], bh + 2, bl + 2);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float added = sums[j];
            piece.value[i][j] = has_state ? __fmaf_rn(keep, piece.value[i][j], added) : added;
        }
    }
}

// The head that a block works on, and what it needs of its slot.
struct ScanHead {
    u32 head, part;
    float a, d;
    float* slot;
};

// Makes of a piece at the start of the chunk at `start` what its slot can hold.
DEVICE void round_piece(StatePiece& piece, const ChunkPlace& place, const ScanHead& own, u32 layer, u32 start) {
    if (STATE_ELEM == STATE_F32) return;
    u32 seed = state_seed(layer, own.head, start / SSM_CHUNK);
    each_element(piece, place, own.part, [&](float& value, u32 index) {
        value = rounded_state<STATE_ELEM>(value, seed, index);
    });
}

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
