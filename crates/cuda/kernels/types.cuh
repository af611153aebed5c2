// Names that every kernel and header uses.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;

#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__ void
#define ALL_LANES 0xffffffffu
