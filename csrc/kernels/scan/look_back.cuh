// What blocks that share a row tell each other: totals and carries that are published in memory, each word with its own
// flag, and the carry into a block tile, by look-back (after Merrill and Garland 2016, but every combination has its
// place in the canonical order).
#pragma once
#include "rows.cuh"

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

// A tile of a row. The next one for a block: tiles it waits for have lower tickets.
struct ChainJob { int64_t row, tile; };
template <class S> __device__ __forceinline__ ChainJob take_job(const ChainSpace<S>& space) {
  __shared__ int64_t ticket;
  if (threadIdx.x == 0) ticket = int64_t(take_ticket(space.ticket));
  __syncthreads();
  const int64_t row = ticket / space.tiles;
  return {row, ticket - row * space.tiles};
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

}  // namespace torchreduce::gpu
