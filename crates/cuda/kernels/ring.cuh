// Barriers in shared memory and copies that end a phase of one: bulk copies, or 16-byte copies where there are none.
#pragma once
#include "common.cuh"

// Arrivals that a copy by a warp makes.
#if __CUDA_ARCH__ >= 900
#define COPY_ARRIVALS 1
#else
#define COPY_ARRIVALS 32
#endif

DEVICE u32 shared_address(const void* at) {
    return (u32)__cvta_generic_to_shared(at);
}

DEVICE void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes barriers that were initialised visible to copies.
DEVICE void barrier_init_fence() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

DEVICE void barrier_arrive(u32 barrier) {
    asm volatile("{\n\t.reg .b64 state;\n\tmbarrier.arrive.shared.b64 state, [%0];\n\t}" ::"r"(barrier) : "memory");
}

// Arrives when the 16-byte copies that this thread has started have ended.
DEVICE void barrier_arrive_after_copies(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

DEVICE void barrier_wait(u32 barrier, u32 parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n\t"
        ".reg .pred done;\n\t"
        "again:\n\t"
        "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n\t"
        "@!done bra again;\n\t"
        "}" ::"r"(barrier), "r"(parity) : "memory");
#else
    asm volatile(
        "{\n\t"
        ".reg .pred done;\n\t"
        "again:\n\t"
        "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n\t"
        "@!done bra again;\n\t"
        "}" ::"r"(barrier), "r"(parity) : "memory");
#endif
}

// Copies 16 bytes to shared memory without waiting.
DEVICE void copy_async(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

#if __CUDA_ARCH__ >= 900
// Arrives, and makes the phase wait for so many bytes of bulk copies as well.
DEVICE void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("{\n\t.reg .b64 state;\n\tmbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;\n\t}" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}

// Copies bytes (a multiple of 16) to shared memory; the barrier's phase ends when they have arrived.
DEVICE void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
#endif

// Copies bytes (a multiple of 16) by a warp. The barrier, of COPY_ARRIVALS, changes its phase when they have arrived.
DEVICE void warp_copy(u32 to, const u8* from, u32 bytes, u32 barrier, u32 lane) {
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
        barrier_expect(barrier, bytes);
        copy_bulk(to, from, bytes, barrier);
    }
#else
    for (u32 at = lane * 16; at < bytes; at += 512) copy_async(to + at, from + at);
    barrier_arrive_after_copies(barrier);
#endif
}
