// matmul, loading: rows as files store them to the tiles that products read (fragments.cuh). Compiled for a stored
// type (-DSTORED) and the form it becomes (-DCODING, -DBITS, -DGROUP).
//
// A block packs one unit of 16 rows; rows outside the part that is being loaded keep what they have. A row's scales are
// multiplied with a power of two that brings its largest possible value to [2^12, 2^13), the middle of what f16 can
// hold, and the row's factor takes that back.
#include "fragments.cuh"
#include "stored.cuh"

#define WARPS 8
#define PADDED_COLS (p.col_tiles * TILE_COLS)

// Largest magnitude that a code stands for, and of code 0 where there is an offset.
DEVICE float line_bound(StoredLine line) {
    if (CODING == CODING_LINE) return fmaxf(fabsf(line.offset), fabsf(line.offset + line.scale * (float)((1 << BITS) - 1)));
    const float most = CODING == CODING_STEPS ? 127.0f : CODING == CODING_E2M1 ? 6.0f : (float)(1 << (BITS - 1));
    return fabsf(line.scale) * most;
}

// The power of two that a row is multiplied with.
DEVICE float row_lift(const MatmulPackParams& p, const u8* row, u32 lane) {
    if (GROUP == 0 && STORED != STORED_F32) return 1.0f;
    float bound = 0.0f;
    const u32 step = GROUP == 0 ? 1 : GROUP;
    for (u32 k = lane * step; k < p.cols; k += 32 * step) {
        if (STORED == STORED_F32) bound = fmaxf(bound, fabsf(__uint_as_float(stored_code<STORED>(row, k))));
        else bound = fmaxf(bound, line_bound(stored_line<STORED>(row, k)));
    }
    bound = warp_max(bound);
    int exponent = (int)(__float_as_uint(bound) >> 23);
    if (exponent == 0 || exponent == 255) return 1.0f;
    int lift = min(max(12 - (exponent - 127), -100), 100);
    return __uint_as_float((u32)(lift + 127) << 23);
}

// The bits of one value's code, in place in word `word` of its lane, and where they are.
DEVICE void place_code(u32 code, int kk, int i, int e, int& word, u32& bits, u32& mask) {
    u32 low_shift = 4 * i + 16 * e;
    word = kk;
    bits = (code & 15) << low_shift;
    mask = 15u << low_shift;
    if (BITS == 16) {
        word = kk * 4 + i;
        bits = code << (16 * e);
        mask = 0xffffu << (16 * e);
    } else if (BITS == 8) {
        word = kk * 2 + i / 2;
        bits = code << (16 * (i % 2) + 8 * e);
        mask = 0xffu << (16 * (i % 2) + 8 * e);
    }
}

// A lane's words of a tile.
DEVICE void pack_codes(const MatmulPackParams& p, u8* tile, const u8* const* rows, const float* lifts, u32 first_col, u32 lane) {
    u32 words[BITS] = {}, masks[BITS] = {};
    u32 g = lane >> 2, q = lane & 3;
#pragma unroll
    for (int kk = 0; kk < 4; kk++)
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const u8* row = rows[g + 8 * (i % 2)];
                u32 k = first_col + kk * 16 + 8 * (i / 2) + 2 * q + e;
                if (row == nullptr || k >= p.cols) continue;
                u32 code = stored_code<STORED>(row, k);
                if (STORED == STORED_F32) code = f16_bits(__uint_as_float(code) * lifts[g + 8 * (i % 2)]);
                int word;
                u32 bits, mask;
                place_code(code, kk, i, e, word, bits, mask);
                words[word] |= bits;
                masks[word] |= mask;
                if (BITS == 5) {
                    words[BITS - 1] |= (code >> 4) << (kk * 4 + i + 16 * e);
                    masks[BITS - 1] |= 1u << (kk * 4 + i + 16 * e);
                }
                if (BITS == 6) {
                    words[BITS - 2 + kk / 2] |= (code >> 4) << (kk % 2 * 8 + 2 * i + 16 * e);
                    masks[BITS - 2 + kk / 2] |= 3u << (kk % 2 * 8 + 2 * i + 16 * e);
                }
            }
#pragma unroll
    for (int word = 0; word < BITS; word++) {
        u32* to = (u32*)(tile + code_offset(lane, word));
        *to = (*to & ~masks[word]) | words[word];
    }
}

// Scales and offsets of a tile: lane 4·g + q takes the groups q, q + 4 and so on of rows g and g + 8.
DEVICE void pack_lines(const MatmulPackParams& p, u8* tile, const u8* const* rows, const float* lifts, u32 first_col, u32 lane) {
    u32 g = lane >> 2;
    for (u32 group = lane & 3; group < GROUP_WORDS; group += 4)
        for (u32 half = 0; half < 2; half++) {
            const u8* row = rows[g + 8 * half];
            u32 k = first_col + group * GROUP;
            if (row == nullptr || k >= p.cols) continue;
            StoredLine line = stored_line<STORED>(row, k);
            float lift = lifts[g + 8 * half];
            ((u16*)(tile + line_offset(g, group)))[half] = f16_bits(line.scale * lift);
            if (CODING == CODING_LINE)
                ((u16*)(tile + line_offset(g, GROUP_WORDS + group)))[half] = f16_bits((line.offset + line.scale * (float)(1 << (BITS - 1))) * lift);
        }
}

KERNEL __launch_bounds__(32 * WARPS) matmul_pack(const __grid_constant__ MatmulPackParams p) {
    __shared__ const u8* rows[TILE_ROWS];
    __shared__ float lifts[TILE_ROWS];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    // Units count over all experts; a unit's rows are of one expert.
    u32 unit = p.first_unit + blockIdx.x, units = (p.out + TILE_ROWS - 1) / TILE_ROWS;
    for (u32 r = warp; r < TILE_ROWS; r += WARPS) {
        u32 out = unit % units * TILE_ROWS + r;
        u64 row = (u64)(unit / units) * p.out + out;
        bool is_here = out < p.out && row >= p.first_row && row < (u64)p.first_row + p.row_count;
        const u8* stored = is_here ? p.stored + (row - p.first_row) * p.row_bytes : nullptr;
        float lift = is_here ? row_lift(p, stored, lane) : 1.0f;
        if (lane == 0) {
            rows[r] = stored;
            lifts[r] = lift;
            if (is_here) {
                float scale = p.scale_count == 0 ? 1.0f : p.row_scales[p.scale_count == 1 ? 0 : row - p.first_row];
                // e4m3 values are 2^8 times too small in f16's places.
                float places = CODING == CODING_E4M3 ? 256.0f : 1.0f;
                p.factors[(u64)unit * TILE_ROWS + r] = scale * places / lift;
            }
        }
    }
    __syncthreads();
    for (u32 tile = warp; tile < p.col_tiles; tile += WARPS) {
        u8* to = p.tiles + ((u64)unit * p.col_tiles + tile) * TILE_BYTES;
        pack_codes(p, to, rows, lifts, tile * TILE_COLS, lane);
        if (GROUP != 0) pack_lines(p, to, rows, lifts, tile * TILE_COLS, lane);
    }
}
