// What libtorchreduce.so was built from and for, as a bug report needs it.
#pragma once

namespace torchreduce {

struct BuildInfo {
  const char* version;          // of the project
  const char* compiler;         // of the host code
  const char* toolkit;          // "CUDA", "HIP", or "" without a GPU part; so are the next two
  const char* toolkit_version;  // of nvcc or hipcc
  const char* archs;            // as in TORCH_CUDA_ARCH_LIST or PYTORCH_ROCM_ARCH: "8.0;9.0+PTX", "gfx90a;gfx1100"
  const char* flags;            // of the host compiler and of the GPU's, without paths
  int kernels;                  // GPU kernel instantiations
};
extern const BuildInfo kBuildInfo;

}  // namespace torchreduce
