// Scans: result i combines the elements up to i (inclusive) or before it (exclusive). ladder.cuh says how to read a
// rung.
#include "ladder.cuh"

namespace torchreduce::ladder::scan {

// Where a document's scan ends at one block: each block scans its part and writes its total; the exclusive scan of the
// totals, by the same kernel, says what precedes each block; and a third launch adds that.
template <class Op, class T = typename Op::T>
__global__ void add_carries(T* out, const T* carries, int64_t n, int part) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) out[i] = Op::combine(carries[i / part], out[i]);
}
// Launches kernel(in, out, totals, n, exclusive), which scans `part` elements a block.
template <class Op, class T, class Kernel>
void with_block_sums(Call<T>& call, Kernel kernel, int part, int shared, const T* in, T* out, T* work, int64_t n,
                     bool exclusive) {
  const int64_t blocks = ceil_div(n, part);
  T *const totals = work, *const carries = totals + whole_vectors(blocks),
           *const rest = carries + whole_vectors(blocks);
  call.launch(kernel, blocks, call.block, shared, in, out, totals, n, exclusive);
  if (blocks == 1) return;
  with_block_sums<Op>(call, kernel, part, shared, totals, carries, rest, blocks, true);
  call.launch(add_carries<Op>, ceil_div(n, call.block), call.block, 0, out, carries, n, part);
}

// ==== scan_sequential: one thread ====
// Idea:   one thread walks over all elements and writes what it has so far.
// Change: the starting point, and the definition of what all others have to compute.
// Source: Reduction and scan, "scan_cpu"
// Expect: a thousandth of the memory's speed and less.
// Limit:  4194304 elements: patience
// Blocks: 1
template <class Op, class T = typename Op::T>
__global__ void scan_sequential_kernel(const T* in, T* out, int64_t n, bool exclusive) {
  T total = Op::identity;
  for (int64_t i = 0; i < n; ++i) {
    const T before = total;
    total = Op::combine(total, in[i]);
    out[i] = exclusive ? before : total;
  }
}
template <class Op, class T = typename Op::T> void scan_sequential(Call<T>& call) {
  call.launch(scan_sequential_kernel<Op>, 1, 1, 0, call.in, call.out, call.n, call.exclusive);
}

// ==== scan_naive: a thread a result, n^2 ====
// Idea:   a thread for each result, which walks over all that precedes it.
// Change: n threads instead of one, and n^2 / 2 operations instead of n.
// Source: Reduction and scan, "naive_scan_gpu"
// Expect: full use of the GPU for nothing: past some 4 * 10^5 elements one thread is as fast.
// Before: scan_sequential
// Limit:  262144 elements: n^2
// Blocks: 64 128 256 512 1024
template <class Op, class T = typename Op::T>
__global__ void scan_naive_kernel(const T* in, T* out, int64_t n, bool exclusive) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int64_t end = exclusive ? i : i + 1;
  T total = Op::identity;
  for (int64_t j = 0; j < end; ++j) total = Op::combine(total, in[j]);
  out[i] = total;
}
template <class Op, class T = typename Op::T> void scan_naive(Call<T>& call) {
  call.launch(scan_naive_kernel<Op>, ceil_div(call.n, call.block), call.block, 0, call.in, call.out, call.n,
              call.exclusive);
}

// ==== kogge_stone: Kogge-Stone, two barriers a step ====
// Idea:   at step k every thread adds what stands 2^k places before: log2(block) steps for all results at once.
// Change: n log(block) operations instead of n^2. Exclusive: the input is read one place further left.
// Source: Reduction and scan, "Kogge-Stone", with two barriers a step
// Expect: one barrier after the reads, one after the writes, of each step. Blocks are joined by three launches, for
//         which the results go through memory twice.
// Before: scan_naive
// Blocks: 64 128 256 512 1024
template <class Op, class T = typename Op::T>
__global__ void kogge_stone_kernel(const T* in, T* out, T* totals, int64_t n, bool exclusive) {
  TR_DYNAMIC_SHARED(memory, 16);
  T* const shared = reinterpret_cast<T*>(memory);
  const unsigned t = threadIdx.x;
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + t, from = i - exclusive;
  shared[t] = from >= 0 && from < n ? in[from] : Op::identity;
  for (unsigned stride = 1; stride < blockDim.x; stride *= 2) {
    __syncthreads();
    const T sum = t >= stride ? Op::combine(shared[t - stride], shared[t]) : shared[t];
    __syncthreads();
    shared[t] = sum;
  }
  if (i < n) out[i] = shared[t];
  if (t == blockDim.x - 1) totals[blockIdx.x] = shared[t];
}
template <class Op, class T = typename Op::T> void kogge_stone(Call<T>& call) {
  with_block_sums<Op>(call, kogge_stone_kernel<Op>, call.block, call.block * int(sizeof(T)), call.in, call.out,
                      call.work, call.n, call.exclusive);
}

// ==== double_buffered: Kogge-Stone, double buffer ====
// Idea:   a step reads one half of shared memory and writes the other, so that no one overwrites what another reads.
// Change: twice the shared memory, one barrier a step.
// Source: Reduction and scan, Kogge-Stone with "double buffering"
// Expect: half the barriers, a copy a step for those who only keep what they have; an H200 gains nothing by it.
// Before: kogge_stone
// Blocks: 64 128 256 512 1024
template <class Op, class T = typename Op::T>
__global__ void double_buffered_kernel(const T* in, T* out, T* totals, int64_t n, bool exclusive) {
  TR_DYNAMIC_SHARED(memory, 16);
  T *read = reinterpret_cast<T*>(memory), *write = read + blockDim.x;
  const unsigned t = threadIdx.x;
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + t, from = i - exclusive;
  read[t] = from >= 0 && from < n ? in[from] : Op::identity;
  for (unsigned stride = 1; stride < blockDim.x; stride *= 2) {
    __syncthreads();
    write[t] = t >= stride ? Op::combine(read[t - stride], read[t]) : read[t];
    T* const written = write;
    write = read;
    read = written;
  }
  if (i < n) out[i] = read[t];
  if (t == blockDim.x - 1) totals[blockIdx.x] = read[t];
}
template <class Op, class T = typename Op::T> void double_buffered(Call<T>& call) {
  with_block_sums<Op>(call, double_buffered_kernel<Op>, call.block, 2 * call.block * int(sizeof(T)), call.in, call.out,
                      call.work, call.n, call.exclusive);
}

// ==== sklansky: Sklansky by shuffles ====
// Idea:   warps scan in registers, by shuffles; then one warp scans the warps' totals.
// Change: shared memory for one value a warp, two barriers in all. Half of the lanes work at a step, on a shared left.
// Source: ours: what the documents lack on the way to the top
// Expect: a fifth less time. The results still go through memory twice.
// Before: double_buffered
// Blocks: 64 128 256 512 1024
template <class Op, class T = typename Op::T>
__global__ void sklansky_kernel(const T* in, T* out, T* totals, int64_t n, bool exclusive) {
  __shared__ T shared[kLanes];
  const unsigned t = threadIdx.x, warp = t / kLanes;
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + t, from = i - exclusive;
  T value = scan_warp<Op>(from >= 0 && from < n ? in[from] : Op::identity);
  if (lane_id() == kLanes - 1) shared[warp] = value;
  __syncthreads();
  if (warp == 0) {
    const T sum = scan_warp<Op>(t < blockDim.x / kLanes ? shared[t] : Op::identity);
    shared[t] = sum;
  }
  __syncthreads();
  if (warp > 0) value = Op::combine(shared[warp - 1], value);
  if (i < n) out[i] = value;
  if (t == blockDim.x - 1) totals[blockIdx.x] = value;
}
template <class Op, class T = typename Op::T> void sklansky(Call<T>& call) {
  with_block_sums<Op>(call, sklansky_kernel<Op>, call.block, 0, call.in, call.out, call.work, call.n, call.exclusive);
}

// ==== scan_items: sixteen items a thread ====
// Idea:   sixteen elements a thread, in four vectors, so that a shuffle serves four elements.
// Change: a warp scans four rows of 128 elements, one after the other, with a carry.
// Source: ours
// Expect: a sixteenth of the blocks; the second and third launch are as before.
// Before: sklansky
// Blocks: 128 256 512
template <class Op, int kBlock, class T = typename Op::T> struct Part {
  static constexpr int kWarps = kBlock / kLanes, kRows = 4, kRow = 4 * kLanes;
  const int warp = int(threadIdx.x) / kLanes, lane = lane_id();
  int64_t first;                  // this lane's first element
  Packed<T, 4> v[kRows];          // its elements
  T before[kRows], carry, total;  // what precedes them in the warp's part; the warp's part; of this and all before it

  __device__ Part(const T* in, int64_t block, int64_t n, T* shared)
      : first((block * kWarps + warp) * kRows * kRow + 4 * lane), carry(Op::identity), total(Op::identity) {
    for (int k = 0; k < kRows; ++k) v[k] = load_vector<Op>(in, first + k * kRow, n);
    for (int k = 0; k < kRows; ++k) {
      const T upto = scan_warp<Op>(reduce_vector<Op>(v[k])), left = shuffle(upto, lane > 0 ? lane - 1 : 0);
      before[k] = lane > 0 ? Op::combine(total, left) : total;
      total = Op::combine(total, shuffle(upto, kLanes - 1));
    }
    if (lane == 0) shared[warp] = total;
    __syncthreads();
    for (int w = 0; w < warp; ++w) carry = Op::combine(carry, shared[w]);
    total = Op::combine(carry, total);
  }
  __device__ void store(T* out, int64_t n, bool exclusive, T preceding) {
    for (int k = 0; k < kRows; ++k) {
      T sum = Op::combine(preceding, Op::combine(carry, before[k]));
      for (int j = 0; j < 4; ++j) {
        const T next = Op::combine(sum, v[k].item[j]);
        v[k].item[j] = exclusive ? sum : next;
        sum = next;
      }
      store_vector(out, first + k * kRow, n, v[k]);
    }
  }
};
template <class Op, int kBlock, class T = typename Op::T>
__global__ void __launch_bounds__(kBlock) scan_items_kernel(const T* in, T* out, T* totals, int64_t n, bool exclusive) {
  __shared__ T shared[kBlock / kLanes];
  Part<Op, kBlock> part(in, blockIdx.x, n, shared);
  if (threadIdx.x == kBlock - 1) totals[blockIdx.x] = part.total;
  part.store(out, n, exclusive, Op::identity);
}
template <class Op, class T = typename Op::T> void scan_items(Call<T>& call) {
  with_constant(call.block, [&](auto threads) {
    constexpr int kBlock = threads;
    with_block_sums<Op>(call, scan_items_kernel<Op, kBlock>, 16 * kBlock, 0, call.in, call.out, call.work, call.n,
                        call.exclusive);
  });
}

// ==== look_back: decoupled look-back ====
// Idea:   a block publishes its total, then looks back over what its predecessors have published, until one of them
//         says what precedes it, too: so every element is read once and written once.
// Change: one launch, blocks in the order of tickets, a word a block: a value and a flag. No second or third pass.
// Source: ours; Merrill and Garland, "Single-pass parallel prefix scan with decoupled look-back"
// Expect: most of CUB's speed. How far a block looks back, and so how floats are paired, differs from run to run.
// Before: scan_items
// Blocks: 128 256 512
template <class Op, class T = typename Op::T> __device__ T look_back_from(uint64_t* words, int64_t block, T total) {
  const auto word_of = [](uint64_t flag, T value) { return flag << 32 | bit_cast_words<uint32_t>(value); };
  if (lane_id() == 0 && block > 0) store_relaxed(&words[block], word_of(1, total));  // of this block
  T sum = Op::identity;
  bool whole = block == 0;
  for (int64_t nearest = block - 1; !whole; nearest -= kLanes) {
    const int64_t mine = nearest - lane_id();
    uint64_t word = word_of(2, Op::identity);  // before the first block
    while (true) {
      if (mine >= 0) word = load_relaxed(&words[mine]);
      if (!ballot(word >> 32 == 0)) break;
      back_off();
    }
    const uint32_t wholes = ballot(word >> 32 == 2);
    const bool beyond = wholes && lane_id() >= __ffs(int(wholes));  // of the nearest that has all
    const T value = beyond ? Op::identity : bit_cast_words<T>(uint32_t(word));
    sum = Op::combine(shuffle(reduce_warp<Op>(value), 0), sum);
    whole = wholes != 0;
  }
  if (lane_id() == 0) store_relaxed(&words[block], word_of(2, Op::combine(sum, total)));  // of all up to this block
  return sum;
}
template <class Op, int kBlock, class T = typename Op::T>
__global__ void __launch_bounds__(kBlock)
    look_back_kernel(const T* in, T* out, uint64_t* words, int64_t n, bool exclusive, uint64_t* tickets) {
  __shared__ T shared[kBlock / kLanes], preceding;
  __shared__ int64_t block;
  if (threadIdx.x == 0) block = int64_t(take_ticket(tickets));
  __syncthreads();
  Part<Op, kBlock> part(in, block, n, shared);
  if (threadIdx.x >= kBlock - kLanes) {
    const T sum = look_back_from<Op>(words, block, part.total);
    if (part.lane == 0) preceding = sum;
  }
  __syncthreads();
  part.store(out, n, exclusive, preceding);
}
template <class Op, class T = typename Op::T> void look_back(Call<T>& call) {
  with_constant(call.block, [&](auto threads) {
    constexpr int kBlock = threads;
    const int64_t blocks = ceil_div(call.n, 16 * kBlock);
    uint64_t* const words = reinterpret_cast<uint64_t*>(call.work);
    call.clear(words, (blocks + 1) * int64_t(sizeof *words));
    call.launch(look_back_kernel<Op, kBlock>, blocks, kBlock, 0, call.in, call.out, words, call.n, call.exclusive,
                words + blocks);
  });
}

#define LADDER_RUNGS(X) \
  X(scan_sequential) X(scan_naive) X(kogge_stone) X(double_buffered) X(sklansky) X(scan_items) X(look_back)
LADDER_ENTRY(scan, LADDER_RUNGS)
