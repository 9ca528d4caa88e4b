// Scans with indices along rows, in any order: neighbouring lanes take neighbouring pairs of positions, so that what a
// warp loads and stores lies side by side wherever rows begin. A lane has the greatest key up to its pair by shuffles;
// where its pair meets it there is a record, and the latest record up to a position is its result. A warp takes several
// short rows at a time or walks one, by registers alone; of few long rows a block has a tile in shared memory, a part a
// warp.
#pragma once
#include "chain.cuh"
#include "extremes.h"

namespace torchreduce::gpu {

constexpr int kChunk = 2 * kLanes;  // positions that the pairs of a warp's lanes are

// What a scan knows of a row so far, and how it sees elements: by their bits, as wide as the accumulator's key.
template <class S> struct Record {
  using Key = decltype(S::Acc::key);
  using Element = decltype(S::Result::value);
  using Order = typename S::Order;
  Key key, bits;  // of the latest of the greatest
  int64_t index;

  __device__ __forceinline__ static Record none() { return {Order::kLowest, 0, 0}; }
  __device__ __forceinline__ static Record of(const S& op, const ScanCall& call, const typename S::Acc& found) {
    const typename S::Result r = op.result(found);
    return {found.key, Key(Order::bits_of(r.value)), call.index_of(r.index)};
  }
  __device__ __forceinline__ static Element element(Key bits) { return bit_cast<Element>(typename Order::Key(bits)); }
};

// Neighbouring elements as they are loaded, in memory order.
template <class Load, int N> struct Elements {
  using E = element_of<Load>;
  using Words = Packed<uint32_t, N* int(sizeof(E)) / 4>;
  Words w;

  template <class S> __device__ __forceinline__ void get_bits(typename Record<S>::Key (&bits)[N]) const {
    E x[N];
    unpack(w.item, x);
#pragma unroll
    for (int i = 0; i < N; ++i) bits[i] = Record<S>::Order::bits_of(x[i]);
  }
  // Keys that compare as those of the accumulator; zeros under cummin have a key greater by one, or the same.
  template <class S> __device__ __forceinline__ void get_keys(const S& op, typename Record<S>::Key (&key)[N]) const {
    using Order = typename Record<S>::Order;
#if defined(TR_PACKED_KEYS)
    if constexpr (std::is_same<E, float>::value) {
#pragma unroll
      for (int i = 0; i < N; ++i) key[i] = packed_key(w.item[i], op.options.min);
      return;
    } else if constexpr (Order::kFloat && sizeof(E) == 2) {
#pragma unroll
      for (int i = 0; i < N; i += 2) {
        const uint32_t both = packed_keys<std::is_same<E, BF16>::value>(w.item[i / 2], op.options.min);
        key[i] = int16_t(both);
        key[i + 1] = int32_t(both) >> 16;
      }
      return;
    }
#endif
    typename Record<S>::Key bits[N];
    get_bits<S>(bits);
#pragma unroll
    for (int i = 0; i < N; ++i) key[i] = Order::key(bits[i], op.options.min, true);
  }
};

// A pair may have to be turned into the order of positions.
template <class Load> struct PairOf : Elements<Load, 2> {
  __device__ __forceinline__ void turn(bool down) {
    auto& item = this->w.item;
    constexpr int kHalf = sizeof(item) / 8;  // words of an element
    if constexpr (kHalf == 0) item[0] = down ? funnel_right(item[0], item[0], 16) : item[0];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const uint32_t low = item[i], high = item[kHalf + i];
      item[i] = down ? high : low;
      item[kHalf + i] = down ? low : high;
    }
  }
};

constexpr int kAlignedPositions = 16;  // whose indices are a line of memory
// The positions, of at most kAlignedPositions, that precede p's where such a run of them begins in memory.
template <class T> __device__ __forceinline__ int phase(const T* p, int64_t stride) {
  const int place = int(reinterpret_cast<uintptr_t>(p) / sizeof(T) % kAlignedPositions);
  return stride < 0 ? kAlignedPositions - 1 - place : place;
}

// Positions [begin, end) of some are there.
struct Present {
  int begin, end;

  __device__ __forceinline__ bool has(int at) const { return (at >= begin) & (at < end); }
  // Whether both of the pair at `at` are, if pairs are taken together at all.
  __device__ __forceinline__ bool has_pair(int at, bool together) const {
    const unsigned pairs = together && begin < end ? unsigned(end - begin - 1) : 0;
    return unsigned(at - begin) < pairs;
  }
};

enum class Pairs { Apart, Up, Down };  // elements one by one, or two at a time, which go up or down in memory

constexpr int64_t kNearLength = int64_t(1) << 30;  // of rows whose indices are what 32 bits say, at most
constexpr int kFar = INT32_MIN;                    // stands for an index too far from `base` for 32 bits

// The results of K chunks: the elements' bits, and their indices less `base`, which is 0 where rows are short enough.
template <class S, int K> struct Found {
  using R = Record<S>;
  typename R::Key bits[K][2];
  int at[K][2];
  int64_t base, carried;  // the latter is what kFar stands for

  __device__ __forceinline__ typename R::Element value(int k, int i) const { return R::element(bits[k][i]); }
  __device__ __forceinline__ int64_t index(int k, int i) const { return at[k][i] == kFar ? carried : base + at[k][i]; }
};

// A row as a lane takes it. The row's first pair begins `lead` positions before it, which are absent, so that pairs lie
// aligned to their size.
template <class Load, class Store> struct PairedRow {
  using E = element_of<Load>;
  static constexpr bool kTyped = Load::kWidth > 1;
  int64_t in;  // how far in memory the first position of one of the lane's pairs lies
  std::conditional_t<kTyped, E*, int64_t> values;  // and the same of the results: where, if they are of one type
  int64_t* indices;
  int lead;
  bool active;  // there is such a row
  Pairs in_pairs, out_pairs;

  // `room`: the positions of the lanes that take the row, which starts there if it is `there`.
  __device__ __forceinline__ void set(const ScanCall& call, bool there, RowStart start, int64_t room) {
    active = there;
    const Layout& layout = call.layout;
    const int64_t in_step = in_stride(call), out_step = out_stride(call);
    in = start.in;
    indices = global(call.out.indices) + start.out;
    if constexpr (kTyped) values = global(static_cast<E*>(call.out.values)) + start.out;
    else values = start.out;
    lead = 0;
    in_pairs = out_pairs = Pairs::Apart;
    if constexpr (kTyped) {
      auto steps = [](int64_t s) { return s == 1 || s == -1; };
      const int of_in = phase(static_cast<const E*>(call.in.data) + in, in_step), of_values = phase(values, out_step),
                of_indices = phase(indices, out_step);
      if (steps(out_step)) lead = of_indices;
      if (layout.length > room - lead) lead &= 1;
      if (layout.length > room - lead) lead = 0;
      auto even = [&](int phase) { return (phase - lead) % 2 == 0; };
      if (steps(in_step) && even(of_in)) in_pairs = in_step < 0 ? Pairs::Down : Pairs::Up;
      if (steps(out_step) && even(of_values) && even(of_indices)) out_pairs = out_step < 0 ? Pairs::Down : Pairs::Up;
    }
  }
  // With the lead.
  __device__ __forceinline__ int64_t length(const ScanCall& call) const {
    return active ? call.layout.length + lead : 0;
  }
  // Looked up where they are wanted, which is rarely: there are not the registers to keep them.
  __device__ __forceinline__ static int64_t in_stride(const ScanCall& call) {
    return call.layout.reduced ? call.layout.in[recomputed(call.layout.kept)] : 0;
  }
  __device__ __forceinline__ static int64_t out_stride(const ScanCall& call) {
    return call.layout.reduced ? call.layout.out[recomputed(call.layout.kept)] : 0;
  }
  __device__ __forceinline__ void move_in(const ScanCall& call, int64_t positions) {
    in += positions * in_stride(call);
  }
  __device__ __forceinline__ void move_out(const ScanCall& call, int64_t positions) {
    const int64_t steps = positions * out_stride(call);
    values += steps;
    indices += steps;
  }
  // The lane's pair `ahead` positions ahead, which is at `at` of those of which some are there.
  __device__ __forceinline__ PairOf<Load> load(const ScanCall& call, int ahead, const Present& present, int at) const {
    PairOf<Load> pair{};
    if constexpr (kTyped) {
      const E* const p = global(static_cast<const E*>(call.in.data)) + in;
      using Words = decltype(pair.w);
      if (present.has_pair(at, in_pairs == Pairs::Up)) {
        pair.w = load_wide(reinterpret_cast<const Words*>(p + ahead));
      } else if (present.has_pair(at, in_pairs == Pairs::Down)) {
        pair.w = load_wide(reinterpret_cast<const Words*>(p - ahead - 1));
      } else {
        const int64_t stride = in_stride(call);
        E zero{}, one{};
        if (present.has(at)) zero = p[ahead * stride];
        if (present.has(at + 1)) one = p[(ahead + 1) * stride];
        const bool down = in_pairs == Pairs::Down;
        const E x[2] = {down ? one : zero, down ? zero : one};
        memcpy(&pair, x, sizeof pair);
      }
    } else {
      const int64_t stride = in_stride(call);
      E x[2] = {};
      Load::run(call.in, in + ahead * stride, stride, int(present.has(at)) + int(present.has(at + 1)), x);
      memcpy(&pair, x, sizeof pair);
    }
    return pair;
  }
  // The same where all go up in memory, two at a time, and are there.
  __device__ __forceinline__ PairOf<Load> load_up(const ScanCall& call, int64_t ahead) const {
    PairOf<Load> pair;
    pair.w = load_wide(reinterpret_cast<const decltype(pair.w)*>(static_cast<const E*>(call.in.data) + in + ahead));
    return pair;
  }
  __device__ __forceinline__ void store_up(int64_t ahead, E value0, E value1, int64_t index0, int64_t index1) const {
    store_wide(reinterpret_cast<Packed<E, 2>*>(values + ahead), Packed<E, 2>{{value0, value1}});
    store_wide(reinterpret_cast<Packed<int64_t, 2>*>(indices + ahead), Packed<int64_t, 2>{{index0, index1}});
  }
  // The results of all K chunks, or of one of them, if their indices are what 32 bits say.
  template <class S, int K> __device__ __forceinline__ void store_up(const Found<S, K>& found) const {
#pragma unroll
    for (int k = 0; k < K; ++k) store_up(k * kChunk, found, k);
  }
  template <class S, int K> __device__ __forceinline__ void store_up(int64_t ahead, const Found<S, K>& found,
                                                                     int k) const {
    store_up(ahead, found.value(k, 0), found.value(k, 1), uint32_t(found.at[k][0]), uint32_t(found.at[k][1]));
  }
  __device__ __forceinline__ void store(const ScanCall& call, int ahead, const Present& present, int at, E value0,
                                        E value1, int64_t index0, int64_t index1) const {
    if constexpr (kTyped) {
      using Values = Packed<E, 2>;
      using Indices = Packed<int64_t, 2>;
      if (present.has_pair(at, out_pairs == Pairs::Up)) {
        store_up(ahead, value0, value1, index0, index1);
      } else if (present.has_pair(at, out_pairs == Pairs::Down)) {
        store_wide(reinterpret_cast<Values*>(values - ahead - 1), Values{{value1, value0}});
        store_wide(reinterpret_cast<Indices*>(indices - ahead - 1), Indices{{index1, index0}});
      } else {
        const int64_t stride = out_stride(call);
        if (present.has(at)) {
          values[ahead * stride] = value0;
          indices[ahead * stride] = index0;
        }
        if (present.has(at + 1)) {
          values[(ahead + 1) * stride] = value1;
          indices[(ahead + 1) * stride] = index1;
        }
      }
    } else {
      const int64_t stride = out_stride(call);
      auto one = [&](int64_t steps, E value, int64_t index) {
        store_as(call.out.dtype, global(call.out.values), values + steps * stride, value);
        indices[steps * stride] = index;
      };
      if (present.has(at)) one(ahead, value0, index0);
      if (present.has(at + 1)) one(ahead + 1, value1, index1);
    }
  }
};

// Scans K chunks, of which C neighbours are of one row, whose first position has the index `first`; `width` lanes a
// row, all of them if C > 1. kCarried: they are all of one row; `carry` is what precedes them, and becomes what
// precedes the chunk after them. Positions of a row's first chunk below `lead` are absent; those behind its end are
// some numbers, and reach no result.
template <int K, int C, bool kCarried, class S, class Load>
__device__ __forceinline__ Found<S, K> scan_chunks(const S& op, const ScanCall& call, const PairOf<Load> (&pairs)[K],
                                                   int width, const unsigned (&lead)[K / C],
                                                   const int64_t (&first)[K / C], Record<S>& carry) {
  using Key = typename Record<S>::Key;
  using Order = typename Record<S>::Order;
  const int lane = lane_id(), place = 2 * (lane & (width - 1)), step = call.reverse ? -1 : 1;
  const uint32_t below = (1u << lane) - 1;  // as each row begins with a record, those of other rows do not matter
  auto greater = [](Key a, Key b) { return a > b ? a : b; };
  Found<S, K> found;
  found.base = kCarried && call.layout.length > kNearLength ? first[0] : 0;
  found.carried = carry.index;
  Key x[K][2], key[K][2], upto[K], most = Order::kLowest;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    pairs[k].template get_keys<S>(op, key[k]);
    if (k % C == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (unsigned(place + i) < lead[k / C]) key[k][i] = Order::kLowest;
    }
    upto[k] = greater(key[k][0], key[k][1]);
    most = greater(most, upto[k]);
  }
  int carry_at = 0;
  if constexpr (kCarried) {
    const int64_t from_base = carry.index - found.base;
    carry_at = from_base == int(from_base) ? int(from_base) : kFar;
    if (!ballot(most >= carry.key)) {  // no record
#pragma unroll
      for (int k = 0; k < K; ++k)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          found.bits[k][i] = carry.bits;
          found.at[k][i] = carry_at;
        }
      return found;
    }
  }
#pragma unroll
  for (int k = 0; k < K; ++k) pairs[k].template get_bits<S>(x[k]);
  if constexpr (Order::kFloat)
    if (most == Order::kGreatest) {  // the canonical NaN for each
      TR_RARE_PATH;
#pragma unroll
      for (int k = 0; k < K; ++k)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if ((x[k][i] & Order::kGreatest) > Key(Order::kInf)) x[k][i] = Key(Order::kNaN);
    }
#pragma unroll
  for (int d = 1; d < kLanes; d <<= 1)
#pragma unroll
    for (int k = 0; k < K; ++k) upto[k] = greater(upto[k], shuffle_up(upto[k], d, width));
  Key carry_key = carry.key, carry_bits = carry.bits;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (!kCarried && k % C == 0) {
      carry_key = Order::kLowest;
      carry_bits = 0;
      carry_at = 0;
    }
    const int own = int(first[k / C] - found.base) + step * (k % C * kChunk + place), next = own + step;
    Key before = shuffle_up(upto[k], 1, width);
    if (place == 0) before = Order::kLowest;
    if (C > 1) before = greater(before, carry_key);
    const bool first_is = key[k][0] >= before, second_is = key[k][1] >= greater(before, key[k][0]);
    const uint32_t records = ballot(first_is | second_is) & below;
    const int from = 31 - __clz(int(records));
    const Key first_bits = x[k][0], second_bits = x[k][1], latest = second_is ? second_bits : first_bits;
    Key bits = shuffle(latest, from);
    int at = shuffle(second_is ? next : own, from);
    if (C > 1 && !records) {
      bits = carry_bits;
      at = carry_at;
    }
    const Key bits0 = first_is ? first_bits : bits, bits1 = second_is ? second_bits : bits0;
    const int at0 = first_is ? own : at, at1 = second_is ? next : at0;
    found.bits[k][0] = bits0;
    found.bits[k][1] = bits1;
    found.at[k][0] = at0;
    found.at[k][1] = at1;
    if (C > 1) {
      carry_key = greater(carry_key, shuffle(upto[k], kLanes - 1));
      carry_bits = shuffle(bits1, kLanes - 1);
      carry_at = shuffle(at1, kLanes - 1);
    }
  }
  if constexpr (kCarried) carry = {carry_key, carry_bits, carry_at == kFar ? found.carried : found.base + carry_at};
  return found;
}

constexpr int kStepsAhead = 2;        // of a warp that walks a row
constexpr int kResidentExtremes = 3;  // blocks of a multiprocessor at least

// Walks a row, or, R > 1, takes R whole ones, of which the lane's first is `row` and the others follow `apart` from
// each other.
template <class S, class Load, class Store, int R, int C>
__device__ __forceinline__ void walk_extremes(const S& op, const ScanCall& call, int64_t row, int width, int apart) {
  constexpr int K = R * C, kStep = C * kChunk, kAhead = R > 1 ? 1 : kStepsAhead;
  constexpr bool kDirect = R == 1 && PairedRow<Load, Store>::kTyped;
  const Layout& layout = call.layout;
  const int64_t n = layout.length, room = R > 1 && C == 1 ? 2 * width : (n + kStep - 1) / kStep * kStep;
  const int place = 2 * (lane_id() & (width - 1));
  PairedRow<Load, Store> own[R];
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const bool active = row + r * apart < layout.rows;
    own[r].set(call, active, active ? row_start(layout, row + r * apart) : RowStart{0, 0}, room);
    own[r].move_in(call, place - own[r].lead);
    own[r].move_out(call, place - own[r].lead);
  }
  // Of the step that begins at `from`.
  auto present = [&](int r, int64_t from) {
    const int64_t left = own[r].length(call) - from;
    return Present{from > 0 ? 0 : own[r].lead, left < kStep ? int(left) : kStep};
  };
  auto whole = [&](int64_t from) { return from >= own[0].lead && own[0].length(call) - from >= kStep; };
  auto load = [&](int64_t from, PairOf<Load>(&pairs)[K]) {
    if constexpr (kDirect)
      if (own[0].in_pairs == Pairs::Up && whole(from)) {
#pragma unroll
        for (int k = 0; k < K; ++k) pairs[k] = own[0].load_up(call, k * kChunk);
        return;
      }
#pragma unroll
    for (int k = 0; k < K; ++k)
      pairs[k] = own[k / C].load(call, k % C * kChunk, present(k / C, from), k % C * kChunk + place);
  };
  PairOf<Load> next[kAhead][K];  // steps whose loads are on their way
  Record<S> carry = Record<S>::none();
#pragma unroll
  for (int a = 0; a < kAhead; ++a) {
    if (a > 0 && a * kStep >= own[0].length(call)) break;
    if (a > 0) own[0].move_in(call, kStep);
    load(a * kStep, next[a]);
  }
#pragma unroll 1
  for (int64_t from = 0;;) {
    PairOf<Load> pairs[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      pairs[k] = next[0][k];
      pairs[k].turn(own[k / C].in_pairs == Pairs::Down);
    }
#pragma unroll
    for (int a = 1; a < kAhead; ++a)
#pragma unroll
      for (int k = 0; k < K; ++k) next[a - 1][k] = next[a][k];
    if (R == 1 && from + kAhead * kStep < own[0].length(call)) {
      own[0].move_in(call, kStep);
      load(from + kAhead * kStep, next[kAhead - 1]);
    }
    unsigned lead[R];
    int64_t first[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      lead[r] = from > 0 ? 0 : own[r].lead;
      first[r] = call.index_of(from - own[r].lead);
    }
    const auto found = scan_chunks<K, C, R == 1>(op, call, pairs, width, lead, first, carry);
    const bool up = kDirect && own[0].out_pairs == Pairs::Up && whole(from) && n <= kNearLength;
    if (up) {
      if constexpr (kDirect) own[0].store_up(found);
    } else {
#pragma unroll
      for (int k = 0; k < K; ++k)
        own[k / C].store(call, k % C * kChunk, present(k / C, from), k % C * kChunk + place, found.value(k, 0),
                         found.value(k, 1), found.index(k, 0), found.index(k, 1));
    }
    from += kStep;
    if (R > 1 || from >= own[0].length(call)) break;
    own[0].move_out(call, kStep);
  }
}

// Takes rows, R at a time, from `row` on in steps of `turn` while there are as many: those of an even number of
// positions that one stride leads through, if all their pairs go up in memory. Returns the first row that it leaves.
// All that is known once for all rows is a good part of what others would take a row.
template <class S, class Load, class Store, int R, int C>
__device__ __forceinline__ int64_t stream_extremes(const S& op, const ScanCall& call, int64_t row, int64_t turn,
                                                   int width, int apart) {
  constexpr int K = R * C;
  const Layout& layout = call.layout;
  const int64_t in = layout.in[0], out = layout.out[0];
  PairedRow<Load, Store> own;
  own.set(call, true, RowStart{0, 0}, layout.length);
  if (layout.kept != 1 || own.lead != 0 || own.in_pairs != Pairs::Up || own.out_pairs != Pairs::Up ||
      (layout.length | in | out) % 2 != 0)
    return row;
  const int lane = lane_id(), place = 2 * (lane & (width - 1)), n = int(layout.length);
  const int64_t mine = row + lane / width;
  own.in += mine * in + place;
  own.values += mine * out + place;
  own.indices += mine * out + place;
  auto there = [&](int k) { return k % C * kChunk + place < n; };
  auto load = [&](PairOf<Load>(&pairs)[K]) {
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (there(k)) pairs[k] = own.load_up(call, k / C * apart * in + k % C * kChunk);
  };
  unsigned lead[R] = {};
  int64_t first[R];
#pragma unroll
  for (int64_t& index : first) index = call.index_of(0);
  PairOf<Load> next[K] = {};
  bool more = row + R * apart <= layout.rows;
  if (more) load(next);
#pragma unroll 1
  while (more) {
    PairOf<Load> pairs[K];
#pragma unroll
    for (int k = 0; k < K; ++k) pairs[k] = next[k];
    row += turn;
    own.in += turn * in;
    more = row + R * apart <= layout.rows;
    if (more) load(next);
    Record<S> none = Record<S>::none();
    const auto found = scan_chunks<K, C, false>(op, call, pairs, width, lead, first, none);
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (there(k)) own.store_up(k / C * apart * out + k % C * kChunk, found, k);
    own.values += turn * out;
    own.indices += turn * out;
  }
  return row;
}

// Rows of any length. R > 1: shape.lanes lanes a row that is no longer than what a warp takes of each of R rows at a
// time. Else one warp walks each row.
template <class S, class Load, class Store, int R>
__global__ void TR_BLOCKS_BOUND(kThreads, kResidentExtremes)
    scan_extreme_rows(TR_GRID_CONSTANT ScanCall call, TR_GRID_CONSTANT ExtremeRowsShape shape) {
  constexpr int C = extreme_chunks(sizeof(element_of<Load>)) / R;
  const S op{call.options};
  const int width = R > 1 ? shape.lanes : kLanes, apart = kLanes / width;
  const int64_t turn = int64_t(gridDim.x) * kWarps * (R * apart), rows = call.layout.rows;  // of all warps at a time
  int64_t row = (int64_t(blockIdx.x) * kWarps + threadIdx.x / kLanes) * (R * apart);
  if constexpr (R > 1) {
    if constexpr (PairedRow<Load, Store>::kTyped)
      row = stream_extremes<S, Load, Store, R, C>(op, call, row, turn, width, apart);
#pragma unroll 1
    for (; row < rows; row += turn)
#pragma unroll 1
      for (int r = 0; r < R; r += 2)  // there are not the registers for more
        walk_extremes<S, Load, Store, 2, C>(op, call, row + r * apart + lane_id() / width, width, apart);
  } else {
    if (row < rows) walk_extremes<S, Load, Store, 1, C>(op, call, row, width, apart);
  }
}

// The position of the latest of the greatest of N elements in shared memory, by a warp. down: the last one lies first.
template <class S, class Load, int N>
__device__ __forceinline__ int latest_greatest(const S& op, const element_of<Load>* part, bool down) {
  using Key = typename Record<S>::Key;
  constexpr int kVector = 16 / int(sizeof(element_of<Load>));
  const int lane = lane_id();
  Key most = Record<S>::Order::kLowest;
  int latest_vector = 0;  // that has it, of those of the lane
  auto vector = [&](int number, Key(&key)[kVector]) {
    const int at = number * kLanes + lane;
    Elements<Load, kVector> elements;
    elements.w = reinterpret_cast<const decltype(elements.w)*>(part)[down ? N / kVector - 1 - at : at];
    elements.template get_keys<S>(op, key);
  };
#pragma unroll 2
  for (int v = 0; v < N / (kLanes * kVector); ++v) {
    Key key[kVector];
    vector(v, key);
    Key greatest = key[0];
#pragma unroll
    for (int i = 1; i < kVector; ++i) greatest = greatest > key[i] ? greatest : key[i];
    latest_vector = greatest >= most ? v : latest_vector;
    most = greatest >= most ? greatest : most;
  }
  Key key[kVector];
  vector(latest_vector, key);
  int where = 0;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const int position = down ? kVector - 1 - i : i;
    if (key[i] == most && position > where) where = position;
  }
  where += (latest_vector * kLanes + lane) * kVector;
  const Key greatest = warp_most(most);
  return warp_most(most == greatest ? where : 0);
}

// A tile of few long rows. Each warp has a part of it, of which it finds the latest record.
template <class S, class Load, class Store> struct RecordRow {
  using Shape = ExtremeChainShape;
  using Acc = typename S::Acc;
  using R = Record<S>;
  using E = element_of<Load>;
  static constexpr int kThreads = gpu::kThreads, kBlocks = sizeof(E) > 4 ? 3 : 4;
  static constexpr bool kTyped = PairedRow<Load, Store>::kTyped;
  static constexpr int kPositions = extreme_tile(sizeof(E)), kPart = kPositions / kWarps, K = extreme_chunks(sizeof(E));
  struct Shared {
    int64_t job;  // its ticket
    Acc totals[kWarps], carry;
  };

  const S op;
  const ScanCall& call;
  Shared& shared;
  ChainSpace<S> space;
  const ChainJob job;
  const int lane, warp;
  PairedRow<Load, Store> own;
  E* const part;
  int64_t first;   // the part's first position
  int begin, end;  // of the part's positions that are there
  bool down;       // the last one lies first
  Acc before;      // the parts before

  __device__ __forceinline__ static int64_t job_of(const ScanCall&, const Shape&, void*, int64_t ticket) {
    return ticket;
  }
  __device__ __forceinline__ RecordRow(const ScanCall& call, const Shape& shape, void* workspace, Shared& shared)
      : op{call.options},
        call(call),
        shared(shared),
        space(workspace, call.layout.rows, shape.tiles),
        job(chain_job(shared.job, shape.tiles)),
        lane(lane_id()),
        warp(int(threadIdx.x) / kLanes),
        part(stage<E>() + warp * kPart) {}
  __device__ __forceinline__ E& staged(int at) const { return part[down ? kPart - 1 - at : at]; }

  __device__ __forceinline__ void sum() {
    own.set(call, true, row_start(call.layout, job.row), INT64_MAX);
    first = job.tile * kPositions + warp * kPart - own.lead;
    const int64_t left = call.layout.length - first;
    end = left < kPart ? int(left) : kPart;
    begin = first < 0 ? own.lead : 0;
    own.move_in(call, first);
    const int64_t stride = own.in_stride(call);
    copy_run<Load, kPart>(call.in, own.in, stride, true, begin, end, part);
    end_copies();
    wait_copies<0>();
    __syncthreads();

    down = stride < 0;
    if (begin > 0) {  // what precedes the row counts as its first element, which as the later one hides it
      if (lane < begin) staged(lane) = staged(begin);
      warp_barrier();
    }
    const int latest = latest_greatest<S, Load, kPart>(op, part, down);
    if (lane == 0) shared.totals[warp] = end > 0 ? op.load(staged(latest), first + latest) : S::absent();
  }
  __device__ __forceinline__ void carry() {
    const int slot = lane & (kWarps - 1);
    const Acc upto = sklansky<S>(shared.totals[slot], slot, kWarps);
    before = shuffle(upto, warp ? warp - 1 : 0);
    if (warp > 0) return;
    const Acc found = chain_carry<S>(space, job.row, job.tile, shuffle(upto, kWarps - 1), S::wide_absent());
    if (lane == 0) shared.carry = found;
  }
  __device__ __forceinline__ void store() {
    R carry = R::of(op, call, S::combine(shared.carry, chosen(warp > 0, before, S::absent())));
    own.move_out(call, first + 2 * lane);
    const bool up = kTyped && begin == 0 && end == kPart && own.out_pairs == Pairs::Up;
    if constexpr (kTyped)
      if (up && shared.totals[warp].key < carry.key) {  // no record
        const E value = R::element(carry.bits);
#pragma unroll 8
        for (int c = 0; c < kPart / kChunk; ++c) own.store_up(c * kChunk, value, value, carry.index, carry.index);
        return;
      }
#pragma unroll 1
    for (int c = 0; c < kPart / kChunk; c += K) {
      PairOf<Load> pairs[K];
#pragma unroll
      for (int k = 0; k < K; ++k) {
        const int at = (c + k) * kLanes + lane;
        pairs[k].w = reinterpret_cast<const decltype(pairs[k].w)*>(part)[down ? kPart / 2 - 1 - at : at];
        pairs[k].turn(down);
      }
      const auto found =
          scan_chunks<K, K, true>(op, call, pairs, kLanes, {0}, {call.index_of(first + c * kChunk)}, carry);
      if (up && call.layout.length <= kNearLength) {
        if constexpr (kTyped) own.store_up(found);
      } else {
        const Present present{begin, end};
#pragma unroll
        for (int k = 0; k < K; ++k)
          own.store(call, k * kChunk, present, (c + k) * kChunk + 2 * lane, found.value(k, 0), found.value(k, 1),
                    found.index(k, 0), found.index(k, 1));
      }
      own.move_out(call, K * kChunk);
    }
  }
};

}  // namespace torchreduce::gpu
