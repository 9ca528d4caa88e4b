// Reductions that combine in blocks, and their blocks' results by further launches. ladder.cuh says how to read a rung.
#include "ladder.cuh"

namespace torchreduce::ladder::reduce {

// ==== sequential: one thread ====
// Idea:   one thread walks over all elements, as a loop on a CPU does.
// Change: the starting point, and the definition of what all others have to compute.
// Source: Reduction and scan, "reduce_cpu"; GPU MODE lecture 9, "Serial reduction"
// Expect: a thousandth of the memory's speed and less: one load is under way where tens of thousands could be.
// Limit:  4194304 elements: patience
// Blocks: 1
template <class Op, class T = typename Op::T>
__global__ void sequential_kernel(const T* in, T* out, int64_t n) {
  T total = Op::identity;
  for (int64_t i = 0; i < n; ++i) total = Op::combine(total, in[i]);
  *out = total;
}
template <class Op, class T = typename Op::T> void sequential(Call<T>& call) {
  call.launch(sequential_kernel<Op>, 1, 1, 0, call.in, call.out, call.n);
}

// ==== simple: a tree of pairs, in place ====
// Idea:   a tree: every thread combines a pair, then every second one a pair of pairs, in place in global memory.
// Change: log2(n) steps of a block instead of n steps of a thread.
// Source: GPU MODE lecture 9, "Simple reduce"
// Expect: lanes of a warp part ways at each step: all 32 warps stay to the end for one lane each.
// Before: sequential
// Limit:  2048 elements: one block
// Blocks: 1024
// Writes: its input
template <class Op, class T = typename Op::T>
__global__ void simple_kernel(T* data, T* out, int64_t n) {
  const unsigned t = threadIdx.x, i = 2 * t;
  for (unsigned stride = 1; stride <= blockDim.x; stride *= 2) {
    if (t % stride == 0 && i + stride < n) data[i] = Op::combine(data[i], data[i + stride]);
    __syncthreads();
  }
  if (t == 0) *out = data[0];
}
template <class Op, class T = typename Op::T> void simple(Call<T>& call) {
  call.launch(simple_kernel<Op>, 1, call.block, 0, call.in, call.out, call.n);
}

// ==== converged: neighbours work, the stride falls ====
// Idea:   those who still work are neighbours: thread t takes element t, and the stride falls instead of growing.
// Change: the order of the strides, and with it which lanes are idle: whole warps are.
// Source: GPU MODE lecture 9, "Control divergence reduction"
// Expect: neighbours read neighbouring elements, too. The bits now depend on the size of the block.
// Before: simple
// Limit:  2048 elements: one block
// Blocks: 1024
// Writes: its input
template <class Op, class T = typename Op::T>
__global__ void converged_kernel(T* data, T* out, int64_t n) {
  const unsigned t = threadIdx.x, i = t;
  for (unsigned stride = blockDim.x; stride >= 1; stride /= 2) {
    if (t < stride && i + stride < n) data[i] = Op::combine(data[i], data[i + stride]);
    __syncthreads();
  }
  if (t == 0) *out = data[0];
}
template <class Op, class T = typename Op::T> void converged(Call<T>& call) {
  call.launch(converged_kernel<Op>, 1, call.block, 0, call.in, call.out, call.n);
}

// ==== shared_memory: the tree in shared memory ====
// Idea:   memory is read once; the tree stands in shared memory, which is on the chip.
// Change: the first step combines two elements on the way to shared memory, all others stay there.
// Source: GPU MODE lecture 9, "Shared reduce"
// Expect: less time a step. The input is left as it was.
// Before: converged
// Limit:  2048 elements: one block
// Blocks: 1024
template <class Op, class T = typename Op::T>
__global__ void shared_memory_kernel(const T* in, T* out, int64_t n) {
  TR_DYNAMIC_SHARED(memory, 16);
  T* const data = reinterpret_cast<T*>(memory);
  const unsigned t = threadIdx.x, i = t;
  const auto read = [&](unsigned i) { return i < n ? in[i] : Op::identity; };
  data[t] = Op::combine(read(i), read(i + blockDim.x));
  __syncthreads();
  for (unsigned stride = blockDim.x / 2; stride >= 1; stride /= 2) {
    if (t < stride) data[t] = Op::combine(data[t], data[t + stride]);
    __syncthreads();
  }
  if (t == 0) *out = data[0];
}
template <class Op, class T = typename Op::T> void shared_memory(Call<T>& call) {
  call.launch(shared_memory_kernel<Op>, 1, call.block, call.block * int(sizeof(T)), call.in, call.out, call.n);
}

// ==== strided: many blocks, in place, several launches ====
// Idea:   each block has a part of the input; the blocks' results are reduced by another launch, and so on.
// Change: blocks, so any n; a launch is the only barrier among them.
// Source: Reduction and scan, "reduce_gpu"
// Expect: the first rung that fills a GPU. Every step reads and writes global memory, in ever fewer useful pieces.
// Before: simple
// Blocks: 64 128 256 512 1024
// Writes: its input
template <class Op, class T = typename Op::T>
__global__ void strided_kernel(T* front, T* back, int64_t n) {
  const unsigned t = threadIdx.x, i = 2 * t;
  const int64_t first = 2 * int64_t(blockDim.x) * blockIdx.x;
  T* const data = front + first;
  for (unsigned stride = 1; stride <= blockDim.x; stride *= 2) {
    if (t % stride == 0 && first + i + stride < n) data[i] = Op::combine(data[i], data[i + stride]);
    __syncthreads();
  }
  if (t == 0) back[blockIdx.x] = data[0];
}
template <class Op, class T = typename Op::T> void strided(Call<T>& call) {
  until_one(call, strided_kernel<Op>, 2 * call.block, 1);
}

// ==== reversed: many blocks, the stride falls ====
// Idea:   the stride starts at the block's half and falls: threads that work are neighbours, and so is what they read.
// Change: the order of the strides, as in `converged`.
// Source: Reduction and scan, "using the stride index in reverse order"
// Expect: coalesced accesses; still in global memory, log2(block) times.
// Before: strided
// Blocks: 64 128 256 512 1024
// Writes: its input
template <class Op, class T = typename Op::T>
__global__ void reversed_kernel(T* front, T* back, int64_t n) {
  const unsigned t = threadIdx.x, i = t;
  const int64_t first = 2 * int64_t(blockDim.x) * blockIdx.x;
  T* const data = front + first;
  for (unsigned stride = blockDim.x; stride >= 1; stride /= 2) {
    if (t < stride && first + i + stride < n) data[i] = Op::combine(data[i], data[i + stride]);
    __syncthreads();
  }
  if (t == 0) back[blockIdx.x] = data[0];
}
template <class Op, class T = typename Op::T> void reversed(Call<T>& call) {
  until_one(call, reversed_kernel<Op>, 2 * call.block, 1);
}

// ==== halving: a launch a level, two elements a thread ====
// Idea:   one launch a level of the tree: every thread writes the sum of two neighbours, and half as many are left.
// Change: no threads that talk to each other at all; launches are the only order.
// Source: Halving reduction, first implementation
// Expect: three times the input's bytes go through memory, and log2(n) launches follow one another.
// Before: sequential
// Blocks: 64 128 256 512 1024
template <class Op, class T = typename Op::T>
__global__ void halving_kernel(const T* front, T* back, int64_t n) {
  constexpr int kEach = 2;
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, first = kEach * i;
  if (first >= n) return;
  T total = front[first];
  for (int k = 1; k < kEach; ++k)
    if (first + k < n) total = Op::combine(total, front[first + k]);
  back[i] = total;
}
template <class Op, class T = typename Op::T> void halving(Call<T>& call) {
  until_one(call, halving_kernel<Op>, 2, call.block);
}

// ==== halving_eight: eight elements a thread ====
// Idea:   more work a thread: eight neighbours, so that each launch leaves an eighth.
// Change: the factor.
// Source: Halving reduction, second implementation
// Expect: an eighth of the input is written instead of half, a third of the launches. The document's time halves.
// Before: halving
// Blocks: 64 128 256 512 1024
template <class Op, class T = typename Op::T>
__global__ void halving_eight_kernel(const T* front, T* back, int64_t n) {
  constexpr int kEach = 8;
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, first = kEach * i;
  if (first >= n) return;
  T total = front[first];
  for (int k = 1; k < kEach; ++k)
    if (first + k < n) total = Op::combine(total, front[first + k]);
  back[i] = total;
}
template <class Op, class T = typename Op::T> void halving_eight(Call<T>& call) {
  until_one(call, halving_eight_kernel<Op>, 8, call.block);
}

// ==== halving_vector: loads of 16 bytes ====
// Idea:   a thread's eight elements are two loads of 16 bytes, not eight of 4.
// Change: how they are loaded.
// Source: Halving reduction, third implementation
// Expect: an eighth of the load instructions; the document saw no difference, its memory being the limit already.
// Before: halving_eight
// Blocks: 64 128 256 512 1024
template <class Op, class T = typename Op::T>
__global__ void halving_vector_kernel(const T* front, T* back, int64_t n) {
  constexpr int kEach = 8;
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, first = kEach * i;
  if (first >= n) return;
  const Packed<T, 4> low = load_vector<Op>(front, first, n), high = load_vector<Op>(front, first + 4, n);
  back[i] = Op::combine(reduce_vector<Op>(low), reduce_vector<Op>(high));
}
template <class Op, class T = typename Op::T> void halving_vector(Call<T>& call) {
  until_one(call, halving_vector_kernel<Op>, 8, call.block);
}

// ==== halving_block: blocks combine theirs ====
// Idea:   the threads of a block combine theirs in shared memory, so that a block writes one value.
// Change: a launch leaves one of 8 * block elements instead of one of 8.
// Source: Halving reduction, the block-level reduction that it ends with
// Expect: next to no writes, three launches at most.
// Before: halving_vector
// Blocks: 64 128 256 512 1024
template <class Op, class T = typename Op::T>
__global__ void halving_block_kernel(const T* front, T* back, int64_t n) {
  constexpr int kEach = 8;
  TR_DYNAMIC_SHARED(memory, 16);
  T* const data = reinterpret_cast<T*>(memory);
  const unsigned t = threadIdx.x;
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, first = kEach * i;
  const Packed<T, 4> low = load_vector<Op>(front, first, n), high = load_vector<Op>(front, first + 4, n);
  data[t] = Op::combine(reduce_vector<Op>(low), reduce_vector<Op>(high));
  __syncthreads();
  for (unsigned stride = blockDim.x / 2; stride >= 1; stride /= 2) {
    if (t < stride) data[t] = Op::combine(data[t], data[t + stride]);
    __syncthreads();
  }
  if (t == 0) back[blockIdx.x] = data[0];
}
template <class Op, class T = typename Op::T> void halving_block(Call<T>& call) {
  until_one(call, halving_block_kernel<Op>, 8 * call.block, 1, call.block * int(sizeof(T)));
}

// ==== naive: shared memory, several launches ====
// Idea:   a block loads an element a thread into shared memory and makes a tree there; launches follow, between two
//         buffers, until one value is left.
// Change: of `strided`: shared memory, and one element a thread.
// Source: ROCm reduction tutorial, "Naive shared reduction"; Reduction, 1 "Interleaved addressing - diverge warps"
// Expect: a remainder that is no power of two to the compiler, and warps that stay for one lane.
// Before: strided
// Blocks: 64 128 256 512 1024
template <class Op, class T = typename Op::T>
__global__ void naive_kernel(const T* front, T* back, int64_t n) {
  TR_DYNAMIC_SHARED(memory, 16);
  T* const shared = reinterpret_cast<T*>(memory);
  const unsigned t = threadIdx.x;
  const int64_t g = int64_t(blockIdx.x) * blockDim.x + t;
  shared[t] = g < n ? front[g] : Op::identity;
  __syncthreads();
  for (unsigned i = 1; i < blockDim.x; i *= 2) {
    if (t % (2 * i) == 0) shared[t] = Op::combine(shared[t], shared[t + i]);
    __syncthreads();
  }
  if (t == 0) back[blockIdx.x] = shared[0];
}
template <class Op, class T = typename Op::T> void naive(Call<T>& call) {
  until_one(call, naive_kernel<Op>, call.block, 1, call.block * int(sizeof(T)));
}

// ==== less_divergent: the first threads work ====
// Idea:   the same pairs, but taken by the first threads: whole warps fall idle.
// Change: which thread has which pair; the dataflow, and so every bit, stays.
// Source: ROCm reduction tutorial, "Reducing thread divergence"; Reduction, 2 "Interleaved addressing - bank conflicts"
// Expect: faster, though the lanes of a warp now hit the same banks: at stride 16 all 32 of them one.
// Before: naive
// Blocks: 64 128 256 512 1024
template <class Op, class T = typename Op::T>
__global__ void less_divergent_kernel(const T* front, T* back, int64_t n) {
  TR_DYNAMIC_SHARED(memory, 16);
  T* const shared = reinterpret_cast<T*>(memory);
  const unsigned t = threadIdx.x;
  const int64_t g = int64_t(blockIdx.x) * blockDim.x + t;
  shared[t] = g < n ? front[g] : Op::identity;
  __syncthreads();
  for (unsigned i = 1; i < blockDim.x; i *= 2) {
    const unsigned j = 2 * i * t;
    if (j < blockDim.x) shared[j] = Op::combine(shared[j], shared[j + i]);
    __syncthreads();
  }
  if (t == 0) back[blockIdx.x] = shared[0];
}
template <class Op, class T = typename Op::T> void less_divergent(Call<T>& call) {
  until_one(call, less_divergent_kernel<Op>, call.block, 1, call.block * int(sizeof(T)));
}

// ==== conflict_free: no bank conflicts ====
// Idea:   thread t combines elements t and t + i, with i falling: neighbours have neighbouring banks.
// Change: the order of the strides. The tree is another one, whose shape is the block's.
// Source: ROCm reduction tutorial, "Resolving bank conflicts"; Reduction, 3 "Sequential addressing"
// Expect: no conflicts; half of the threads have only loaded when the first step begins.
// Before: less_divergent
// Blocks: 64 128 256 512 1024
template <class Op, class T = typename Op::T>
__global__ void conflict_free_kernel(const T* front, T* back, int64_t n) {
  TR_DYNAMIC_SHARED(memory, 16);
  T* const shared = reinterpret_cast<T*>(memory);
  const unsigned t = threadIdx.x;
  const int64_t g = int64_t(blockIdx.x) * blockDim.x + t;
  shared[t] = g < n ? front[g] : Op::identity;
  __syncthreads();
  for (unsigned i = blockDim.x / 2; i != 0; i /= 2) {
    if (t < i) shared[t] = Op::combine(shared[t], shared[t + i]);
    __syncthreads();
  }
  if (t == 0) back[blockIdx.x] = shared[0];
}
template <class Op, class T = typename Op::T> void conflict_free(Call<T>& call) {
  until_one(call, conflict_free_kernel<Op>, call.block, 1, call.block * int(sizeof(T)));
}

// ==== first_on_load: first op on load ====
// Idea:   the half of the block that would only load combines two elements first, and so works.
// Change: half as many blocks, each of twice the elements.
// Source: ROCm reduction tutorial, "Utilize upper half of the block"; Reduction, 4 "First add during load"
// Expect: close to twice as fast: what a block costs is shared by twice the bytes.
// Before: conflict_free
// Blocks: 64 128 256 512 1024
template <class Op, class T = typename Op::T>
__global__ void first_on_load_kernel(const T* front, T* back, int64_t n) {
  TR_DYNAMIC_SHARED(memory, 16);
  T* const shared = reinterpret_cast<T*>(memory);
  const unsigned t = threadIdx.x;
  const int64_t g = 2 * int64_t(blockIdx.x) * blockDim.x + t;
  const auto read = [&](int64_t i) { return i < n ? front[i] : Op::identity; };
  shared[t] = Op::combine(read(g), read(g + blockDim.x));
  __syncthreads();
  for (unsigned i = blockDim.x / 2; i != 0; i /= 2) {
    if (t < i) shared[t] = Op::combine(shared[t], shared[t + i]);
    __syncthreads();
  }
  if (t == 0) back[blockIdx.x] = shared[0];
}
template <class Op, class T = typename Op::T> void first_on_load(Call<T>& call) {
  until_one(call, first_on_load_kernel<Op>, 2 * call.block, 1, call.block * int(sizeof(T)));
}

// ==== last_warp: the last warp without barriers ====
// Idea:   what one warp does needs no barrier of the block: the other warps can go.
// Change: the loop ends at the width of a warp, a constant; from there on one warp goes on, unrolled.
// Source: ROCm reduction tutorial, "Omit superfluous synchronization"; Reduction, 5 "Unroll last warp"
// Expect: six barriers less. The documents lean on lanes in lockstep, which NVIDIA's are not since Volta: here the warp
//         synchronises at each step.
// Before: first_on_load
// Blocks: 64 128 256 512 1024
// Synced: yes
template <class Op, class T = typename Op::T>
__global__ void last_warp_kernel(const T* front, T* back, int64_t n) {
  TR_DYNAMIC_SHARED(memory, 16);
  T* const shared = reinterpret_cast<T*>(memory);
  const unsigned t = threadIdx.x;
  const int64_t g = 2 * int64_t(blockIdx.x) * blockDim.x + t;
  const auto read = [&](int64_t i) { return i < n ? front[i] : Op::identity; };
  shared[t] = Op::combine(read(g), read(g + blockDim.x));
  __syncthreads();
  for (unsigned i = blockDim.x / 2; i > kLanes; i /= 2) {
    if (t < i) shared[t] = Op::combine(shared[t], shared[t + i]);
    __syncthreads();
  }
  if (t >= kLanes) return;
#pragma unroll
  for (unsigned i = kLanes; i != 0; i /= 2) {
    if (t < i) shared[t] = Op::combine(shared[t], shared[t + i]);
    warp_barrier();
  }
  if (t == 0) back[blockIdx.x] = shared[0];
}
template <class Op, class T = typename Op::T> void last_warp(Call<T>& call) {
  until_one(call, last_warp_kernel<Op>, 2 * call.block, 1, call.block * int(sizeof(T)));
}

// ==== unrolled: loops unrolled ====
// Idea:   with the size of the block a constant every loop is unrolled.
// Change: static shared memory, launch bounds, no loop counters.
// Source: ROCm reduction tutorial, "Unroll all loops"
// Expect: fewer instructions and registers: a tenth less time.
// Before: last_warp
// Blocks: 128 256 512
// Synced: yes
template <class Op, int kBlock, class T = typename Op::T>
__global__ void __launch_bounds__(kBlock) unrolled_kernel(const T* front, T* back, int64_t n) {
  __shared__ T shared[kBlock];
  const unsigned t = threadIdx.x;
  const int64_t g = 2 * int64_t(blockIdx.x) * kBlock + t;
  const auto read = [&](int64_t i) { return i < n ? front[i] : Op::identity; };
  shared[t] = Op::combine(read(g), read(g + kBlock));
  __syncthreads();
#pragma unroll
  for (unsigned i = kBlock / 2; i > kLanes; i /= 2) {
    if (t < i) shared[t] = Op::combine(shared[t], shared[t + i]);
    __syncthreads();
  }
  if (t >= kLanes) return;
#pragma unroll
  for (unsigned i = kLanes; i != 0; i /= 2) {
    if (t < i) shared[t] = Op::combine(shared[t], shared[t + i]);
    warp_barrier();
  }
  if (t == 0) back[blockIdx.x] = shared[0];
}
template <class Op, class T = typename Op::T> void unrolled(Call<T>& call) {
  with_constant(call.block, [&](auto threads) {
    constexpr int kBlock = threads;
    until_one(call, unrolled_kernel<Op, kBlock>, 2 * kBlock, 1);
  });
}

// ==== shuffled: shuffles in the last warp ====
// Idea:   lanes of a warp can read each other's registers: the last warp needs no shared memory.
// Change: the last six steps are shuffles.
// Source: ROCm reduction tutorial, "Communicate using warp-collective functions"
// Expect: fewer instructions in the last warp, which is one of many.
// Before: unrolled
// Blocks: 128 256 512
template <class Op, int kBlock, class T = typename Op::T>
__global__ void __launch_bounds__(kBlock) shuffled_kernel(const T* front, T* back, int64_t n) {
  __shared__ T shared[kBlock];
  const unsigned t = threadIdx.x;
  const int64_t g = 2 * int64_t(blockIdx.x) * kBlock + t;
  const auto read = [&](int64_t i) { return i < n ? front[i] : Op::identity; };
  shared[t] = Op::combine(read(g), read(g + kBlock));
  __syncthreads();
#pragma unroll
  for (unsigned i = kBlock / 2; i > kLanes; i /= 2) {
    if (t < i) shared[t] = Op::combine(shared[t], shared[t + i]);
    __syncthreads();
  }
  if (t >= kLanes) return;
  T value = Op::combine(shared[t], shared[t + kLanes]);
#pragma unroll
  for (int d = kLanes / 2; d != 0; d /= 2) value = Op::combine(value, shuffle_down(value, d));
  if (t == 0) back[blockIdx.x] = value;
}
template <class Op, class T = typename Op::T> void shuffled(Call<T>& call) {
  with_constant(call.block, [&](auto threads) {
    constexpr int kBlock = threads;
    until_one(call, shuffled_kernel<Op, kBlock>, 2 * kBlock, 1);
  });
}

// ==== warps_first: warps before shared memory ====
// Idea:   the tree inside out: all warps reduce in registers first, and only their results go through shared memory.
// Change: one barrier instead of one a step; shared memory for one value a warp.
// Source: ROCm reduction tutorial, "Prefer warp communication over shared"
// Expect: less shared memory and fewer barriers. An H200 gains nothing by it: two loads a thread are the limit now.
// Before: shuffled
// Blocks: 128 256 512
template <class Op, int kBlock, class T = typename Op::T>
__global__ void __launch_bounds__(kBlock) warps_first_kernel(const T* front, T* back, int64_t n) {
  constexpr int kWarps = kBlock / kLanes;
  __shared__ T shared[kWarps];
  const unsigned t = threadIdx.x;
  const int64_t g = 2 * int64_t(blockIdx.x) * kBlock + t;
  const auto read = [&](int64_t i) { return i < n ? front[i] : Op::identity; };
  T value = Op::combine(read(g), read(g + kBlock));
  value = reduce_warp<Op>(value);
  if (lane_id() == 0) shared[t / kLanes] = value;
  __syncthreads();
  if (t >= kLanes) return;
  value = reduce_warp<Op>(t < kWarps ? shared[t] : Op::identity);
  if (t == 0) back[blockIdx.x] = value;
}
template <class Op, class T = typename Op::T> void warps_first(Call<T>& call) {
  with_constant(call.block, [&](auto threads) {
    constexpr int kBlock = threads;
    until_one(call, warps_first_kernel<Op, kBlock>, 2 * kBlock, 1);
  });
}

// ==== items: four items by one load ====
// Idea:   what a thread costs is paid once for several elements, which come by one wide load.
// Change: four neighbouring elements a thread, 16 bytes, instead of two that are a block apart.
// Source: ROCm reduction tutorial, "Amortize bookkeeping variable overhead"
// Expect: half the threads, four times the bytes a load: the step that this H200 rewards most.
// Before: warps_first
// Blocks: 128 256 512
template <class Op, int kBlock, class T = typename Op::T>
__global__ void __launch_bounds__(kBlock) items_kernel(const T* front, T* back, int64_t n) {
  constexpr int kWarps = kBlock / kLanes, kItems = 4;
  __shared__ T shared[kWarps];
  const unsigned t = threadIdx.x;
  const int64_t g = kItems * (int64_t(blockIdx.x) * kBlock + t);
  T value = reduce_vector<Op>(load_vector<Op>(front, g, n));
  value = reduce_warp<Op>(value);
  if (lane_id() == 0) shared[t / kLanes] = value;
  __syncthreads();
  if (t >= kLanes) return;
  value = reduce_warp<Op>(t < kWarps ? shared[t] : Op::identity);
  if (t == 0) back[blockIdx.x] = value;
}
template <class Op, class T = typename Op::T> void items(Call<T>& call) {
  with_constant(call.block, [&](auto threads) {
    constexpr int kBlock = threads;
    until_one(call, items_kernel<Op, kBlock>, 4 * kBlock, 1);
  });
}

// ==== two_pass: two passes ====
// Idea:   no more blocks than one block can reduce; they stay, and go over the input together, a grid at a time.
// Change: a loop around the load, and two launches whatever n is.
// Source: ROCm reduction tutorial, "Two-pass reduction"
// Expect: no blocks that come and go, one launch less for a large n.
// Before: items
// Blocks: 128 256 512
template <class Op, int kBlock, class T = typename Op::T>
__global__ void __launch_bounds__(kBlock) two_pass_kernel(const T* front, T* back, int64_t n) {
  constexpr int kWarps = kBlock / kLanes, kItems = 4;
  __shared__ T shared[kWarps];
  const unsigned t = threadIdx.x;
  T value = Op::identity;
  for (int64_t g = kItems * (int64_t(blockIdx.x) * kBlock + t); g < n; g += kItems * int64_t(gridDim.x) * kBlock)
    value = Op::combine(value, reduce_vector<Op>(load_vector<Op>(front, g, n)));
  value = reduce_warp<Op>(value);
  if (lane_id() == 0) shared[t / kLanes] = value;
  __syncthreads();
  if (t >= kLanes) return;
  value = reduce_warp<Op>(t < kWarps ? shared[t] : Op::identity);
  if (t == 0) back[blockIdx.x] = value;
}
template <class Op, class T = typename Op::T> void two_pass(Call<T>& call) {
  with_constant(call.block, [&](auto threads) {
    constexpr int kBlock = threads;
    const int64_t needed = ceil_div(call.n, 4 * kBlock), blocks = needed < 4 * kBlock ? needed : 4 * kBlock;
    call.launch(two_pass_kernel<Op, kBlock>, blocks, kBlock, 0, call.in, call.work, call.n);
    call.launch(two_pass_kernel<Op, kBlock>, 1, kBlock, 0, call.work, call.out, blocks);
  });
}

// clang-format off
#define LADDER_RUNGS(X)                                                                                   \
  X(sequential) X(simple) X(converged) X(shared_memory) X(strided) X(reversed)                            \
  X(halving) X(halving_eight) X(halving_vector) X(halving_block)                                          \
  X(naive) X(less_divergent) X(conflict_free) X(first_on_load) X(last_warp) X(unrolled) X(shuffled)       \
  X(warps_first) X(items) X(two_pass)
// clang-format on
LADDER_ENTRY(reduce, LADDER_RUNGS)
