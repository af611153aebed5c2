// The functions of kernels/wgmma.cuh in C++, on the CPU: products are done at once, by warps.
#pragma once
#include "ring.cuh"

DEVICE void fence_for_products() {}
DEVICE void products_begin() {}
DEVICE void products_commit() {}

template <int REGISTERS>
DEVICE void give_registers() {}
template <int REGISTERS>
DEVICE void take_registers() {}
template <int PENDING>
DEVICE void products_wait() {}

template <int COUNT>
DEVICE void products_hold(float*) {}
template <int COUNT>
DEVICE void products_hold(const u32 (&)[COUNT]) {}

DEVICE u64 swizzled_rows(u32 address) {
    if (address % 1024 != 0) emulated::fail("swizzled rows start at %u, which is no multiple of 1024", address);
    return address >> 4;
}

struct EmulatedRows {
    float* sums;
    const u32* a;
    u64 b;
};

template <int N, bool BF16>
DEVICE void multiply_rows(float* sums, const u32* a, u64 b, bool adds) {
    for (u32 i = 0; !adds && i < N / 2; i++) sums[i] = 0.0f;
    EmulatedRows own = {sums, a, b};
    emulated::meet("wgmma", ALL_LANES, own, [](EmulatedRows** slots) {
        const u32* all_a[32];
        for (u32 lane = 0; lane < 32; lane++) {
            all_a[lane] = slots[lane]->a;
            if (slots[lane]->b != slots[0]->b) emulated::fail("lanes of a product name different operands");
        }
        double left[16][16];
        emulated_left(left, all_a, BF16);
        u32 first = (u32)slots[0]->b << 4;
        for (u32 tile = 0; tile < N / 8; tile++) {
            EmulatedRow right[16];
            float* d[32];
            for (u32 lane = 0; lane < 32; lane++) d[lane] = slots[lane]->sums + 4 * tile;
            for (u32 col = 0; col < 8; col++) {
                u16 values[16];
                for (u32 half = 0; half < 2; half++) {
                    u32 address = first + (8 * tile + col) * 128 + 16 * half;
                    address ^= (address >> 7 & 7) << 4;
                    memcpy(values + 8 * half, emulated::shared_pointer(address, 16, 16), 16);
                }
                for (u32 k = 0; k < 16; k++) right[k][col] = emulated_number(values[k], BF16);
            }
            emulated_multiply(left, right, d);
        }
    });
}

// A value of 16 bits in swizzled shared memory.
DEVICE u16 emulated_swizzled(u32 address) {
    u16 value;
    memcpy(&value, emulated::shared_pointer(address ^ ((address >> 7 & 7) << 4), 2, 2), 2);
    return value;
}

template <int N>
DEVICE void multiply_shared(float* sums, u64 a, u64 b, bool adds) {
    // Each warp has sixteen of the rows.
    u32 from = ((u32)a << 4) + threadIdx.x / 32 % 4 * 16 * 128, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4, own[4];
    for (u32 i = 0; i < 4; i++) {
        u32 at = from + (g + i % 2 * 8) * 128 + (2 * q + i / 2 * 8) * 2;
        own[i] = (u32)emulated_swizzled(at + 2) << 16 | emulated_swizzled(at);
    }
    multiply_rows<N, false>(sums, own, b, adds);
}

DEVICE u64 swizzled_columns(u32 address, u32 panel_bytes) {
    return swizzled_rows(address) | (u64)panel_bytes << 32;
}

template <int N>
DEVICE void multiply_columns(float* sums, const u32* a, u64 b, bool adds) {
    for (u32 i = 0; !adds && i < N / 2; i++) sums[i] = 0.0f;
    EmulatedRows own = {sums, a, b};
    emulated::meet("wgmma of columns", ALL_LANES, own, [](EmulatedRows** slots) {
        const u32* all_a[32];
        for (u32 lane = 0; lane < 32; lane++) all_a[lane] = slots[lane]->a;
        double left[16][16];
        emulated_left(left, all_a, false);
        u32 first = (u32)slots[0]->b << 4, panel_bytes = (u32)(slots[0]->b >> 32);
        for (u32 tile = 0; tile < N / 8; tile++) {
            EmulatedRow right[16];
            float* d[32];
            for (u32 lane = 0; lane < 32; lane++) d[lane] = slots[lane]->sums + 4 * tile;
            for (u32 k = 0; k < 16; k++)
                for (u32 col = 0; col < 8; col++) {
                    u32 n = 8 * tile + col;
                    right[k][col] = emulated_number(emulated_swizzled(first + n / 64 * panel_bytes + k * 128 + n % 64 * 2), false);
                }
            emulated_multiply(left, right, d);
        }
    });
}
