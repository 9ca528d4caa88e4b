// What kernels of columns share. What precedes a tile of a column is formed from what earlier tiles published: by a few
// lanes for each column, which look at all the totals of a block tile together.
#pragma once
#include "chain.cuh"

namespace torchreduce::gpu {

// a / b for 0 <= a < 2^52, given about 1 / b: a division of 64-bit integers takes a microsecond.
__device__ __forceinline__ int64_t quotient(int64_t a, int64_t b, double share) {
  int64_t q = int64_t(double(a) * share);
  const int64_t rest = a - q * b;
  if (rest < 0) --q;
  if (rest >= b) ++q;
  return q;
}

// What strides along the columns of a row are, 0 where columns do not lie side by side.
__device__ __forceinline__ int64_t beside(const Layout& layout, const int64_t (&strides)[kMaxDims]) {
  return layout.kept > 0 ? strides[layout.kept - 1] : 0;
}
__device__ __forceinline__ int64_t columns_beside(const Layout& layout) {
  return layout.kept > 0 ? layout.size[layout.kept - 1] : 1;
}

// A part of some neighbouring columns: `unit` of those that a column is cut into.
struct ColumnJob {
  int64_t batch, first, unit, in, out;  // first: column; in, out: of its first element
  int width;                            // columns
};
// Number `ticket` of the parts of `columns` columns and `positions` positions, of which a column has `units`: all of a
// unit before those of the next one.
__device__ __forceinline__ ColumnJob column_job(const Layout& layout, int64_t ticket, int64_t units, int64_t positions,
                                                int64_t columns) {
  const ScanStride stride = scan_stride(layout);
  const int64_t width = columns_beside(layout), strips = (width + columns - 1) / columns;
  const int64_t rest = ticket / strips, first = (ticket - rest * strips) * columns;
  const int64_t batch = rest / units, unit = rest - batch * units, position = unit * positions;
  const RowStart start = row_start(layout, batch, layout.kept - 1);
  return {batch,
          first,
          unit,
          start.in + position * stride.in + first * beside(layout, layout.in),
          start.out + position * stride.out + first * beside(layout, layout.out),
          int(width - first < columns ? width - first : columns)};
}

// Results of scan S in some neighbouring columns, which together are whole words, rounded once each, as words: position
// by position.
template <class T, class S, int N, int W, class Result>
__device__ __forceinline__ void round_columns(const Result (&r)[N][kGroup], Packed<uint32_t, W> (&words)[kGroup],
                                              int word) {
  if constexpr (kLooksForNan<T, Result>) {
    bool nan = false;
#pragma unroll
    for (int v = 0; v < N; ++v) nan = nan || has_nan<S>(r[v]);
    if (!nan) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        words[i].item[word] = sizeof(T) == 4 ? bit_cast<uint32_t>(r[0][i]) : round_pair<T>(r[0][i], r[N - 1][i]);
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    T side[N];
#pragma unroll
    for (int v = 0; v < N; ++v) side[v] = round_to<T>(r[v][i]);
    memcpy(&words[i].item[word], side, sizeof side);
  }
}

// The workspace, all zero before the launch: a ticket; for each batch, and in it for each tile or block tile, the
// values of all rows (columns of memory), which are looked at side by side.
template <class S> struct ColumnSpace {
  int64_t width, units;                       // rows of a batch; tiles of a row
  Published<typename S::Acc>*tiles, *blocks;  // totals
  Published<typename S::Wide>* carries;       // what precedes the block tile after this one

  __device__ ColumnSpace(void* workspace, int64_t rows, int64_t width, int64_t units) : width(width), units(units) {
    tiles = reinterpret_cast<Published<typename S::Acc>*>(static_cast<uint64_t*>(workspace) + 1);
    blocks = tiles + rows * units;
    carries = reinterpret_cast<Published<typename S::Wide>*>(blocks + rows * block_tiles());
  }
  __device__ int64_t block_tiles() const { return (units + kFan - 1) / kFan; }  // of a row
  __device__ Published<typename S::Acc>* tile(int64_t batch, int64_t tile, int64_t row) const {
    return tiles + ((batch * units + tile) * width + row);
  }
  __device__ Published<typename S::Acc>* block(int64_t batch, int64_t block, int64_t row) const {
    return blocks + ((batch * block_tiles() + block) * width + row);
  }
  __device__ Published<typename S::Wide>* carry(int64_t batch, int64_t block, int64_t row) const {
    return carries + ((batch * block_tiles() + block) * width + row);
  }
};

// What with(join) forms of `values` by joins: `results`, of which each is of the values up to its place, or a single
// one of all. Without choices where the scan has such a way and all values allow it.
template <class S, class V, int M, class With, int N>
__device__ __forceinline__ void join_calmly(const V (&values)[M], With with, V (&results)[N]) {
  if constexpr (kHasCalm<S, V>) {
    with([](const auto& l, const auto& r) { return S::calm_join(l, r); });
    bool calm = true;
    if constexpr (S::kInputs == 1) {
      calm = S::is_calm(results[N - 1]);  // zeros, infinities and NaN, which are not calm, stay so
    } else {
      bool reset = false;
#pragma unroll
      for (int i = 0; i < M; ++i) {
        calm &= S::is_calm(values[i]);
        reset |= S::is_reset(values[i]);
        if (N == M) calm &= S::is_settled(results[i], reset);
        else calm &= S::is_settled(values[i], true);  // a join of others might drop it where combine does not
      }
      if (N < M) calm &= S::is_settled(results[0], reset);
    }
    if (calm) {
#pragma unroll
      for (V& result : results) result = S::calm_end(result);
      return;
    }
    TR_RARE_PATH;
  }
  with([](const auto& l, const auto& r) { return S::combine(l, r); });
}

constexpr int log2_of(int power) { return power > 1 ? 1 + log2_of(power / 2) : 0; }

// kFan published values `pitch` apart, of which the first `count` are there or will be; kCarryLanes neighbouring lanes
// take equal runs of them.
template <class S, class T, int kCarryLanes> struct PublishedSlots {
  static constexpr int kSlots = kFan / kCarryLanes, kWords = Published<T>::kWords;
  static constexpr int kMost = kWords == 1 ? 8 : 4, kAtOnce = kSlots < kMost ? kSlots : kMost;  // registers
  const Published<T>* own;                                                                      // the lane's first
  int64_t pitch;
  int first, count;
  uint64_t word[kAtOnce][kWords];
  T value[kSlots];

  // Starts to look at the first ones; `turn`: which of the lanes this is.
  __device__ __forceinline__ void begin(const Published<T>* of, int64_t apart, int present, int turn) {
    pitch = apart;
    count = present;
    first = turn * kSlots;
    own = of + first * pitch;
    look_at(0);
  }
  // Waits for all.
  __device__ __forceinline__ void collect() {
#pragma unroll
    for (int from = 0; from < kSlots; from += kAtOnce) {
      if (from) look_at(from);
      for (;; back_off()) {  // what is missing is looked at together, and again until it is there
        bool all = true;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
          for (int k = 0; k < kWords; ++k) all = all && word[i][k] >> 32 != 0;
        if (all) break;
        look(from);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        uint32_t part[kWords];
#pragma unroll
        for (int k = 0; k < kWords; ++k) part[k] = uint32_t(word[i][k]);
        memcpy(&value[from + i], part, sizeof(T));
      }
    }
  }
  // Of neighbours, where the right one has anything. An absent one is an identity, but of two inputs for the sign of a
  // zero that roundings lost.
  template <class V> __device__ __forceinline__ static V join(V left, V right, bool there) {
    if constexpr (S::kInputs == 2) return there ? S::combine(left, right) : left;
    else return S::combine(left, right);
  }
  __device__ __forceinline__ void begin(const Published<T>* of, int64_t apart, int present) {
    begin(of, apart, present, recomputed(lane_id()) % kCarryLanes);
  }
  // The pairwise tree over those of the lane's own that are among the first `count`.
  template <class V, class Widen> __device__ __forceinline__ V run(int count, V absent, Widen widen) const {
    V stack[kFanLog2 + 1];  // of the trees so far, one of each size: depth first, so that few are kept at a time
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      V v = absent;
      if (first + i < count) v = widen(value[i]);
      int level = 0;
#pragma unroll
      for (int rest = i; rest % 2; rest /= 2, ++level) v = join(stack[level], v, first + i + 1 - (1 << level) < count);
      stack[level] = v;
    }
    return stack[log2_of(kSlots)];
  }
  // The same over the first `count` of all; each of the lanes gets it. By whole warps.
  template <class V, class Widen> __device__ __forceinline__ V tree(int count, V absent, Widen widen) const {
    V whole = run(count, absent, widen);
#pragma unroll
    for (int d = 1; d < kCarryLanes; d <<= 1) {
      const V other = shuffle(whole, lane_id() ^ d);
      const bool upper = lane_id() & d;
      whole = join(upper ? other : whole, upper ? whole : other, ((first / kSlots | d) & -d) * kSlots < count);
    }
    return whole;
  }

 private:
  __device__ __forceinline__ void look_at(int from) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
      for (int k = 0; k < kWords; ++k) word[i][k] = first + from + i < count ? 0 : uint64_t(1) << 32;
    look(from);
  }
  __device__ __forceinline__ void look(int from) {
    const char* p = reinterpret_cast<const char*>(own) + from * pitch * int64_t(sizeof(Published<T>));
    int64_t step = pitch * int64_t(sizeof(Published<T>));
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        uint64_t& w = word[i][k];
        w = load_relaxed_if(w >> 32 == 0, reinterpret_cast<const uint64_t*>(p) + k, w);
      }
      p += step = recomputed(step);
    }
  }
};

// A published value, or none.
template <class T> struct PublishedOne {
  static constexpr int kWords = Published<T>::kWords;
  const Published<T>* at;
  bool wanted;
  uint64_t word[kWords];

  // Starts to look at it.
  __device__ __forceinline__ void begin(const Published<T>* of, bool present) {
    at = of;
    wanted = present;
#pragma unroll
    for (int k = 0; k < kWords; ++k) word[k] = load_relaxed_if(wanted, reinterpret_cast<const uint64_t*>(at) + k, 0);
  }
  // Waits for it.
  __device__ __forceinline__ T collect(T absent) const {
    if (!wanted) return absent;
    bool there = true;
    uint32_t part[kWords];
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      there = there && word[k] >> 32 != 0;
      part[k] = uint32_t(word[k]);
    }
    if (!there) return at->wait();
    T value;
    memcpy(&value, part, sizeof value);
    return value;
  }
};

// Publishes the total of a block tile of a row: once all its tiles are published, which is all it waits for. By whole
// warps, kCarryLanes neighbouring lanes for each row; those that are not `active` have none.
template <class S, int kCarryLanes>
__device__ __forceinline__ void close_block(const ColumnSpace<S>& space, int64_t batch, int64_t row, int64_t block,
                                            bool active) {
  PublishedSlots<S, typename S::Acc, kCarryLanes> tiles;
  tiles.begin(space.tile(batch, block * kFan, row), recomputed(space.width), active ? kFan : 0);
  tiles.collect();
  const auto total = tiles.tree(kFan, S::absent(), [](typename S::Acc a) { return a; });
  if (active && lane_id() % kCarryLanes == 0) space.block(batch, block, row)->publish(total);
  warp_barrier();  // before a lane that waits for this holds the one that is to publish it
}

// Publishes what precedes the block tile after this one, where `initial` precedes the row. By lanes as above; what they
// wait for comes from close_block and from earlier block tiles, be it by their own warp in an earlier step.
template <class S, int kCarryLanes>
__device__ __forceinline__ void settle_block(const ColumnSpace<S>& space, int64_t batch, int64_t row, int64_t block,
                                             bool active, typename S::Wide initial) {
  using Wide = typename S::Wide;
  const int64_t superblock = block / kFan * kFan;  // its first block tile
  const int count = int(block - superblock) + 1;
  PublishedSlots<S, typename S::Acc, kCarryLanes> blocks;
  blocks.begin(space.block(batch, superblock, row), recomputed(space.width), active ? count : 0);
  blocks.collect();
  const Wide upto = blocks.tree(count, S::wide_absent(), [](typename S::Acc a) { return S::widen(a); });
  if (active && lane_id() % kCarryLanes == 0) {
    const Wide before = superblock ? space.carry(batch, superblock - 1, row)->wait() : initial;
    space.carry(batch, block, row)->publish(S::combine(before, upto));
  }
  warp_barrier();
}

// What precedes a tile in its block tile, of whose totals the first `count`, `pitch` apart, precede it, and what
// precedes that: what is or will be at `before`, or where there is none `initial`. By lanes as above.
template <class S, int kCarryLanes>
__device__ __forceinline__ void column_carry(const Published<typename S::Acc>* totals, int64_t pitch, int count,
                                             const Published<typename S::Wide>* before, typename S::Wide initial,
                                             typename S::Acc& within, typename S::Wide& carry) {
  PublishedOne<typename S::Wide> earlier;  // on its way together with those of the tiles
  earlier.begin(before, before && lane_id() % kCarryLanes == 0);
  PublishedSlots<S, typename S::Acc, kCarryLanes> tiles;
  tiles.begin(totals, pitch, count);
  tiles.collect();
  within = tiles.tree(count, S::absent(), [](typename S::Acc a) { return a; });
  carry = earlier.collect(initial);
}

}  // namespace torchreduce::gpu
