// What the emulated driver hands to a compiled kernel. Both sides read this file.
#pragma once
#include <cstdint>

namespace emulated {

struct Launch {
    uint32_t grid[3], block[3];
    uint32_t shared_bytes;
    // In which order a block's warps and lanes get their turns: 0 forward, 1 backward, others a seed.
    uint32_t order;
    // Whether every block has to call wait_for_inputs().
    bool must_wait;
    const void* params;
};

// What a kernel asks for, to be checked when it is launched.
struct Limits {
    uint32_t threads, static_shared_bytes, param_bytes;
};

// Runs all blocks; null, or what went wrong.
typedef const char* (*Run)(const Launch*);
typedef Limits (*Describe)();

// How compiled code starts: the driver gets no length, so the code brings its own.
struct Header {
    char magic[8];
    uint64_t bytes;
};
constexpr char magic[8] = {'e', 'm', 'u', 'c', 'u', 'b', 'i', 'n'};

}  // namespace emulated
