// What every kernel of a run takes on the GPU, inside of graphs too, without slowing them much. CUPTI records kernels;
// bench/kernel_times.py adds them up.
//
//   cc -shared -fPIC -I$CUDA/include bench/kernel_times.c -o kernel_times.so -L$CUDA/lib64 -lcupti
//   CUDA_INJECTION64_PATH=$PWD/kernel_times.so KERNEL_TIMES=times.txt mambo bench -m MODEL --backend cuda -p 0 -b 1
//   bench/kernel_times.py times.txt
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>

#define BUFFER_BYTES (8 << 20)

static FILE* out;

static void CUPTIAPI give_buffer(uint8_t** buffer, size_t* bytes, size_t* most_records) {
    *bytes = BUFFER_BYTES;
    *buffer = aligned_alloc(64, BUFFER_BYTES);
    *most_records = 0;
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t bytes, size_t valid) {
    (void)context, (void)stream, (void)bytes;
    CUpti_Activity* record = NULL;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
        CUpti_ActivityKernel10* kernel = (CUpti_ActivityKernel10*)record;
        int blocks = kernel->gridX * kernel->gridY * kernel->gridZ;
        int shared = kernel->dynamicSharedMemory + kernel->staticSharedMemory;
        fprintf(out, "%llu %llu %s %d %d %d %d\n", (unsigned long long)kernel->start, (unsigned long long)kernel->end,
                kernel->name, blocks, kernel->blockX, shared, kernel->registersPerThread);
    }
    free(buffer);
}

static void finish(void) {
    cuptiActivityFlushAll(1);
    fclose(out);
}

// CUDA calls this when it starts.
int InitializeInjection(void) {
    const char* path = getenv("KERNEL_TIMES");
    out = fopen(path ? path : "kernel_times.txt", "w");
    if (!out || cuptiActivityRegisterCallbacks(give_buffer, take_buffer) != CUPTI_SUCCESS) return 0;
    if (cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS) return 0;
    atexit(finish);
    return 1;
}
