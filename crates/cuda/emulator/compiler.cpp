// NVRTC as the backend calls it: makes a library for the CPU of a kernel's source, with the system's C++ compiler.
//
// A few words are changed in the text, since C++ has none for them: `extern __shared__` arrays become the block's
// memory, and kernels become functions that device/block.h runs. The headers ptx.cuh and wgmma.cuh are this folder's.
#include <cstdio>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <regex>
#include <spawn.h>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "device/launch.h"

extern char** environ;

namespace {

struct Program {
    std::string text, log, code;
    std::vector<std::pair<std::string, std::string>> headers;
};

enum Result { success = 0, invalid_program = 4, compilation = 6 };

std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

void write_file(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
}

// The text as C++, with a way in for every kernel.
std::string as_cpp(std::string text) {
    const std::regex dynamic("extern __shared__ (?:__align__\\(\\d+\\) )?((?:\\w+ )+)(\\w+)\\[\\];[^\\n]*");
    text = std::regex_replace(text, dynamic, "\n#define $2 (($1*)emulated::block.shared)\n");
    const std::regex kernel("KERNEL\\s+(?:__launch_bounds__\\(((?:[^()]|\\([^()]*\\))*)\\)\\s+)?(\\w+)\\(const __grid_constant__ (\\w+) p\\)");
    std::string ways;
    for (std::sregex_iterator at(text.begin(), text.end(), kernel), end; at != end; ++at) {
        std::string bounds = (*at)[1].matched ? (*at)[1].str() : "1024", name = (*at)[2], params = (*at)[3];
        ways += "extern \"C\" const char* emulated_run_" + name + "(const emulated::Launch* launch) {\n"
                "    return emulated::run(\"" + name + "\", [](const void* p) { " + name + "(*(const " + params + "*)p); }, launch);\n}\n"
                "extern \"C\" emulated::Limits emulated_limits_" + name + "() {\n"
                "    return emulated::limits(sizeof(" + params + "), " + bounds + ");\n}\n";
    }
    text = std::regex_replace(text, kernel, "static void $2(const $3& p)");
    return "#include \"language.h\"\n" + text + "\n" + ways;
}

// Runs the compiler in a folder; what it says.
int compile(const std::vector<std::string>& words, const std::string& log) {
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    pid_t child;
    int status = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (status != 0) return status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
}

int copy_out(const std::string& text, char* to) {
    text.copy(to, text.size());
    return success;
}

}  // namespace

extern "C" {

// The second number stands for this folder's headers, since machine code is kept by version.
int nvrtcVersion(int* major, int* minor) {
    *major = 13;
    *minor = DEVICE_HASH;
    return success;
}

const char* nvrtcGetErrorString(int result) {
    return result == success ? "NVRTC_SUCCESS" : "NVRTC_ERROR_COMPILATION";
}

int nvrtcCreateProgram(Program** program, const char* text, const char*, int count, const char* const* headers,
                       const char* const* names) {
    *program = new Program;
    (*program)->text = text;
    for (int i = 0; i < count; i++) (*program)->headers.emplace_back(names[i], headers[i]);
    return success;
}

int nvrtcDestroyProgram(Program** program) {
    delete *program;
    *program = nullptr;
    return success;
}

int nvrtcCompileProgram(Program* program, int count, const char* const* options) {
    char pattern[] = "/tmp/emulated-kernel-XXXXXX";
    const char* made = mkdtemp(pattern);
    if (!made) return invalid_program;
    std::string folder = made, source = folder + "/kernel.cpp", library = folder + "/kernel.so", log = folder + "/log";
    for (const auto& [name, text] : program->headers)
        if (name != "ptx.cuh" && name != "wgmma.cuh") write_file(folder + "/" + name, text);
    write_file(source, as_cpp(program->text));
    std::vector<std::string> words = {"c++", "-std=c++17", "-O2", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing",
                                      "-fno-gnu-unique", "-fPIC", "-shared", "-Wl,-Bsymbolic", "-w", source, "-o", library,
                                      "-I", folder, "-I", DEVICE_FOLDER};
    for (int i = 0; i < count; i++) {
        std::string option = options[i];
        const std::string arch = "--gpu-architecture=sm_";
        if (option.rfind("-D", 0) == 0) words.push_back(option);
        if (option.rfind(arch, 0) == 0) words.push_back("-D__CUDA_ARCH__=" + std::to_string(atoi(option.c_str() + arch.size()) * 10));
    }
    int status = compile(words, log);
    program->log = read_file(log);
    if (status == 0) {
        std::string code = read_file(library);
        emulated::Header header = {};
        memcpy(header.magic, emulated::magic, sizeof header.magic);
        header.bytes = code.size();
        program->code = std::string((const char*)&header, sizeof header) + code;
    }
    for (const auto& [name, text] : program->headers) unlink((folder + "/" + name).c_str());
    for (const std::string& path : {source, library, log}) unlink(path.c_str());
    rmdir(folder.c_str());
    return status == 0 ? success : compilation;
}

int nvrtcGetProgramLogSize(Program* program, size_t* bytes) {
    *bytes = program->log.size();
    return success;
}
int nvrtcGetProgramLog(Program* program, char* to) {
    return copy_out(program->log, to);
}
int nvrtcGetCUBINSize(Program* program, size_t* bytes) {
    *bytes = program->code.size();
    return success;
}
int nvrtcGetCUBIN(Program* program, char* to) {
    return copy_out(program->code, to);
}
int nvrtcGetPTXSize(Program*, size_t* bytes) {
    *bytes = 0;
    return success;
}
int nvrtcGetPTX(Program*, char*) {
    return success;
}
}
