// One chunk of the Mamba-2 scan, as ssm_scan and ssm_step compute it: where a block keeps what. ssm_chunk_rows.cuh brings
// it there, ssm_chunk_products.cuh multiplies.
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
