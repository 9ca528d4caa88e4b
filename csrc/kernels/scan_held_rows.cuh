// Scans of rows of at most a block tile, of two inputs: lanes hold whole rows in registers, wherever their elements
// lie.
#pragma once
#include "scan_rows.cuh"

namespace torchreduce::gpu {

// K groups `step` elements apart, a multiple of 16 bytes, of which the first one's first position is at p, in memory
// order. Wide rows: count(k) positions are there, and none or a whole group.
template <class E, int K, class Count>
__device__ __forceinline__ void load_whole(const E* p, int64_t stride, int64_t step, Count count,
                                           uint32_t (&w)[K][kGroupWords<E>]) {
  using P = Packed<uint32_t, 4>;
  const E* const lowest = stride < 0 ? p - (kGroup - 1) : p;
#pragma unroll
  for (int k = 0; k < K; ++k)
    if (count(k) > 0) {
      P parts[kGroupWords<E> / 4];
#pragma unroll
      for (int i = 0; i < kGroupWords<E> / 4; ++i)
        parts[i] = load_wide(reinterpret_cast<const P*>(lowest + k * step) + i);
      memcpy(w[k], parts, sizeof parts);
    }
}
// Any rows: positions [begin(k), count(k)) of each group; the rest is unspecified.
template <class E, int K, class Begin, class Count>
__device__ __forceinline__ void load_any(const E* p, int64_t stride, int64_t step, Begin begin, Count count,
                                         uint32_t (&w)[K][kGroupWords<E>]) {
#pragma unroll
  for (int k = 0; k < K; ++k)
    if (count(k) > 0) load_words(p + k * step, stride, begin(k), count(k) < kGroup ? count(k) : kGroup, w[k]);
}

// The items of K groups, the first ones at position first(k), of which `there` says whether item i is there: of
// elements that are not, the words hold nothing, and nothing may depend on them.
template <class Load, class S, int K, int W, class First, class There>
__device__ __forceinline__ void form_items(const S& op, const uint32_t (&a_words)[K][W],
                                           const uint32_t (&b_words)[K][W], First first, There there,
                                           typename S::Item (&items)[K][kGroup]) {
  using E = element_of<Load>;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    E a[kGroup], b[kGroup];
    unpack(b_words[k], b);
    unpack(a_words[k], a);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      items[k][i] = S::absent_item();
      if (there(k, i)) items[k][i] = op.load(Pair<E>{a[i], b[i]}, first(k) + i);
    }
  }
}

// The totals of a lane's groups. Returns whether all of the warp's do with less; the results have to know.
template <class S, int K>
__device__ __forceinline__ bool form_groups(typename S::Item (&items)[K][kGroup], typename S::Acc (&totals)[K]) {
  bool plain = true;
#pragma unroll
  for (int k = 0; k < K; ++k) plain &= S::plain(items[k]);
  plain = !ballot(!plain);
#pragma unroll
  for (int k = 0; k < K; ++k) totals[k] = plain ? S::plain_group(items[k]) : S::careful_group(items[k]);
  return plain;
}

// Blocks of a multiprocessor at least, where a lane holds that many bytes for each position of a group. (With no word
// of it nvcc would rather use memory for a few registers than have one block less.)
constexpr int held_blocks(int bytes) { return bytes <= 8 ? 4 : bytes <= 16 ? 3 : bytes <= 32 ? 2 : 1; }

// plan.lanes lanes a row of at most a tile; a lane takes K rows, which one stride leads through, or one. Of longer rows
// plan.warps warps a row, each with K neighbouring tiles.
template <class S, class Load, class Store, int K>
__global__ void TR_BLOCKS_BOUND(kThreads, held_blocks(K* int(sizeof(typename S::Item))))
    scan_held_rows(TR_GRID_CONSTANT ScanCall call) {
  static_assert(!kHasStart<S>, "it would have to be able to be exclusive");
  using Acc = typename S::Acc;
  using E = element_of<Load>;
  const S op{call.options};
  const Layout& layout = call.layout;
  const int n = int(layout.length), width = call.plan.lanes, warps = call.plan.warps, tiles = warps * K;
  const bool tiled = n > kTile;
  const unsigned thread = threadIdx.x;
  const int lane = int(thread % kLanes), warp = int(thread / kLanes), part = warp & (warps - 1);
  // From one of a lane's groups to the next: positions of the row, or rows.
  const int shift = __ffs(unsigned(width * warps)) - 1, ahead = tiled ? kTile : 0,
            apart = tiled ? 0 : kThreads >> shift;
  int64_t row = int64_t(blockIdx.x) * (tiled ? kThreads >> shift : K * apart) + int(thread >> shift);
  const int64_t left_rows = layout.rows - row;
  const int rows = left_rows < kThreads * K ? int(left_rows) : kThreads * K;  // as far as a lane could go
  if (rows <= 0) row = 0;
  const int start = part * K * kTile + (lane & (width - 1)) * kGroup;
  auto first = [&](int k) { return start + k * ahead; };
  auto count = [&](int k) { return k * apart < rows ? n - first(k) : 0; };

  const RowStart row_at = row_start(layout, row);
  const ScanStride stride = scan_stride(layout);
  auto step = [&](int64_t along, const int64_t* strides) {
    return ahead * along + (layout.kept ? apart * strides[0] : 0);
  };
  const E* const b = static_cast<const E*>(call.in.data) + row_at.in + start * stride.in;
  const int64_t b_step = step(stride.in, layout.in), out_step = step(stride.out, layout.out);
  uint32_t b_words[K][kGroupWords<E>], a_words[K][kGroupWords<E>];
  E initial[K];
  const int64_t a_stride = layout.reduced ? call.more_strides[0][layout.kept] : 0;
  const E* const a =
      static_cast<const E*>(call.in.more[0]) + row_offset(layout, call.more_strides[0], row) + start * a_stride;
  const int64_t a_step = step(a_stride, call.more_strides[0]);
  if (call.plan.vector_loads & is_wide(a, a_stride) & (n % kGroup == 0) & !call.shifted) {
    load_whole(b, stride.in, b_step, count, b_words);
    load_whole(a, a_stride, a_step, count, a_words);
  } else {
    load_any(b, stride.in, b_step, [](int) { return 0; }, count, b_words);
    load_any(a, a_stride, a_step, [&](int k) { return Load::has_a(call, first(k)) ? 0 : 1; }, count, a_words);
  }
  if (call.options.initial) {
    const E* const h = static_cast<const E*>(call.in.more[1]) + row_offset(layout, call.more_strides[1], row);
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (count(k) > 0) initial[k] = global(h)[k * step(0, call.more_strides[1])];
  }

  if (stride.in < 0 || a_stride < 0) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (stride.in < 0) reverse_words<E>(b_words[k]);
      if (a_stride < 0) reverse_words<E>(a_words[k]);
    }
  }
  typename S::Item items[K][kGroup];
  if (count(K - 1) >= kGroup) form_items<Load>(op, a_words, b_words, first, [](int, int) { return true; }, items);
  else form_items<Load>(op, a_words, b_words, first, [&](int k, int i) { return i < count(k); }, items);
  Acc upto[K];
  const bool plain = form_groups<S>(items, upto);
  sklansky<S>(upto, lane, width);

  __shared__ Acc totals[kWarps * K];
  Acc tiles_upto = S::absent();
  if (tiled) {
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (lane == kLanes - 1) totals[warp * K + k] = upto[k];
    if (warps > 1) __syncthreads();
    else warp_barrier();
    const int tile = lane & (tiles - 1);
    tiles_upto = sklansky<S>(totals[(warp - part) * K + tile], tile, tiles);
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int tile = tiled ? part * K + k : 0;
    const Acc left = shuffle(upto[k], lane ? lane - 1 : 0), left_tiles = shuffle(tiles_upto, tile ? tile - 1 : 0);
    const Acc within = lane & (width - 1) ? left : S::absent(), before = tile ? left_tiles : S::absent();
    typename S::Prefix prefix;
    if (call.options.initial) {
      TR_RARE_PATH;  // all of the combination is wanted here alone
      prefix = S::prefix(S::initial(convert<typename S::Result>(initial[k])), S::combine(before, within));
    } else {
      prefix = S::prefix(S::combine(before, within));
    }
    typename S::Result out[kGroup];
    plain ? op.plain_results(prefix, items[k], out) : op.careful_results(prefix, items[k], out);
    if (count(k) > 0)
      store_results<S, Store, true>(call, row_at.out + k * (out_step - ahead * stride.out), stride.out, first(k), out);
  }
}

}  // namespace torchreduce::gpu
