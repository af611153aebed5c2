// Tensor core products of 16-bit values with f32 sums, and how f32 values are split for them.
//
// Fragments of a 16x8x16 product, with g = lane / 4 and q = lane % 4:
//   A (16 x 16): a[0] row g, columns 2q and 2q+1; a[1] row g+8; a[2], a[3] the same eight columns on.
//   B (16 x 8):  b[0] rows 2q and 2q+1 of column g; b[1] the same eight rows on.
//   D (16 x 8):  d[0], d[1] row g, columns 2q and 2q+1; d[2], d[3] row g+8.
// An element of D depends on its own row of A and its own column of B alone.
#pragma once
#include "common.cuh"

DEVICE void mma_bf16(float* d, const u32* a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE void mma_f16(float* d, const u32* a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8x8 matrices of 16-bit values from shared memory; lane l gives the address of row l % 8 of matrix l / 8, a
// multiple of 16 bytes. Word i of a lane is row g, columns 2q and 2q+1 of matrix i.
DEVICE void load_matrices(u32* words, const u16* row) {
    u32 address = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
}

// The same with every matrix transposed.
DEVICE void load_matrices_transposed(u32* words, const u16* row) {
    u32 address = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
}

// Two bf16 in one word, the first in its lower half.
DEVICE u32 bf16_pair(float first, float second) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

// Two values as sums of two bf16: 16 digits, with the range of f32.
DEVICE void split_bf16(float first, float second, u32& high, u32& low) {
    high = bf16_pair(first, second);
    float first_high = __uint_as_float(high << 16), second_high = __uint_as_float(high & 0xffff0000u);
    low = bf16_pair(__fsub_rn(first, first_high), __fsub_rn(second, second_high));
}

// Two values as sums of two f16: 22 digits, within f16's range.
DEVICE void split_f16(float first, float second, u32& high, u32& low) {
    high = f16_pair(first, second);
    float first_high = f16_value((u16)high), second_high = f16_value((u16)(high >> 16));
    low = f16_pair(__fsub_rn(first, first_high), __fsub_rn(second, second_high));
}
