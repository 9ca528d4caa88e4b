// The macros come from setup.py; kernel_count.h is written by the build, which counts the kernels in the object files.
#include "build_info.h"

#include "interface.h"
#include "kernel_count.h"

const char TR_INTERFACE = 0;

namespace torchreduce {

#if defined(__clang__)
#define TR_COMPILER __VERSION__
#else
#define TR_COMPILER "GCC " __VERSION__
#endif

const BuildInfo kBuildInfo = {TR_VERSION, TR_COMPILER, TR_TOOLKIT,     TR_TOOLKIT_VERSION,
                              TR_ARCHS,   TR_FLAGS,    TR_KERNEL_COUNT};

}  // namespace torchreduce
