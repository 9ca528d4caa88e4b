// What all rungs of the ladder share: the ops, a call, and how kernels are launched again until one value is left. The
// rungs are in reduce.cu, segments.cu and scan.cu; torchreduce/ladder reads their comments, builds them on demand and
// runs them, on a GPU or emulated. docs/ladder.md is the article.
//
// A rung is everything from its line of "====" to the next: a comment, a kernel, and how it is launched. It is written
// out whole, however much it shares with the one before it, so that the difference between the two is the idea.
#pragma once
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/common/gpu.cuh"

#if defined(__CUDACC__)
#define hipLaunchKernelGGL(kernel, blocks, threads, shared, stream, ...) \
  kernel<<<blocks, threads, shared, stream>>>(__VA_ARGS__)
#endif

namespace torchreduce::ladder {

// ---- ops -------------------------------------------------------------------------------------------------------------

// Integers wrap around.
template <class V> struct Sum {
  using T = V;
  static constexpr T identity = 0;
  static __device__ __forceinline__ T combine(T a, T b) {
    if constexpr (std::is_same<T, int32_t>::value) return T(uint32_t(a) + uint32_t(b));
    else return a + b;
  }
  // *p = combine(*p, v), whoever else does so at the same time.
  static __device__ __forceinline__ void combine_atomically(T* p, T v) { atomicAdd(p, v); }
};

// A NaN stays.
template <class V> struct Max {
  using T = V;
  static constexpr bool kInteger = std::is_same<T, int32_t>::value;
  static constexpr T identity =
      kInteger ? std::numeric_limits<T>::min() : static_cast<T>(-std::numeric_limits<float>::infinity());
  static __device__ __forceinline__ T combine(T a, T b) { return a > b || a != a ? a : b; }
  // Floats of one sign are in the order of their bits, or in the opposite one.
  static __device__ __forceinline__ void combine_atomically(T* p, T v) {
    if constexpr (kInteger) {
      atomicMax(p, v);
    } else {
      int32_t bits;
      memcpy(&bits, &v, sizeof bits);
      if (v != v) bits = 0x7fc00000;
      if (bits >= 0) atomicMax(reinterpret_cast<int32_t*>(p), bits);
      else atomicMin(reinterpret_cast<uint32_t*>(p), uint32_t(bits));
    }
  }
};

// ---- calls -----------------------------------------------------------------------------------------------------------

template <class T> struct Call {
  T *in, *out, *work;  // device memory: n elements, 1 (reductions) or n (scans), and n and 2^18 more; no two overlap
  int64_t n;           // at least 1
  int block;           // threads of a block
  bool exclusive;      // scans: element i is left out of result i
  gpuStream_t stream;
  int launches = 0;  // so far, of kernels and of what clears memory

  template <class... P, class... A>
  void launch(void (*kernel)(P...), int64_t blocks, int threads, int shared, const A&... arguments) {
    ++launches;
    hipLaunchKernelGGL(kernel, dim3(unsigned(blocks)), dim3(unsigned(threads)), unsigned(shared), stream, arguments...);
  }
  void clear(void* p, int64_t bytes) {
    ++launches;
    (void)gpuMemsetAsync(p, 0, size_t(bytes), stream);
  }
};

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t whole_vectors(int64_t n) { return ceil_div(n, 4) * 4; }  // so that what follows is aligned

// Launches kernel(front, back, n), in which a block makes `results` values of `each` elements, on its own results until
// one is left. Front and back are two parts of the workspace in turn, after the input.
template <class T, class Kernel>
void until_one(Call<T>& call, Kernel kernel, int64_t each, int results, int shared = 0) {
  T *front = call.in, *back = call.work, *spare = back + whole_vectors(ceil_div(call.n, each));
  for (int64_t n = call.n, left = 0; left != 1; n = left) {
    left = ceil_div(n, each);
    T* const to = left == 1 ? call.out : back;
    call.launch(kernel, ceil_div(left, results), call.block, shared, front, to, n);
    front = to;
    back = spare;
    spare = front;
  }
}

// Calls body with the threads of a block as a constant.
template <class Body> void with_constant(int block, Body body) {
  if (block == 128) body(std::integral_constant<int, 128>());
  if (block == 256) body(std::integral_constant<int, 256>());
  if (block == 512) body(std::integral_constant<int, 512>());
}

// ---- what a warp does ------------------------------------------------------------------------------------------------

// The value of the lane d after this one; the last d lanes get others', which nobody uses.
template <class T> __device__ __forceinline__ T shuffle_down(T value, int d) {
  return shuffle(value, (lane_id() + d) % kLanes);
}

// In lane 0: all lanes' values combined.
template <class Op, class T = typename Op::T> __device__ __forceinline__ T reduce_warp(T value) {
#pragma unroll
  for (int d = kLanes / 2; d != 0; d /= 2) value = Op::combine(value, shuffle_down(value, d));
  return value;
}

// Sklansky's scan over the lanes of a warp: at level d the upper half of each 2 d lanes adds the lower half's total.
template <class Op, class T = typename Op::T> __device__ __forceinline__ T scan_warp(T value) {
#pragma unroll
  for (int d = 1; d < kLanes; d *= 2) {
    const T left = shuffle(value, (lane_id() & ~(2 * d - 1)) + d - 1);
    if (lane_id() & d) value = Op::combine(left, value);
  }
  return value;
}

// 16 bytes of elements, loaded at once; absent ones are the identity.
template <class Op, class T = typename Op::T>
__device__ __forceinline__ Packed<T, 4> load_vector(const T* from, int64_t i, int64_t n) {
  if (i + 4 <= n) return load_wide(reinterpret_cast<const Packed<T, 4>*>(from + i));
  Packed<T, 4> v;
  for (int k = 0; k < 4; ++k) v.item[k] = i + k < n ? from[i + k] : Op::identity;
  return v;
}
template <class T> __device__ __forceinline__ void store_vector(T* to, int64_t i, int64_t n, const Packed<T, 4>& v) {
  if (i + 4 <= n) store_wide(reinterpret_cast<Packed<T, 4>*>(to + i), v);
  else
    for (int k = 0; k < 4; ++k)
      if (i + k < n) to[i + k] = v.item[k];
}
template <class Op, class T = typename Op::T> __device__ __forceinline__ T reduce_vector(const Packed<T, 4>& v) {
  return Op::combine(Op::combine(Op::combine(v.item[0], v.item[1]), v.item[2]), v.item[3]);
}

// ---- entry -----------------------------------------------------------------------------------------------------------

// Runs the rung of that name, of those that `rungs` lists, with an op (0 sum, 1 max) on a type (0 float32, 1 int32).
// Returns nullptr, or a message.
#define LADDER_ENTRY(file, RUNGS)                                                                                      \
  template <class Op> const char* run_op(const char* rung, Call<typename Op::T> call, int* launches) {                 \
    bool found = false;                                                                                                \
    RUNGS(LADDER_RUN)                                                                                                  \
    if (!found) return "no such rung";                                                                                 \
    *launches = call.launches;                                                                                         \
    const gpuError_t error = gpuGetLastError();                                                                        \
    return error == gpuSuccess ? nullptr : gpuGetErrorString(error);                                                   \
  }                                                                                                                    \
  template <class T> const char* run_type(const char* rung, int op, const Call<T>& call, int* launches) {              \
    return op == 0 ? run_op<Sum<T>>(rung, call, launches) : run_op<Max<T>>(rung, call, launches);                      \
  }                                                                                                                    \
  }                                                                                                                    \
  extern "C" const char* ladder_##file(const char* rung, int op, int type, void* in, void* out, void* work, int64_t n, \
                                       int block, int exclusive, void* stream, int* launches) {                        \
    using namespace torchreduce::ladder;                                                                               \
    const auto of = [&]<class T>(T) {                                                                                  \
      return Call<T>{static_cast<T*>(in),                                                                              \
                     static_cast<T*>(out),                                                                             \
                     static_cast<T*>(work),                                                                            \
                     n,                                                                                                \
                     block,                                                                                            \
                     exclusive != 0,                                                                                   \
                     static_cast<gpuStream_t>(stream)};                                                                \
    };                                                                                                                 \
    return type == 0 ? file::run_type(rung, op, of(float()), launches)                                                 \
                     : file::run_type(rung, op, of(int32_t()), launches);                                              \
  }
#define LADDER_RUN(name) \
  if (!strcmp(rung, #name)) found = true, name<Op>(call);

}  // namespace torchreduce::ladder
