// Every difference between CUDA and HIP, and everything that depends on the width of a hardware warp. Kernels see a
// warp of kLanes = 32 lanes on every device: on a 64-lane wavefront, shuffles stay within each half, so the bits and
// the code are the same.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

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
#define gpuGetSymbolAddress(address, symbol) cudaGetSymbolAddress(address, symbol)
#define gpuStreamIsCapturing cudaStreamIsCapturing
#define gpuStreamCaptureStatus cudaStreamCaptureStatus
#define gpuStreamCaptureStatusNone cudaStreamCaptureStatusNone
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
#define gpuGetSymbolAddress(address, symbol) hipGetSymbolAddress(address, HIP_SYMBOL(symbol))
#define gpuStreamIsCapturing hipStreamIsCapturing
#define gpuStreamCaptureStatus hipStreamCaptureStatus
#define gpuStreamCaptureStatusNone hipStreamCaptureStatusNone
#endif

#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define TR_DEVICE_F16  // dtype.h uses the conversions below
#endif

// The bound of a kernel by its block alone. For Blackwell nvcc would rather use memory than let a multiprocessor have
// fewer blocks.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define TR_BLOCK_BOUND(threads) __launch_bounds__(threads, 1)
#else
#define TR_BLOCK_BOUND(threads) __launch_bounds__(threads)
#endif

// The same by the blocks that a multiprocessor is to have room for, too; for AMD, where compilers count warps instead,
// by its block alone.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 1000
#define TR_BLOCKS_BOUND(threads, blocks) __launch_bounds__(threads, blocks)
#else
#define TR_BLOCKS_BOUND(threads, blocks) TR_BLOCK_BOUND(threads)
#endif

// The same of kernels that nvcc keeps within it without memory for Blackwell, too.
#if defined(__CUDA_ARCH__)
#define TR_ALL_BLOCKS_BOUND(threads, blocks) __launch_bounds__(threads, blocks)
#else
#define TR_ALL_BLOCKS_BOUND(threads, blocks) TR_BLOCK_BOUND(threads)
#endif

// DeviceFacts::large_blocks, as the code is compiled: for data centers' GPUs since Hopper.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
#define TR_LARGE_BLOCKS
#endif

// A function that is called where it is needed rarely, so that its code is nowhere in the way; on AMD, where calls take
// scratch memory, it is inlined.
#if defined(__HIP__)
#define TR_RARELY_CALLED __forceinline__
#else
#define TR_RARELY_CALLED __attribute__((noinline))
#endif

// Declares the dynamic shared memory of a block, an array of char.
#if !defined(TR_EMULATED)
#define TR_DYNAMIC_SHARED(name, alignment) extern __shared__ __attribute__((aligned(alignment))) char name[]
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
#if __CUDA_ARCH__ >= 800
#define TR_DEVICE_BF16  // dtype.h uses the conversion below
__device__ __forceinline__ uint16_t device_float_to_bf16(float f) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(f));
  return bits;
}
#endif
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

// The same value, as far as the compiler knows another one each time: so that it does not keep what follows from it in
// registers all through a loop.
template <class T> __device__ __forceinline__ T recomputed(T v) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "in registers");
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 4) asm volatile("" : "+r"(v));
  else asm volatile("" : "+l"(v));
#elif defined(__HIP_DEVICE_COMPILE__)
  asm volatile("" : "+v"(v));
#endif
  return v;
}

// a * b + c. Left to itself, nvcc may extend the factors to 64 bits first, and take four instructions for one.
__device__ __forceinline__ int64_t multiply_add(int32_t a, int32_t b, int64_t c) {
#if defined(__CUDA_ARCH__)
  int64_t result;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(result) : "r"(a), "r"(b), "l"(c));
  return result;
#else
  return int64_t(a) * b + c;
#endif
}

// How many bits of a word are set.
__device__ __forceinline__ int bits_set(uint32_t word) {
#if defined(TR_EMULATED)
  return __builtin_popcount(word);
#else
  return __popc(word);
#endif
}

// `sum` and the four bytes of a word.
__device__ __forceinline__ int32_t sum_bytes(uint32_t word, int32_t sum) {
#if defined(__CUDA_ARCH__)
  return __dp4a(int32_t(word), 0x01010101, sum);
#else
  for (int i = 0; i < 32; i += 8) sum += int8_t(word >> i);
  return sum;
#endif
}

// Whether the families of reductions that read 16 bytes a lane (kernels/reduce/) are compiled; else the general ones
// serve all. Compiled by clang 19 for AMD, they keep accumulators in memory.
#if defined(__CUDACC__) || defined(TR_EMULATED)
constexpr bool kWideReductions = true;
#else
constexpr bool kWideReductions = false;
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

// The value of lane `from` of each `width` neighbours, a power of two. Where both are known to the compiler, no
// register says which lane that is.
template <class T> __device__ __forceinline__ T shuffle_within(const T& value, int from, int width) {
  constexpr int kWords = (int(sizeof(T)) + 3) / 4;
  uint32_t words[kWords] = {};
  memcpy(words, &value, sizeof(T));
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
#if defined(__CUDACC__)
    words[i] = __shfl_sync(0xffffffffu, words[i], from, width);
#else
    words[i] = uint32_t(__shfl(int(words[i]), from, width));
#endif
  }
  T result;
  memcpy(&result, words, sizeof(T));
  return result;
}

// The value of the lane `d` before this one of `width` neighbours, a power of two; this one's own where there is none.
template <class T> __device__ __forceinline__ T shuffle_up(const T& value, int d, int width) {
  static_assert(sizeof(T) % 4 == 0, "whole words");
  uint32_t words[sizeof(T) / 4];
  memcpy(words, &value, sizeof(T));
#pragma unroll
  for (int i = 0; i < int(sizeof(T)) / 4; ++i) {
#if defined(__CUDACC__)
    words[i] = __shfl_up_sync(0xffffffffu, words[i], unsigned(d), width);
#else
    words[i] = uint32_t(__shfl_up(int(words[i]), unsigned(d), width));
#endif
  }
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

// Orders the memory of a warp's lanes among them. On AMD a wave's barrier alone keeps instructions in their order, and
// a compiler may move accesses to memory across it: the fences keep them there, and are no instructions.
__device__ __forceinline__ void warp_barrier() {
#if defined(__CUDACC__)
  __syncwarp();
#else
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
#endif
}

// After shuffles, before a lane stores what it got by them where another lane has loaded what that was made of: in
// place. No device can store it earlier, so that this is no instruction; the emulation, to which shuffles order
// nothing, takes it for a barrier.
__device__ __forceinline__ void made_of_what_is_there() {
#if defined(TR_EMULATED)
  warp_barrier();
#endif
}

// The greatest of a warp's.
template <class V> __device__ __forceinline__ V warp_most(V value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  constexpr bool kOneInstruction = std::is_same<V, int32_t>::value;
  if constexpr (kOneInstruction) value = __reduce_max_sync(0xffffffffu, value);
#else
  constexpr bool kOneInstruction = false;
#endif
  if constexpr (!kOneInstruction) {
#pragma unroll
    for (int d = 1; d < kLanes; d <<= 1) {
      const V other = shuffle(value, lane_id() ^ d);
      value = value > other ? value : other;
    }
  }
  return value;
}

// ---- memory ----------------------------------------------------------------------------------------------------------

// Items side by side, aligned to move together where their number and size are powers of two.
template <class T, int N> struct alignas(sizeof(T) * N & (sizeof(T) * N - 1) ? alignof(T) : sizeof(T) * N) Packed {
  T item[N];
};

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
template <class P, int kWords = sizeof(P) / 4> struct Words {
  using type = uint32_t __attribute__((ext_vector_type(kWords), may_alias));
};
template <class P> struct Words<P, 0> { using type = uint16_t __attribute__((may_alias)); };
template <class P> using WordsOf = typename Words<P>::type;
#endif

template <class To, class From> __device__ __forceinline__ To bit_cast_words(const From& words) {
  To to;
  memcpy(&to, &words, sizeof to);
  return to;
}

// Moves a structure of 2, 4, 8 or 16 bytes, aligned to its size, with one instruction. Left to itself, a compiler for
// AMD may take a part of it for an access that another branch has, too, and share that.
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
// How long the caches keep what is loaded: as long as anything else, or less. Short is for kernels that write far less
// than they read. What an earlier kernel wrote then stays until its turn comes, and a kernel that writes as much as it
// reads finds that much less room: of a copy's speed, the gradient of log_softmax of rows of 4096 reached 0.98 on an
// H100 and 0.94 on an H200 so, in float32; 1.01 and 1.03 by Long. With Short a part of what is read again and again
// stays: sums of bfloat16 rows of 64 1.03 of the best read, 0.95 by Long.
enum class Stay { Long, Short };
// 16 bytes that do not change, where `wanted`: without a branch, and before what follows.
template <Stay kStay = Stay::Short, class P>
__device__ __forceinline__ void load_if(bool wanted, const P* from, P& value) {
  static_assert(sizeof(P) == 16, "16 bytes");
#if defined(__CUDA_ARCH__)
  uint32_t w[4];
  memcpy(w, &value, sizeof w);
#define TR_LOAD(hint)                                                                                                  \
  asm volatile("{\n .reg .pred q;\n setp.ne.u32 q, %5, 0;\n @q ld.global.nc" hint ".v4.u32 {%0, %1, %2, %3}, [%4];\n}" \
               : "+r"(w[0]), "+r"(w[1]), "+r"(w[2]), "+r"(w[3])                                                        \
               : "l"(from), "r"(int(wanted)));
  if constexpr (kStay == Stay::Long) {
    TR_LOAD("")
  } else {
    TR_LOAD(".L1::no_allocate")
  }
#undef TR_LOAD
  memcpy(&value, w, sizeof w);
#else
  if (wanted) value = load_wide(from);
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

// 2, 4, 8 or 16 bytes, aligned to that, in device memory, where nvcc may have forgotten that they are there
// (recomputed), and which do not change.
template <Stay kStay = Stay::Short, class P> __device__ __forceinline__ P load_item(const P* p) {
#if defined(__CUDA_ARCH__)
  using Two = std::conditional_t<sizeof(P) == 2, unsigned short, unsigned>;
  using Four = std::conditional_t<sizeof(P) == 8, uint2, Two>;
  using Words = std::conditional_t<sizeof(P) == 16, uint4, Four>;
  const auto* const from = reinterpret_cast<const Words*>(p);
  return bit_cast_words<P>(kStay == Stay::Long ? __ldg(from) : __ldcs(from));
#else
  return load_wide(p);
#endif
}

// One store of 2, 4, 8 or 16 bytes, aligned to that, in device memory, where nvcc may have forgotten that it is there
// (recomputed), or, left to itself, would take several.
template <class P> __device__ __forceinline__ void store_item(P* p, const P& value) {
#if defined(__CUDA_ARCH__)
  constexpr int kWords = sizeof(P) > 4 ? int(sizeof(P)) / 4 : 1;
  const auto to = __cvta_generic_to_global(p);
  uint32_t w[kWords] = {};
  memcpy(w, &value, sizeof value);
  if constexpr (sizeof(P) == 16)
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
  else if constexpr (sizeof(P) == 8)
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(w[0]), "r"(w[1]) : "memory");
  else if constexpr (sizeof(P) == 4) asm volatile("st.global.u32 [%0], %1;" ::"l"(to), "r"(w[0]) : "memory");
  else asm volatile("st.global.u16 [%0], %1;" ::"l"(to), "h"(uint16_t(w[0])) : "memory");
#else
  store_wide(p, value);
#endif
}
// The same for words that were put together one by one, or come from shared memory, which otherwise nvcc may store one
// by one. A word alone is stored as nvcc orders it.
template <class P> __device__ __forceinline__ void store_granule(P* p, const P& value) {
  if constexpr (sizeof(P) >= 8) store_item(p, value);
  else store_wide(p, value);
}

#if defined(__CUDACC__)
// What instructions call an address of shared memory.
__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }
#endif

// Starts a copy of kBytes (4, 8 or 16, aligned) from global to shared memory, which only this thread may read, after a
// wait. Where there are no such copies, it is done at once. kLines, of 16 bytes: all 128 that they are among will be
// wanted soon, if by other blocks.
template <int kBytes, bool kLines = false> __device__ __forceinline__ void copy_async(void* shared, const void* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const uint32_t to = shared_address(shared);
  if constexpr (kLines)
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  else if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes) : "memory");
#elif defined(TR_EMULATED)
  simt::copy_async<kBytes>(shared, from);
#else
  using P = Packed<uint32_t, kBytes / 4>;
  *static_cast<P*>(shared) = load_wide(static_cast<const P*>(from));
#endif
}
// Ends a batch of copies; waits until all batches but the last kPending have arrived.
__device__ __forceinline__ void end_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#elif defined(TR_EMULATED)
  simt::end_copies();
#endif
}
template <int kPending> __device__ __forceinline__ void wait_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#elif defined(TR_EMULATED)
  simt::wait_copies(kPending);
#endif
}

// The low word of high:low shifted right by 0 to 31 bits.
__device__ __forceinline__ uint32_t funnel_right(uint32_t low, uint32_t high, int bits) {
#if defined(__CUDACC__)
  return __funnelshift_r(low, high, bits);
#else
  return uint32_t((uint64_t(high) << 32 | low) >> bits);
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
// The same if `wanted`, else `v`: without a branch, so that several loads are on their way at once.
__device__ __forceinline__ uint64_t load_relaxed_if(bool wanted, const uint64_t* p, uint64_t v) {
#if defined(__CUDACC__)
  asm volatile("{\n .reg .pred q;\n setp.ne.u32 q, %2, 0;\n @q ld.relaxed.gpu.global.u64 %0, [%1];\n}"
               : "+l"(v)
               : "l"(p), "r"(int(wanted))
               : "memory");
  return v;
#else
  return wanted ? load_relaxed(p) : v;
#endif
}
// The same of two neighbours, aligned to 16 bytes.
__device__ __forceinline__ void load_relaxed_pair_if(bool wanted, const uint64_t* p, uint64_t (&v)[2]) {
#if defined(__CUDACC__)
  asm volatile("{\n .reg .pred q;\n setp.ne.u32 q, %3, 0;\n @q ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];\n}"
               : "+l"(v[0]), "+l"(v[1])
               : "l"(p), "r"(int(wanted))
               : "memory");
#else
  for (int k = 0; k < 2; ++k) v[k] = load_relaxed_if(wanted, p + k, v[k]);
#endif
}
__device__ __forceinline__ void store_relaxed(uint64_t* p, uint64_t v) {
#if defined(__CUDACC__)
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
#else
  __hip_atomic_store(global(p), v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#endif
}
// Until all that was enqueued before is done, in a kernel that may have been launched early (Queue::early).
__device__ __forceinline__ void await_launches() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Nothing of a workspace may be reached before a ticket is taken: until then it may not have been zeroed
// (Queue::early). By lane 0 of a warp. Of one address for all lanes, as far as nvcc knows, it would make one operation
// of theirs, and wait at once to hand the results around; now the ticket is waited for where it is used.
__device__ __forceinline__ uint64_t take_ticket(uint64_t* counter) {
#if defined(__CUDA_ARCH__)
  uint32_t lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  counter += lane;
#endif
  await_launches();
  return atomicAdd(reinterpret_cast<unsigned long long*>(global(counter)), 1ull);
}
// Adds one and returns what was there. What this thread has written or seen is there for those who come after, and it
// sees what those before had.
__device__ __forceinline__ uint32_t count_arrival(uint32_t* counter) {
#if defined(__CUDACC__)
  uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
#else
  return __hip_atomic_fetch_add(global(counter), 1u, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
#endif
}
// Between two looks at a word another block will write.
__device__ __forceinline__ void back_off() {
#if defined(__CUDACC__)
  __nanosleep(20);
#else
  __builtin_amdgcn_s_sleep(1);
#endif
}

// ---- barriers of a part of a block ------------------------------------------------------------------------------------

#if defined(TR_EMULATED)

using simt::Barrier, simt::barrier_init, simt::barriers_made, simt::barrier_arrive, simt::barrier_wait;

#else

// A barrier in shared memory whose phases complete when as many arrivals as it was made for (and, Hopper and later, all
// the bytes expected) have come. A wait for a phase must begin before the phase after it completes. Every lane of a
// 64-lane wavefront has the same part in one, so that it never waits for itself.
using Barrier = uint64_t;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

__device__ __forceinline__ void barrier_init(Barrier* b, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}
// By the thread that made the barriers, before the __syncthreads that lets others use them.
__device__ __forceinline__ void barriers_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_arrive(Barrier* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
__device__ __forceinline__ void barrier_wait(Barrier* b, uint32_t parity) {
  asm volatile(
      "{\n .reg .pred done;\n again_%=:\n"
      " mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, 0x989680;\n"
      " @done bra there_%=;\n bra again_%=;\n there_%=:\n}" ::"r"(shared_address(b)),
      "r"(parity)
      : "memory");
}

#else

// The low half counts arrivals, the high half says how many make a phase.
__device__ __forceinline__ void barrier_init(Barrier* b, int arrivals) { *b = uint64_t(arrivals) << 32; }
__device__ __forceinline__ void barriers_made() {}
__device__ __forceinline__ void barrier_arrive(Barrier* b) {
#if defined(__HIPCC__)
  __hip_atomic_fetch_add(reinterpret_cast<uint32_t*>(b), 1u, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_WORKGROUP);
#else
  __threadfence_block();
  atomicAdd(reinterpret_cast<unsigned*>(b), 1u);
#endif
}
__device__ __forceinline__ void barrier_wait(Barrier* b, uint32_t parity) {
  const uint32_t phase = uint32_t(*b >> 32);
  for (;; back_off()) {
#if defined(__HIPCC__)
    const uint32_t count =
        __hip_atomic_load(reinterpret_cast<uint32_t*>(b), __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_WORKGROUP);
#else
    const uint32_t count = *reinterpret_cast<volatile unsigned*>(b);
    __threadfence_block();
#endif
    if ((count / phase & 1u) != parity) return;
  }
}

#endif
#endif

// Waits for the rest of the `threads` first threads of a block, in the phase number `meeting` of `b`, which was made
// for as many. One team a block.
__device__ __forceinline__ void team_barrier([[maybe_unused]] Barrier* b, [[maybe_unused]] int threads,
                                             [[maybe_unused]] int meeting) {
#if defined(__CUDACC__)
  asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
#else
  barrier_arrive(b);
  barrier_wait(b, uint32_t(meeting & 1));
#endif
}

// ---- bulk copies (Hopper and later; kernels that use them are not built for other devices) ------------------------------

#if defined(__CUDACC__) || defined(TR_EMULATED)
#define TR_BULK_COPIES
#endif

#if defined(TR_EMULATED)

using simt::barrier_expect, simt::bulk_load, simt::bulk_fence, simt::bulk_store, simt::bulk_stores_read;

#elif defined(TR_BULK_COPIES)

__device__ __forceinline__ void barrier_expect(Barrier* b, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
               : "memory");
}
// Addresses and sizes are multiples of 16 bytes. A load's bytes count towards the barrier's phase.
__device__ __forceinline__ void bulk_load(void* shared, const void* from, uint32_t bytes, Barrier* b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(from), "r"(bytes), "r"(shared_address(b))
               : "memory");
}
// What ordinary stores wrote to shared memory is seen by a bulk store that starts after a barrier after this.
__device__ __forceinline__ void bulk_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void bulk_store(void* to, const void* shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(shared)),
               "r"(bytes)
               : "memory");
}
// Until the thread's bulk stores have read their shared memory.
__device__ __forceinline__ void bulk_stores_read() {
  asm volatile("cp.async.bulk.commit_group;\n cp.async.bulk.wait_group.read 0;" ::: "memory");
}

#endif

// ---- launches --------------------------------------------------------------------------------------------------------

// Where kernels are enqueued. `early`: behind another kernel, for which this one waits by itself, where it takes a
// ticket or calls await_launches (programmatic dependent launch), so that its blocks are there by then.
struct Queue {
  gpuStream_t stream;
  bool early = false;
  int cluster = 1;  // blocks of a cluster
};

// Whether the code for the current device waits by itself, and the driver captures launches that are early.
bool launches_early();
// Enqueues the zeroing of a workspace of `bytes` bytes, a multiple of 8; then says in `queue` whether the kernel that
// uses it may be early. Returns nullptr, or the runtime's message.
const char* zero_workspace(void* workspace, int64_t bytes, Queue& queue);

#if defined(__CUDACC__)
constexpr int kGranted = 40 << 10;  // bytes of dynamic shared memory that any kernel here has without asking: with what
                                    // it declares, no more than 48 KiB
// Lets `kernel` have all the dynamic shared memory that a block of the current device has room for, besides what the
// kernel declares. It is a property of the kernel on a device, not of a launch: of a captured graph it has to hold when
// the graph is instantiated, whatever was launched in between. So it is set once, to the most. Called from any thread.
void grant_shared(const void* kernel);
#endif
// Counters in device memory for the next launch on `stream`, zeroed, which that launch leaves zeroed again; `spare` has
// room for as many, and may hold anything. Returns nullptr, or the runtime's message.
const char* zeroed_tickets(int64_t count, void* spare, gpuStream_t stream, uint32_t** tickets);

// Enqueues kernel(arguments...), with `shared` bytes of dynamic shared memory a block. The caller asks for errors
// (gpuGetLastError).
template <class... P, class... A>
void enqueue(void (*kernel)(P...), int64_t blocks, int threads, int shared, Queue queue, const A&... arguments) {
#if defined(__CUDACC__)
  if (shared > kGranted) grant_shared(reinterpret_cast<const void*>(kernel));
  cudaLaunchAttribute attributes[2];
  int count = 0;
  if (queue.early) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (queue.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {unsigned(queue.cluster), 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = unsigned(blocks);
  config.blockDim = unsigned(threads);
  config.dynamicSmemBytes = unsigned(shared);
  config.stream = queue.stream;
  config.attrs = attributes;
  config.numAttrs = unsigned(count);
  (void)cudaLaunchKernelEx(&config, kernel, arguments...);
#else
#if defined(TR_EMULATED)
  simt::options.cluster = queue.cluster;
#endif
  hipLaunchKernelGGL(kernel, dim3(unsigned(blocks)), dim3(unsigned(threads)), unsigned(shared), queue.stream,
                     arguments...);
#endif
}

}  // namespace torchreduce
