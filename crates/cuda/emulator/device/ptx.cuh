// The functions of kernels/ptx.cuh in C++, on the CPU.
#pragma once
#include "types.cuh"

DEVICE void wait_for_inputs() {
    emulated::block.has_waited = true;
}

DEVICE void start_dependents() {}

// --- Numbers ----------------------------------------------------------------------------------------------------

DEVICE u16 f16_bits(float value) {
    // One NaN for all, as the hardware's.
    if (value != value) return 0x7fff;
    _Float16 half = (_Float16)value;
    u16 bits;
    memcpy(&bits, &half, 2);
    return bits;
}

DEVICE float f16_value(u16 bits) {
    _Float16 half;
    memcpy(&half, &bits, 2);
    return (float)half;
}

DEVICE u32 f16_pair(float first, float second) {
    return (u32)f16_bits(second) << 16 | f16_bits(first);
}

DEVICE u16 emulated_bf16(float value) {
    u32 bits = __float_as_uint(value);
    if (value != value) return 0x7fff;
    return (u16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

DEVICE u32 bf16_pair(float first, float second) {
    return (u32)emulated_bf16(second) << 16 | emulated_bf16(first);
}

// a · b + c in f16, rounded once.
DEVICE u16 emulated_f16_fma(u16 a, u16 b, u16 c) {
    double value = (double)f16_value(a) * (double)f16_value(b) + (double)f16_value(c);
    if (value != value) return 0x7fff;
    _Float16 half = (_Float16)value;
    u16 bits;
    memcpy(&bits, &half, 2);
    return bits;
}

DEVICE float power_of_two(float exponent) {
    float power = exp2f(exponent);
    return power < 1.17549435e-38f ? 0.0f : power;
}

DEVICE u32 mask_and_set(u32 value, u32 mask, u32 bits) {
    return (value & mask) | bits;
}

DEVICE u32 f16x2_fma(u32 a, u32 b, u32 c) {
    return (u32)emulated_f16_fma(a >> 16, b >> 16, c >> 16) << 16 | emulated_f16_fma((u16)a, (u16)b, (u16)c);
}

DEVICE u32 f16x2_add(u32 a, u32 b) {
    return f16x2_fma(a, 0x3c003c00u, b);
}

DEVICE u32 f16x2_mul(u32 a, u32 b) {
    return f16x2_fma(a, b, 0x80008000u);
}

template <int HALF>
DEVICE u32 f16x2_mul_half(u32 a, u32 b) {
    u32 half = HALF == 0 ? b & 0xffffu : b >> 16;
    return f16x2_mul(a, half << 16 | half);
}

// --- Loads ------------------------------------------------------------------------------------------------------

DEVICE void emulated_load(u32* to, const void* from, u32 words) {
    if ((u64)from % (4 * words) != 0) emulated::fail("loads %u bytes from %p, which is not aligned to them", 4 * words, from);
    memcpy(to, from, 4 * words);
}

DEVICE void load_streamed4(u32* to, const void* from) {
    emulated_load(to, from, 4);
}

DEVICE void load_streamed2(u32* to, const void* from) {
    emulated_load(to, from, 2);
}

DEVICE void load_streamed1(u32* to, const void* from) {
    emulated_load(to, from, 1);
}

DEVICE u32 load_fresh(const void* from) {
    u32 word;
    emulated_load(&word, from, 1);
    return word;
}

DEVICE void load_fresh4(u32* to, const void* from) {
    emulated_load(to, from, 4);
}

DEVICE u32 count_arrival(u32* count) {
    return (*count)++;
}

DEVICE u32 shared_address(const void* at) {
    return emulated::shared_address(at);
}

DEVICE void load_shared4(u32* to, u32 from) {
    memcpy(to, emulated::shared_pointer(from, 16, 16), 16);
}

DEVICE void load_shared2(u32* to, u32 from) {
    memcpy(to, emulated::shared_pointer(from, 8, 8), 8);
}

DEVICE void load_shared1(u32* to, u32 from) {
    memcpy(to, emulated::shared_pointer(from, 4, 4), 4);
}

// --- Counters ---------------------------------------------------------------------------------------------------

DEVICE u32 arrive(u32* counter, u32 last) {
    u32 before = *counter;
    *counter = before >= last ? 0 : before + 1;
    return before;
}

// --- Matrix units -----------------------------------------------------------------------------------------------
// An element of d is d plus the sum of sixteen products, rounded once; wgmma.cuh computes the same.

typedef double EmulatedRow __attribute__((vector_size(64)));

DEVICE float emulated_number(u16 bits, bool is_bf16) {
    return is_bf16 ? __uint_as_float((u32)bits << 16) : f16_value(bits);
}

struct EmulatedProduct {
    float* d;
    const u32* a;
    u32 b[2];
};

// The left operands of a warp, 16 x 16.
DEVICE void emulated_left(double (&left)[16][16], const u32* const* a, bool is_bf16) {
    for (u32 lane = 0; lane < 32; lane++)
        for (u32 i = 0; i < 4; i++)
            for (u32 e = 0; e < 2; e++)
                left[lane / 4 + 8 * (i % 2)][2 * (lane % 4) + e + 8 * (i / 2)] =
                    emulated_number((u16)(a[lane][i] >> 16 * e), is_bf16);
}

// d += left · right, for eight columns whose sums lanes hold at d[lane].
DEVICE void emulated_multiply(const double (&left)[16][16], const EmulatedRow (&right)[16], float* const* d) {
    for (u32 row = 0; row < 16; row++) {
        EmulatedRow sum = {};
        for (u32 k = 0; k < 16; k++) sum += left[row][k] * right[k];
        for (u32 col = 0; col < 8; col++) {
            float& value = d[row % 8 * 4 + col / 2][row / 8 * 2 + col % 2];
            value = (float)((double)value + sum[col]);
        }
    }
}

DEVICE void emulated_mma(float* d, const u32* a, u32 b0, u32 b1, bool is_bf16) {
    EmulatedProduct own = {d, a, {b0, b1}};
    emulated::meet(is_bf16 ? "mma bf16" : "mma f16", ALL_LANES, own, [is_bf16](EmulatedProduct** slots) {
        const u32* all_a[32];
        float* all_d[32];
        EmulatedRow right[16];
        for (u32 lane = 0; lane < 32; lane++) {
            all_a[lane] = slots[lane]->a, all_d[lane] = slots[lane]->d;
            for (u32 i = 0; i < 2; i++)
                for (u32 e = 0; e < 2; e++)
                    right[2 * (lane % 4) + e + 8 * i][lane / 4] = emulated_number((u16)(slots[lane]->b[i] >> 16 * e), is_bf16);
        }
        double left[16][16];
        emulated_left(left, all_a, is_bf16);
        emulated_multiply(left, right, all_d);
    });
}

DEVICE void mma_bf16(float* d, const u32* a, u32 b0, u32 b1) {
    emulated_mma(d, a, b0, b1, true);
}

DEVICE void mma_f16(float* d, const u32* a, u32 b0, u32 b1) {
    emulated_mma(d, a, b0, b1, false);
}

struct EmulatedMatrices {
    u32* words;
    u32 address;
};

DEVICE void emulated_matrices(const char* kind, u32* words, u32 address, bool is_transposed) {
    EmulatedMatrices own = {words, address};
    emulated::meet(kind, ALL_LANES, own, [is_transposed](EmulatedMatrices** slots) {
        u16 rows[4][8][8];
        for (u32 lane = 0; lane < 32; lane++)
            memcpy(rows[lane / 8][lane % 8], emulated::shared_pointer(slots[lane]->address, 16, 16), 16);
        for (u32 lane = 0; lane < 32; lane++)
            for (u32 i = 0; i < 4; i++) {
                u32 g = lane / 4, q = 2 * (lane % 4);
                u32 low = is_transposed ? rows[i][q][g] : rows[i][g][q];
                u32 high = is_transposed ? rows[i][q + 1][g] : rows[i][g][q + 1];
                slots[lane]->words[i] = high << 16 | low;
            }
    });
}

DEVICE void load_matrices(u32* words, u32 address) {
    emulated_matrices("ldmatrix", words, address, false);
}

DEVICE void load_matrices_transposed(u32* words, u32 address) {
    emulated_matrices("ldmatrix.trans", words, address, true);
}

// --- Copies to shared memory ------------------------------------------------------------------------------------

DEVICE void copy_async_or_zero(u32 to, const void* from, bool is_there) {
    if (is_there && (u64)from % 16 != 0) emulated::fail("copies 16 bytes from %p, which is not aligned to them", from);
    void* at = emulated::shared_pointer(to, 16, 16);
    emulated::self->copies.push_back(emulated::new_copy(at, is_there ? from : nullptr, 16, emulated::self->group));
}

DEVICE void copy_async(u32 to, const void* from) {
    copy_async_or_zero(to, from, true);
}

DEVICE void end_copies() {
    emulated::self->group++;
}

template <int PENDING>
DEVICE void wait_for_copies() {
    if (emulated::self->group >= PENDING) emulated::do_copies(emulated::self->group - PENDING);
}

// --- Barriers ---------------------------------------------------------------------------------------------------

DEVICE void barrier_of(u32 number, u32 threads) {
    emulated::barrier_of(number, threads);
}

DEVICE void barrier_init(u32 barrier, u32 arrivals) {
    *(u64*)emulated::shared_pointer(barrier, 8, 8) = emulated::barrier_word(0, emulated::no_bytes, arrivals, arrivals);
}

DEVICE void barrier_init_fence() {}

DEVICE void barrier_arrive(u32 barrier) {
    emulated::barrier_change(emulated::barrier_at(barrier), 1, 0);
}

DEVICE void barrier_arrive_after_copies(u32 barrier) {
    emulated::Batch batch = {std::move(emulated::self->copies), emulated::barrier_at(barrier), 1, 0};
    emulated::self->copies.clear();
    emulated::block.batches.push_back(std::move(batch));
}

DEVICE void barrier_wait(u32 barrier, u32 parity) {
    const u64* at = emulated::barrier_at(barrier);
    if (emulated::is_over(at, parity)) return;
    emulated::self->barrier = at, emulated::self->parity = parity;
    emulated::self->state = emulated::State::waiting;
    emulated::pause();
}

DEVICE void barrier_expect(u32 barrier, u32 bytes) {
    emulated::u64* at = emulated::barrier_at(barrier);
    emulated::barrier_change(at, 0, -(long long)bytes);
    emulated::barrier_change(at, 1, 0);
}

DEVICE void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
    if (bytes % 16 != 0 || (u64)from % 16 != 0) emulated::fail("copies %u bytes from %p: not multiples of 16", bytes, from);
    void* at = emulated::shared_pointer(to, bytes, 16);
    emulated::Copy copy = emulated::new_copy(at, from, bytes, 0);
    emulated::block.batches.push_back({{copy}, emulated::barrier_at(barrier), 0, bytes});
}

// A map as the emulated driver makes it: address, stride, columns, rows, and those of a box.
DEVICE void copy_box(u32 to, const void* map, u32 col, u32 row, u32 barrier) {
    const u64* words = (const u64*)map;
    u64 stride = words[1], cols = words[2], rows = words[3], box_cols = words[4], box_rows = words[5];
    if ((u64)map % 64 != 0 || box_cols != 64) emulated::fail("copies a box by the map at %p, which describes none", map);
    emulated::shared_pointer(to, box_rows * 128, 128);
    emulated::Batch batch = {{}, emulated::barrier_at(barrier), 0, (u32)(box_rows * 128)};
    for (u32 i = 0; i < box_rows; i++)
        for (u32 chunk = 0; chunk < 8; chunk++) {
            // The part of 16 bytes changes place by the row's address, in units of 128 bytes.
            u32 line = to + i * 128, place = line + ((chunk ^ (line / 128 % 8)) << 4);
            bool is_there = row + i < rows && col + chunk * 8 < cols;
            const void* from = (const void*)(words[0] + (row + i) * stride + (col + chunk * 8) * 2);
            batch.copies.push_back(emulated::new_copy(emulated::shared_pointer(place, 16, 16), is_there ? from : nullptr, 16, 0));
        }
    emulated::block.batches.push_back(std::move(batch));
}
