// Every difference between CUDA and HIP, and everything that depends on the width of a hardware warp. Kernels see a
// warp of kLanes = 32 lanes on every device: on a 64-lane wavefront, shuffles stay within each half, so the bits and
// the code are the same.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#define TR_GRID_CONSTANT const __grid_constant__
using gpuStream_t = cudaStream_t;
using gpuError_t = cudaError_t;
#define gpuMemsetAsync cudaMemsetAsync
#define gpuGetLastError cudaGetLastError
#define gpuGetErrorString cudaGetErrorString
#define gpuSuccess cudaSuccess
#define gpuGetDevice cudaGetDevice
#define gpuSetDevice cudaSetDevice
#define gpuDeviceGetAttribute cudaDeviceGetAttribute
#define gpuMultiprocessorCount cudaDevAttrMultiProcessorCount
#elif defined(__HIPCC__)
#include <hip/hip_runtime.h>
#if defined(__HIP__)
// No other code may ask for the width of a wavefront: on the host it is no fact of the build.
#undef __AMDGCN_WAVEFRONT_SIZE
#undef __AMDGCN_WAVEFRONT_SIZE__
#pragma GCC poison warpSize __AMDGCN_WAVEFRONT_SIZE __AMDGCN_WAVEFRONT_SIZE__
#endif
#define TR_GRID_CONSTANT const
using gpuStream_t = hipStream_t;
using gpuError_t = hipError_t;
#define gpuMemsetAsync hipMemsetAsync
#define gpuGetLastError hipGetLastError
#define gpuGetErrorString hipGetErrorString
#define gpuSuccess hipSuccess
#define gpuGetDevice hipGetDevice
#define gpuSetDevice hipSetDevice
#define gpuDeviceGetAttribute hipDeviceGetAttribute
#define gpuMultiprocessorCount hipDeviceAttributeMultiprocessorCount
#endif

#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define TR_DEVICE_F16  // dtype.h uses the conversions below
#endif

namespace torchreduce {

constexpr int kLanes = 32;

// ---- float16 ---------------------------------------------------------------------------------------------------------

#if defined(__CUDA_ARCH__)
__device__ __forceinline__ float device_f16_to_float(uint16_t bits) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
  return f;
}
__device__ __forceinline__ uint16_t device_float_to_f16(float f) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(f));
  return bits;
}
#elif defined(__HIP_DEVICE_COMPILE__)
__device__ __forceinline__ float device_f16_to_float(uint16_t bits) {
  _Float16 h;
  memcpy(&h, &bits, sizeof h);
  return float(h);
}
__device__ __forceinline__ uint16_t device_float_to_f16(float f) {
  const _Float16 h = _Float16(f);
  uint16_t bits;
  memcpy(&bits, &h, sizeof bits);
  return bits;
}
#endif

// ---- warps -----------------------------------------------------------------------------------------------------------

__device__ __forceinline__ int lane_id() { return int(threadIdx.x) % kLanes; }

__device__ __forceinline__ uint32_t shuffle_word(uint32_t v, int lane) {
#if defined(__CUDACC__)
  return __shfl_sync(0xffffffffu, v, lane, kLanes);
#else
  return uint32_t(__shfl(int(v), lane, kLanes));
#endif
}

// The value that `lane` of this warp holds. Every lane takes part; T is any trivially copyable type.
template <class T> __device__ __forceinline__ T shuffle(const T& value, int lane) {
  constexpr int kWords = (int(sizeof(T)) + 3) / 4;
  uint32_t words[kWords] = {};
  memcpy(words, &value, sizeof(T));
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = shuffle_word(words[i], lane);
  T result;
  memcpy(&result, words, sizeof(T));
  return result;
}

// Bit i: the predicate of lane i of this warp.
__device__ __forceinline__ uint32_t ballot(bool predicate) {
#if defined(__CUDACC__)
  return __ballot_sync(0xffffffffu, predicate);
#else
  return uint32_t(__ballot(predicate) >> (__lane_id() & kLanes));  // this half of a 64-lane wavefront
#endif
}

// ---- memory ----------------------------------------------------------------------------------------------------------

// The same pointer, to device memory. A compiler for AMD does not always see that, and its accesses to memory of an
// unknown kind take the shared memory's path too; casting there and back alone would be folded away.
template <class T> __device__ __forceinline__ T* global(T* p) {
#if defined(__HIP_DEVICE_COMPILE__)
  return (T*)(__attribute__((address_space(1))) T*)uintptr_t(p);
#else
  return p;
#endif
}

#if defined(__HIP_DEVICE_COMPILE__)
template <class P> using WordsOf = uint32_t __attribute__((ext_vector_type(sizeof(P) / 4), may_alias));
#endif

// Moves a structure of 8 or 16 bytes, aligned to its size, with one instruction. Left to itself, a compiler for AMD may
// take a part of it for an access that another branch has, too, and share that.
template <class P> __device__ __forceinline__ P load_wide(const P* p) {
#if defined(__HIP_DEVICE_COMPILE__)
  const WordsOf<P> words = *reinterpret_cast<const WordsOf<P>*>(global(p));
  P value;
  memcpy(&value, &words, sizeof value);
  return value;
#else
  return *p;
#endif
}
template <class P> __device__ __forceinline__ void store_wide(P* p, const P& value) {
#if defined(__HIP_DEVICE_COMPILE__)
  WordsOf<P> words;
  memcpy(&words, &value, sizeof value);
  *reinterpret_cast<WordsOf<P>*>(global(p)) = words;
#else
  *p = value;
#endif
}

// ---- memory shared by blocks -----------------------------------------------------------------------------------------

__device__ __forceinline__ uint64_t load_relaxed(const uint64_t* p) {
#if defined(__CUDACC__)
  uint64_t v;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
#else
  return __hip_atomic_load(global(p), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#endif
}
__device__ __forceinline__ void store_relaxed(uint64_t* p, uint64_t v) {
#if defined(__CUDACC__)
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
#else
  __hip_atomic_store(global(p), v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#endif
}
__device__ __forceinline__ uint64_t take_ticket(uint64_t* counter) {
  return atomicAdd(reinterpret_cast<unsigned long long*>(global(counter)), 1ull);
}
// Between two looks at a word another block will write.
__device__ __forceinline__ void back_off() {
#if defined(__CUDACC__)
  __nanosleep(20);
#else
  __builtin_amdgcn_s_sleep(1);
#endif
}

// ---- launches --------------------------------------------------------------------------------------------------------

// Enqueues kernel(arguments...) on `stream`. The caller asks for errors (gpuGetLastError).
template <class... P, class... A>
void enqueue(void (*kernel)(P...), int64_t blocks, int threads, gpuStream_t stream, const A&... arguments) {
#if defined(__CUDACC__)
  kernel<<<unsigned(blocks), unsigned(threads), 0, stream>>>(arguments...);
#else
  hipLaunchKernelGGL(kernel, dim3(unsigned(blocks)), dim3(unsigned(threads)), 0, stream, arguments...);
#endif
}

}  // namespace torchreduce
