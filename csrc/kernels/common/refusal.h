// Which NVIDIA GPUs the kernels are for.
#pragma once
#include <string>

namespace torchreduce {

// Why there are no kernels for an NVIDIA GPU of that name and compute capability; "" if there are. Older ones lack
// instructions that kernels are written in (cvt.rn.bf16x2); setup.py refuses to build for them.
inline std::string refusal(const std::string& name, int major, int minor) {
  if (major >= 8) return "";
  return "torchreduce has no kernels for " + name + " (compute capability " + std::to_string(major) + "." +
         std::to_string(minor) + "): they need NVIDIA GPUs of compute capability 8.0 or later (Ampere)";
}

}  // namespace torchreduce
