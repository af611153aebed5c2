// CUDA's own words for a compiler of plain C++: what a kernel may use without a header.
#pragma once
#include <cmath>
#include <cstring>
#include <type_traits>

#include "block.h"

#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static __attribute__((section("emulated_shared")))
#define threadIdx (emulated::self->index)
#define blockIdx (emulated::block.index)
#define blockDim (emulated::block.dim)
#define gridDim (emulated::block.grid)

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

inline float2 make_float2(float x, float y) {
    return {x, y};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
    return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}

template <class A, class B>
inline std::common_type_t<A, B> min(A a, B b) {
    typedef std::common_type_t<A, B> Both;
    return (Both)b < (Both)a ? (Both)b : (Both)a;
}
template <class A, class B>
inline std::common_type_t<A, B> max(A a, B b) {
    typedef std::common_type_t<A, B> Both;
    return (Both)a < (Both)b ? (Both)b : (Both)a;
}

// --- Numbers: nothing is contracted (-ffp-contract=off), so these are the plain operators -----------------------------

inline float __fadd_rn(float a, float b) {
    return a + b;
}
inline float __fsub_rn(float a, float b) {
    return a - b;
}
inline float __fmul_rn(float a, float b) {
    return a * b;
}
inline float __fdiv_rn(float a, float b) {
    return a / b;
}
inline float __fmaf_rn(float a, float b, float c) {
    return fmaf(a, b, c);
}
inline float __fsqrt_rn(float a) {
    return sqrtf(a);
}
inline int __float2int_rn(float a) {
    return (int)rintf(a);
}
inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    return bits;
}
inline void sincospif(float x, float* sine, float* cosine) {
    *sine = (float)sin(M_PI * (double)x);
    *cosine = (float)cos(M_PI * (double)x);
}
inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned choice) {
    unsigned long long bytes = (unsigned long long)b << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        unsigned nibble = choice >> (4 * i) & 15, byte = bytes >> (8 * (nibble & 7)) & 255;
        // The upper bit asks for the byte's sign.
        if (nibble & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << (8 * i);
    }
    return result;
}
template <class T>
inline T __ldg(const T* from) {
    return *from;
}
// One block runs at a time, and a thread gives way only where it waits.
template <class T, class Added>
inline T atomicAdd(T* to, Added added) {
    T before = *to;
    *to = before + (T)added;
    return before;
}

template <class T>
inline T atomicMax(T* to, T other) {
    T before = *to;
    *to = other > before ? other : before;
    return before;
}

// --- What lanes and threads do together -----------------------------------------------------------------------------

inline void __syncthreads() {
    emulated::block_barrier();
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
    int nothing = 0;
    emulated::meet("__syncwarp", mask, nothing, [](int**) {});
}

template <class T>
struct Exchange {
    T own, got;
    unsigned from;
};
template <class T>
inline T emulated_shuffle(const char* kind, unsigned mask, T own, unsigned from) {
    Exchange<T> slot = {own, own, from};
    emulated::meet(kind, mask, slot, [mask](Exchange<T>** slots) {
        for (unsigned lane = 0; lane < 32; lane++) {
            if (!(mask >> lane & 1)) continue;
            unsigned source = slots[lane]->from;
            if (source < 32 && !(mask >> source & 1)) emulated::fail("a shuffle reads lane %u, which takes no part", source);
            if (source < 32) slots[lane]->got = slots[source]->own;
        }
    });
    return slot.got;
}
template <class T>
inline T __shfl_sync(unsigned mask, T own, unsigned from) {
    return emulated_shuffle("__shfl_sync", mask, own, from % 32);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T own, unsigned distance) {
    return emulated_shuffle("__shfl_xor_sync", mask, own, (emulated::self->number % 32) ^ distance);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T own, unsigned distance) {
    unsigned lane = emulated::self->number % 32;
    return emulated_shuffle("__shfl_up_sync", mask, own, lane >= distance ? lane - distance : lane);
}

struct Vote {
    unsigned own, got;
};
template <class Count>
inline unsigned emulated_vote(const char* kind, unsigned mask, unsigned own, Count count) {
    Vote slot = {own, 0};
    emulated::meet(kind, mask, slot, [&](Vote** slots) {
        for (unsigned lane = 0; lane < 32; lane++) {
            if (!(mask >> lane & 1)) continue;
            for (unsigned other = 0; other < 32; other++)
                if (mask >> other & 1) slots[lane]->got = count(slots[lane]->got, slots[lane]->own, slots[other]->own, other);
        }
    });
    return slot.got;
}
inline unsigned __ballot_sync(unsigned mask, int own) {
    return emulated_vote("__ballot_sync", mask, own != 0,
                         [](unsigned got, unsigned, unsigned other, unsigned lane) { return got | other << lane; });
}
inline int __any_sync(unsigned mask, int own) {
    return __ballot_sync(mask, own) != 0;
}
inline unsigned __match_any_sync(unsigned mask, unsigned own) {
    return emulated_vote("__match_any_sync", mask, own, [](unsigned got, unsigned mine, unsigned other, unsigned lane) {
        return got | (unsigned)(mine == other) << lane;
    });
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned own) {
    return emulated_vote("__reduce_add_sync", mask, own,
                         [](unsigned got, unsigned, unsigned other, unsigned) { return got + other; });
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned own) {
    return emulated_vote("__reduce_max_sync", mask, own,
                         [](unsigned got, unsigned, unsigned other, unsigned) { return other > got ? other : got; });
}
