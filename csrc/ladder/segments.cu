// Reductions by one launch: every block has a segment of the input, and the blocks' results meet in memory, by atomic
// operations or by the last block. ladder.cuh says how to read a rung.
#include "ladder.cuh"

namespace torchreduce::ladder::segments {

template <class Op, class T = typename Op::T>
__global__ void start(T* out) {
  *out = Op::identity;
}

// ==== segmented: atomics join the blocks ====
// Idea:   many blocks, each with a segment; each adds its result to the one result, atomically.
// Change: of `shared_memory`: blocks, and so any n; no launch follows for the blocks' results.
// Source: GPU MODE lecture 9, "Segmented multi-block reduction"
// Expect: blocks arrive in any order: sums of floats differ from run to run.
// Before: shared_memory
// Blocks: 64 128 256 512 1024
template <class Op, class T = typename Op::T>
__global__ void segmented_kernel(const T* in, T* out, int64_t n) {
  TR_DYNAMIC_SHARED(memory, 16);
  T* const data = reinterpret_cast<T*>(memory);
  const unsigned t = threadIdx.x;
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + t;
  data[t] = i < n ? in[i] : Op::identity;
  __syncthreads();
  for (unsigned stride = blockDim.x / 2; stride >= 1; stride /= 2) {
    if (t < stride) data[t] = Op::combine(data[t], data[t + stride]);
    __syncthreads();
  }
  if (t == 0) Op::combine_atomically(out, data[0]);
}
template <class Op, class T = typename Op::T> void segmented(Call<T>& call) {
  const int64_t blocks = ceil_div(call.n, call.block);
  call.launch(start<Op>, 1, 1, 0, call.out);
  call.launch(segmented_kernel<Op>, blocks, call.block, call.block * int(sizeof(T)), call.in, call.out, call.n);
}

// ==== coarsened: two elements a thread ====
// Idea:   a thread takes several elements, a block apart, before it talks to others.
// Change: two elements a thread, so half the blocks, trees and atomic operations.
// Source: GPU MODE lecture 9, "Thread coarsening"
// Expect: close to twice as fast, as `first_on_load` is; still another sum in every run.
// Before: segmented
// Blocks: 64 128 256 512 1024
template <class Op, class T = typename Op::T>
__global__ void coarsened_kernel(const T* in, T* out, int64_t n) {
  constexpr int kFactor = 2;
  TR_DYNAMIC_SHARED(memory, 16);
  T* const data = reinterpret_cast<T*>(memory);
  const unsigned t = threadIdx.x;
  const int64_t i = kFactor * int64_t(blockIdx.x) * blockDim.x + t;
  T total = Op::identity;
  for (int tile = 0; tile < kFactor; ++tile)
    if (i + tile * blockDim.x < n) total = Op::combine(total, in[i + tile * blockDim.x]);
  data[t] = total;
  __syncthreads();
  for (unsigned stride = blockDim.x / 2; stride >= 1; stride /= 2) {
    if (t < stride) data[t] = Op::combine(data[t], data[t + stride]);
    __syncthreads();
  }
  if (t == 0) Op::combine_atomically(out, data[0]);
}
template <class Op, class T = typename Op::T> void coarsened(Call<T>& call) {
  const int64_t blocks = ceil_div(call.n, 2 * call.block);
  call.launch(start<Op>, 1, 1, 0, call.out);
  call.launch(coarsened_kernel<Op>, blocks, call.block, call.block * int(sizeof(T)), call.in, call.out, call.n);
}

// ==== coarsened_blocks: eight, and no atomics ====
// Idea:   a larger factor, and a result a block in a place of its own, for another launch.
// Change: eight elements a thread; no atomic operation.
// Source: Reduction and scan, "reduce_coarsening_gpu"
// Expect: faster again, and the same bits in every run.
// Before: coarsened
// Blocks: 64 128 256 512 1024
template <class Op, class T = typename Op::T>
__global__ void coarsened_blocks_kernel(const T* front, T* back, int64_t n) {
  constexpr int kFactor = 8;
  TR_DYNAMIC_SHARED(memory, 16);
  T* const data = reinterpret_cast<T*>(memory);
  const unsigned t = threadIdx.x;
  const int64_t i = kFactor * int64_t(blockIdx.x) * blockDim.x + t;
  T total = Op::identity;
  for (int tile = 0; tile < kFactor; ++tile)
    if (i + tile * blockDim.x < n) total = Op::combine(total, front[i + tile * blockDim.x]);
  data[t] = total;
  __syncthreads();
  for (unsigned stride = blockDim.x / 2; stride >= 1; stride /= 2) {
    if (t < stride) data[t] = Op::combine(data[t], data[t + stride]);
    __syncthreads();
  }
  if (t == 0) back[blockIdx.x] = data[0];
}
template <class Op, class T = typename Op::T> void coarsened_blocks(Call<T>& call) {
  until_one(call, coarsened_blocks_kernel<Op>, 8 * call.block, 1, call.block * int(sizeof(T)));
}

// ==== ticket: the last block finishes ====
// Idea:   each block draws a ticket when its result is in memory; who draws the last one reduces all results.
// Change: of `two_pass`: the second pass is done by the last block, not by a second launch.
// Source: ours; in place of the ROCm tutorial's "Global data share", which HIP's API does not reach (docs/ladder.md)
// Expect: one launch less, which shows where n is small. Unlike atomic sums the order is fixed: the same bits always.
// Before: two_pass
// Blocks: 128 256 512
template <class Op, int kBlock, class T = typename Op::T>
__global__ void __launch_bounds__(kBlock) ticket_kernel(const T* in, T* out, int64_t n, T* results, uint32_t* tickets) {
  constexpr int kWarps = kBlock / kLanes, kItems = 4;
  __shared__ T shared[kWarps];
  __shared__ bool last;
  const unsigned t = threadIdx.x;
  const auto reduce_block = [&](T value) {  // the result is thread 0's
    value = reduce_warp<Op>(value);
    if (lane_id() == 0) shared[t / kLanes] = value;
    __syncthreads();
    return t < kLanes ? reduce_warp<Op>(t < kWarps ? shared[t] : Op::identity) : value;
  };
  T value = Op::identity;
  for (int64_t g = kItems * (int64_t(blockIdx.x) * kBlock + t); g < n; g += kItems * int64_t(gridDim.x) * kBlock)
    value = Op::combine(value, reduce_vector<Op>(load_vector<Op>(in, g, n)));
  value = reduce_block(value);
  if (t == 0) {
    results[blockIdx.x] = value;
    last = count_arrival(tickets) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  value = Op::identity;
  for (unsigned i = t; i < gridDim.x; i += kBlock) value = Op::combine(value, results[i]);
  value = reduce_block(value);
  if (t == 0) *out = value;
}
template <class Op, class T = typename Op::T> void ticket(Call<T>& call) {
  with_constant(call.block, [&](auto threads) {
    constexpr int kBlock = threads;
    const int64_t needed = ceil_div(call.n, 4 * kBlock), blocks = needed < 4 * kBlock ? needed : 4 * kBlock;
    uint32_t* const tickets = reinterpret_cast<uint32_t*>(call.work + blocks);
    call.clear(tickets, sizeof *tickets);
    call.launch(ticket_kernel<Op, kBlock>, blocks, kBlock, 0, call.in, call.out, call.n, call.work, tickets);
  });
}

// ==== in_flight: eight loads under way ====
// Idea:   memory is as fast as there are loads under way: a thread starts eight before it uses the first.
// Change: the loop takes eight vectors, a grid's width apart, at a time.
// Source: ours: what the documents lack on the way to the top
// Expect: the speed of a plain read, or close.
// Before: ticket
// Blocks: 128 256 512
template <class Op, int kBlock, class T = typename Op::T>
__global__ void __launch_bounds__(kBlock)
    in_flight_kernel(const T* in, T* out, int64_t n, T* results, uint32_t* tickets) {
  constexpr int kWarps = kBlock / kLanes, kItems = 4, kVectors = 8;
  __shared__ T shared[kWarps];
  __shared__ bool last;
  const unsigned t = threadIdx.x;
  const auto reduce_block = [&](T value) {  // the result is thread 0's
    value = reduce_warp<Op>(value);
    if (lane_id() == 0) shared[t / kLanes] = value;
    __syncthreads();
    return t < kLanes ? reduce_warp<Op>(t < kWarps ? shared[t] : Op::identity) : value;
  };
  T value = Op::identity;
  const int64_t width = kItems * int64_t(gridDim.x) * kBlock;
  int64_t g = kItems * (int64_t(blockIdx.x) * kBlock + t);
  for (; g + (kVectors - 1) * width + kItems <= n; g += kVectors * width) {
    Packed<T, kItems> v[kVectors];
#pragma unroll
    for (int k = 0; k < kVectors; ++k) v[k] = load_wide(reinterpret_cast<const Packed<T, kItems>*>(in + g + k * width));
#pragma unroll
    for (int k = 0; k < kVectors; ++k) value = Op::combine(value, reduce_vector<Op>(v[k]));
  }
  for (; g < n; g += width) value = Op::combine(value, reduce_vector<Op>(load_vector<Op>(in, g, n)));
  value = reduce_block(value);
  if (t == 0) {
    results[blockIdx.x] = value;
    last = count_arrival(tickets) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  value = Op::identity;
  for (unsigned i = t; i < gridDim.x; i += kBlock) value = Op::combine(value, results[i]);
  value = reduce_block(value);
  if (t == 0) *out = value;
}
template <class Op, class T = typename Op::T> void in_flight(Call<T>& call) {
  with_constant(call.block, [&](auto threads) {
    constexpr int kBlock = threads;
    const int64_t needed = ceil_div(call.n, 4 * kBlock), blocks = needed < 4 * kBlock ? needed : 4 * kBlock;
    uint32_t* const tickets = reinterpret_cast<uint32_t*>(call.work + blocks);
    call.clear(tickets, sizeof *tickets);
    call.launch(in_flight_kernel<Op, kBlock>, blocks, kBlock, 0, call.in, call.out, call.n, call.work, tickets);
  });
}

#define LADDER_RUNGS(X) X(segmented) X(coarsened) X(coarsened_blocks) X(ticket) X(in_flight)
LADDER_ENTRY(segments, LADDER_RUNGS)
