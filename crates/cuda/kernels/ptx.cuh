// Instructions that C++ has no words for: all inline PTX but that of wgmma.cuh. Nothing else may hold any, so that tests
// can run every kernel where these few functions are written otherwise (emulator/device/).
//
// Addresses in shared memory are u32, as shared_address() gives them.
#pragma once
#include "types.cuh"

// --- Launches ---------------------------------------------------------------------------------------------------

// Waits until the kernels before this one have ended and what they wrote can be seen.
DEVICE void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start.
DEVICE void start_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// --- Numbers ----------------------------------------------------------------------------------------------------

DEVICE u16 f16_bits(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

DEVICE float f16_value(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// Two f16 in one word, the first in its lower half.
DEVICE u32 f16_pair(float first, float second) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

// Two bf16 in one word, the first in its lower half.
DEVICE u32 bf16_pair(float first, float second) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

// 2 to the power of a value, to 22 digits: one instruction, where expf() is nine.
DEVICE float power_of_two(float exponent) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
    return power;
}

// (value & mask) | bits in one instruction, which compilers make two of where both are constants.
DEVICE u32 mask_and_set(u32 value, u32 mask, u32 bits) {
    u32 result;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(value), "r"(mask), "r"(bits));
    return result;
}

DEVICE u32 f16x2_add(u32 a, u32 b) {
    u32 sum;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}

DEVICE u32 f16x2_mul(u32 a, u32 b) {
    u32 product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

// Both halves of a times one half of b.
template <int HALF>
DEVICE u32 f16x2_mul_half(u32 a, u32 b) {
    u32 product;
    if (HALF == 0)
        asm("{\n\t.reg .b16 low, high;\n\t.reg .b32 both;\n\tmov.b32 {low, high}, %2;\n\tmov.b32 both, {low, low};\n\t"
            "mul.rn.f16x2 %0, %1, both;\n\t}" : "=r"(product) : "r"(a), "r"(b));
    else
        asm("{\n\t.reg .b16 low, high;\n\t.reg .b32 both;\n\tmov.b32 {low, high}, %2;\n\tmov.b32 both, {high, high};\n\t"
            "mul.rn.f16x2 %0, %1, both;\n\t}" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

DEVICE u32 f16x2_fma(u32 a, u32 b, u32 c) {
    u32 sum;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}

// --- Loads ------------------------------------------------------------------------------------------------------

// Words that are read once, from global memory: weights. Aligned to their size.
DEVICE void load_streamed4(u32* to, const void* from) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(from));
}

DEVICE void load_streamed2(u32* to, const void* from) {
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(from));
}

DEVICE void load_streamed1(u32* to, const void* from) {
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(to[0]) : "l"(from));
}

// Words that other blocks of this kernel, or a kernel that has not been waited for but has ended, wrote.
DEVICE u32 load_fresh(const void* from) {
    u32 word;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
    return word;
}

DEVICE void load_fresh4(u32* to, const void* from) {
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(from)
                 : "memory");
}

// Counts an arrival; how many were there before. What this thread saw written before it arrived, those who find its
// arrival counted may read.
DEVICE u32 count_arrival(u32* count) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(count) : "memory");
    return before;
}

DEVICE u32 shared_address(const void* at) {
    return (u32)__cvta_generic_to_shared(at);
}

DEVICE void load_shared4(u32* to, u32 from) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from));
}

DEVICE void load_shared2(u32* to, u32 from) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(from));
}

DEVICE void load_shared1(u32* to, u32 from) {
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(to[0]) : "r"(from));
}

// --- Counters ---------------------------------------------------------------------------------------------------

// Counts an arrival and returns how many were before; the one that finds `last` makes it zero again. What this thread
// wrote, and those that it has met since they wrote, can be seen by whoever arrives later.
DEVICE u32 arrive(u32* counter, u32 last) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
    return before;
}

// --- Matrix units -----------------------------------------------------------------------------------------------
// Fragments of a 16x8x16 product, with g = lane / 4 and q = lane % 4:
//   A (16 x 16): a[0] row g, columns 2q and 2q+1; a[1] row g+8; a[2], a[3] the same eight columns on.
//   B (16 x 8):  b[0] rows 2q and 2q+1 of column g; b[1] the same eight rows on.
//   D (16 x 8):  d[0], d[1] row g, columns 2q and 2q+1; d[2], d[3] row g+8.
// An element of D depends on its own row of A and its own column of B alone.

// d += a · b.
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
DEVICE void load_matrices(u32* words, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
}

// The same with every matrix transposed.
DEVICE void load_matrices_transposed(u32* words, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
}

// --- Copies to shared memory ------------------------------------------------------------------------------------

// Copies 16 bytes without waiting.
DEVICE void copy_async(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// The same, or 16 zeros; then nothing is read.
DEVICE void copy_async_or_zero(u32 to, const void* from, bool is_there) {
    int bytes = is_there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// Ends a group of such copies, which may be empty.
DEVICE void end_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until all but the latest PENDING groups of this thread have arrived.
template <int PENDING>
DEVICE void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// --- Barriers ---------------------------------------------------------------------------------------------------

// A barrier of some of the block's threads, a multiple of 32; number 0 is __syncthreads().
DEVICE void barrier_of(u32 number, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
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

// Waits until the phase of this parity has ended.
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

// Copies a box of a matrix that the host has described, from this column and row on, to shared memory; boxes of rows of
// 128 bytes are swizzled by 128 bytes as their address there says. The barrier's phase ends when it has arrived.
DEVICE void copy_box(u32 to, const void* map, u32 col, u32 row, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(map), "r"(col), "r"(row), "r"(barrier)
        : "memory");
}
#endif
