// Whose calls are overridden, and traced.
#pragma once
#include <atomic>

namespace torchreduce::aten {

// Whose calls are overridden; of matrix products, which are asked for by themselves, those of 16 bits or also float32.
enum Overridden { kGpu = 1, kCpu = 2, kProducts = 4, kFloat32Products = 8 };
inline std::atomic<int> enabled{0};  // a mask of these, for the process: autograd's threads are to see it, too
// The devices whose calls a compiler of ours is tracing, on this thread.
inline thread_local int tracing = 0;

}  // namespace torchreduce::aten
