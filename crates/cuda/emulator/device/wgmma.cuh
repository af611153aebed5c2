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
