// What torchreduce is measured against: the fastest copies and reads of device memory, and CUB.
//
// A shared library with a C interface (benchmarks/peers.py). Pointers are device pointers, work goes to the stream, and
// every function returns a cudaError_t, invalidValue for what is not offered.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <cstdint>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/device/device_segmented_reduce.cuh>

namespace {

// ---- ceilings ---------------------------------------------------------------------------------------------------

constexpr int kThreads = 256;

// Copies n vectors. Each block takes tiles of kUnroll vectors a thread, all loaded before the first is stored; a grid
// of one block a tile and a grid of a few blocks a multiprocessor are both launched, since either can be the faster.
template <int kUnroll> __global__ void __launch_bounds__(kThreads) copy_kernel(int4* to, const int4* from, int64_t n) {
  constexpr int64_t kTile = kThreads * kUnroll;
  for (int64_t tile = blockIdx.x * kTile; tile < n; tile += gridDim.x * kTile) {
    const int64_t first = tile + threadIdx.x;
    int4 held[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; i++)
      if (first + i * kThreads < n) held[i] = __ldcs(from + first + i * kThreads);
#pragma unroll
    for (int i = 0; i < kUnroll; i++)
      if (first + i * kThreads < n) __stcs(to + first + i * kThreads, held[i]);
  }
}

// Reads n vectors. The store keeps the loads alive; on random data it practically never runs.
template <int kUnroll> __global__ void __launch_bounds__(kThreads) read_kernel(int* to, const int4* from, int64_t n) {
  constexpr int64_t kTile = kThreads * kUnroll;
  int folded = 0;
  for (int64_t tile = blockIdx.x * kTile; tile < n; tile += gridDim.x * kTile) {
    const int64_t first = tile + threadIdx.x;
    int4 held[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; i++) held[i] = first + i * kThreads < n ? __ldcs(from + first + i * kThreads) : int4{};
#pragma unroll
    for (int i = 0; i < kUnroll; i++) folded ^= held[i].x ^ held[i].y ^ held[i].z ^ held[i].w;
  }
  if (folded == 0x5bd1e995) *to = folded;
}

// blocks_per_sm 0: one block a tile.
int64_t grid(int64_t n, int unroll, int blocks_per_sm) {
  const int64_t tiles = (n + kThreads * unroll - 1) / (kThreads * unroll);
  if (blocks_per_sm == 0) return tiles;
  int device = 0, multiprocessors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  return std::min<int64_t>(tiles, multiprocessors * blocks_per_sm);
}

template <int kUnroll> void launch_copy(void* to, const void* from, int64_t n, int blocks_per_sm, cudaStream_t stream) {
  copy_kernel<kUnroll><<<grid(n, kUnroll, blocks_per_sm), kThreads, 0, stream>>>(static_cast<int4*>(to),
                                                                                 static_cast<const int4*>(from), n);
}

template <int kUnroll> void launch_read(void* to, const void* from, int64_t n, int blocks_per_sm, cudaStream_t stream) {
  read_kernel<kUnroll><<<grid(n, kUnroll, blocks_per_sm), kThreads, 0, stream>>>(static_cast<int*>(to),
                                                                                 static_cast<const int4*>(from), n);
}

// ---- CUB --------------------------------------------------------------------------------------------------------

struct Widen {
  template <class T> __host__ __device__ float operator()(T x) const { return static_cast<float>(x); }
};

template <class T> auto widened(const T* in) { return thrust::transform_iterator<Widen, const T*>(in); }

struct RowBegin {
  int64_t length;
  __host__ __device__ int64_t operator()(int64_t row) const { return row * length; }
};

struct Call {
  void* workspace;
  size_t* workspace_bytes;  // written, and nothing else done, where workspace is null
  const void* in;
  void* out;
  int64_t rows, length;
  cudaStream_t stream;
};

enum Op { kCumsum, kCumprod, kSum, kAmax, kArgmax };

// From In (an iterator of Acc) to Out, combining in Acc.
template <class Acc, class In, class Out> cudaError_t run_as(Op op, const Call& c, In in, Out* out) {
  void* const workspace = c.workspace;
  size_t& bytes = *c.workspace_bytes;
  const int64_t n = c.rows * c.length;
  if (c.rows > 1) {
    if (op != kSum) return cudaErrorInvalidValue;
    const auto begin = thrust::transform_iterator<RowBegin, thrust::counting_iterator<int64_t>>(
        thrust::counting_iterator<int64_t>(0), RowBegin{c.length});
    return cub::DeviceSegmentedReduce::Reduce(workspace, bytes, in, out, c.rows, begin, begin + 1,
                                              cuda::std::plus<Acc>{}, Acc(0.0f), c.stream);
  }
  switch (op) {
    case kCumsum: return cub::DeviceScan::InclusiveScan(workspace, bytes, in, out, cuda::std::plus<Acc>{}, n, c.stream);
    case kCumprod:
      return cub::DeviceScan::InclusiveScan(workspace, bytes, in, out, cuda::std::multiplies<Acc>{}, n, c.stream);
    case kSum:
      return cub::DeviceReduce::Reduce(workspace, bytes, in, out, n, cuda::std::plus<Acc>{}, Acc(0.0f), c.stream);
    case kAmax: return cub::DeviceReduce::Max(workspace, bytes, in, out, n, c.stream);
    default: return cudaErrorInvalidValue;
  }
}

template <class T> cudaError_t run(Op op, bool wide, const Call& c) {
  const T* in = static_cast<const T*>(c.in);
  if (op == kArgmax) {  // the index goes to out, the value into 16 bytes behind it
    if (c.rows > 1 || wide) return cudaErrorInvalidValue;
    int64_t* const out = static_cast<int64_t*>(c.out);
    return cub::DeviceReduce::ArgMax(c.workspace, *c.workspace_bytes, in, reinterpret_cast<T*>(out + 1), out, c.length,
                                     c.stream);
  }
  T* const out = static_cast<T*>(c.out);
  if constexpr (sizeof(T) == 2) {
    if (wide) return op == kAmax ? cudaErrorInvalidValue : run_as<float>(op, c, widened(in), out);
  }
  return wide ? cudaErrorInvalidValue : run_as<T>(op, c, in, out);
}

}  // namespace

extern "C" {

// The numbers of variants of peers_copy and peers_read.
int peers_copies() { return 9; }
int peers_reads() { return 6; }

// Copies bytes, a multiple of 16, between addresses that are. Variant 0 is cudaMemcpy.
int peers_copy(int variant, void* to, const void* from, int64_t bytes, cudaStream_t stream) {
  const int64_t n = bytes / 16;
  switch (variant) {
    case 0: return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
    case 1: launch_copy<1>(to, from, n, 0, stream); break;
    case 2: launch_copy<2>(to, from, n, 0, stream); break;
    case 3: launch_copy<4>(to, from, n, 0, stream); break;
    case 4: launch_copy<8>(to, from, n, 0, stream); break;
    case 5: launch_copy<2>(to, from, n, 8, stream); break;
    case 6: launch_copy<4>(to, from, n, 4, stream); break;
    case 7: launch_copy<4>(to, from, n, 8, stream); break;
    case 8: launch_copy<8>(to, from, n, 4, stream); break;
    default: return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

// Reads bytes, a multiple of 16, from an address that is.
int peers_read(int variant, void* scratch, const void* from, int64_t bytes, cudaStream_t stream) {
  const int64_t n = bytes / 16;
  switch (variant) {
    case 0: launch_read<2>(scratch, from, n, 0, stream); break;
    case 1: launch_read<4>(scratch, from, n, 0, stream); break;
    case 2: launch_read<8>(scratch, from, n, 0, stream); break;
    case 3: launch_read<16>(scratch, from, n, 0, stream); break;
    case 4: launch_read<8>(scratch, from, n, 4, stream); break;
    case 5: launch_read<8>(scratch, from, n, 8, stream); break;
    default: return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

// An Op over each of `rows` contiguous rows of `length` elements; scans, amax and argmax only of one row. dtype: 0
// float32, 1 float64, 2 float16, 3 bfloat16, 4 int32. wide: 16-bit elements are combined in float32 and rounded once,
// as torchreduce does; else in their own type. With a null workspace only *workspace_bytes is written. argmax writes
// an int64 index, and its value after it: out has 24 bytes.
int peers_cub(int op, int dtype, int wide, void* workspace, size_t* workspace_bytes, const void* in, void* out,
              int64_t rows, int64_t length, cudaStream_t stream) {
  const Call call{workspace, workspace_bytes, in, out, rows, length, stream};
  switch (dtype) {
    case 0: return run<float>(static_cast<Op>(op), wide, call);
    case 1: return run<double>(static_cast<Op>(op), wide, call);
    case 2: return run<__half>(static_cast<Op>(op), wide, call);
    case 3: return run<__nv_bfloat16>(static_cast<Op>(op), wide, call);
    case 4: return run<int>(static_cast<Op>(op), wide, call);
    default: return cudaErrorInvalidValue;
  }
}

}  // extern "C"
