// Scans with indices along rows, in any order: neighbouring lanes take neighbouring pairs of positions, so that what a
// warp loads and stores lies side by side wherever rows begin. A lane has the greatest key up to its pair by shuffles;
// where its pair meets it there is a record, and the latest record up to a position is its result.
#pragma once
#include "scan_chain.cuh"

namespace torchreduce::gpu {

constexpr int kChunk = 2 * kLanes;  // positions that the pairs of a warp's lanes are

// What a scan knows of a row so far, and how it sees elements: by their bits, as wide as the accumulator's key.
template <class S> struct Record {
  using Key = decltype(S::Acc::key);
  using Element = decltype(S::Result::value);
  using Order = typename S::Order;
  Key key, bits;  // of the latest of the greatest
  int64_t position;

  __device__ __forceinline__ static Record none() { return {Order::kLowest, 0, 0}; }
  __device__ __forceinline__ static Record of(const S& op, const typename S::Acc& found) {
    const typename S::Result r = op.result(found);
    return {found.key, Key(Order::bits_of(r.value)), r.index};
  }
  // With the canonical NaN for each.
  __device__ __forceinline__ static Key canonical(Key bits) {
    if constexpr (Order::kFloat) return (bits & Order::kGreatest) > Key(Order::kInf) ? Key(Order::kNaN) : bits;
    else return bits;
  }
  __device__ __forceinline__ static Element element(Key bits) { return bit_cast<Element>(typename Order::Key(bits)); }
  __device__ __forceinline__ static Key key_of(const S& op, Key bits) { return Order::key(bits, op.options.min, true); }
};

// A pair of elements as it is loaded, in memory order if the row's pairs are `aligned`, else in that of positions.
template <class Load> struct PairOf {
  using Words = Packed<uint32_t, int(sizeof(element_of<Load>)) / 2>;
  Words w;

  template <class S>
  __device__ __forceinline__ void get(bool turned, typename Record<S>::Key (&bits)[2]) const {
    element_of<Load> x[2];
    unpack(w.item, x);
    const typename Record<S>::Key low = Record<S>::Order::bits_of(x[0]), high = Record<S>::Order::bits_of(x[1]);
    bits[0] = turned ? high : low;
    bits[1] = turned ? low : high;
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

// A row as a lane takes it. The row's first pair begins `lead` positions before it, which are absent, so that pairs lie
// aligned to their size.
template <class Load, class Store> struct PairedRow {
  using E = element_of<Load>;
  static constexpr bool kTyped = Load::kWidth > 1;
  int64_t in;  // how far in memory the first position of one of the lane's pairs lies
  std::conditional_t<kTyped, E*, int64_t> values;  // and the same of the results: where, if they are of one type
  int64_t* indices;
  int64_t length;  // with the lead; 0 where there is no such row
  int lead;
  Pairs in_pairs, out_pairs;

  // `room`: the positions of the lanes that take the row, which starts there if it is `active`.
  __device__ __forceinline__ void set(const ScanCall& call, bool active, RowStart start, int64_t room) {
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
    length = active ? layout.length + lead : 0;
  }
  // A row that lies so far behind another one, in whose place in lines of memory it starts.
  __device__ __forceinline__ void follow(const ScanCall& call, bool active, const PairedRow& row, RowStart behind) {
    *this = row;
    in += behind.in;
    values += behind.out;
    indices += behind.out;
    length = active ? call.layout.length + lead : 0;
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
      using Words = typename PairOf<Load>::Words;
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
  __device__ __forceinline__ void store(const ScanCall& call, int ahead, const Present& present, int at, E value0,
                                        E value1, int64_t index0, int64_t index1) const {
    if constexpr (kTyped) {
      using Values = Packed<E, 2>;
      using Indices = Packed<int64_t, 2>;
      if (present.has_pair(at, out_pairs == Pairs::Up)) {
        store_wide(reinterpret_cast<Values*>(values + ahead), Values{{value0, value1}});
        store_wide(reinterpret_cast<Indices*>(indices + ahead), Indices{{index0, index1}});
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

constexpr int64_t kFarthest = int64_t(1) << 31;  // positions behind that 32 bits can say

// The results of K chunks, of which C neighbours are of one row: `carry` is what precedes the first ones of each row,
// and, if they are all of one, becomes what precedes the chunk after the last one. absent(k, i): whether element i of
// the lane's pair of chunk k lies before its row; those behind the end are some numbers, and reach no result. first(k):
// the first position of the row's C chunks, from which others are counted. `width` lanes a row, all of them if C > 1.
template <class S, int K, int C, class Absent, class First, class Emit>
__device__ __forceinline__ void scan_chunks(const S& op, const ScanCall& call,
                                            const typename Record<S>::Key (&in)[K][2], int width, Record<S>& carry,
                                            Absent absent, First first_of, Emit emit) {
  using R = Record<S>;
  using Key = typename R::Key;
  const int lane = lane_id(), number = lane & (width - 1);
  const int step = call.reverse ? -1 : 1;
  const uint32_t below = (1u << lane) - 1;  // as each row begins with a record, those of other rows do not matter
  auto greater = [](Key a, Key b) { return a > b ? a : b; };
  Key x[K][2], key[K][2], upto[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      x[k][i] = R::canonical(in[k][i]);
      key[k][i] = R::key_of(op, in[k][i]);
      if (k % C == 0 && absent(k, i)) key[k][i] = R::Order::kLowest;
    }
    upto[k] = greater(key[k][0], key[k][1]);
  }
#pragma unroll
  for (int d = 1; d < kLanes; d <<= 1)
#pragma unroll
    for (int k = 0; k < K; ++k) upto[k] = greater(upto[k], shuffle_up(upto[k], d, width));
  Key carry_key = carry.key, carry_bits = carry.bits;
  int carry_at = 0;
  bool far = false;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (k % C == 0) {
      const int64_t behind = carry.position - first_of(k);
      far = C > 1 && behind <= -kFarthest;
      carry_key = carry.key;
      carry_bits = carry.bits;
      carry_at = far ? INT32_MIN : int(behind);
    }
    const int own = k % C * kChunk + 2 * number;
    Key before = shuffle_up(upto[k], 1, width);
    if (number == 0) before = R::Order::kLowest;
    before = greater(before, carry_key);
    const bool first_is = key[k][0] >= before, second_is = key[k][1] >= greater(before, key[k][0]);
    const uint32_t records = ballot(first_is | second_is) & below;
    const int from = 31 - __clz(int(records));
    const Key first = x[k][0], second = x[k][1], latest = second_is ? second : first;
    Key bits = shuffle(latest, from);
    int at = shuffle(own + second_is, from);
    if (C > 1 && !records) {
      bits = carry_bits;
      at = carry_at;
    }
    const Key bits0 = first_is ? first : bits, bits1 = second_is ? second : bits0;
    const int at0 = first_is ? own : at, at1 = second_is ? own + 1 : at0;
    const int64_t first_index = call.index_of(first_of(k));
    int64_t index0 = multiply_add(step, at0, first_index), index1 = multiply_add(step, at1, first_index);
    if (far) {
      TR_RARE_PATH;
      if (at0 == INT32_MIN) index0 = call.index_of(carry.position);
      if (at1 == INT32_MIN) index1 = call.index_of(carry.position);
    }
    emit(k, R::element(bits0), R::element(bits1), index0, index1);
    if (C > 1) {
      carry_key = greater(carry_key, shuffle(upto[k], kLanes - 1));
      carry_bits = shuffle(bits1, kLanes - 1);
      carry_at = shuffle(at1, kLanes - 1);
    }
  }
  if (C == K) {
    const int64_t position = first_of(0) + carry_at;
    carry = {carry_key, carry_bits, far && carry_at == INT32_MIN ? carry.position : position};
  }
}

constexpr int kExtremeBlocks = 3;  // of a multiprocessor at least

// Rows of any length. R > 1: plan.lanes lanes a row that is no longer than what a warp takes of each of R rows at a
// time. Else one warp walks each row.
template <class S, class Load, class Store, int R>
__global__ void TR_BLOCKS_BOUND(kThreads, kExtremeBlocks) scan_extreme_rows(TR_GRID_CONSTANT ScanCall call) {
  using E = element_of<Load>;
  constexpr int K = extreme_chunks(sizeof(E)), C = K / R, kStep = C * kChunk;
  const S op{call.options};
  const int64_t n = call.layout.length;
  const int width = R > 1 ? call.plan.lanes : kLanes, apart = kLanes / width;
  const int lane = lane_id(), place = 2 * (lane & (width - 1));
  const int64_t row = (int64_t(blockIdx.x) * kWarps + threadIdx.x / kLanes) * (R * apart) + lane / width;
  const int64_t room = R > 1 && C == 1 ? 2 * width : (n + kStep - 1) / kStep * kStep;

  PairedRow<Load, Store> own[R];
  const Layout& layout = call.layout;
  const RowStart first = row < layout.rows ? row_start(layout, row) : RowStart{0, 0};
  // Of rows that one stride leads through; then whether they start alike.
  const RowStart each = layout.kept == 1 ? RowStart{apart * layout.in[0], apart * layout.out[0]} : RowStart{0, 0};
  const bool alike = layout.kept <= 1 && each.in % kAlignedPositions == 0 && each.out % kAlignedPositions == 0;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const bool active = row + r * apart < layout.rows;
    if (r > 0 && alike) {
      own[r].follow(call, active, own[0], {r * each.in, r * each.out});
      continue;
    }
    RowStart start{first.in + r * each.in, first.out + r * each.out};
    if (r > 0 && layout.kept > 1) start = active ? row_start(layout, row + r * apart) : RowStart{0, 0};
    own[r].set(call, active, start, room);
    own[r].move_in(call, place - own[r].lead);
    own[r].move_out(call, place - own[r].lead);
  }
  // Of the step that begins at `from`.
  auto present = [&](int r, int64_t from) {
    const int64_t left = own[r].length - from;
    return Present{from > 0 ? 0 : own[r].lead, left < kStep ? int(left) : kStep};
  };
  auto load = [&](int64_t from, PairOf<Load>(&pairs)[K]) {
#pragma unroll
    for (int k = 0; k < K; ++k)
      pairs[k] = own[k / C].load(call, k % C * kChunk, present(k / C, from), k % C * kChunk + place);
  };
  PairOf<Load> next[K];
  Record<S> carry = Record<S>::none();
  load(0, next);
#pragma unroll 1
  for (int64_t from = 0;;) {
    typename Record<S>::Key x[K][2];
#pragma unroll
    for (int k = 0; k < K; ++k) next[k].template get<S>(own[k / C].in_pairs == Pairs::Down, x[k]);
    const int64_t end = from + kStep;
    if (R == 1 && end < own[0].length) {
      own[0].move_in(call, kStep);
      load(end, next);
    }
    scan_chunks<S, K, C>(
        op, call, x, width, carry, [&](int k, int i) { return from == 0 && place + i < own[k / C].lead; },
        [&](int k) { return from - own[k / C].lead; },
        [&](int k, E value0, E value1, int64_t index0, int64_t index1) {
          own[k / C].store(call, k % C * kChunk, present(k / C, from), k % C * kChunk + place, value0, value1, index0,
                           index1);
        });
    from = end;
    if (R > 1 || from >= own[0].length) break;
    own[0].move_out(call, kStep);
  }
}

// The greatest of a warp's.
template <class V> __device__ __forceinline__ V warp_most(V value) {
#pragma unroll
  for (int d = 1; d < kLanes; d <<= 1) {
    const V other = shuffle(value, lane_id() ^ d);
    value = value > other ? value : other;
  }
  return value;
}

// Few long rows: a tile a block, by way of shared memory, from where it is taken twice: each warp's part for its latest
// record, and, when the carry is there, for its results.
template <class S, class Load, class Store>
__global__ void TR_BLOCKS_BOUND(kThreads, sizeof(element_of<Load>) > 4 ? 3 : 4)
    scan_extreme_chain(TR_GRID_CONSTANT ScanCall call, void* workspace) {
  using Acc = typename S::Acc;
  using R = Record<S>;
  using E = element_of<Load>;
  using Key = typename R::Key;
  constexpr int kPositions = extreme_tile(sizeof(E)), kPart = kPositions / kWarps, K = extreme_chunks(sizeof(E));
  const S op{call.options};
  const int64_t tiles = call.plan.splits;
  const int lane = lane_id(), warp = int(threadIdx.x) / kLanes;

  ChainSpace<S> space(workspace, call.layout.rows, tiles);
  __shared__ int64_t ticket;
  __shared__ Acc totals[kWarps], shared_carry;
  if (threadIdx.x == 0) ticket = int64_t(take_ticket(space.ticket));  // tiles a block waits for have lower tickets
  __syncthreads();
  const int64_t row = ticket / tiles, tile = ticket - row * tiles;
  PairedRow<Load, Store> own;
  own.set(call, true, row_start(call.layout, row), INT64_MAX);
  const int64_t first = tile * kPositions + warp * kPart - own.lead, left = own.length - own.lead - first;
  const int end = left < kPart ? int(left) : kPart, begin = first < 0 ? own.lead : 0;
  E* const part = stage<E>() + warp * kPart;
  own.move_in(call, first);
  const int64_t stride = own.in_stride(call);
  copy_run<Load, kPart>(call.in, own.in, stride, true, begin, end, part);
  end_copies();
  wait_copies<0>();
  __syncthreads();

  const bool down = stride < 0;
  auto staged = [&](int at) -> E& { return part[down ? kPart - 1 - at : at]; };
  if (begin > 0) {  // what precedes the row counts as its first element, which as the later one hides it
    if (lane < begin) staged(lane) = staged(begin);
    warp_barrier();
  }

  // The lane's pair of a chunk, as it lies in memory if it is not to be in order.
  auto pair = [&](int chunk, bool ordered, Key(&x)[2]) {
    PairOf<Load> pair;
    const int at = chunk * kLanes + lane;
    pair.w = reinterpret_cast<const typename PairOf<Load>::Words*>(part)[down ? kPart / 2 - 1 - at : at];
    pair.template get<S>(ordered & (down), x);
  };
  Key most = R::Order::kLowest;
  int chunk = 0;  // the latest that has it
#pragma unroll 4
  for (int c = 0; c < kPart / kChunk; ++c) {
    Key x[2];
    pair(c, false, x);
    const Key first = R::key_of(op, x[0]), second = R::key_of(op, x[1]), key = first > second ? first : second;
    chunk = key >= most ? c : chunk;
    most = key >= most ? key : most;
  }
  Key x[2];
  pair(chunk, true, x);
  const int where = chunk * kChunk + 2 * lane + (R::key_of(op, x[1]) == most);
  const Key greatest = warp_most(most);
  const int latest = warp_most(most == greatest ? where : 0);
  if (lane == 0) totals[warp] = end > 0 ? op.load(staged(latest), first + latest) : S::absent();
  __syncthreads();
  const int slot = lane & (kWarps - 1);
  const Acc upto = sklansky<S>(totals[slot], slot, kWarps), before = shuffle(upto, warp ? warp - 1 : 0);
  if (warp == 0) {
    const Acc carry = chain_carry<S>(space, row, tile, shuffle(upto, kWarps - 1), S::wide_absent());
    if (lane == 0) shared_carry = carry;
  }
  __syncthreads();
  R carry = R::of(op, S::combine(shared_carry, chosen(warp > 0, before, S::absent())));
  const Present present{begin, end};
  own.move_out(call, first + 2 * lane);
#pragma unroll 1
  for (int c = 0; c < kPart / kChunk; c += K) {
    Key x[K][2];
#pragma unroll
    for (int k = 0; k < K; ++k) pair(c + k, true, x[k]);
    scan_chunks<S, K, K>(
        op, call, x, kLanes, carry, [](int, int) { return false; }, [&](int) { return first + c * kChunk; },
        [&](int k, E value0, E value1, int64_t index0, int64_t index1) {
          own.store(call, k * kChunk, present, (c + k) * kChunk + 2 * lane, value0, value1, index0, index1);
        });
    own.move_out(call, K * kChunk);
  }
}

}  // namespace torchreduce::gpu
