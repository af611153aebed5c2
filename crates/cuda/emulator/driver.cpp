// libcuda as the backend calls it, with a GPU that is not there: memory is the host's, between pages that nobody may
// touch; work is queued and done only when somebody waits for it, so that what is used too early is noticed.
//
// EMULATED_GPU, words of the form name=value, says what GPU it is and what goes wrong:
//   arch=90  driver=13000  memory=BYTES  used=BYTES (by other processes)  processors=5  count=1
//   order=forward|backward|NUMBER   in which order threads and blocks get their turns
//   fail=CALL:N:RESULT              the N-th call of this name, and if RESULT is fatal all calls after it, give RESULT
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "device/launch.h"

namespace {

enum Result {
    success = 0,
    invalid_value = 1,
    out_of_memory = 2,
    no_device = 100,
    invalid_device = 101,
    invalid_image = 200,
    not_found = 500,
    not_ready = 600,
    illegal_address = 700,
    launch_failed = 719,
};

typedef std::function<int()> Work;

struct Settings {
    uint32_t arch = 90, driver = 13000, processors = 5, order = 0, count = 1;
    uint64_t memory = 4ull << 30, used = 0;
    // The call that fails, which of its calls, and with what.
    std::string fail_call;
    uint64_t fail_number = 0;
    int fail_result = 0;
};

struct Graph {
    std::vector<Work> work;
};

struct Stream {
    std::deque<Work> queue;
    std::unique_ptr<Graph> capture;

    void add(Work work) {
        if (capture)
            capture->work.push_back(std::move(work));
        else
            queue.push_back(std::move(work));
    }
};

struct Event {
    Stream* stream = nullptr;
    uint64_t recorded = 0, passed = 0;
    std::chrono::steady_clock::time_point time;
};

struct Function {
    std::string name;
    emulated::Run run;
    emulated::Limits limits;
    uint32_t dynamic_limit;
};

struct Module {
    void* library;
    int file;
    std::map<std::string, std::unique_ptr<Function>> functions;
};

struct Allocation {
    unsigned char* map;
    size_t map_bytes, bytes;
};

constexpr size_t page = 4096, most_poisoned = 256 << 20;
constexpr uint32_t plain_shared = 48 << 10;

struct Device {
    Settings settings;
    std::recursive_mutex lock;
    std::map<uint64_t, Allocation> allocations;
    std::vector<Stream*> streams;
    std::map<std::string, uint64_t> calls;
    uint64_t allocated = 0;
    // Result of every call from now on.
    int lost = 0;
    std::string problem, text;
    bool is_entered = false;
} device;

Settings read_settings() {
    Settings settings;
    const char* text = getenv("EMULATED_GPU");
    std::istringstream words(text ? text : "");
    for (std::string word; words >> word;) {
        size_t equals = word.find('=');
        std::string name = word.substr(0, equals), value = equals == std::string::npos ? "" : word.substr(equals + 1);
        uint64_t number = strtoull(value.c_str(), nullptr, 10);
        if (name == "arch") settings.arch = number;
        if (name == "driver") settings.driver = number;
        if (name == "processors") settings.processors = number;
        if (name == "count") settings.count = number;
        if (name == "memory") settings.memory = number;
        if (name == "used") settings.used = number;
        if (name == "order") settings.order = value == "forward" ? 0 : value == "backward" ? 1 : number + 2;
        if (name == "fail") {
            std::istringstream parts(value);
            std::string nth, result;
            std::getline(parts, settings.fail_call, ':');
            std::getline(parts, nth, ':');
            std::getline(parts, result, ':');
            settings.fail_number = strtoull(nth.c_str(), nullptr, 10);
            settings.fail_result = atoi(result.c_str());
        }
    }
    return settings;
}

bool is_fatal(int result) {
    return result >= illegal_address || result == 46 || result == 214;
}

// Begins a call: counts it, and says whether it fails for a reason of its own.
int begin_call(const char* name) {
    if (!device.is_entered) device.settings = read_settings(), device.is_entered = true;
    if (device.lost) return device.lost;
    uint64_t number = ++device.calls[name];
    if (device.settings.fail_call != name || device.settings.fail_number != number) return success;
    device.problem = "as EMULATED_GPU says";
    if (is_fatal(device.settings.fail_result)) device.lost = device.settings.fail_result;
    return device.settings.fail_result;
}

#define CALL()                                                    \
    std::lock_guard<std::recursive_mutex> guard(device.lock);     \
    if (int failed = begin_call(__func__)) return failed

// Does a stream's work until there is none, or `is_enough`.
template <class IsEnough>
int drain(Stream* stream, IsEnough is_enough) {
    while (!stream->queue.empty() && !is_enough()) {
        Work work = std::move(stream->queue.front());
        stream->queue.pop_front();
        if (int result = work()) return device.lost = result;
    }
    return success;
}

int drain_all() {
    for (Stream* stream : device.streams)
        if (int result = drain(stream, [] { return false; })) return result;
    return success;
}

bool is_allocated(uint64_t address, size_t bytes) {
    auto at = device.allocations.upper_bound(address);
    if (at == device.allocations.begin()) return false;
    --at;
    return address + bytes <= at->first + at->second.bytes;
}

// Memory whose last byte is followed by pages that cannot be touched; its start is aligned to 16 bytes.
int allocate(uint64_t* address, size_t bytes) {
    if (bytes == 0) return invalid_value;
    if (bytes > device.settings.memory || device.settings.used + device.allocated + bytes > device.settings.memory) return out_of_memory;
    size_t inner = (bytes + page - 1) / page * page, all = inner + 2 * page;
    unsigned char* map = (unsigned char*)mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return out_of_memory;
    mprotect(map + page, inner, PROT_READ | PROT_WRITE);
    *address = (uint64_t)map + page + inner - (bytes + 15) / 16 * 16;
    memset((void*)*address, 0xff, bytes < most_poisoned ? bytes : most_poisoned);
    device.allocations[*address] = {map, all, bytes};
    device.allocated += bytes;
    return success;
}

int release(uint64_t address) {
    auto at = device.allocations.find(address);
    if (at == device.allocations.end()) return invalid_value;
    munmap(at->second.map, at->second.map_bytes);
    device.allocated -= at->second.bytes;
    device.allocations.erase(at);
    return success;
}

uint32_t most_shared() {
    uint32_t major = device.settings.arch / 10;
    return (device.settings.arch == 80 ? 163 : major == 9 || major == 10 ? 227 : 99) << 10;
}

int run_kernel(const Function* function, const emulated::Launch& launch) {
    const char* problem = function->run(&launch);
    if (!problem) return success;
    device.problem = problem;
    return strstr(problem, "touches memory") ? illegal_address : launch_failed;
}

}  // namespace

extern "C" {

// --- The device -------------------------------------------------------------------------------------------------

int cuDriverGetVersion(int* version) {
    CALL();
    *version = device.settings.driver;
    return success;
}
int cuInit(unsigned) {
    CALL();
    return device.settings.count == 0 ? no_device : success;
}
int cuDeviceGetCount(int* count) {
    CALL();
    *count = device.settings.count;
    return success;
}
int cuDeviceGet(int* handle, int index) {
    CALL();
    *handle = index;
    return (uint32_t)index < device.settings.count ? success : invalid_device;
}
int cuDeviceGetName(char* name, int length, int) {
    CALL();
    snprintf(name, length, "Emulated GPU");
    return success;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) {
    CALL();
    *bytes = device.settings.memory;
    return success;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
    CALL();
    const Settings& settings = device.settings;
    switch (attribute) {
    case 75: *value = settings.arch / 10; return success;
    case 76: *value = settings.arch % 10; return success;
    case 16: *value = settings.processors; return success;
    case 97: *value = most_shared(); return success;
    }
    return invalid_value;
}
int cuGetErrorString(int result, const char** text) {
    std::lock_guard<std::recursive_mutex> guard(device.lock);
    const char* known = result == out_of_memory     ? "out of memory"
                        : result == no_device       ? "no CUDA-capable device is detected"
                        : result == invalid_image   ? "device kernel image is invalid"
                        : result == illegal_address ? "an illegal memory access was encountered"
                        : result == launch_failed   ? "unspecified launch failure"
                                                    : "error " ;
    device.text = known;
    if (result != out_of_memory && known == std::string("error ")) device.text += std::to_string(result);
    if (device.lost == result && !device.problem.empty()) device.text += " (" + device.problem + ")";
    *text = device.text.c_str();
    return success;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
    CALL();
    *context = &device;
    return success;
}
int cuDevicePrimaryCtxRelease_v2(int) {
    CALL();
    return success;
}
int cuCtxSetCurrent(void*) {
    CALL();
    return success;
}

// --- Memory -----------------------------------------------------------------------------------------------------

int cuMemGetInfo_v2(size_t* free, size_t* total) {
    CALL();
    *total = device.settings.memory;
    *free = device.settings.memory - device.settings.used - device.allocated;
    return success;
}
int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
    CALL();
    return allocate(address, bytes);
}
int cuMemFree_v2(uint64_t address) {
    CALL();
    if (int result = drain_all()) return result;
    return release(address);
}
int cuMemHostAlloc(void** data, size_t bytes, unsigned) {
    CALL();
    *data = aligned_alloc(page, (bytes + page - 1) / page * page);
    return *data ? success : out_of_memory;
}
int cuMemFreeHost(void* data) {
    CALL();
    if (int result = drain_all()) return result;
    free(data);
    return success;
}
int cuMemsetD8Async(uint64_t to, unsigned char byte, size_t bytes, Stream* stream) {
    CALL();
    if (!is_allocated(to, bytes)) return invalid_value;
    stream->add([=] { return memset((void*)to, byte, bytes), success; });
    return success;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, Stream* stream) {
    CALL();
    if (!is_allocated(to, bytes)) return invalid_value;
    stream->add([=] { return memcpy((void*)to, from, bytes), success; });
    return success;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, Stream* stream) {
    CALL();
    if (!is_allocated(to, bytes) || !is_allocated(from, bytes)) return invalid_value;
    stream->add([=] { return memcpy((void*)to, (const void*)from, bytes), success; });
    return success;
}

struct Copy2D {
    size_t from_x, from_y;
    unsigned from_type;
    const void* from_host;
    uint64_t from;
    void* from_array;
    size_t from_pitch, to_x, to_y;
    unsigned to_type;
    unsigned char* to_host;
    uint64_t to;
    void* to_array;
    size_t to_pitch, width, height;
};

int cuMemcpy2DAsync_v2(const Copy2D* copy, Stream* stream) {
    CALL();
    Copy2D own = *copy;
    if (!is_allocated(own.from, (own.height - 1) * own.from_pitch + own.width)) return invalid_value;
    stream->add([own] {
        for (size_t row = 0; row < own.height; row++)
            memcpy(own.to_host + row * own.to_pitch, (const void*)(own.from + row * own.from_pitch), own.width);
        return success;
    });
    return success;
}

// A matrix of two dimensions with boxes that are swizzled by 128 bytes; device/ptx.cuh reads it.
int cuTensorMapEncodeTiled(uint64_t* map, int type, unsigned dimensions, uint64_t address, const uint64_t* sizes,
                           const uint64_t* strides, const unsigned* box, const unsigned* steps, int interleave, int swizzle,
                           int, int fill) {
    CALL();
    const int two_bytes = 1, by_128_bytes = 3;
    if (type != two_bytes || dimensions != 2 || interleave != 0 || swizzle != by_128_bytes || fill != 0) return invalid_value;
    if (address % 16 != 0 || strides[0] % 16 != 0 || (uint64_t)map % 64 != 0) return invalid_value;
    if (box[0] * 2 > 128 || box[1] > 256 || steps[0] != 1 || steps[1] != 1 || sizes[0] == 0 || sizes[1] == 0) return invalid_value;
    const uint64_t words[] = {address, strides[0], sizes[0], sizes[1], box[0], box[1]};
    memcpy(map, words, sizeof words);
    return success;
}

// --- Streams, events, graphs --------------------------------------------------------------------------------------

int cuStreamCreate(Stream** stream, unsigned) {
    CALL();
    *stream = new Stream;
    device.streams.push_back(*stream);
    return success;
}
int cuStreamDestroy_v2(Stream* stream) {
    CALL();
    if (int result = drain(stream, [] { return false; })) return result;
    for (size_t i = 0; i < device.streams.size(); i++)
        if (device.streams[i] == stream) device.streams.erase(device.streams.begin() + i--);
    delete stream;
    return success;
}
int cuStreamSynchronize(Stream* stream) {
    CALL();
    return drain(stream, [] { return false; });
}
int cuEventCreate(Event** event, unsigned) {
    CALL();
    *event = new Event;
    return success;
}
int cuEventDestroy_v2(Event* event) {
    CALL();
    if (event->stream)
        if (int result = drain(event->stream, [event] { return event->passed == event->recorded; })) return result;
    delete event;
    return success;
}
int cuEventRecord(Event* event, Stream* stream) {
    CALL();
    event->stream = stream;
    uint64_t number = ++event->recorded;
    stream->add([=] {
        event->passed = number;
        event->time = std::chrono::steady_clock::now();
        return success;
    });
    return success;
}
// Asking moves the work on a little, and is never answered with yes the first time.
int cuEventQuery(Event* event) {
    CALL();
    if (event->passed == event->recorded) return success;
    size_t left = event->stream->queue.size();
    if (int result = drain(event->stream, [=] { return event->stream->queue.size() < left; })) return result;
    return not_ready;
}
int cuEventSynchronize(Event* event) {
    CALL();
    if (!event->stream) return success;
    return drain(event->stream, [event] { return event->passed == event->recorded; });
}
int cuEventElapsedTime_v2(float* milliseconds, Event* from, Event* to) {
    CALL();
    *milliseconds = std::chrono::duration<float, std::milli>(to->time - from->time).count();
    return success;
}
int cuStreamBeginCapture_v2(Stream* stream, int) {
    CALL();
    stream->capture = std::make_unique<Graph>();
    return success;
}
int cuStreamEndCapture(Stream* stream, Graph** graph) {
    CALL();
    *graph = stream->capture.release();
    return success;
}
int cuGraphInstantiateWithFlags(Graph** made, Graph* graph, unsigned long long) {
    CALL();
    *made = new Graph(*graph);
    return success;
}
int cuGraphDestroy(Graph* graph) {
    CALL();
    delete graph;
    return success;
}
int cuGraphUpload(Graph*, Stream*) {
    CALL();
    return success;
}
int cuGraphLaunch(Graph* graph, Stream* stream) {
    CALL();
    for (const Work& work : graph->work) stream->add(work);
    return success;
}
int cuGraphExecDestroy(Graph* graph) {
    CALL();
    delete graph;
    return success;
}

// --- Kernels ------------------------------------------------------------------------------------------------------

int cuModuleLoadData(Module** module, const void* code) {
    CALL();
    const emulated::Header* header = (const emulated::Header*)code;
    if (memcmp(header->magic, emulated::magic, sizeof header->magic) != 0) return invalid_image;
    int file = memfd_create("kernel", 0);
    if (file < 0 || write(file, header + 1, header->bytes) != (ssize_t)header->bytes) return out_of_memory;
    std::string path = "/proc/self/fd/" + std::to_string(file);
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        device.problem = dlerror();
        close(file);
        return invalid_image;
    }
    // The file stays open: a library of the same path would be taken for this one.
    *module = new Module{library, file, {}};
    return success;
}
int cuModuleUnload(Module* module) {
    CALL();
    if (int result = drain_all()) return result;
    dlclose(module->library);
    close(module->file);
    delete module;
    return success;
}
int cuModuleGetFunction(Function** function, Module* module, const char* name) {
    CALL();
    std::string entry = name;
    auto run = (emulated::Run)dlsym(module->library, ("emulated_run_" + entry).c_str());
    auto describe = (emulated::Describe)dlsym(module->library, ("emulated_limits_" + entry).c_str());
    if (!run || !describe) return not_found;
    std::unique_ptr<Function>& own = module->functions[entry];
    if (!own) own.reset(new Function{entry, run, describe(), plain_shared});
    *function = own.get();
    return success;
}
int cuFuncSetAttribute(Function* function, int attribute, int value) {
    CALL();
    // How a multiprocessor divides its memory changes no result.
    if (attribute == 9 && value >= -1 && value <= 100) return success;
    if (attribute != 8 || (uint32_t)value + function->limits.static_shared_bytes > most_shared()) return invalid_value;
    function->dynamic_limit = value;
    return success;
}

struct LaunchAttribute {
    int id;
    char padding[4];
    union {
        char value[64];
        int number;
    };
};

struct alignas(64) ParamLine {
    char bytes[64];
};

struct LaunchConfig {
    uint32_t grid[3], block[3], shared_bytes;
    Stream* stream;
    const LaunchAttribute* attributes;
    uint32_t attribute_count;
};

int cuLaunchKernelEx(const LaunchConfig* config, Function* function, void** arguments, void**) {
    CALL();
    emulated::Launch launch = {};
    memcpy(launch.grid, config->grid, sizeof launch.grid);
    memcpy(launch.block, config->block, sizeof launch.block);
    launch.shared_bytes = config->shared_bytes;
    launch.order = device.settings.order;
    for (uint32_t i = 0; i < config->attribute_count; i++)
        if (config->attributes[i].id == 6 && config->attributes[i].number) launch.must_wait = true;
    uint64_t threads = (uint64_t)launch.block[0] * launch.block[1] * launch.block[2];
    if (threads == 0 || threads > function->limits.threads || launch.grid[0] == 0 || launch.grid[1] == 0 || launch.grid[2] == 0 ||
        launch.grid[0] > 0x7fffffffu || launch.grid[1] > 65535 || launch.grid[2] > 65535 || launch.shared_bytes > function->dynamic_limit ||
        launch.shared_bytes + function->limits.static_shared_bytes > most_shared())
        return invalid_value;
    const char* params = (const char*)arguments[0];
    // Rounded up to lines that are aligned as widely as any struct.
    auto kept = std::make_shared<std::vector<ParamLine>>(function->limits.param_bytes / sizeof(ParamLine) + 1);
    memcpy(kept->data(), params, function->limits.param_bytes);
    config->stream->add([=]() mutable {
        launch.params = kept->data();
        return run_kernel(function, launch);
    });
    return success;
}
}
