// Weights as products read them: tiles of 16 rows and 64 columns, in the order in which the lanes of a warp hold the
// left operand of mma.m16n8k16 and, four tiles high, of wgmma.m64nNk16.
//
// Lane 4·g + q holds, for step kk (16 columns) and register i, row g + 8·(i % 2) and columns
// 16·kk + 8·(i / 2) + 2·q + e, e = 0 and 1 in the lower and upper half of a word. A tile is the lanes' words of codes,
// then for every g the words of scales and of offsets: of each group of GROUP columns one word with the f16 of row g
// and of row g + 8. A tile becomes 16 words of f16 pairs (of bf16 pairs where weights are bf16) for the four steps.
//
// What a code is, CODING: 4 or 5 or 6 or 8 bits with a zero in the middle (LINEAR), the same with an offset (LINE), a step
// of iq4 (STEPS), an e2m1 (E2M1), an e4m3 (E4M3), or 16 bits that need no decoding (PLAIN). Offsets count from the middle
// of the codes, where most groups have them near zero, so that rounding them to f16 loses little.
#pragma once
#include "common.cuh"

#define CODING_LINEAR 0
#define CODING_LINE 1
#define CODING_STEPS 2
#define CODING_E2M1 3
#define CODING_E4M3 4
#define CODING_PLAIN 5

// A form: -DCODING, -DBITS of a code, -DGROUP columns that share a scale (0: no scales).
#define TILE_ROWS 16
#define TILE_COLS 64
#define GROUP_WORDS (GROUP == 0 ? 0 : TILE_COLS / (GROUP == 0 ? 1 : GROUP))
#define LINE_WORDS (GROUP_WORDS * (CODING == CODING_LINE ? 2 : 1))
#define CODE_BYTES (128 * BITS)
#define TILE_BYTES (CODE_BYTES + 32 * LINE_WORDS)

// What a lane holds of a tile.
struct Fragment {
    u32 codes[BITS];
    u32 lines[LINE_WORDS == 0 ? 1 : LINE_WORDS];
};

// Where word `word` of a lane's codes stands in a tile: rows of 16 bytes a lane, then what is left.
DEVICE u32 code_offset(u32 lane, u32 word) {
    const u32 whole = BITS / 4 * 4;
    if (word < whole) return word / 4 * 512 + lane * 16 + word % 4 * 4;
    return whole * 128 + lane * (BITS - whole) * 4 + (word - whole) * 4;
}

// Where word `word` of the scales and offsets of g stands.
DEVICE u32 line_offset(u32 g, u32 word) {
    return CODE_BYTES + (g * LINE_WORDS + word) * 4;
}

// Loads of weights from global memory, each read once, and from shared memory.
struct FromGlobal {
    const u8* at;
    DEVICE void load4(u32 offset, u32* to) const { load_streamed4(to, at + offset); }
    DEVICE void load2(u32 offset, u32* to) const { load_streamed2(to, at + offset); }
    DEVICE void load1(u32 offset, u32* to) const { load_streamed1(to, at + offset); }
};

struct FromShared {
    u32 at;
    DEVICE void load4(u32 offset, u32* to) const { load_shared4(to, at + offset); }
    DEVICE void load2(u32 offset, u32* to) const { load_shared2(to, at + offset); }
    DEVICE void load1(u32 offset, u32* to) const { load_shared1(to, at + offset); }
};

template <int WORDS, class From>
DEVICE void load_words(const From& from, u32 offset, u32* to) {
    if (WORDS == 1) from.load1(offset, to);
    if (WORDS == 2) from.load2(offset, to);
    if (WORDS >= 4) from.load4(offset, to);
    if (WORDS == 8) from.load4(offset + 16, to + 4);
}

// A lane's part of the tile at `from`.
template <class From>
DEVICE void load_fragment(const From& from, u32 lane, Fragment& fragment) {
#pragma unroll
    for (int word = 0; word + 4 <= BITS; word += 4) from.load4(code_offset(lane, word), fragment.codes + word);
    if (BITS % 4 != 0) load_words<BITS % 4>(from, code_offset(lane, BITS / 4 * 4), fragment.codes + BITS / 4 * 4);
    load_words<LINE_WORDS>(from, line_offset(lane >> 2, 0), fragment.lines);
}

// The steps of iq4 codes, 128 added, four to a word.
DEVICE u32 iq4_steps(u32 codes) {
    // -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113
    u32 choice = codes & 0x7777u;
    u32 low = __byte_perm(0x3f2d1801u, 0x766a5d4fu, choice);
    u32 high = __byte_perm(0xa6998d81u, 0xf1d9c5b5u, choice);
    return __byte_perm(low, high, 0x3210u | (codes & 0x8888u) >> 1);
}

// The two codes of step kk and register i as f16, exact.
DEVICE u32 code_pair(const Fragment& fragment, int kk, int i) {
    if (CODING == CODING_PLAIN) return fragment.codes[kk * 4 + i];
    if (BITS == 8) {
        u32 word = fragment.codes[kk * 2 + i / 2];
        if (CODING == CODING_E4M3) {
            // Sign, exponent and mantissa in the places of f16's, which makes the value 2^8 times too small.
            u32 bytes = __byte_perm(word, 0, i % 2 == 0 ? 0x1404 : 0x3424);
            return (bytes & 0x80008000u) | (bytes >> 1 & 0x3f803f80u);
        }
        u32 number = __byte_perm(word, 0x64646464u, i % 2 == 0 ? 0x4140 : 0x4342);
        return f16x2_add(number, 0xe480e480u);
    }
    u32 word = fragment.codes[kk] >> (4 * i);
    if (CODING == CODING_E2M1) {
        // As above, 2^14 times too small.
        u32 number = (word << 12 & 0x80008000u) | (word << 9 & 0x0e000e00u);
        return f16x2_mul(number, 0x74007400u);
    }
    if (BITS == 4) {
        // The upper nibble of a byte is read in place, as sixteen times its code: a shift less.
        u32 pair = fragment.codes[kk] >> (i / 2 * 8);
        if (i % 2 == 0) return f16x2_add(mask_and_set(pair, 0x000f000fu, 0x64006400u), 0xe408e408u);
        return f16x2_fma(mask_and_set(pair, 0x00f000f0u, 0x64006400u), 0x2c002c00u, 0xd480d480u);
    }
    u32 number = (word & 0x000f000fu) | 0x64006400u;
    if (BITS == 5) number |= (fragment.codes[BITS - 1] >> (kk * 4 + i) & 0x00010001u) << 4;
    if (BITS == 6) number |= (fragment.codes[BITS - 2 + kk / 2] >> (kk % 2 * 8 + 2 * i) & 0x00030003u) << 4;
    // 1024 and the zero.
    const u32 zero = BITS == 5 ? 0xe410e410u : 0xe420e420u;
    return f16x2_add(number, zero);
}

// The four words of step kk of a tile.
DEVICE void unpack_step(const Fragment& fragment, int kk, u32* values) {
    u32 pairs[4];
    if (CODING == CODING_STEPS) {
        u32 first = iq4_steps(fragment.codes[kk]), second = iq4_steps(fragment.codes[kk] >> 16);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 bytes = __byte_perm(first, second, i | (i + 4) << 4);
            bytes = __byte_perm(bytes, 0x64646464u, 0x4140);
            pairs[i] = f16x2_add(bytes, 0xe480e480u);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = code_pair(fragment, kk, i);
    }
    const int group = GROUP == 0 ? 0 : kk * 16 / (GROUP == 0 ? 1 : GROUP);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 rows = i % 2 == 0 ? 0x1010 : 0x3232;
        if (GROUP == 0) {
            values[i] = pairs[i];
        } else if (CODING == CODING_LINE) {
            u32 scale = __byte_perm(fragment.lines[group], 0, rows);
            u32 offset = __byte_perm(fragment.lines[GROUP_WORDS + group], 0, rows);
            values[i] = f16x2_fma(pairs[i], scale, offset);
        } else {
            u32 scales = fragment.lines[group];
            // With these the second form takes more registers than there are.
            if (GROUP < 32 || CODING != CODING_LINEAR) values[i] = f16x2_mul(pairs[i], __byte_perm(scales, 0, rows));
            else values[i] = i % 2 == 0 ? f16x2_mul_half<0>(pairs[i], scales) : f16x2_mul_half<1>(pairs[i], scales);
        }
    }
}

// The 16 words of a tile, four for each step.
DEVICE void unpack_tile(const Fragment& fragment, u32 (&values)[16]) {
#pragma unroll
    for (int kk = 0; kk < 4; kk++) unpack_step(fragment, kk, values + 4 * kk);
}
