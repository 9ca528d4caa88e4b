// The macros come from setup.py; kernel_count.h is written by the build, which counts the kernels in the object files.
#include "build_info.h"

#include "kernel_count.h"

namespace torchreduce {

#if defined(__clang__)
#define TR_COMPILER __VERSION__
#else
#define TR_COMPILER "GCC " __VERSION__
#endif

#ifdef TORCHREDUCE_CUDA
constexpr const char* kCuda = TR_CUDA_VERSION;
#else
constexpr const char* kCuda = nullptr;
#endif

const BuildInfo kBuildInfo = {TR_VERSION, TR_COMPILER, kCuda, TR_CUDA_ARCHS, TR_FLAGS, TR_KERNEL_COUNT};

}  // namespace torchreduce
