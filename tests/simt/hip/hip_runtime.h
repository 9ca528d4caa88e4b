// The part of HIP that csrc/kernels/gpu.cuh uses, for g++ and the emulator: with -D__HIPCC__ and this folder before the
// system's, the kernels and their launch code compile as they are.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../emulator.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
// The blocks that are resident at once run on threads of their own, which have nothing else of the kind.
#define __shared__ static thread_local
#define TR_EMULATED
#define TR_DYNAMIC_SHARED(name, alignment) char* const name = simt::dynamic_shared(alignment)

#define __syncthreads() simt::barrier()
#define __builtin_amdgcn_wave_barrier() simt::warp_barrier()
#define __builtin_amdgcn_fence(order, scope) simt::fence<order>(scope)
#define __builtin_amdgcn_s_sleep(n) simt::back_off()
#define __HIP_MEMORY_SCOPE_AGENT 4
#define __hip_atomic_load(p, order, scope) __atomic_load_n(p, order)
#define __hip_atomic_fetch_add(p, value, order, scope) (simt::published(), __atomic_fetch_add(p, value, order))
#define __hip_atomic_store(p, value, order, scope) (simt::published(), __atomic_store_n(p, value, order))

__forceinline__ unsigned __lane_id() { return threadIdx.x % unsigned(simt::options.wave); }
__forceinline__ int __shfl(int value, int source, int width) {
  static_assert(sizeof(int) == 4, "a shuffle moves 32 bits");
  const int lane = int(threadIdx.x) % simt::kWarp;
  return int(simt::shuffle(uint32_t(value), (lane & ~(width - 1)) | (source & (width - 1))));
}
__forceinline__ int __shfl_up(int value, unsigned d, int width) {
  const int lane = int(threadIdx.x) % simt::kWarp;
  return int(simt::shuffle(uint32_t(value), lane - ((lane & (width - 1)) >= int(d) ? int(d) : 0)));
}
__forceinline__ unsigned long long __ballot(int predicate) { return simt::ballot(predicate != 0); }
__forceinline__ unsigned long long atomicAdd(unsigned long long* p, unsigned long long value) {
  return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}
// *p = change(*p), whatever others do meanwhile; returns what was there.
template <class T, class Change> T simt_atomic(T* p, Change change) {
  T before, after;
  __atomic_load(p, &before, __ATOMIC_RELAXED);
  do after = change(before);
  while (!__atomic_compare_exchange(p, &before, &after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return before;
}
__forceinline__ int atomicAdd(int* p, int value) { return __atomic_fetch_add(p, value, __ATOMIC_RELAXED); }
__forceinline__ float atomicAdd(float* p, float value) {
  return simt_atomic(p, [value](float before) { return before + value; });
}
__forceinline__ int atomicMax(int* p, int value) {
  return simt_atomic(p, [value](int before) { return before > value ? before : value; });
}
__forceinline__ unsigned atomicMin(unsigned* p, unsigned value) {
  return simt_atomic(p, [value](unsigned before) { return before < value ? before : value; });
}

__forceinline__ int __ffs(unsigned bits) { return __builtin_ffs(int(bits)); }
__forceinline__ int __clz(int bits) { return bits ? __builtin_clz(unsigned(bits)) : 32; }
struct alignas(16) uint4 { unsigned x, y, z, w; };

using hipStream_t = void*;
enum hipError_t { hipSuccess = 0 };
enum hipStreamCaptureStatus { hipStreamCaptureStatusNone };
enum hipDeviceAttribute_t { hipDeviceAttributeMultiprocessorCount };

// Work is done when the call returns.
template <class... P, class... A>
void hipLaunchKernelGGL(void (*kernel)(P...), dim3 blocks, dim3 threads, unsigned shared, hipStream_t,
                        const A&... args) {
  simt::launch(reinterpret_cast<const void*>(kernel), blocks.x, threads.x, shared, [&] { kernel(args...); });
}
inline hipError_t hipMemsetAsync(void* p, int value, size_t bytes, hipStream_t) {
  memset(p, value, bytes);
  return hipSuccess;
}
#define HIP_SYMBOL(symbol) symbol
template <class T> hipError_t hipGetSymbolAddress(void** address, T& symbol) {
  *address = &symbol;
  return hipSuccess;
}
inline hipError_t hipStreamIsCapturing(hipStream_t, hipStreamCaptureStatus* status) {
  *status = hipStreamCaptureStatusNone;
  return hipSuccess;
}
inline hipError_t hipGetLastError() { return hipSuccess; }
inline const char* hipGetErrorString(hipError_t) { return "no error"; }
inline hipError_t hipGetDevice(int* device) {
  *device = 0;
  return hipSuccess;
}
inline hipError_t hipSetDevice(int) { return hipSuccess; }
inline hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t, int) {
  *value = 1;
  return hipSuccess;
}
