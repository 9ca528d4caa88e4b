// Scans of few columns of neighbouring elements, too narrow for strips: each cut into block tiles, carries by
// look-back.
#pragma once
#include "scan_chain.cuh"

namespace torchreduce::gpu {

// Walks the groups of one tile by one thread: emit(first, items, before) for each, where before is what precedes it in
// the tile. Returns the tile's total.
template <class S, class Load, class Emit>
__device__ __forceinline__ typename S::Acc walk_tile(const S& op, const ScanCall& call, int64_t base, int64_t stride,
                                                     int64_t first, Emit emit) {
  using Acc = typename S::Acc;
  auto combine = [](Acc l, Acc r) { return S::combine(l, r); };
  const int64_t n = call.layout.length;
  TreeStack<Acc, kFanLog2 + 1> groups;
  typename Load::Element next[kGroup];
  load_group<S, Load>(call, base, stride, first, next);
  for (int64_t g = first; g < first + kTile && g < n; g += kGroup) {
    typename Load::Element x[kGroup];
    typename S::Item items[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[i] = next[i];
    if (g + kGroup < first + kTile) load_group<S, Load>(call, base, stride, g + kGroup, next);
    const Acc total = form_group(op, x, g, n, items);
    emit(g, items, groups.total(S::absent(), combine));
    groups.push(total, combine);
  }
  return groups.total(S::absent(), combine);
}

// A block tile of plan.threads / plan.lanes columns a block, with plan.lanes <= 32 threads a column, each on
// neighbouring tiles. The columns are read twice, the second time from cache: totals first, so that no one waits for
// the results.
template <class S, class Load, class Store>
__global__ void __launch_bounds__(kThreads, 1) scan_columns_chain(TR_GRID_CONSTANT ScanCall call, void* workspace) {
  using Acc = typename S::Acc;
  using Wide = typename S::Wide;
  using Items = typename S::Item[kGroup];
  const S op{call.options};
  auto narrow = [](Acc l, Acc r) { return S::combine(l, r); };
  auto wide = [](Wide l, Wide r) { return S::combine(l, r); };
  const Layout& layout = call.layout;
  const int lanes = call.plan.lanes, columns = call.plan.threads / lanes, tiles = kFan / lanes;
  const int x = int(threadIdx.x) % columns, y = int(threadIdx.x) / columns;
  const int64_t groups = (layout.rows + columns - 1) / columns;

  ChainSpace<S> space(workspace, layout.rows, call.plan.splits);
  __shared__ int64_t ticket;
  __shared__ Acc totals[kFan * kLanes];   // [tile][column]; at most 32 columns a block
  __shared__ Acc earlier[kFan * kLanes];  // [block tile of this superblock][column]
  __shared__ Wide shared_carry[kLanes];
  if (threadIdx.x == 0) ticket = int64_t(take_ticket(space.ticket));
  __syncthreads();
  const int64_t tile = ticket / groups, row = (ticket - tile * groups) * columns + x;
  const bool active = row < layout.rows;
  const RowStart start = active ? row_start(layout, row) : RowStart{0, 0};
  const ScanStride stride = scan_stride(layout);
  const int64_t first = tile * kBlockTile + int64_t(y) * tiles * kTile;

  for (int t = 0; t < tiles; ++t)
    totals[(y * tiles + t) * columns + x] =
        active ? walk_tile<S, Load>(op, call, start.in, stride.in, first + t * kTile, [](int64_t, const Items&, Acc) {})
               : S::absent();
  __syncthreads();

  const int64_t s = tile / kFan;
  const int slot = int(tile % kFan);
  Acc own = S::absent();
  if (active && y == 0) {
    TreeStack<Acc, kFanLog2 + 1> tree;
    for (int t = 0; t < kFan; ++t) tree.push(totals[t * columns + x], narrow);
    own = tree.total(S::absent(), narrow);
    space.total(row, tile).publish(own);
  }
  for (int t = y; active && t < slot; t += lanes) earlier[t * columns + x] = space.total(row, s * kFan + t).wait();
  __syncthreads();

  if (active && y == 0) {
    TreeStack<Wide, kFanLog2 + 1> tree;
    for (int t = 0; t < slot; ++t) tree.push(S::widen(earlier[t * columns + x]), wide);
    const Wide before = tree.total(S::wide_absent(), wide);
    const bool last = slot == kFan - 1;
    Wide total = S::wide_absent();
    if (last) {
      tree.push(S::widen(own), wide);
      total = tree.total(S::wide_absent(), wide);
      space.superblock(row, s).total.publish(total);
    }
    Wide carry = S::wide_absent();
    if (s) {  // back to the nearest carry that is there, then forward through the totals in order
      int64_t from = s - 1;
      for (;; back_off()) {
        if (space.superblock(row, from).inclusive.look(carry)) break;
        Wide ignored;
        if (from > 0 && space.superblock(row, from).total.look(ignored)) --from;
      }
      while (++from < s) carry = S::combine(carry, space.superblock(row, from).total.wait());
    }
    if (last) space.superblock(row, s).inclusive.publish(S::combine(carry, total));
    shared_carry[x] = S::combine(carry, before);
  }
  __syncthreads();
  if (!active) return;

  TreeStack<Acc, kFanLog2 + 1> tree;
  for (int t = 0; t < y * tiles; ++t) tree.push(totals[t * columns + x], narrow);
  for (int t = 0; t < tiles; ++t) {
    const Acc within = tree.total(S::absent(), narrow);
    walk_tile<S, Load>(
        op, call, start.in, stride.in, first + t * kTile, [&](int64_t g, const Items& items, Acc before) {
          store_group<S, Store>(op, call, start.out, stride.out, g, shared_carry[x], join_loosely<S>(within, before), items);
        });
    tree.push(totals[(y * tiles + t) * columns + x], narrow);
  }
}

}  // namespace torchreduce::gpu
