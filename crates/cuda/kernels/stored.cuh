// Weights as files store them: the code of a value, and the line or table that its group reads codes with.
//
// Blocks lie at any address, so they are read byte by byte; this is for loading, not for products. A type is a number,
// so that code can be compiled for one with -DSTORED=STORED_Q4_0.
#pragma once
#include "common.cuh"

#define STORED_F32 0
#define STORED_F16 1
#define STORED_BF16 2
#define STORED_F8_E4M3 3
#define STORED_Q4_0 4
#define STORED_Q4_1 5
#define STORED_Q5_0 6
#define STORED_Q5_1 7
#define STORED_Q8_0 8
#define STORED_Q4_K 9
#define STORED_Q5_K 10
#define STORED_Q6_K 11
#define STORED_IQ4_NL 12
#define STORED_IQ4_XS 13
#define STORED_MXFP4 14
#define STORED_NVFP4 15
// Affine groups: -DAFFINE_BITS, -DAFFINE_GROUP, and -DAFFINE_NUMBER with the type of scale and offset.
#define STORED_AFFINE 16

#ifndef AFFINE_BITS
#define AFFINE_BITS 4
#define AFFINE_GROUP 32
#define AFFINE_NUMBER STORED_F16
#endif

// value = scale · (code - zero) + offset, or scale · table[code] + offset.
struct StoredLine {
    float scale;
    float offset;
};

DEVICE u32 stored_u16(const u8* at) {
    return at[0] | (u32)at[1] << 8;
}

DEVICE u32 stored_u32(const u8* at) {
    return stored_u16(at) | stored_u16(at + 2) << 16;
}

DEVICE float stored_f16(const u8* at) {
    return f16_value((u16)stored_u16(at));
}

// A number of a plain type.
template <int NUMBER>
DEVICE float stored_number(const u8* at) {
    if (NUMBER == STORED_F16) return stored_f16(at);
    if (NUMBER == STORED_BF16) return bf16_value((u16)stored_u16(at));
    return __uint_as_float(stored_u32(at));
}

// 2^(exponent - 127) as mxfp4 stores it; 0 is the smallest, a subnormal.
DEVICE float stored_e8m0(u32 exponent) {
    return __uint_as_float(exponent == 0 ? 0x00400000u : exponent << 23);
}

// An unsigned e4m3 as nvfp4 stores its scales.
DEVICE float stored_ue4m3(u32 byte) {
    byte &= 127;
    if (byte == 127) return 0.0f;
    u32 exponent = byte >> 3, mantissa = byte & 7;
    if (exponent == 0) return (float)mantissa * (1.0f / 512.0f);
    return __uint_as_float((exponent + 120) << 23 | mantissa << 20);
}

// Scale and minimum of sub-block j among eight of six bits, as q4_k and q5_k pack them.
DEVICE void stored_six_bits(const u8* packed, u32 j, u32& scale, u32& minimum) {
    if (j < 4) {
        scale = packed[j] & 63;
        minimum = packed[j + 4] & 63;
    } else {
        scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
        minimum = (packed[j + 4] >> 4) | (packed[j] >> 6) << 4;
    }
}

// The nibble of value j among 32 in 16 bytes: value j low and value j + 16 high in byte j.
DEVICE u32 stored_nibble(const u8* codes, u32 j) {
    return (codes[j & 15] >> ((j >> 4) * 4)) & 15;
}

// The code of column k of a row. Signed bytes are shifted to be unsigned; plain types are their bits.
template <int TYPE>
DEVICE u32 stored_code(const u8* row, u32 k) {
    u32 j = k % 32;
    switch (TYPE) {
    case STORED_F32: return stored_u32(row + 4 * k);
    case STORED_F16:
    case STORED_BF16: return stored_u16(row + 2 * k);
    case STORED_F8_E4M3: return row[k];
    case STORED_Q4_0:
    case STORED_IQ4_NL: return stored_nibble(row + k / 32 * 18 + 2, j);
    case STORED_Q4_1: return stored_nibble(row + k / 32 * 20 + 4, j);
    case STORED_Q5_0: {
        const u8* block = row + k / 32 * 22;
        return stored_nibble(block + 6, j) | (stored_u32(block + 2) >> j & 1) << 4;
    }
    case STORED_Q5_1: {
        const u8* block = row + k / 32 * 24;
        return stored_nibble(block + 8, j) | (stored_u32(block + 4) >> j & 1) << 4;
    }
    case STORED_Q8_0: return row[k / 32 * 34 + 2 + j] ^ 0x80;
    case STORED_Q4_K: {
        u32 sub = k % 256 / 32;
        return row[k / 256 * 144 + 16 + sub / 2 * 32 + j] >> (sub % 2 * 4) & 15;
    }
    case STORED_Q5_K: {
        const u8* block = row + k / 256 * 176;
        u32 sub = k % 256 / 32;
        return (block[48 + sub / 2 * 32 + j] >> (sub % 2 * 4) & 15) | (block[16 + j] >> sub & 1) << 4;
    }
    case STORED_Q6_K: {
        const u8* block = row + k / 256 * 210;
        u32 half = k % 256 / 128, p = k % 128 / 32;
        u32 low = block[64 * half + 32 * (p % 2) + j] >> (4 * (p / 2)) & 15;
        return low | (block[128 + 32 * half + j] >> (2 * p) & 3) << 4;
    }
    case STORED_IQ4_XS: return stored_nibble(row + k / 256 * 136 + 8 + k % 256 / 32 * 16, j);
    case STORED_MXFP4: return stored_nibble(row + k / 32 * 17 + 1, j);
    case STORED_NVFP4: {
        u32 sub = k % 64 / 16, i = k % 16;
        return row[k / 64 * 36 + 4 + sub * 8 + i % 8] >> (i / 8 * 4) & 15;
    }
    case STORED_AFFINE: {
        const int number_bytes = AFFINE_NUMBER == STORED_F32 ? 4 : 2;
        const u32 block_bytes = AFFINE_GROUP * AFFINE_BITS / 8 + 2 * number_bytes;
        const u8* codes = row + k / AFFINE_GROUP * block_bytes;
        u32 i = k % AFFINE_GROUP;
        return AFFINE_BITS == 8 ? codes[i] : codes[i / 2] >> (i % 2 * 4) & 15;
    }
    }
    return 0;
}

// The line that column k's group reads codes with. e2m1 codes count in whole units, not in halves.
template <int TYPE>
DEVICE StoredLine stored_line(const u8* row, u32 k) {
    switch (TYPE) {
    case STORED_Q4_0:
    case STORED_IQ4_NL: return {stored_f16(row + k / 32 * 18), 0.0f};
    case STORED_Q4_1: return {stored_f16(row + k / 32 * 20), stored_f16(row + k / 32 * 20 + 2)};
    case STORED_Q5_0: return {stored_f16(row + k / 32 * 22), 0.0f};
    case STORED_Q5_1: return {stored_f16(row + k / 32 * 24), stored_f16(row + k / 32 * 24 + 2)};
    case STORED_Q8_0: return {stored_f16(row + k / 32 * 34), 0.0f};
    case STORED_Q4_K:
    case STORED_Q5_K: {
        const u8* block = row + k / 256 * (TYPE == STORED_Q4_K ? 144 : 176);
        u32 scale, minimum;
        stored_six_bits(block + 4, k % 256 / 32, scale, minimum);
        return {stored_f16(block) * (float)scale, -(stored_f16(block + 2) * (float)minimum)};
    }
    case STORED_Q6_K: {
        const u8* block = row + k / 256 * 210;
        return {stored_f16(block + 208) * (float)(i8)block[192 + k % 256 / 16], 0.0f};
    }
    case STORED_IQ4_XS: {
        const u8* block = row + k / 256 * 136;
        u32 sub = k % 256 / 32;
        u32 low = block[4 + sub / 2] >> (sub % 2 * 4) & 15, high = block[2 + sub / 4] >> (sub % 4 * 2) & 3;
        return {stored_f16(block) * (float)((int)(low | high << 4) - 32), 0.0f};
    }
    case STORED_MXFP4: return {stored_e8m0(row[k / 32 * 17]), 0.0f};
    case STORED_NVFP4: return {stored_ue4m3(row[k / 64 * 36 + k % 64 / 16]), 0.0f};
    case STORED_AFFINE: {
        const int number_bytes = AFFINE_NUMBER == STORED_F32 ? 4 : 2;
        const u32 block_bytes = AFFINE_GROUP * AFFINE_BITS / 8 + 2 * number_bytes;
        const u8* numbers = row + k / AFFINE_GROUP * block_bytes + AFFINE_GROUP * AFFINE_BITS / 8;
        return {stored_number<AFFINE_NUMBER>(numbers), stored_number<AFFINE_NUMBER>(numbers + number_bytes)};
    }
    }
    return {1.0f, 0.0f};
}
