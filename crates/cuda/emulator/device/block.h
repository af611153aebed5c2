// Runs blocks of threads on the CPU, one block after the other, its threads as fibers that give way where CUDA's wait.
//
// Copies that a kernel does not wait for are done as late as possible: when a thread waits for them, or when no thread
// can go on. Shared memory and the places that copies will fill hold ones until then, so that what is read too early is
// NaN. A block fails if its threads wait for each other in a circle, disagree about a warp's instruction, touch memory
// that is not theirs, or leave with copies under way.
#pragma once
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <utility>
#include <vector>

#include "launch.h"

// Saves the caller's registers and stack to *from and goes on where `to` was saved.
extern "C" void emulated_switch(void** from, void* to);
asm(R"(
.pushsection .text
.type emulated_switch, @function
emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.popsection
)");

// Static shared memory of the module, in one section of the library.
extern "C" __attribute__((weak, visibility("hidden"))) unsigned char __start_emulated_shared[], __stop_emulated_shared[];

namespace emulated {

typedef unsigned u32;
typedef unsigned long long u64;

constexpr u32 most_threads = 1024, stack_bytes = 64 << 10, most_shared_bytes = 228 << 10, page_bytes = 4096;

struct Dim {
    u32 x, y, z;
};

// A copy to shared memory that has not been done yet; from nowhere come zeros.
struct Copy {
    void* to;
    const void* from;
    u32 bytes, group;
};

// Copies whose end a barrier counts, as bytes or as an arrival.
struct Batch {
    std::vector<Copy> copies;
    u64* barrier;
    u32 arrivals, bytes;
};

enum class State { ready, blocked, waiting, done };

struct Thread {
    void* stack;
    Dim index;
    u32 number;
    State state;
    // While it waits for the end of a barrier's phase.
    const u64* barrier;
    u32 parity;
    // Copies of 16 bytes, and the group that new ones belong to.
    std::vector<Copy> copies;
    u32 group;
};

// Lanes of a warp that meet in one instruction.
struct Meeting {
    u32 arrived;
    const char* kind;
    void* slots[32];
};

// The meetings of a warp by their lanes, which stand apart so that they are found quickly; 0 is none.
struct Meetings {
    u32 masks[32];
    Meeting all[32];
};

struct NamedBarrier {
    u32 arrived;
    Thread* threads[most_threads];
};

struct Block {
    Dim index, dim, grid;
    u32 count, alive, shared_bytes, order;
    unsigned char* shared;
    bool has_waited;
    const char* kernel;
    Thread threads[most_threads];
    Meetings meetings[most_threads / 32];
    NamedBarrier barriers[16];
    std::vector<Batch> batches;
};

static Block block;
static Thread* self;
static void* scheduler;
static sigjmp_buf on_failure;
static volatile bool is_running;
static char failure[512];
static unsigned char* stacks;
static unsigned char* shared_region;

[[noreturn]] inline void fail(const char* format, ...) {
    int at = snprintf(failure, sizeof failure, "%s, block (%u, %u, %u), thread %u: ", block.kernel, block.index.x,
                      block.index.y, block.index.z, self ? self->number : 0);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure + at, sizeof failure - at, format, arguments);
    va_end(arguments);
    siglongjmp(on_failure, 1);
}

inline void pause() {
    emulated_switch(&self->stack, scheduler);
}

inline void block_until_released() {
    self->state = State::blocked;
    pause();
}

// --- Shared memory: 32-bit addresses, dynamic from 1024 on, static behind it -----------------------------------------

constexpr u32 dynamic_at = 1024, static_at = 0x3a000;

inline u64 static_base() {
    return (u64)__start_emulated_shared & ~1023ull;
}

inline u32 shared_address(const void* at) {
    u64 address = (u64)at, region = (u64)shared_region;
    if (address >= region && address < region + most_shared_bytes) return dynamic_at + (u32)(address - region);
    if (address >= (u64)__start_emulated_shared && address < (u64)__stop_emulated_shared)
        return static_at + (u32)(address - static_base());
    fail("takes %p for an address in shared memory", at);
}

// The memory at an address, where so many bytes are the block's.
inline void* shared_pointer(u32 address, u32 bytes, u32 alignment) {
    if (address % alignment != 0) fail("shared memory at %u is not aligned to %u bytes", address, alignment);
    u64 dynamic = (u64)(address - dynamic_at) + (u64)shared_region, fixed = (u64)(address - static_at) + static_base();
    if (address < static_at) {
        if (address >= dynamic_at && dynamic >= (u64)block.shared && dynamic + bytes <= (u64)block.shared + block.shared_bytes)
            return (void*)dynamic;
    } else if (fixed >= (u64)__start_emulated_shared && fixed + bytes <= (u64)__stop_emulated_shared) {
        return (void*)fixed;
    }
    fail("%u bytes at %u are outside of the block's shared memory", bytes, address);
}

// --- Meetings of lanes --------------------------------------------------------------------------------------------

// Waits until all lanes of the mask are here; the last does the work with the slots of all, by lane.
template <class Slot, class Work>
inline void meet(const char* kind, u32 mask, Slot& own, Work work) {
    u32 lane = self->number % 32, warp = self->number / 32;
    if (!(mask >> lane & 1)) fail("%s names lanes %08x without its own", kind, mask);
    Meetings& meetings = block.meetings[warp];
    u32 number = 0;
    while (number < 32 && meetings.masks[number] != mask) number++;
    if (number == 32) {
        for (number = 0; meetings.masks[number] != 0;) number++;
        meetings.masks[number] = mask;
        meetings.all[number].arrived = 0, meetings.all[number].kind = kind;
    }
    Meeting* found = &meetings.all[number];
    if (found->kind != kind && strcmp(found->kind, kind) != 0) fail("is in %s while lanes of its warp are in %s", kind, found->kind);
    found->slots[lane] = &own;
    found->arrived |= 1u << lane;
    if (found->arrived != mask) return block_until_released();
    work((Slot**)found->slots);
    meetings.masks[number] = 0;
    for (u32 other = 0; other < 32; other++)
        if ((mask >> other & 1) && other != lane) block.threads[warp * 32 + other].state = State::ready;
}

inline void barrier_of(u32 number, u32 threads) {
    NamedBarrier& barrier = block.barriers[number % 16];
    barrier.threads[barrier.arrived++] = self;
    if (barrier.arrived < threads) return block_until_released();
    for (u32 i = 0; i < barrier.arrived; i++) barrier.threads[i]->state = State::ready;
    barrier.arrived = 0;
}

inline void block_barrier() {
    barrier_of(0, block.alive);
}

// --- Barriers in shared memory: phase, bytes still to come, arrivals still to come, arrivals of a phase -------------

constexpr u64 no_bytes = 1u << 30;

inline u64 barrier_word(u32 phase, u64 bytes, u32 left, u32 expected) {
    return (u64)phase << 63 | bytes << 32 | (u64)left << 16 | expected;
}

inline u64* barrier_at(u32 address) {
    u64* barrier = (u64*)shared_pointer(address, 8, 8);
    if (*barrier == ~0ull) fail("uses a barrier at %u that was not initialised", address);
    return barrier;
}

// Arrivals and bytes that have come, or, if negative, are still to come.
inline void barrier_change(u64* barrier, u32 arrivals, int64_t bytes) {
    u32 phase = *barrier >> 63, left = *barrier >> 16 & 0xffff, expected = *barrier & 0xffff;
    u64 rest = (*barrier >> 32 & 0x7fffffff) - bytes;
    if (arrivals > left) fail("arrives at a barrier more often than it was initialised for");
    left -= arrivals;
    if (left == 0 && rest == no_bytes) phase ^= 1, left = expected;
    *barrier = barrier_word(phase, rest, left, expected);
}

inline bool is_over(const u64* barrier, u32 parity) {
    return (*barrier >> 63) != parity;
}

// --- Copies ---------------------------------------------------------------------------------------------------------

inline Copy new_copy(void* to, const void* from, u32 bytes, u32 group) {
    memset(to, 0xff, bytes);
    return {to, from, bytes, group};
}

inline void do_copy(const Copy& copy) {
    if (copy.from)
        memcpy(copy.to, copy.from, copy.bytes);
    else
        memset(copy.to, 0, copy.bytes);
}

// Does the calling thread's copies up to and with a group.
inline void do_copies(u32 groups) {
    std::vector<Copy> later;
    for (const Copy& copy : self->copies) {
        if (copy.group < groups)
            do_copy(copy);
        else
            later.push_back(copy);
    }
    self->copies = std::move(later);
}

// --- The scheduler --------------------------------------------------------------------------------------------------

static void (*body)(const void*);
static const void* body_params;

static void run_thread() {
    body(body_params);
    if (!self->copies.empty()) fail("leaves with copies under way");
    self->state = State::done;
    block.alive--;
    NamedBarrier& all = block.barriers[0];
    if (all.arrived > 0 && all.arrived == block.alive) {
        for (u32 i = 0; i < all.arrived; i++) all.threads[i]->state = State::ready;
        all.arrived = 0;
    }
    pause();
    __builtin_unreachable();
}

static void start_thread(Thread& thread, u32 number) {
    thread.number = number;
    thread.index = {number % block.dim.x, number / block.dim.x % block.dim.y, number / block.dim.x / block.dim.y};
    thread.state = State::ready;
    thread.group = 0;
    thread.copies.clear();
    // Six registers and the address to return to; the stack as a call would leave it.
    void** top = (void**)(stacks + (u64)(number + 1) * stack_bytes) - 1;
    *top = nullptr;
    *--top = (void*)run_thread;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    thread.stack = top;
}

static bool run_warp(u32 warp, u32 (&turns)[32]) {
    bool has_run = false;
    for (bool again = true; again;) {
        again = false;
        for (u32 turn : turns) {
            u32 number = warp * 32 + turn;
            if (number >= block.count) continue;
            Thread& thread = block.threads[number];
            if (thread.state == State::waiting && is_over(thread.barrier, thread.parity)) thread.state = State::ready;
            if (thread.state != State::ready) continue;
            self = &thread;
            emulated_switch(&scheduler, thread.stack);
            again = has_run = true;
        }
    }
    return has_run;
}

static u32 random_below(u32& seed, u32 count) {
    seed = seed * 1664525u + 1013904223u;
    return (u32)((u64)seed * count >> 32);
}

static void shuffle(u32* turns, u32 count, u32 order, u32& seed) {
    for (u32 i = 0; i < count; i++) turns[i] = order == 1 ? count - 1 - i : i;
    for (u32 i = count; order > 1 && i > 1; i--) std::swap(turns[i - 1], turns[random_below(seed, i)]);
}

static void run_block(u32 seed) {
    u32 warps = (block.count + 31) / 32, lanes[32], order[most_threads / 32];
    while (block.alive > 0) {
        shuffle(order, warps, block.order, seed);
        bool has_run = false;
        for (u32 i = 0; i < warps; i++) {
            shuffle(lanes, 32, block.order, seed);
            has_run |= run_warp(order[i], lanes);
        }
        if (has_run || block.alive == 0) continue;
        if (block.batches.empty()) {
            for (u32 i = 0; i < block.count; i++)
                if (block.threads[i].state != State::done) self = &block.threads[i];
            fail("waits %s, and so do %u others: nothing can go on",
                 self->state == State::waiting ? "for a phase" : "for other threads", block.alive - 1);
        }
        u32 next = block.order > 1 ? random_below(seed, block.batches.size()) : 0;
        Batch batch = std::move(block.batches[next]);
        block.batches.erase(block.batches.begin() + next);
        for (const Copy& copy : batch.copies) do_copy(copy);
        barrier_change(batch.barrier, batch.arrivals, batch.bytes);
    }
    if (!block.batches.empty()) fail("the block leaves with copies under way");
}

static void on_signal(int number, siginfo_t* info, void*) {
    if (!is_running) {
        signal(number, SIG_DFL);
        return;
    }
    if (number == SIGFPE) fail("divides by zero");
    fail("touches memory at %p, where nothing is allocated, or aligns it wrongly", info->si_addr);
}

static void prepare() {
    if (stacks) return;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    stacks = (unsigned char*)mmap(nullptr, (u64)most_threads * stack_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    // Behind dynamic shared memory nothing can be touched.
    unsigned char* region = (unsigned char*)mmap(nullptr, most_shared_bytes + page_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    mprotect(region + most_shared_bytes, page_bytes, PROT_NONE);
    shared_region = region;
}

// Threads and what else the bounds name, of which only the first counts here.
template <class... More>
inline Limits limits(u32 param_bytes, u32 threads, More...) {
    return {threads, (u32)(__stop_emulated_shared - __start_emulated_shared), param_bytes};
}

inline const char* run(const char* kernel, void (*kernel_body)(const void*), const Launch* launch) {
    prepare();
    static unsigned char signal_stack[64 << 10];
    stack_t own_stack = {}, old_stack;
    own_stack.ss_sp = signal_stack, own_stack.ss_size = sizeof signal_stack;
    sigaltstack(&own_stack, &old_stack);
    struct sigaction action = {}, old[3];
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    const int signals[3] = {SIGSEGV, SIGBUS, SIGFPE};
    for (int i = 0; i < 3; i++) sigaction(signals[i], &action, &old[i]);
    body = kernel_body, body_params = launch->params;
    block.kernel = kernel;
    block.dim = {launch->block[0], launch->block[1], launch->block[2]};
    block.grid = {launch->grid[0], launch->grid[1], launch->grid[2]};
    block.count = block.dim.x * block.dim.y * block.dim.z;
    block.order = launch->order;
    block.shared_bytes = launch->shared_bytes;
    block.shared = shared_region + most_shared_bytes - (launch->shared_bytes + 127) / 128 * 128;
    const char* volatile result = nullptr;
    for (u32 warp = 0; warp < (block.count + 31) / 32; warp++)
        memset(block.meetings[warp].masks, 0, sizeof block.meetings[warp].masks);
    is_running = true;
    self = nullptr;
    if (sigsetjmp(on_failure, 0) == 0) {
        u32 blocks = block.grid.x * block.grid.y * block.grid.z;
        for (u32 i = 0; i < blocks; i++) {
            // Blocks come in the order of threads, too.
            u32 at = block.order == 1 ? blocks - 1 - i : i;
            block.index = {at % block.grid.x, at / block.grid.x % block.grid.y, at / block.grid.x / block.grid.y};
            block.alive = block.count;
            block.has_waited = false;
            block.batches.clear();
            for (NamedBarrier& barrier : block.barriers) barrier.arrived = 0;
            memset(block.shared, 0xff, block.shared_bytes);
            memset(__start_emulated_shared, 0xff, __stop_emulated_shared - __start_emulated_shared);
            for (u32 number = 0; number < block.count; number++) start_thread(block.threads[number], number);
            run_block(block.order + at * 77 + 1);
            if (launch->must_wait && !block.has_waited) fail("the block leaves without wait_for_inputs()");
        }
    } else {
        result = failure;
    }
    is_running = false;
    for (int i = 0; i < 3; i++) sigaction(signals[i], &old[i], nullptr);
    sigaltstack(&old_stack, nullptr);
    return result;
}

}  // namespace emulated
