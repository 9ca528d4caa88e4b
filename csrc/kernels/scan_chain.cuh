// Scans of few long rows in one pass: a block tile a block. Each publishes its total; carries are formed from the
// totals in order, by look-back (after Merrill and Garland 2016, but every combination has its place in the canonical
// order).
#pragma once
#include "scan_rows.cuh"

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
  __device__ V wait() const {
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

// Publishes the total of block tile `tile` and returns the carry into it, where `initial` precedes the row. By one
// warp.
template <class S>
__device__ __forceinline__ typename S::Wide chain_carry(ChainSpace<S>& space, int64_t row, int64_t tile,
                                                        typename S::Acc own, typename S::Wide initial) {
  using Wide = typename S::Wide;
  const int lane = lane_id();
  const int64_t s = tile / kFan;
  const int slot = int(tile % kFan);
  if (lane == 0) space.total(row, tile).publish(own);

  Wide value = S::wide_absent();
  if (lane < slot) value = S::widen(space.total(row, s * kFan + lane).wait());
  else if (lane == slot) value = S::widen(own);
  value = sklansky<S>(value);
  const Wide before = slot ? shuffle(value, slot - 1) : S::wide_absent();

  const bool last = slot == kFan - 1;
  const Wide total = shuffle(value, kLanes - 1);
  if (last && lane == 0) space.superblock(row, s).total.publish(total);
  const Wide carry = s ? look_back<S>(space, row, s) : initial;
  if (last && lane == 0) space.superblock(row, s).inclusive.publish(S::combine(carry, total));
  return S::combine(carry, before);
}

template <class S, class Load, class Store>
__global__ void __launch_bounds__(kThreads, 1) scan_chain(TR_GRID_CONSTANT ScanCall call, void* workspace) {
  using Acc = typename S::Acc;
  constexpr int kTiles = kFan / kWarps;  // a warp takes neighbouring ones
  const S op{call.options};
  const Layout& layout = call.layout;
  const int64_t n = layout.length, tiles = call.plan.splits;
  const int lane = lane_id(), warp = int(threadIdx.x) / kLanes;

  ChainSpace<S> space(workspace, layout.rows, tiles);
  __shared__ int64_t ticket;
  __shared__ Acc totals[kFan];
  __shared__ typename S::Wide shared_carry;
  if (threadIdx.x == 0) ticket = int64_t(take_ticket(space.ticket));  // tiles a block waits for have lower tickets
  __syncthreads();
  const int64_t row = ticket / tiles, tile = ticket - row * tiles;
  const RowStart start = row_start(layout, row);
  const ScanStride stride = scan_stride(layout);
  const int64_t first = tile * kBlockTile + warp * kTiles * kTile + lane * kGroup;

  // Of two inputs, tiles are taken one by one, and twice, the second time from cache: there are too few registers for
  // more, and what comes before a lane waits in shared memory.
  constexpr bool kTwice = S::kInputs == 2;
  constexpr int kHeld = kTwice ? 1 : kTiles;
  __shared__ Acc before_lanes[kTwice ? kFan * kLanes : 1];
  typename S::Item items[kHeld][kGroup];
  Loaded<Load> x[kHeld];
  Acc within[kHeld];
  const auto step = input_stride<Load>(call, stride);
  const auto from = input_start<Load>(call, start, row);
  auto form = [&](int k, const Loaded<Load>& group, typename S::Item(&formed)[kGroup]) {
    const Acc upto = sklansky<S>(form_group(op, group, step, first + k * kTile, n, formed));
    if (lane == kLanes - 1) totals[warp * kTiles + k] = upto;
    Acc before = shuffle(upto, lane ? lane - 1 : 0);
    if (lane == 0) before = S::absent();
    return before;
  };
  if constexpr (kTwice) {
    TR_ROLLED
    for (int k = 0; k < kTiles; ++k) {
      load_group<S, Load>(call, from, step, first + k * kTile, x[0]);
      before_lanes[(warp * kTiles + k) * kLanes + lane] = form(k, x[0], items[0]);
    }
  } else {
#pragma unroll
    for (int k = 0; k < kTiles; ++k) load_group<S, Load>(call, from, step, first + k * kTile, x[k]);
#pragma unroll
    for (int k = 0; k < kTiles; ++k) within[k] = form(k, x[k], items[k]);
  }
  __syncthreads();
  const Acc upto = sklansky<S>(totals[lane]);
  auto after = [&](int k, Acc before_lane) {  // the tiles before
    const int slot = warp * kTiles + k;
    const Acc before = shuffle(upto, slot ? slot - 1 : 0);
    return S::combine(slot ? before : S::absent(), before_lane);
  };
  if (warp == 0) {
    const typename S::Wide carry =
        chain_carry<S>(space, row, tile, shuffle(upto, kLanes - 1), row_carry<S, Load>(call, row));
    if (lane == 0) shared_carry = carry;
  }
  __syncthreads();
  const typename S::Wide carry = shared_carry;
  auto store = [&](int k, Acc before, const typename S::Item(&formed)[kGroup]) {
    if (first + k * kTile < n)
      store_group<S, Store>(op, call, start.out, stride.out, first + k * kTile, carry, before, formed);
  };
  if constexpr (kTwice) {
    TR_ROLLED
    for (int k = 0; k < kTiles; ++k) {
      load_group<S, Load>(call, from, step, first + k * kTile, x[0]);
      form_group(op, x[0], step, first + k * kTile, n, items[0]);
      store(k, after(k, before_lanes[(warp * kTiles + k) * kLanes + lane]), items[0]);
    }
  } else {
#pragma unroll
    for (int k = 0; k < kTiles; ++k) store(k, after(k, within[k]), items[k]);
  }
}

}  // namespace torchreduce::gpu
