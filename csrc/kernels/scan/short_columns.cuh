// Scans along columns of at most two tiles: the smallest stride belongs to a kept dim, so neighbouring lanes read
// neighbouring elements of different rows ("columns"). A block takes all positions of some neighbouring columns at a
// time, and stays: the elements of the next two jobs are on their way to shared memory, where each thread has places of
// its own, while it scans one. shape.lanes threads a tile have a group of V columns each, and shape.across of them lie
// side by side; what precedes a group they find from the totals of all, in shared memory too.
#pragma once
#include "column_jobs.cuh"
#include "short_columns.h"

namespace torchreduce::gpu {

// Whether the kernel is also compiled for several neighbouring columns a thread.
template <class S, class Load, class Store> constexpr bool kColumnVectors = [] {
  if constexpr (kInPlace<S, Load, Store>)
    return column_vector(sizeof(typename Load::Element), sizeof(typename S::Acc)) * int(sizeof(typename S::Acc)) <=
           kColumnAccs;
  else return false;
}();

// Threads of a block, at most.
template <class S, class Load, int V> constexpr int kColumnThreads = [] {
  constexpr int kMost = column_threads(V, sizeof(typename Load::Element), sizeof(typename S::Acc));
#if defined(TR_LARGE_BLOCKS)
  return kMost;
#else
  return kMost < kSmallBlock ? kMost : kSmallBlock;
#endif
}();

// Where a block's columns begin: their elements, those of the second of two inputs, and their results.
struct ShortColumns {
  int64_t row, in, a, out;  // row: the first column, of all
  int width;                // columns; 0: there are none, and no others come
};

template <class S, class Load, class Store, int V> struct ShortBlock {
  using Acc = typename S::Acc;
  using E = typename Load::Element;
  using P = Packed<E, V>;
  static constexpr int kAhead = 2, kStages = kColumnStages, kJobs = kAhead + 2;  // kAhead: jobs on their way
  static constexpr int kC = V > 1 && V * sizeof(Acc) > 16 ? 16 / int(sizeof(Acc)) : V,
                       kParts = V / kC;  // of a thread's totals
  struct alignas(kC * sizeof(Acc) % 16 == 0 ? 16 : kC * sizeof(Acc) % 8 == 0 ? 8 : 4) Totals { Acc item[kC]; };
  static constexpr int kSize = sizeof(E) / S::kInputs, kPart = V * kSize,  // of an input's element, or V neighbours
      kPartWords = kPart < 4 ? 1 : kPart / 4;
  using Words = Packed<uint32_t, kPartWords>;  // V neighbours
  static constexpr bool kAsync = Load::kWidth > 1 && !kSmallInts<Load> && (kPart == 4 || kPart == 8 || kPart == 16);
  // Columns that are taken together: one, or where they make whole words those of a word.
  static constexpr int kCell = V > 1 && sizeof(E) < 4 ? 4 / int(sizeof(E)) : 1, kCells = V / kCell;
  static constexpr int kCellWords = kPartWords / kCells;
  // A thread's elements of a job: as they are, or as words, some neighbouring columns at a time.
  using Staged = std::conditional_t<(V > 1), Words, E>;

  const ScanCall& call;
  const S op;
  const ScanStride stride;
  const int n, X, Y, U;         // positions; threads side by side, and of a column and tile; tiles
  const int pitch, part, size;  // of the totals
#if defined(TR_LARGE_BLOCKS)
  static constexpr int kPitch = kColumnThreads<S, Load, V>;  // of positions in shared memory
#else
  const int kPitch;  // where there is less of it
#endif
  // This thread's tile, and its columns and group in memory; the columns and group whose total it takes, along a
  // column.
  const int k, x, y, column, group;
  const int first;        // position
  P* const elements;      // [stage][position of the group][thread]: each thread's own
  Totals* const totals;   // [part][tile][group][x]
  Acc* const first_tile;  // of each column the total, of two tiles
  ShortColumns* const jobs;
  int64_t width, strips, count_of_jobs;
  double strip_share;
  E held[kGroup];  // where elements are too small to be copied: those of the last job on its way

  __device__ __forceinline__ ShortBlock(const ScanCall& call, const scans::ShortColumnsShape& shape, char* shared,
                                        ShortColumns* jobs)
      : call(call),
        op{call.options},
        stride(scan_stride(call.layout)),
        n(int(call.layout.length)),
        X(shape.across),
        Y(shape.lanes),
        U(shape.tiles),
        pitch(X + 1),
        part(Y * pitch),
        size(U * part),
#if !defined(TR_LARGE_BLOCKS)
        kPitch(X * Y * U),
#endif
        k(int(threadIdx.x) / (X * Y)),
        x(int(threadIdx.x) % X),
        y(int(threadIdx.x) / X % Y),
        column(int(threadIdx.x) / Y % X),
        group(int(threadIdx.x) % Y),
        first(k * kTile + y * kGroup),
        elements(reinterpret_cast<P*>(shared)),
        totals(reinterpret_cast<Totals*>(elements + kStages * kGroup * kPitch)),
        first_tile(reinterpret_cast<Acc*>(totals + kParts * size)),
        jobs(jobs) {
    const Layout& layout = call.layout;
    width = columns_beside(layout);
    strips = (width + X * V - 1) / (X * V);
    count_of_jobs = layout.rows / width * strips;
    strip_share = 1 / double(strips);
  }
  // From a job's first element to this thread's.
  __device__ __forceinline__ int64_t offset(int64_t along, const int64_t (&strides)[kMaxDims]) const {
    return recomputed(first) * along + int64_t(recomputed(x)) * V * beside(call.layout, strides);
  }
  __device__ __forceinline__ void put_job(int it) const {
    const Layout& layout = call.layout;
    ShortColumns j{};
    const int64_t turn = blockIdx.x + int64_t(it) * gridDim.x;
    if (turn < count_of_jobs) {
      const int64_t batch = strips == 1 ? turn : quotient(turn, strips, strip_share),
                    from = (turn - batch * strips) * (X * V), rest = width - from;
      const RowStart start = row_start(layout, batch, layout.kept - 1);
      j.width = int(rest < X * V ? rest : X * V);
      j.row = batch * width + from;
      j.in = start.in + from * beside(layout, layout.in);
      j.out = start.out + from * beside(layout, layout.out);
      if constexpr (is_pair<Load>) j.a = row_offset(layout, call.more_strides[0], j.row);
    }
    jobs[it % kJobs] = j;
  }
  __device__ __forceinline__ P* stage_of(int it) const {
    return elements + recomputed(it) % kStages * (kGroup * kPitch) + threadIdx.x;
  }
  // Positions of this thread's group that are there.
  __device__ __forceinline__ int count_of(const ShortColumns& j) const {
    const int left = n - first;
    return x * V >= j.width || left <= 0 ? 0 : left < kGroup ? left : kGroup;
  }

  __device__ __forceinline__ int64_t a_stride() const {
    return is_pair<Load> && call.layout.reduced ? call.more_strides[0][call.layout.kept] : 0;
  }
  // Where this thread's elements of a job begin: of the second of two inputs, of any other one.
  __device__ __forceinline__ int64_t a_of(const ShortColumns& j) const {
    return j.a + offset(a_stride(), call.more_strides[0]);
  }
  __device__ __forceinline__ int64_t in_of(const ShortColumns& j) const {
    return j.in + offset(stride.in, call.layout.in);
  }
  // Starts to load the elements of a job.
  __device__ __forceinline__ void load(int it) {
    const ShortColumns& j = jobs[it % kJobs];
    P* const own = stage_of(it);
    const int count = count_of(j);
    if constexpr (kAsync) {
      static_assert(kPart == sizeof(P) || V == 1, "vectors are of one input");
#pragma unroll
      for (int input = 0; input < S::kInputs; ++input) copy(j, input, count, reinterpret_cast<char*>(own));
    } else if constexpr (Load::kWidth > 1) {
      static_assert(V == 1, "vectors are copied");
      P* const before = stage_of(it + kStages - 1);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) before[i * kPitch].item[0] = held[i];
      if constexpr (is_pair<Load>) Load::run(call, in_of(j), a_of(j), first, count, held);
      else Load::run(call.in, in_of(j), stride.in, count, held);
    } else if (count) {  // elements of any type
      E items[kGroup];
      Load::run(call.in, in_of(j), stride.in, count, items);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) own[i * kPitch].item[0] = items[i];
    }
    end_copies();
  }
  // Starts to copy those of one input.
  __device__ __forceinline__ void copy(const ShortColumns& j, int input, int count, char* own) const {
    const bool a = is_pair<Load> && input == 1;
    const int member = is_pair<Load> ? 1 - input : input;
    int64_t step = (a ? a_stride() : stride.in) * kSize;
    const char* from =
        static_cast<const char*>(input ? call.in.more[input - 1] : call.in.data) + (a ? a_of(j) : in_of(j)) * kSize;
    char* const to = own + member * kSize;
    bool all = count == kGroup;
    int i = 0;
    if constexpr (is_pair<Load>)
      if (a && !Load::has_a(call, first)) {
        all = false;
        i = 1;
      }
    if (all) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        copy_async<kPart>(to + i * kPitch * int(sizeof(P)), from);
        from += step = recomputed(step);
      }
    } else {
#pragma unroll 1
      for (; i < count; ++i) copy_async<kPart>(to + i * kPitch * int(sizeof(P)), from + i * step);
    }
  }
  __device__ __forceinline__ void read(int it, Staged (&staged)[kGroup]) const {
    const auto* const from = reinterpret_cast<const Staged*>(stage_of(it));
#pragma unroll
    for (int i = 0; i < kGroup; ++i) staged[i] = from[i * kPitch];
  }
  // The items of the group in column v of `cell`, of which `count` are there, or all, and its total.
  template <class Whole>
  __device__ __forceinline__ Acc form(Whole whole, const Staged (&staged)[kGroup], int cell, int v, int count,
                                      typename S::Item (&items)[kGroup]) const {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      E side[kCell];
      if constexpr (V > 1) {
        uint32_t words[kCellWords];
#pragma unroll
        for (int w = 0; w < kCellWords; ++w) words[w] = staged[i].item[cell * kCellWords + w];
        unpack(words, side);
      } else {
        side[0] = staged[i];
      }
      items[i] = whole || i < count ? op.load(side[v], first + i) : S::absent_item();
    }
    return S::group(items);
  }
  // This thread's place among the totals.
  __device__ __forceinline__ Totals* own_totals() const {
    return totals + recomputed(k) * part + recomputed(y) * pitch + recomputed(x);
  }

  // The totals of a job's groups.
  __device__ __forceinline__ void sum(int it, int count) const {
    Totals* const own = own_totals();
    Staged staged[kGroup];
    read(it, staged);
    Totals t[kParts];
    auto sum_all = [&](auto whole) {
#pragma unroll
      for (int c = 0; c < V; ++c) {
        typename S::Item items[kGroup];
        t[c / kC].item[c % kC] = form(whole, staged, c / kCell, c % kCell, count, items);
      }
    };
    if (count == kGroup) sum_all(std::true_type());
    else sum_all(std::false_type());
#pragma unroll
    for (int p = 0; p < kParts; ++p) own[p * size] = t[p];
  }
  // What precedes each group in its tile takes the place of its total.
  __device__ __forceinline__ void scan() const {
    Totals* mine = totals + recomputed(k) * part + group * pitch + recomputed(column);
#pragma unroll
    for (int p = 0; p < kParts; ++p, mine += size) {
      Totals upto = *mine, exclusive;
      sklansky<S>(upto.item, lane_id(), Y);
#pragma unroll
      for (int v = 0; v < kC; ++v) {
        if (U > 1 && k == 0 && group == Y - 1) first_tile[recomputed(column) * V + p * kC + v] = upto.item[v];
        const Acc lower = shuffle(upto.item[v], group ? lane_id() - 1 : lane_id());
        exclusive.item[v] = group ? lower : S::absent();
      }
      *mine = exclusive;
    }
  }
  // What precedes this thread's group in column c.
  __device__ __forceinline__ typename S::Prefix prefix(const ShortColumns& job, int c) const {
    const Acc within = own_totals()[c / kC * size].item[c % kC],
              tiles = recomputed(k) ? first_tile[recomputed(x) * V + c] : S::absent();
    return S::prefix(row_carry<S, Load>(call, job.row + recomputed(x) * V + c), S::combine(tiles, within));
  }
  // Forms and stores the results of a job's group, of which `count` positions are there.
  __device__ __forceinline__ void store(int it, const ShortColumns& job, int count) const {
    const int shift = call.exclusive ? 1 : 0, last_one = n - first - shift,
              stored = count < last_one ? count : last_one;
    const bool begins = shift && first == 0;  // with what an exclusive scan starts from
    const int64_t to = job.out + offset(stride.out, call.layout.out) + shift * stride.out;
    auto results = [&](auto whole) {
      Staged staged[kGroup];
      read(it, staged);
#pragma unroll
      for (int cell = 0; cell < kCells; ++cell) {
        typename S::Result r[kCell][kGroup];
        typename S::Item items[kCell][kGroup];
#pragma unroll
        for (int v = 0; v < kCell; ++v) form(whole, staged, cell, v, count, items[v]);
#pragma unroll
        for (int v = 0; v < kCell; ++v) op.results(prefix(job, cell * kCell + v), items[v], r[v]);
        if constexpr (V > 1) {
          round_columns<E, S>(r, staged, cell * kCellWords);
        } else {
          if (begins) Store::one(call, to - stride.out, start_of<S>());
#pragma unroll
          for (int i = 0; i < kGroup; ++i)
            if (whole || i < stored) Store::one(call, to + i * stride.out, r[0][i]);
        }
      }
      if constexpr (V > 1) store_vectors(whole, to, staged, stored, begins);
    };
    if (stored == kGroup) results(std::true_type());
    else results(std::false_type());
  }
  template <class Whole>
  __device__ __forceinline__ void store_vectors(Whole whole, int64_t to, const Staged (&staged)[kGroup], int stored,
                                                bool begins) const {
    E* p = static_cast<E*>(call.out.values) + to;
    int64_t step = stride.out;
    if (begins) {
      P begin;
#pragma unroll
      for (int v = 0; v < V; ++v) begin.item[v] = round_to<E>(start_of<S>());
      store_wide(reinterpret_cast<P*>(p - step), begin);
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (whole || i < stored) store_granule(reinterpret_cast<Words*>(p), staged[i]);
      p += step = recomputed(step);
    }
  }
};

template <class S, class Load, class Store, int V>
__global__ void TR_BLOCKS_BOUND((kColumnThreads<S, Load, V>),
                                column_blocks(kColumnThreads<S, Load, V>, sizeof(typename S::Acc)))
    scan_short_columns(TR_GRID_CONSTANT ScanCall call, TR_GRID_CONSTANT scans::ShortColumnsShape shape) {
  using Block = ShortBlock<S, Load, Store, V>;
  // Aligned to sectors of memory: where they are not, each is copied in two halves, and read twice for that.
  TR_DYNAMIC_SHARED(shared, 128);
  __shared__ ShortColumns jobs[Block::kJobs];
  Block block(call, shape, shared, jobs);
  if (threadIdx.x == 0)
#pragma unroll 1
    for (int it = 0; it <= Block::kAhead; ++it) block.put_job(it);
  __syncthreads();
  for (int it = 0; it < Block::kAhead; ++it) block.load(it);
  for (int it = 0; jobs[it % Block::kJobs].width; ++it) {
    const ShortColumns& job = jobs[it % Block::kJobs];
    const int count = block.count_of(job);
    wait_copies<Block::kAhead - 1>();
    block.load(it + Block::kAhead);
    block.sum(it, count);
    __syncthreads();
    if (threadIdx.x == 0) block.put_job(it + Block::kAhead + 1);
    block.scan();
    __syncthreads();
    if (count > 0) block.store(it, job, count);
  }
}

}  // namespace torchreduce::gpu
