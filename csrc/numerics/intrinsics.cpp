#include "intrinsics.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/common/gpu.h"

namespace torchreduce {

namespace {

#define TR_NAME(name, word) #name,
constexpr const char* kNames[] = {TR_FOR_EACH_INTRINSIC(TR_NAME) TR_FOR_EACH_KERNEL_INTRINSIC(TR_NAME)};
#undef TR_NAME

// The models of what is for kernels alone.
int64_t multiply_add(int32_t a, int32_t b, int64_t c) { return int64_t(uint64_t(int64_t(a) * b) + uint64_t(c)); }
uint32_t funnel_right(uint32_t low, uint32_t high, int bits) { return uint32_t((uint64_t(high) << 32 | low) >> bits); }

uint32_t on_cpu(Intrinsic which, const uint32_t* in, int64_t i) {
  const uint32_t* const w = in + 4 * i;
  auto warp_most = [&](int32_t most) {
    for (int64_t lane = i / 32 * 32; lane < i / 32 * 32 + 32; ++lane) most = std::max(most, int32_t(in[4 * lane]));
    return most;
  };
  switch (which) {
#define TR_CASE(name, word) \
  case Intrinsic::name: return word;
    TR_FOR_EACH_INTRINSIC(TR_CASE)
    TR_FOR_EACH_KERNEL_INTRINSIC(TR_CASE)
#undef TR_CASE
  }
  return 0;
}

}  // namespace

std::vector<std::string> intrinsics() { return {std::begin(kNames), std::end(kNames)}; }

void run_intrinsic(const std::string& name, const uint32_t* in, uint32_t* out, int64_t count, bool gpu) {
  const auto found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) throw std::invalid_argument("there is no intrinsic '" + name + "'");
  if (count % 32 != 0) throw std::invalid_argument("intrinsics are run for whole warps");
  const auto which = Intrinsic(found - std::begin(kNames));
  if (!gpu) {
    for (int64_t i = 0; i < count; ++i) out[i] = on_cpu(which, in, i);
    return;
  }
#ifdef TORCHREDUCE_GPU
  if (const char* error = gpu::run_intrinsic(int(which), in, out, count)) throw std::runtime_error(error);
#else
  throw std::runtime_error("this build of torchreduce has no GPU part");
#endif
}

}  // namespace torchreduce
