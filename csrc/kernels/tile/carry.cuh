// What blocks that share a row or a column tell each other: totals and carries that are published in memory, each word
// with its own flag. Every combination has its place in the canonical order.
//
// Of rows a warp finds the carry into its block tile by look-back (after Merrill and Garland 2016). Of columns a few
// lanes each look at all the totals of a block tile together.
#pragma once
#include "kernels/common/collective.cuh"

namespace torchreduce::gpu {

// A value with its own flag in every 64-bit word, so that a word read is a word valid: 4 bytes of the value, then 1.
// Zeroed memory is "not there yet".
template <class V> struct Published {
  static constexpr int kWords = int(sizeof(V)) / 4;
  uint64_t word[kWords];

  __device__ void publish(V value) {
    uint32_t part[kWords];
    memcpy(part, &value, sizeof value);
    for (int i = 0; i < kWords; ++i) store_relaxed(&word[i], uint64_t(1) << 32 | part[i]);
  }
  // Whether it is there; else the value is no one's.
  __device__ bool look(V& value) const {
    uint32_t part[kWords];
    bool there = true;
    for (int i = 0; i < kWords; ++i) {
      const uint64_t w = load_relaxed(&word[i]);
      part[i] = uint32_t(w);
      there = there && w >> 32 != 0;
    }
    memcpy(&value, part, sizeof value);
    return there;
  }
  __device__ __forceinline__ V wait() const {
    V value;
    while (!look(value)) back_off();
    return value;
  }
};

// A published value as far as it has been seen, in registers.
template <class V> struct Seen {
  static constexpr int kWords = Published<V>::kWords;
  uint64_t word[kWords];

  // Nothing; of one that is not `wanted`, as if it were there.
  __device__ __forceinline__ void begin(bool wanted) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = wanted ? 0 : uint64_t(1) << 32;
  }
  // Whether it is there, and `all` others are.
  __device__ __forceinline__ bool there(bool all = true) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) all = all && word[i] >> 32 != 0;
    return all;
  }
  __device__ __forceinline__ V value() const {
    uint32_t part[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) part[i] = uint32_t(word[i]);
    V v;
    memcpy(&v, part, sizeof v);
    return v;
  }
  // Looks for what has not been seen, without a branch. Of one that is not wanted, `from` may be null.
  __device__ __forceinline__ void look(const Published<V>* from, bool wanted = true) {
    const auto* const at = reinterpret_cast<const uint64_t*>(from);
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = load_relaxed_if(wanted && word[i] >> 32 == 0, at + i, word[i]);
  }
};

// ---- rows ----------------------------------------------------------------------------------------------------------

// The workspace of a chain, all zero before the launch: the ticket, then for each row the totals of its block tiles,
// then for each row and superblock its total and the carry that includes it.
template <class S> struct ChainSpace {
  uint64_t* ticket;
  Published<typename S::Acc>* totals;
  struct Superblock { Published<typename S::Wide> total, inclusive; };
  Superblock* superblocks;
  int64_t tiles;  // a row

  __device__ ChainSpace(void* workspace, int64_t rows, int64_t tiles_a_row) : tiles(tiles_a_row) {
    ticket = static_cast<uint64_t*>(workspace);
    totals = reinterpret_cast<Published<typename S::Acc>*>(ticket + 1);
    superblocks = reinterpret_cast<Superblock*>(totals + rows * tiles);
  }
  __device__ Published<typename S::Acc>& total(int64_t row, int64_t tile) { return totals[row * tiles + tile]; }
  __device__ Superblock& superblock(int64_t row, int64_t s) {
    return superblocks[row * ((tiles + kFan - 1) / kFan) + s];
  }
};

// A tile of a row, of `tiles` tiles each.
struct ChainJob { int64_t row, tile; };
__device__ __forceinline__ ChainJob chain_job(int64_t ticket, int64_t tiles) {
  const int64_t row = ticket / tiles;
  return {row, ticket - row * tiles};
}

// The carry into superblock s > 0: the left fold of the totals before it, continued from the nearest place where some
// block has already published it. By one warp.
template <class S, class Space>
__device__ __forceinline__ typename S::Wide look_back(Space& space, int64_t row, int64_t s) {
  using Wide = typename S::Wide;
  const int64_t mine = s - 1 - lane_id();
  for (;; back_off()) {
    Wide total = S::wide_absent(), inclusive = S::wide_absent();
    const bool has_inclusive = mine >= 0 && space.superblock(row, mine).inclusive.look(inclusive);
    const bool has_total = mine >= 0 && space.superblock(row, mine).total.look(total);
    const uint32_t inclusives = ballot(has_inclusive), totals = ballot(has_total);
    if (!inclusives) continue;
    int from = 0;
    while (!(inclusives >> from & 1u)) ++from;
    const uint32_t nearer = (1u << from) - 1u;
    if ((totals & nearer) != nearer) continue;
    Wide carry = shuffle(inclusive, from);
    for (int i = from - 1; i >= 0; --i) carry = S::combine(carry, shuffle(total, i));
    return carry;
  }
}

// How many superblocks at the start of a row are not looked back for: the totals of all block tiles are looked at
// together, which takes one hop less. Larger accumulators would need too many registers.
template <class S> constexpr int kNearSuperblocks = sizeof(typename S::Acc) <= 4 ? 3 : 0;

// Publishes the total of block tile `tile` and returns the carry into it, where `initial` precedes the row. By one
// warp.
template <class S>
__device__ __forceinline__ typename S::Wide chain_carry(ChainSpace<S>& space, int64_t row, int64_t tile,
                                                        typename S::Acc own, typename S::Wide initial) {
  using Wide = typename S::Wide;
  constexpr int kNear = kNearSuperblocks<S>;
  const int lane = lane_id();
  const int64_t s = tile / kFan;
  const int slot = int(tile % kFan);
  const bool near = s > 0 && s <= kNear;
  if (lane == 0) space.total(row, tile).publish(own);

  Wide value = S::wide_absent();  // the total up to block tile `lane` of the superblock
  Wide carry = initial;
  if (near) {
    // Of the superblocks before, absent where there is none; the last ones are of the own superblock.
    typename S::Acc totals[kNear + 1];
    for (bool all = false; !all;) {
      bool mine = true;
#pragma unroll
      for (int k = 0; k <= kNear; ++k) {
        totals[k] = S::absent();
        const bool wanted = k < kNear ? k < s : lane < slot;
        if (wanted) mine = space.total(row, (k < kNear ? k : s) * kFan + lane).look(totals[k]) && mine;
      }
      all = !ballot(!mine);
    }
    if (lane == slot) totals[kNear] = own;
    Wide upto[kNear + 1];
#pragma unroll
    for (int k = 0; k <= kNear; ++k) upto[k] = S::widen(totals[k]);
    sklansky<S>(upto, lane, kLanes);
#pragma unroll
    for (int k = 0; k < kNear; ++k)
      if (k < s) carry = S::combine(carry, shuffle(upto[k], kLanes - 1));
    value = upto[kNear];
  } else {
    if (lane < slot) value = S::widen(space.total(row, s * kFan + lane).wait());
    else if (lane == slot) value = S::widen(own);
    value = sklansky<S>(value);
  }
  const Wide before = slot ? shuffle(value, slot - 1) : S::wide_absent();

  const bool last = slot == kFan - 1;
  const Wide total = shuffle(value, kLanes - 1);
  if (last && lane == 0) space.superblock(row, s).total.publish(total);
  if (s && !near) carry = look_back<S>(space, row, s);
  if (last && lane == 0) space.superblock(row, s).inclusive.publish(S::combine(carry, total));
  return S::combine(carry, before);
}

// ---- columns -------------------------------------------------------------------------------------------------------

// The workspace, all zero before the launch: a ticket; for each batch, and in it for each tile or block of kOf tiles,
// the values of all rows (columns of memory), which are looked at side by side.
template <class Total, class Carry, int kOf> struct TileSpace {
  int64_t width, units;   // rows of a batch; tiles of a row
  Total *tiles, *blocks;  // totals
  Carry* carries;         // what precedes the block after this one

  __device__ TileSpace(void* workspace, int64_t rows, int64_t width, int64_t units) : width(width), units(units) {
    tiles = reinterpret_cast<Total*>(static_cast<uint64_t*>(workspace) + 1);
    blocks = tiles + rows * units;
    carries = reinterpret_cast<Carry*>(blocks + rows * blocks_a_row());
  }
  __device__ int64_t blocks_a_row() const { return (units + kOf - 1) / kOf; }
  __device__ Total* tile(int64_t batch, int64_t tile, int64_t row) const {
    return tiles + ((batch * units + tile) * width + row);
  }
  __device__ Total* block(int64_t batch, int64_t block, int64_t row) const {
    return blocks + ((batch * blocks_a_row() + block) * width + row);
  }
  __device__ Carry* carry(int64_t batch, int64_t block, int64_t row) const {
    return carries + ((batch * blocks_a_row() + block) * width + row);
  }
};
// By block tiles.
template <class S> using ColumnSpace = TileSpace<Published<typename S::Acc>, Published<typename S::Wide>, kFan>;

constexpr int log2_of(int power) { return power > 1 ? 1 + log2_of(power / 2) : 0; }

// kFan published values `pitch` apart, of which the first `count` are there or will be; kCarryLanes neighbouring lanes
// take equal runs of them.
template <class S, class T, int kCarryLanes> struct PublishedSlots {
  static constexpr int kSlots = kFan / kCarryLanes;
  static constexpr int kMost = sizeof(T) == 4 ? 8 : 4, kAtOnce = kSlots < kMost ? kSlots : kMost;  // registers
  const Published<T>* own;                                                                         // the lane's first
  int64_t pitch;
  int first, count;
  Seen<T> seen[kAtOnce];
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
        for (int i = 0; i < kAtOnce; ++i) all = seen[i].there(all);
        if (all) break;
        look(from);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) value[from + i] = seen[i].value();
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
    for (int i = 0; i < kAtOnce; ++i) seen[i].begin(first + from + i < count);
    look(from);
  }
  __device__ __forceinline__ void look(int from) {
    const char* p = reinterpret_cast<const char*>(own) + from * pitch * int64_t(sizeof(Published<T>));
    int64_t step = pitch * int64_t(sizeof(Published<T>));
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      seen[i].look(reinterpret_cast<const Published<T>*>(p));
      p += step = recomputed(step);
    }
  }
};

// A published value, or none.
template <class T> struct PublishedOne {
  const Published<T>* at;
  bool wanted;
  Seen<T> seen;

  // Starts to look at it.
  __device__ __forceinline__ void begin(const Published<T>* of, bool present) {
    at = of;
    wanted = present;
    seen = {};
    seen.look(at, wanted);
  }
  // Waits for it.
  __device__ __forceinline__ T collect(T absent) const {
    if (!wanted) return absent;
    if (!seen.there()) return at->wait();
    return seen.value();
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
