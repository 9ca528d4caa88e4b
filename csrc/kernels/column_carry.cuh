// What precedes a tile of a column, formed from what earlier tiles published (scan_columns.cuh): by a few lanes for
// each column, which look at all the totals of a block tile together.
#pragma once
#include "scan_chain.cuh"

namespace torchreduce::gpu {

// The workspace, all zero before the launch: a ticket; for each tile or block tile the values of all rows (columns of
// memory), which are looked at side by side.
template <class S> struct ColumnSpace {
  uint64_t* ticket;
  int64_t rows;
  Published<typename S::Acc>*tiles, *blocks;  // totals
  Published<typename S::Wide>* after_blocks;  // what precedes the block tile after this one

  __device__ ColumnSpace(void* workspace, int64_t rows, int64_t tiles_a_row) : rows(rows) {
    const int64_t block_count = (tiles_a_row + kFan - 1) / kFan;
    ticket = static_cast<uint64_t*>(workspace);
    tiles = reinterpret_cast<Published<typename S::Acc>*>(ticket + 1);
    blocks = tiles + rows * tiles_a_row;
    after_blocks = reinterpret_cast<Published<typename S::Wide>*>(blocks + rows * block_count);
  }
};

constexpr int log2_of(int power) { return power > 1 ? 1 + log2_of(power / 2) : 0; }

// kFan published values `pitch` apart, of which the first `count` are there or will be; kCarryLanes neighbouring lanes
// take equal runs of them.
template <class S, class T, int kCarryLanes> struct PublishedSlots {
  static constexpr int kSlots = kFan / kCarryLanes;
  T value[kSlots];
  int first;

  __device__ __forceinline__ PublishedSlots(const Published<T>* slots, int64_t pitch, int count)
      : first(recomputed(lane_id()) % kCarryLanes * kSlots) {
    constexpr int kWords = Published<T>::kWords, kMost = kWords == 1 ? 8 : 4, kAtOnce = kSlots < kMost ? kSlots : kMost;
#pragma unroll
    for (int from = 0; from < kSlots; from += kAtOnce) {
      uint64_t word[kAtOnce][kWords];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
        for (int k = 0; k < kWords; ++k) word[i][k] = first + from + i < count ? 0 : uint64_t(1) << 32;
      for (;; back_off()) {  // what is missing is looked at together, and again until it is there
        const int here = recomputed(first + from);
        bool all = true;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
          for (int k = 0; k < kWords; ++k) {
            uint64_t& w = word[i][k];
            w = load_relaxed_if(w >> 32 == 0, &slots[(here + i) * pitch].word[k], w);
          }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
          for (int k = 0; k < kWords; ++k) all = all && word[i][k] >> 32 != 0;
        if (all) break;
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
  __device__ __forceinline__ void set(int slot, const T& v) {
#pragma unroll
    for (int i = 0; i < kSlots; ++i)
      if (first + i == slot) value[i] = v;
  }
  // Of neighbours, where the right one has anything. An absent one is an identity, but of two inputs for the sign of a
  // zero that roundings lost.
  template <class V> __device__ __forceinline__ static V join(V left, V right, bool there) {
    if constexpr (S::kInputs == 2) return there ? S::combine(left, right) : left;
    else return S::combine(left, right);
  }
  // The pairwise tree over the first `count` of them; each of the lanes gets it. By whole warps.
  template <class V, class Widen> __device__ __forceinline__ V tree(int count, V absent, Widen widen) const {
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
    V whole = stack[log2_of(kSlots)];
#pragma unroll
    for (int d = 1; d < kCarryLanes; d <<= 1) {
      const V other = shuffle(whole, lane_id() ^ d);
      const bool upper = lane_id() & d;
      whole = join(upper ? other : whole, upper ? whole : other, ((first / kSlots | d) & -d) * kSlots < count);
    }
    return whole;
  }
};

// What precedes tile `tile` of row `row` in its block tile, and what precedes that, where `initial` precedes the row.
// The last tile of a block tile publishes that one's total and what precedes the next. By whole warps, kCarryLanes
// neighbouring lanes for each tile and row; those that are not `active` have none. What a lane waits for comes from an
// earlier step of an earlier tile, be it of its own warp.
template <class S, int kCarryLanes>
__device__ __forceinline__ void column_carry(const ColumnSpace<S>& space, int64_t row, int64_t tile, bool active,
                                             typename S::Wide initial, typename S::Acc& within,
                                             typename S::Wide& carry) {
  using Acc = typename S::Acc;
  using Wide = typename S::Wide;
  const int64_t rows = recomputed(space.rows), block = tile / kFan,
                superblock = block / kFan * kFan;  // its first block tile
  const int slot = int(tile % kFan), block_slot = int(block - superblock);
  const bool closes = active && slot == kFan - 1, waits = active && lane_id() % kCarryLanes == 0;
  auto* const after = space.after_blocks + row;
  carry = initial;
  const bool known = !waits || block == 0 || after[(block - 1) * rows].look(carry);

  using Slots = PublishedSlots<S, Acc, kCarryLanes>;
  const Slots tiles(space.tiles + block * kFan * rows + row, rows, !active ? 0 : closes ? kFan : slot);
  auto same = [](Acc a) { return a; };
  within = tiles.tree(slot, S::absent(), same);
  if (ballot(closes)) {
    const Acc total = tiles.tree(kFan, S::absent(), same);
    if (waits && closes) space.blocks[block * rows + row].publish(total);
    Slots blocks(space.blocks + superblock * rows + row, rows, closes ? block_slot : 0);
    blocks.set(block_slot, total);
    const Wide upto = blocks.tree(block_slot + 1, S::wide_absent(), [](Acc a) { return S::widen(a); });
    if (waits && closes) {
      const Wide before = superblock ? after[(superblock - 1) * rows].wait() : initial;
      after[block * rows].publish(S::combine(before, upto));
    }
  }
  if (!known) carry = after[(block - 1) * rows].wait();
}

}  // namespace torchreduce::gpu
