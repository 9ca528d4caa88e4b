// What libtorchreduce.so was built from and for, as a bug report needs it.
#pragma once

namespace torchreduce {

struct BuildInfo {
  const char* version;     // of the project
  const char* compiler;    // of the host code
  const char* cuda;        // nvcc's version; null without a GPU part
  const char* cuda_archs;  // as in TORCH_CUDA_ARCH_LIST: "8.0;9.0+PTX"; empty without a GPU part
  const char* flags;       // of the host compiler and of nvcc, without paths
  int kernels;             // GPU kernel instantiations
};
extern const BuildInfo kBuildInfo;

}  // namespace torchreduce
