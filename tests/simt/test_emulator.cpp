// The emulator on kernels of a few lines: right ones give the right result in any order of lanes, and each wrong one is
// found, with the message that names what is wrong. A wrong kernel runs in a process of its own.
#include <errno.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "hip/hip_runtime.h"

namespace {

constexpr int kThreads = 128;
int failures = 0;

void expect(bool ok, const std::string& what) {
  if (ok) return;
  printf("FAILED: %s (waves of %d lanes)\n", what.c_str(), simt::options.wave);
  ++failures;
}

constexpr int kShared = 4 * kThreads;  // bytes of dynamic shared memory a block

template <class... P, class... A> void run(void (*kernel)(P...), int blocks, A... arguments) {
  hipLaunchKernelGGL(kernel, dim3(blocks), dim3(kThreads), kShared, nullptr, arguments...);
}

// ---- right kernels --------------------------------------------------------------------------------------------------

// Each block's sum of its indices: lanes by shuffle, warps by shared memory.
__global__ void block_sum(int* out) {
  __shared__ int warps[kThreads / 32];
  int v = int(blockIdx.x * blockDim.x + threadIdx.x);
  for (int d = 1; d < 32; d *= 2) v += __shfl(v, int(threadIdx.x) ^ d, 32);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / 32; ++w) v += warps[w];
  out[blockIdx.x] = v;
}

// Warp w votes once more than warp w - 1: the other half of a wave is not always there.
__global__ void votes(uint32_t* out) {
  const int warp = int(threadIdx.x) / 32;
  for (int i = 0; i <= warp; ++i) {
    const auto bits = __ballot(int(threadIdx.x) % (i + 2) == 0);
    if (threadIdx.x % 32 == 0) out[warp] = uint32_t(bits >> (__lane_id() & 32u));
  }
}

// Each block adds one to what the block with the ticket before it published.
__global__ void chain(unsigned long long* ticket, uint64_t* values) {
  if (threadIdx.x != 0) return;
  const auto mine = atomicAdd(ticket, 1ull);
  uint64_t before = mine == 0 ? 1 : 0;
  while (before == 0) {
    before = __hip_atomic_load(&values[mine - 1], __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT);
    if (before == 0) __builtin_amdgcn_s_sleep(1);
  }
  __hip_atomic_store(&values[mine], before + 1, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
}

// Thread 0 of each warp writes in turn; out[0] is the order in which the warps came.
__global__ void order(uint64_t* out) {
  if (threadIdx.x % 32 != 0) return;
  uint64_t seen = __hip_atomic_load(out, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  __hip_atomic_store(out, seen * 8 + threadIdx.x / 32 + 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

__global__ void uninitialized(int* out) {
  __shared__ int value[kThreads];
  out[threadIdx.x] = value[threadIdx.x];
  value[threadIdx.x] = 0;
}

// One warp loads, each thread doubles its element, another warp stores; twice.
__global__ void bulk(int* out, const int* in) {
  TR_DYNAMIC_SHARED(shared, 16);
  __shared__ simt::Barrier loaded, done, free;
  const int warp = int(threadIdx.x) / 32;
  int* const elements = reinterpret_cast<int*>(shared);
  if (threadIdx.x == 0) {
    simt::barrier_init(&loaded, 1);
    simt::barrier_init(&done, kThreads);
    simt::barrier_init(&free, 1);
    simt::barriers_made();
  }
  __syncthreads();
  for (uint32_t turn = 0; turn < 2; ++turn) {
    const int first = int(2 * blockIdx.x + turn) * kThreads;
    if (threadIdx.x == 0) {
      if (turn) simt::barrier_wait(&free, 0);
      simt::barrier_expect(&loaded, 4 * kThreads);
      simt::bulk_load(shared, in + first, 4 * kThreads, &loaded);
    }
    simt::barrier_wait(&loaded, turn);
    elements[threadIdx.x] *= 2;
    simt::bulk_fence();
    simt::barrier_arrive(&done);
    if (warp == 1) {
      simt::barrier_wait(&done, turn);
      if (threadIdx.x % 32 == 0) {
        simt::bulk_store(out + first, shared, 4 * kThreads);
        simt::bulk_stores_read();
        simt::barrier_arrive(&free);
      }
    }
  }
}

// The blocks of a cluster give each other their numbers, and then other ones by the same place.
void gather(int* out, int turns, bool waits, simt::Barrier& arrived, uint64_t* numbers) {
  const int blocks = simt::options.cluster, thread = int(threadIdx.x);
  if (thread == 0) {
    simt::barrier_init(&arrived, 1);
    simt::barriers_made();
  }
  if (waits) {
    simt::cluster_arrive();
    simt::cluster_wait();
  }
  __syncthreads();
  for (int turn = 0; turn < turns; ++turn) {
    if (thread == 0) simt::barrier_expect(&arrived, uint32_t(8 * blocks));
    const uint64_t number = blockIdx.x + unsigned(turn);
    if (thread < blocks) simt::put(&numbers[simt::cluster_rank()], &arrived, &number, 8, thread);
    simt::barrier_wait(&arrived, uint32_t(turn));
    if (thread < blocks) out[blockIdx.x * unsigned(blocks) + threadIdx.x] = int(numbers[thread]);
  }
}
__global__ void cluster(int* out) {
  __shared__ simt::Barrier arrived;
  __shared__ uint64_t numbers[8];
  gather(out, 1, true, arrived, numbers);
}

// Each thread copies an element for itself, and a warp's lanes exchange theirs.
__global__ void copies(int* out, const int* in) {
  TR_DYNAMIC_SHARED(shared, 16);
  int* const elements = reinterpret_cast<int*>(shared);
  simt::copy_async<4>(&elements[threadIdx.x], &in[threadIdx.x]);
  simt::end_copies();
  simt::wait_copies(0);
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
  out[threadIdx.x] = elements[threadIdx.x ^ 1];
}

void test_right_kernels() {
  constexpr int kBlocks = 20;
  std::vector<int> sums(kBlocks);
  run(block_sum, kBlocks, sums.data());
  for (int b = 0; b < kBlocks; ++b) expect(sums[b] == kThreads * (2 * b * kThreads + kThreads - 1) / 2, "block_sum");

  uint32_t bits[kThreads / 32];
  run(votes, 1, bits);
  for (int w = 0; w < kThreads / 32; ++w)
    for (int i = 0; i < 32; ++i) expect((bits[w] >> i & 1u) == ((w * 32 + i) % (w + 2) == 0), "votes");

  for (bool reverse : {false, true}) {
    simt::options.reverse = reverse;
    unsigned long long ticket = 0;
    std::vector<uint64_t> values(kBlocks);
    run(chain, kBlocks, &ticket, values.data());
    for (int b = 0; b < kBlocks; ++b) expect(values[b] == uint64_t(b + 2), "chain");
  }
  simt::options.reverse = false;

  std::vector<int> in(kBlocks * 2 * kThreads), twice(in.size()), exchanged(kThreads);
  for (size_t i = 0; i < in.size(); ++i) in[i] = int(i);
  run(bulk, kBlocks, twice.data(), in.data());
  for (size_t i = 0; i < in.size(); ++i) expect(twice[i] == 2 * int(i), "bulk");
  run(copies, 1, exchanged.data(), in.data());
  for (int i = 0; i < kThreads; ++i) expect(exchanged[i] == (i ^ 1), "copies");

  for (int blocks : {2, 5}) {
    simt::options.cluster = blocks;
    std::vector<int> numbers(20 * blocks);
    run(cluster, 20, numbers.data());
    for (int b = 0; b < 20; ++b)
      for (int i = 0; i < blocks; ++i) expect(numbers[b * blocks + i] == b / blocks * blocks + i, "cluster");
  }
  simt::options.cluster = 1;

  std::vector<int> garbage(kThreads);
  run(uninitialized, 1, garbage.data());
  expect(garbage[0] == 0x7f7f7f7f && garbage[kThreads - 1] == 0x7f7f7f7f, "shared memory starts as garbage");

  std::vector<uint64_t> orders;
  for (uint32_t seed : {1, 2, 3, 4, 1}) {
    simt::options.seed = seed;
    orders.push_back(0);
    run(order, 1, &orders.back());
  }
  expect(orders[0] == orders[4], "the same seed, the same order");
  expect(orders[0] != orders[1] || orders[0] != orders[2] || orders[0] != orders[3], "other seeds, other orders");
}

// ---- wrong kernels --------------------------------------------------------------------------------------------------

__global__ void divergent_shuffle(int* out) {
  if (threadIdx.x != 5) out[0] = __shfl(1, 0, 32);
}
__global__ void two_shuffles(int* out) {
  if (threadIdx.x % 2) out[0] = __shfl(1, 0, 32);
  else out[1] = __shfl(2, 0, 32) + 1;
}
__global__ void divergent_barrier(int*) {
  if (threadIdx.x < 100) __syncthreads();
}
__global__ void two_barriers(int* out) {
  if (threadIdx.x < 64) __syncthreads();
  else {
    out[threadIdx.x] = 1;
    __syncthreads();
  }
}
__global__ void barrier_or_shuffle(int* out) {
  if (threadIdx.x % 32 < 16) __syncthreads();
  else out[0] = __shfl(1, 0, 32);
}
// Block b waits for block b + 1: never, once all resident ones wait.
__global__ void wrong_way(int* out) {
  if (threadIdx.x == 0 && blockIdx.x + 1 < gridDim.x)
    while (!__hip_atomic_load(&out[blockIdx.x + 1], __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT))
      __builtin_amdgcn_s_sleep(1);
  if (threadIdx.x == 0) __hip_atomic_store(&out[blockIdx.x], 1, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
}
// A lane waits for another lane of its wave.
__global__ void own_wave(int* out) {
  if (threadIdx.x == 0)
    while (!__hip_atomic_load(out, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)) __builtin_amdgcn_s_sleep(1);
  __shfl(0, 0, 32);
  if (threadIdx.x == 1) __hip_atomic_store(out, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
// The same, with the lane in the other half of a wave of 64: right on 32 lanes.
__global__ void other_half(int* out) {
  if (threadIdx.x == 0)
    while (!__hip_atomic_load(out, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)) __builtin_amdgcn_s_sleep(1);
  __shfl(0, 0, 32);
  if (threadIdx.x == 32) __hip_atomic_store(out, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

__global__ void cluster_is_not_there(int* out) {
  __shared__ simt::Barrier arrived;
  __shared__ uint64_t numbers[8];
  gather(out, 1, false, arrived, numbers);
}
__global__ void cluster_gives_too_soon(int* out) {
  __shared__ simt::Barrier arrived;
  __shared__ uint64_t numbers[8];
  gather(out, 2, true, arrived, numbers);
}

__global__ void no_phase(int*) {
  __shared__ simt::Barrier b;
  if (threadIdx.x == 0) simt::barrier_init(&b, 2);
  __syncthreads();
  if (threadIdx.x == 0) simt::barrier_arrive(&b);
  simt::barrier_wait(&b, 0);
}
__global__ void not_made(int*) {
  __shared__ simt::Barrier b;
  simt::barrier_arrive(&b);
}
__global__ void odd_bulk_copy(int* out) {
  TR_DYNAMIC_SHARED(shared, 16);
  if (threadIdx.x == 0) simt::bulk_store(out, shared, 20);
}
__global__ void bulk_copy_beyond(int* out) {
  TR_DYNAMIC_SHARED(shared, 16);
  if (threadIdx.x == 0) simt::bulk_store(out, shared + 16, kShared);
}
__global__ void store_not_waited_for(int* out) {
  TR_DYNAMIC_SHARED(shared, 16);
  if (threadIdx.x == 0) simt::bulk_store(out, shared, kShared);
}
__global__ void too_much_shared(int* out) {
  __shared__ volatile char most[(48 << 10) - kShared + 1];  // or a compiler would know that it is zero
  if (blockIdx.x == 0) out[threadIdx.x] = most[threadIdx.x];
}

#if defined(SIMT_tsan)

// What a bulk store takes has to be fenced by who wrote it.
template <bool kFenced, bool kWaited> __device__ void store_own(int* out) {
  TR_DYNAMIC_SHARED(shared, 16);
  reinterpret_cast<int*>(shared)[threadIdx.x] = 1;
  if (kFenced) simt::bulk_fence();
  __syncthreads();
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    simt::bulk_store(out, shared, kShared);
    if (kWaited) simt::bulk_stores_read();
  }
  if (!kWaited) reinterpret_cast<int*>(shared)[threadIdx.x] = 2;
  if (blockIdx.x == 0 && threadIdx.x == 0) simt::bulk_stores_read();
}
__global__ void not_fenced(int* out) { store_own<false, true>(out); }
__global__ void written_while_stored(int* out) { store_own<true, false>(out); }
// A warp's barrier orders what fences around it say, among the lanes of the warp.
template <bool kReleases, bool kAcquires> __device__ void exchange(int* out, int with) {
  TR_DYNAMIC_SHARED(shared, 16);
  int* const value = reinterpret_cast<int*>(shared);
  value[threadIdx.x] = 1;
  if (kReleases) __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  if (kAcquires) __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
  if (blockIdx.x == 0) out[threadIdx.x] = value[int(threadIdx.x) ^ with];
}
__global__ void warp_barrier_alone(int* out) { exchange<false, false>(out, 1); }
__global__ void not_released(int* out) { exchange<false, true>(out, 1); }
__global__ void not_acquired(int* out) { exchange<true, false>(out, 1); }
__global__ void fences_of_another_warp(int* out) { exchange<true, true>(out, 32); }
// A release that no barrier follows is no part of what the barrier before it ordered.
__global__ void released_too_late(int* out) {
  TR_DYNAMIC_SHARED(shared, 16);
  int* const value = reinterpret_cast<int*>(shared);
  __builtin_amdgcn_wave_barrier();
  value[threadIdx.x] = 1;
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  if (!__shfl(1, 0, 32)) return;
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
  if (blockIdx.x == 0) out[threadIdx.x] = value[threadIdx.x ^ 1];
}
__global__ void no_warp_barrier(int* out) {
  __shared__ int value[kThreads];
  value[threadIdx.x] = 1;
  if (__shfl(1, 0, 32)) out[threadIdx.x] = value[threadIdx.x ^ 1];
}
__global__ void shared_race(int* out) {
  __shared__ int value[kThreads];
  value[threadIdx.x] = 1;
  out[threadIdx.x] = value[threadIdx.x ^ 1];
}
__global__ void block_race(int* out) { ++out[threadIdx.x]; }
// Relaxed flags order nothing: the value behind one is a race.
__global__ void relaxed_flag(int* out) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) {
    out[2] = 1;
    __hip_atomic_store(&out[0], 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  } else {
    while (!__hip_atomic_load(&out[0], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)) __builtin_amdgcn_s_sleep(1);
    out[1] = out[2];
  }
}

#else

__global__ void past_the_end(int* out) { out[threadIdx.x + 1] = 0; }
__global__ void past_shared(int* out) {
  __shared__ int values[kThreads];
  values[threadIdx.x + 1] = 1;
  __syncthreads();
  out[threadIdx.x] = values[threadIdx.x];
}
__global__ void past_dynamic(int* out) {
  TR_DYNAMIC_SHARED(shared, 16);
  out[threadIdx.x] = reinterpret_cast<int*>(shared)[threadIdx.x + 1];
}
__global__ void misaligned(int* out) {
  if (threadIdx.x == 0) *reinterpret_cast<uint64_t*>(out + 1) = 1;
}

#endif

struct Wrong {
  const char* name;
  void (*kernel)(int*);
  std::string message;   // that it is caught with
  bool only_64 = false;  // right where a wave has 32 lanes
  int cluster = 1;
};
#define WRONG(kernel) #kernel, kernel
const Wrong kWrong[] = {
    {WRONG(divergent_shuffle), "lanes have exited before a collective"},
    {WRONG(two_shuffles), "the lanes of a warp wait in different collectives"},
    {WRONG(divergent_barrier), "threads have exited before a barrier"},
    {WRONG(two_barriers), "the threads of a block wait at different barriers"},
    {WRONG(barrier_or_shuffle), "threads wait for others of their block that never come"},
    {WRONG(own_wave), "no forward progress"},
    {WRONG(other_half), "no forward progress", true},
    {WRONG(wrong_way), "no forward progress"},
    {WRONG(no_phase), "threads wait for others of their block that never come"},
    {WRONG(not_made), "a barrier is used that was not made"},
    {WRONG(odd_bulk_copy), "no multiple of 16 bytes"},
    {WRONG(bulk_copy_beyond), "a bulk copy leaves the shared memory"},
    {WRONG(store_not_waited_for), "a block ends before its bulk copies"},
    {WRONG(too_much_shared), "49153 bytes of shared memory"},
    {WRONG(cluster_is_not_there), "has not started or has ended", false, 3},
#if defined(SIMT_tsan)
    {WRONG(cluster_gives_too_soon), "data race", false, 3},
    {WRONG(not_fenced), "data race"},
    {WRONG(written_while_stored), "data race"},
    {WRONG(warp_barrier_alone), "data race"},
    {WRONG(not_released), "data race"},
    {WRONG(not_acquired), "data race"},
    {WRONG(fences_of_another_warp), "data race"},
    {WRONG(released_too_late), "data race"},
    {WRONG(no_warp_barrier), "data race"},
    {WRONG(shared_race), "data race"},
    {WRONG(block_race), "data race"},
    {WRONG(relaxed_flag), "data race"},
#else
    {WRONG(past_the_end), "heap-buffer-overflow"},
    {WRONG(past_shared), "index 128 out of bounds"},
    {WRONG(past_dynamic), "heap-buffer-overflow"},
    {WRONG(misaligned), "misaligned address"},
#endif
};

// This program again, to run one wrong kernel: expects it to fail with the kernel's name and the message.
void expect_caught(const Wrong& wrong) {
  const std::string self = program_invocation_name, wave = std::to_string(simt::options.wave);
  FILE* child = popen(("exec '" + self + "' " + wrong.name + " " + wave + " 2>&1").c_str(), "r");
  std::string output;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, child)) > 0;) output.append(buffer, n);
  const bool failed = pclose(child) != 0;
  const bool right = wrong.only_64 && simt::options.wave == 32;
  const bool said = output.find(wrong.message) != std::string::npos && output.find(wrong.name) != std::string::npos;
  expect(right ? !failed : failed && said,
         std::string(wrong.name) + ", expected \"" + wrong.message + "\", got\n" + output);
}

void run_wrong(const std::string& name) {
  auto* out = static_cast<int*>(calloc(kThreads, sizeof(int)));
  for (const Wrong& wrong : kWrong) {
    if (name != wrong.name) continue;
    simt::options.cluster = wrong.cluster;
    run(wrong.kernel, 3, out);
  }
  free(out);
}

}  // namespace

// Without arguments: all tests. With a name and the lanes of a wave: that wrong kernel.
int main(int count, char** arguments) {
  if (count == 3) {
    simt::options.wave = atoi(arguments[2]);
    simt::options.resident = 2;
    run_wrong(arguments[1]);
    return 0;
  }
  for (int wave : {32, 64}) {
    simt::options.wave = wave;
    test_right_kernels();
    for (const Wrong& wrong : kWrong) expect_caught(wrong);
  }
  printf("emulator: %s\n", failures ? "FAILED" : "passed");
  return failures != 0;
}
