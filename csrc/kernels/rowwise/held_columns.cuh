// Row-wise ops on columns, which are kept on chip between the passes.
//
// Serves: float32 and 16-bit floats, columns that start at whole granules (held_columns.h); ops with one input whose
// first pass is for the greatest element. A tile is a leaf of neighbouring columns: each row of it is granules, one a
// lane; a thread has neighbouring residues. It copies its granules to places of its own, from which it sums and then
// maps them, so that threads meet only for what they have of a column: once, where elements are central
// (ops/rowwise.h), twice elsewhere. Blocks stay: as soon as a part of a tile is mapped, a part of a tile to come is
// copied to its place. Columns of several leaves meet over a cluster, a block a leaf. Shared memory, dynamic: parts of
// tiles, in a ring; the greatest elements and the sums that warps have of each column, for two turns; states of the
// columns' leaves, for two.
#pragma once
#include "column_granule.cuh"
#include "held_columns.h"
#include "states.cuh"

namespace torchreduce::gpu {

struct ColumnPitch { int in, out; };  // bytes from a position to the next

template <class Op, class E, int kDepth> struct HeldColumns {
  using F = float;
  using State = typename Op::State;
  using Seen = typename Op::Seen;
  using At = std::decay_t<decltype(Op::at(std::declval<typename Op::Row>(), std::declval<State>()))>;
  struct alignas(16) Slot {
    State state;
    int central;
  };
  static constexpr int kSize = int(sizeof(E)), kPer = 16 / kSize, kAcross = held_columns::across(kDepth);
  static constexpr int kColumns = kAcross * kPer;
  static constexpr int kEach = (kColumns + kLanes - 1) / kLanes;  // columns of a lane, when their threads have met
  static constexpr int kThreads = held_columns::kThreads, kWarps = held_columns::kWarps;
  static constexpr int kRun = held_columns::kPart * held_columns::kTileParts / kDepth;  // residues of a thread
  static constexpr int kPartRun = held_columns::kPart / kDepth, kParts = held_columns::kParts;
  static_assert(kRun * kThreads / kAcross == kResidues && kAcross <= kLanes, "threads have all residues");
  static_assert(sizeof(Slot) == 16, "one load");

  const RowwiseKernelCall& call;
  const HeldColumnsShape& shape;
  const ColumnPitch pitch;
  const int leaf, count;  // of the block's columns; its elements
  char* const own;        // the thread's places
  F* const meeting;       // [turn][greatest, sum][warp][column]
  Slot* const slots;      // [turn][leaf][column]

  __device__ HeldColumns(const RowwiseKernelCall& call, const HeldColumnsShape& shape, const ColumnPitch& pitch,
                         int leaf, char* dynamic)
      : call(call),
        shape(shape),
        pitch(pitch),
        leaf(leaf),
        count(int(call.length - leaf * kLeaf < kLeaf ? call.length - leaf * kLeaf : kLeaf)),
        own(dynamic + threadIdx.x * 16),
        meeting(reinterpret_cast<F*>(dynamic + kParts * held_columns::kPart * kThreads * 16)),
        slots(reinterpret_cast<Slot*>(meeting + 4 * kWarps * kColumns)) {}

  __device__ static int across() { return int(threadIdx.x) % kAcross; }
  __device__ static int first_column() { return across() * kPer; }
  __device__ static int residue() { return int(threadIdx.x) / kAcross * kRun; }  // the thread's first
  __device__ static int column_number(int i) { return (lane_id() + i * kLanes) % kColumns; }
  // Where a tile starts in the operands, for this leaf, and how many columns it has.
  struct Place {
    int64_t in, out;  // addresses
    int columns;      // none: there is no such tile
  };
  __device__ Place place(int tile) const {
    if (tile >= shape.tiles) return {0, 0, 0};
    const int outer = int(unsigned(tile) / unsigned(shape.across)), first = (tile - outer * shape.across) * kColumns;
    const int inner = int(call.size[call.dims - 1]);
    RowwiseStart start{};
    if (outer > 0) start = call.start(int64_t(outer) * inner);
    return {multiply_add(leaf * kLeaf, pitch.in, (start.in[0] + first) * kSize + int64_t(call.in[0])),
            multiply_add(leaf * kLeaf, pitch.out, (start.out + first) * kSize + int64_t(call.out)),
            inner - first < kColumns ? inner - first : kColumns};
  }
  __device__ static bool is_there(const Place& p) { return first_column() < p.columns; }
  // The thread's place for element k of its residue number r, of part `part`.
  __device__ char* granule(int part, int r, int k) const {
    return own + (part * held_columns::kPart + r % kPartRun * kDepth + k) * (kThreads * 16);
  }

  // Starts the copies of a part of a tile: of residues from number `first` on.
  __device__ __forceinline__ void load(const Place& p, int first, int part) const {
    if (is_there(p))
#pragma unroll
      for (int r = 0; r < kPartRun; ++r) {
        const int row = residue() + first + r;
        int64_t address = multiply_add(row, pitch.in, p.in) + first_column() * kSize;
#pragma unroll
        for (int k = 0; k < kDepth; ++k, address += int64_t(kResidues) * pitch.in)
          if (row + k * kResidues < count)
            copy_async<16, true>(granule(part, r, k), reinterpret_cast<const char*>(address));
      }
    end_copies();
  }

  // ---- looks ----------------------------------------------------------------------------------------------------------

  // The thread's elements of a granule, in F.
  __device__ static void elements(const char* from, Granule& g, F (&x)[kPer]) {
    g = load_wide(reinterpret_cast<const Granule*>(from));
    E e[kPer];
    elements_of<E>(g, e);
#pragma unroll
    for (int j = 0; j < kPer; ++j) x[j] = convert<F>(e[j]);
  }
  // Of residues kFirst to kFirst + kCount - 1 of the thread: the sums of its columns, and the greatest elements. Both
  // parts of the tile are there.
  template <int kFirst, int kCount>
  __device__ __forceinline__ void look(const Place& p, const int (&parts)[2], F (&sum)[kPer], ColumnMaxima<E>& most,
                                       ColumnsLeast<E>& least) const {
    if constexpr (kCount > 1) {
      F right[kPer];
      look<kFirst, kCount / 2>(p, parts, sum, most, least);
      look<kFirst + kCount / 2, kCount / 2>(p, parts, right, most, least);
#pragma unroll
      for (int j = 0; j < kPer; ++j) sum[j] = sum[j] + right[j];
    } else {
      const int row = residue() + kFirst;
#pragma unroll
      for (F& a : sum) a = F(-0.0);
#pragma unroll
      for (int k = 0; k < kDepth; ++k)
        if (is_there(p) && row + k * kResidues < count) {
          Granule g;
          F x[kPer];
          elements(granule(parts[kFirst / kPartRun], kFirst, k), g, x);
          most.take(g.item);
          least.take(g.item);
#pragma unroll
          for (int j = 0; j < kPer; ++j) Op::central_step(sum[j], x[j]);
        }
    }
  }
  // The sums of a leaf whose greatest elements are known, by columns of lanes.
  __device__ __forceinline__ void look_again(const Place& p, const int (&parts)[2], const Seen (&seen)[kEach],
                                             F (&sum)[kPer]) const {
    TreeStack<F, 5> tree[kPer];
    const auto add = [](F a, F b) { return a + b; };
#pragma unroll 1
    for (int r = 0; r < kRun; ++r) {
      const int row = residue() + r;
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        const Seen of_column = column_of(seen, first_column() + j);
        sum[j] = F(-0.0);
#pragma unroll 1
        for (int k = 0; k < kDepth; ++k)
          if (is_there(p) && row + k * kResidues < count) {
            const F x = convert<F>(reinterpret_cast<const E*>(granule(r < kPartRun ? parts[0] : parts[1], r, k))[j]);
            Op::step(&sum[j], &x, F(1), of_column, typename Op::Given{});
          }
      }
#pragma unroll
      for (int j = 0; j < kPer; ++j) tree[j].push(sum[j], add);
    }
#pragma unroll
    for (int j = 0; j < kPer; ++j) sum[j] = tree[j].total(F(-0.0), add);
  }

  // ---- meetings -------------------------------------------------------------------------------------------------------

  // Of what lanes have of the columns of their granules, what the warp has of one of them, for its place in `to`.
  template <class Combine> __device__ __forceinline__ static void leave(F (&v)[kPer], F* to, Combine combine) {
    const int lane = lane_id();
    int left = kPer, place = 0;
#pragma unroll
    for (int d = kAcross, bit = 1; d < kLanes; d *= 2, bit *= 2) {
      const bool odd = (lane & d) != 0;
      if (left > 1) {  // a lane keeps every other one
        left /= 2;
        place += odd ? bit : 0;
#pragma unroll
        for (int k = 0; k < kPer / 2; ++k)
          if (k < left) {
            const F sent = odd ? v[2 * k] : v[2 * k + 1], kept = odd ? v[2 * k + 1] : v[2 * k];
            v[k] = combine(kept, shuffle(sent, lane ^ d));
          }
      } else {
        v[0] = combine(v[0], shuffle(v[0], lane ^ d));
      }
    }
    if (lane < kColumns)
#pragma unroll
      for (int k = 0; k < kPer; ++k)
        if (k < left) to[int(threadIdx.x) / kLanes * kColumns + first_column() + k * (kPer / left) + place] = v[k];
  }
  // The tree over what the warps have, for columns of lanes.
  template <class Combine> __device__ __forceinline__ static void join(const F* from, F (&to)[kEach], Combine combine) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      F v[kWarps];
#pragma unroll
      for (int w = 0; w < kWarps; ++w) v[w] = from[w * kColumns + column_number(i)];
#pragma unroll
      for (int d = 1; d < kWarps; d *= 2)
#pragma unroll
        for (int w = 0; w < kWarps; w += 2 * d) v[w] = combine(v[w], v[w + d]);
      to[i] = v[0];
    }
  }
  // Of a column of the tile, what its lane has.
  template <class V> __device__ __forceinline__ static V column_of(const V (&values)[kEach], int column) {
    V v = shuffle(values[0], column & (kLanes - 1));
#pragma unroll
    for (int i = 1; i < kEach; ++i) v = chosen(column >= i * kLanes, shuffle(values[i], column & (kLanes - 1)), v);
    return v;
  }

  // Whether something holds for all columns of the tile.
  template <class Holds> __device__ __forceinline__ static bool in_all(const Place& p, Holds holds) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < kEach; ++i) all &= holds(i) || column_number(i) >= p.columns;
    return ballot(!all) == 0;
  }
  // The states of a cluster's leaves: those of turn number `turn`, and whether all are of central elements.
  __device__ __forceinline__ void meet_leaves([[maybe_unused]] State (&state)[kEach], [[maybe_unused]] bool& central,
                                              [[maybe_unused]] const Place& p, [[maybe_unused]] Barrier* arrived,
                                              [[maybe_unused]] int turn) const {
#ifdef TR_CLUSTERS
    Slot* const here = slots + (turn & 1) * shape.leaves * kColumns;
    Barrier* const b = arrived + (turn & 1);
    const int warp = int(threadIdx.x) / kLanes;
    if (warp < shape.leaves)
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        if (lane_id() + i * kLanes < kColumns)
          put(here + leaf * kColumns + column_number(i), b, Slot{state[i], central}, warp);
    barrier_wait(b, uint32_t(turn / 2 & 1));
    if (threadIdx.x == 0) expect(b);
    bool all = true;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      F sum[held_columns::kMostCluster], l = -kInfinity<F>;
#pragma unroll
      for (int k = 0; k < held_columns::kMostCluster; ++k) {
        sum[k] = F(-0.0);
        if (k >= shape.leaves) continue;
        const Slot slot = load_wide(here + k * kColumns + column_number(i));
        all &= slot.central != 0 || column_number(i) >= p.columns;
        sum[k] = slot.central ? Op::central_sum(slot.state) : F(0);
        l = greatest(l, slot.state.l);
      }
#pragma unroll
      for (int d = 1; d < held_columns::kMostCluster; d *= 2)
#pragma unroll
        for (int k = 0; k < held_columns::kMostCluster; k += 2 * d) sum[k] = sum[k] + sum[k + d];
      if (all) state[i] = Op::central_state(l, sum[0]);
    }
    central = ballot(!all) == 0;
    if (central) return;
    const auto merge = [](const State& a, const State& b) { return Op::merge(a, b); };
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      TreeStack<State, 4> tree;
#pragma unroll 1
      for (int k = 0; k < shape.leaves; ++k) tree.push(State(here[k * kColumns + column_number(i)].state), merge);
      state[i] = tree.total(Op::none(), merge);
    }
#endif
  }
  __device__ void expect([[maybe_unused]] Barrier* b) const {
#ifdef TR_CLUSTERS
    barrier_expect(b, uint32_t(shape.leaves * kColumns * int(sizeof(Slot))));
#endif
  }

  // ---- results --------------------------------------------------------------------------------------------------------

  // Stores result(x, value of the column) for the thread's elements, and starts to copy what comes after, into their
  // places: next(part of the tile). kPlain: no result is NaN.
  template <bool kPlain, class V, class Result, class Next>
  __device__ __forceinline__ void store(const Place& p, const int (&parts)[2], const V (&values)[kEach], Result result,
                                        Next next) const {
    V of_column[kPer];
#pragma unroll
    for (int j = 0; j < kPer; ++j) of_column[j] = column_of(values, first_column() + j);
#pragma unroll
    for (int r = 0; r < kRun; ++r) {
      const int row = residue() + r;
      int64_t address = multiply_add(row, pitch.out, p.out) + first_column() * kSize;
#pragma unroll
      for (int k = 0; k < kDepth; ++k, address += int64_t(kResidues) * pitch.out)
        if (is_there(p) && row + k * kResidues < count) {
          Granule g;
          F x[kPer];
          elements(granule(parts[r / kPartRun], r, k), g, x);
#pragma unroll
          for (int j = 0; j < kPer; ++j) x[j] = result(x[j], of_column[j]);
          store_granule(reinterpret_cast<Granule*>(address), rounded_granule<E, kPlain>(x));
        }
      if (r % kPartRun == kPartRun - 1) next(r / kPartRun);
    }
  }
  // The same of any elements, of columns with the greatest elements `most`.
  template <class Next>
  __device__ __forceinline__ void store_far(const Place& p, const int (&parts)[2], const At (&at)[kEach],
                                            const F (&most)[kEach], Next next) const {
    struct Far {
      At at;
      Seen seen;
    } far[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) far[i] = {at[i], Op::seen(most[i], count, typename Op::Given{})};
    store<false>(
        p, parts, far,
        [](F x, const Far& v) {
          if constexpr (Op::kTerm) return Op::map(Op::term(x, v.seen), F(1), F(-0.0), 0, v.at);
          else return Op::map(&x, F(1), F(-0.0), 0, v.at);
        },
        next);
  }
};

template <class Op, class E, int kDepth>
__global__ void __launch_bounds__(held_columns::kThreads, 1)
    held_columns_kernel(TR_GRID_CONSTANT RowwiseKernelCall call, TR_GRID_CONSTANT HeldColumnsShape shape,
                        TR_GRID_CONSTANT ColumnPitch pitch) {
#if !defined(__CUDA_ARCH__) || defined(TR_LARGE_BLOCKS)  // others have no room for its tiles
  using H = HeldColumns<Op, E, kDepth>;
  using F = float;
  static_assert(Op::kFirst == First::Greatest && Op::kFills && Op::kSums == 1 && Op::kCentral, "sums of exponentials");
  TR_DYNAMIC_SHARED(dynamic, 16);
  __shared__ Barrier arrived[2];
  const int first = int(blockIdx.x) / shape.leaves, step = int(gridDim.x) / shape.leaves;
  const H h(call, shape, pitch, int(blockIdx.x) - first * shape.leaves, dynamic);
#ifdef TR_CLUSTERS
  if (shape.leaves > 1) {
    if (threadIdx.x == 0) {
      for (Barrier& b : arrived) barrier_init(&b, 1);
      barriers_made();
      for (Barrier& b : arrived) h.expect(&b);
    }
    cluster_arrive();
  }
#endif
  const typename Op::Given given{};
  const auto add = [](F a, F b) { return a + b; };
  const auto greater = [](F a, F b) { return greatest(a, b); };
  typename H::Place place = h.place(first), next = h.place(first + step);
  h.load(place, 0, 0);
  h.load(place, H::kPartRun, 1);
  h.load(next, 0, 2);
#ifdef TR_CLUSTERS
  if (shape.leaves > 1) cluster_wait();
#endif
  int parts[2] = {0, 1};  // of the ring, that the tile is in
#pragma unroll 1
  for (int tile = first, turn = 0, meets = 0; tile < shape.tiles; tile += step, ++turn) {
    const typename H::Place after = h.place(tile + 2 * step);
    wait_copies<1>();
    F sums[H::kPer], maxima[H::kPer];
    {
      ColumnMaxima<E> most;
      ColumnsLeast<E> least;
      h.template look<0, H::kRun>(place, parts, sums, most, least);
      const bool central = least.is_within(Op::most_central());
#pragma unroll
      for (int j = 0; j < H::kPer; ++j) {
        maxima[j] = most.column(j);
        sums[j] = central ? sums[j] : quiet_nan<F>();
      }
    }
    // Sums of columns with an element too far below 0 to be central are NaN.
    F* met = h.meeting + (meets++ & 1) * 2 * H::kWarps * H::kColumns;
    H::leave(maxima, met, greater);
    H::leave(sums, met + H::kWarps * H::kColumns, add);
    __syncthreads();
    F most[H::kEach], sum[H::kEach];
    H::join(met, most, greater);
    H::join(met + H::kWarps * H::kColumns, sum, add);

    const bool central = H::in_all(place, [&](int i) { return sum[i] == sum[i] && most[i] <= Op::most_central(); });
    if (!central) {
      typename H::Seen seen[H::kEach];
#pragma unroll
      for (int i = 0; i < H::kEach; ++i) seen[i] = Op::seen(most[i], h.count, given);
      h.look_again(place, parts, seen, sums);
      met = h.meeting + (meets++ & 1) * 2 * H::kWarps * H::kColumns;
      H::leave(sums, met, add);
      __syncthreads();
      H::join(met, sum, add);
    }
    typename Op::State state[H::kEach], row[H::kEach];
#pragma unroll
    for (int i = 0; i < H::kEach; ++i)
      row[i] = state[i] = central ? Op::central_state(most[i], sum[i]) : Op::state(most[i], &sum[i], h.count);
    bool all_central = central;
    if (shape.leaves > 1) h.meet_leaves(row, all_central, place, arrived, turn);
    typename H::At at[H::kEach];
#pragma unroll
    for (int i = 0; i < H::kEach; ++i)
      at[i] = Op::at(Op::row(row[i], call.length, given, call.options, [](int64_t) { return F(0); }), state[i]);

    const auto copy_next = [&](int part) {
      if (part == 0) h.load(next, H::kPartRun, parts[0]);
      else h.load(after, 0, parts[1]);
    };
    if (all_central && H::in_all(place, [&](int i) { return Op::allows_fast_map(F(0), at[i]); })) {
#pragma unroll
      for (int i = 0; i < H::kEach; ++i) at[i] = Op::central_at(at[i], state[i]);
      h.template store<true>(
          place, parts, at, [](F x, const typename H::At& at) { return Op::central_map(x, at); }, copy_next);
    } else {
      h.store_far(place, parts, at, most, copy_next);
    }
    place = next;
    next = after;
    const int spare = H::kParts - parts[0] - parts[1];  // which the next tile begins with
    parts[1] = parts[0];
    parts[0] = spare;
  }
#endif
}

}  // namespace torchreduce::gpu
