// The ceilings that rungs are measured against: how fast this card reads n bytes at all, and how fast it copies them.
#include "ladder.cuh"

namespace torchreduce::ladder {

using Granule = Packed<uint32_t, 4>;
constexpr int kThreads = 256;

// Blocks take tiles of kUnroll granules a thread, all loaded before the first is used.
template <int kUnroll> __global__ void __launch_bounds__(kThreads)
    read_kernel(const Granule* in, uint32_t* out, int64_t granules) {
  constexpr int64_t kTile = kThreads * kUnroll;
  uint32_t folded = 0;
  for (int64_t tile = blockIdx.x * kTile; tile < granules; tile += gridDim.x * kTile) {
    Granule held[kUnroll] = {};
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t at = tile + i * kThreads + threadIdx.x;
      if (at < granules) held[i] = load_item(in + at);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) folded ^= held[i].item[0] ^ held[i].item[1] ^ held[i].item[2] ^ held[i].item[3];
  }
  if (folded == 0x5bd1e995) *out = folded;  // keeps the loads; of random data it practically never runs
}
template <int kUnroll> __global__ void __launch_bounds__(kThreads)
    copy_kernel(const Granule* in, Granule* out, int64_t granules) {
  constexpr int64_t kTile = kThreads * kUnroll;
  for (int64_t tile = blockIdx.x * kTile; tile < granules; tile += gridDim.x * kTile) {
    Granule held[kUnroll] = {};
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t at = tile + i * kThreads + threadIdx.x;
      if (at < granules) held[i] = load_item(in + at);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t at = tile + i * kThreads + threadIdx.x;
      if (at < granules) store_wide(out + at, held[i]);
    }
  }
}

template <int kUnroll>
void launch(bool copies, const void* in, void* out, int64_t granules, bool few, gpuStream_t stream) {
  int device = 0, multiprocessors = 1;
  (void)gpuGetDevice(&device);
  (void)gpuDeviceGetAttribute(&multiprocessors, gpuMultiprocessorCount, device);
  int64_t blocks = ceil_div(granules, kThreads * kUnroll);
  if (few && blocks > 8 * multiprocessors) blocks = 8 * multiprocessors;
  const auto* from = static_cast<const Granule*>(in);
  if (copies)
    hipLaunchKernelGGL(copy_kernel<kUnroll>, dim3(unsigned(blocks)), dim3(kThreads), 0, stream, from,
                       static_cast<Granule*>(out), granules);
  else
    hipLaunchKernelGGL(read_kernel<kUnroll>, dim3(unsigned(blocks)), dim3(kThreads), 0, stream, from,
                       static_cast<uint32_t*>(out), granules);
}

}  // namespace torchreduce::ladder

// Reads (copies: 0) or copies the whole granules of `bytes` bytes, in one of ladder_ceilings() ways.
extern "C" int ladder_ceilings() { return 6; }
extern "C" const char* ladder_ceiling(int copies, int way, const void* in, void* out, int64_t bytes, void* stream) {
  using namespace torchreduce::ladder;
  const bool few = way % 2 != 0;  // a few blocks that stay, else one a tile
  const auto run = way < 2 ? launch<2> : way < 4 ? launch<4> : launch<8>;
  run(copies != 0, in, out, bytes / 16, few, static_cast<gpuStream_t>(stream));
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}
