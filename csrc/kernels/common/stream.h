// What host code asks of a GPU beside its kernels, without a GPU header.
#pragma once
#include <string>

namespace torchreduce::gpu {

// Whether what is enqueued on `stream` goes to a graph, and so cannot be waited for.
bool is_capturing(void* stream);
// 10 * major + minor of an NVIDIA GPU's compute capability; 0 for others.
int capability(int device);
std::string device_name(int device);

}  // namespace torchreduce::gpu
