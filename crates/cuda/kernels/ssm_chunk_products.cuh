// The products of a chunk of a scan: weights of its rows, what the state gives, outputs, and the state at its end.
#pragma once
#include "ssm_chunk.cuh"

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
        // Two positions, and at each two neighbouring channels.
#pragma unroll
        for (int j = 0; j < 2; j++) {
            u32 t = t0 + 2 * place.q + j, first = place.channel + 2 * place.g;
            if (t < fresh || t >= end) continue;
            float y[2] = {sums[j], sums[j + 2]};
            if (has_state) {
                float2 carried = *(const float2*)&shared.carried[0][t][first];
#pragma unroll
                for (int block = 1; block < N_BLOCKS; block++) {
                    float2 more = *(const float2*)&shared.carried[block][t][first];
                    carried = make_float2(__fadd_rn(carried.x, more.x), __fadd_rn(carried.y, more.y));
                }
                y[0] = __fmaf_rn(decays.decays[t], carried.x, y[0]);
                y[1] = __fmaf_rn(decays.decays[t], carried.y, y[1]);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                u32 channel = part * PART_CHANNELS + first + i;
                if (HEAD_DIM % PART_CHANNELS == 0 || channel < HEAD_DIM)
                    out(t, channel, __fmaf_rn(d, shared.plain_x[t][first + i], y[i]));
            }
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
