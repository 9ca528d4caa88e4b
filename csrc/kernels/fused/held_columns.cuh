// Columns that are looked at twice, in registers between the looks.
//
// Serves: float32 and 16-bit floats, columns of neighbours that start anywhere (held_columns.h); ops with one input
// whose first look is for the greatest element. A thread has one column, or four, and kRun neighbouring residues of a
// leaf of them. Blocks stay: while a block has a tile in registers, the tiles after it are copied to shared memory.
// Columns of several leaves meet over a cluster, a block a leaf. Shared memory, dynamic: tiles; what the warps have of
// each column, for either look; states of the columns' leaves.
#pragma once
#include "held_columns.h"
#include "kernels/reduce/granule.cuh"
#include "states.cuh"

namespace torchreduce::gpu {

struct ColumnPitch {
  int in, out;      // bytes from a position to the next
  const void* end;  // of the input: nothing outside is read, be it in the same 16 bytes
};

template <class Op, class E, int kDepth, bool kGranules> struct HeldColumns {
  using F = float;
  using State = typename Op::State;
  struct alignas(16) Slot { State state; };
  static constexpr int kSize = int(sizeof(E)), kOwn = kGranules ? 4 : 1;  // columns of a thread
  static constexpr int kSlots = held_columns::kHeld / kOwn, kRun = kSlots / kDepth, kGroups = kResidues / kRun;
  static constexpr int kAcross = held_columns::kThreads / kGroups, kColumns = kAcross * kOwn;
  static constexpr int kPitch = held_columns::pitch(kDepth, kSize, kGranules);
  static constexpr int kTile = held_columns::tile_bytes(kDepth, kSize, kGranules);
  static constexpr int kWords = kGranules ? kSize : 1, kWarps = held_columns::kWarps;
  static_assert(kColumns == held_columns::columns(kDepth) && kAcross <= kLanes, "a warp has whole rows of a tile");

  const FusedRowsCall& call;
  const HeldColumnsShape& shape;
  const ColumnPitch pitch;
  const int leaf, count;  // of the block's columns; its elements
  char* const tiles;
  F* const found_of;  // [warp][column]
  F* const sums_of;
  Slot* const slots;  // [turn][leaf][column]

  __device__ HeldColumns(const FusedRowsCall& call, const HeldColumnsShape& shape, const ColumnPitch& pitch, int leaf,
                         char* dynamic)
      : call(call),
        shape(shape),
        pitch(pitch),
        leaf(leaf),
        count(int(call.length - leaf * kLeaf < kLeaf ? call.length - leaf * kLeaf : kLeaf)),
        tiles(dynamic),
        found_of(reinterpret_cast<F*>(dynamic + shape.buffers * kTile)),
        sums_of(found_of + kWarps * kColumns),
        slots(reinterpret_cast<Slot*>(sums_of + kWarps * kColumns)) {}

  __device__ static int across() { return int(threadIdx.x) % kAcross; }
  __device__ static int group() { return int(threadIdx.x) / kAcross; }
  __device__ static int row(int slot) { return slot / kRun * kResidues + group() * kRun + slot % kRun; }
  __device__ bool is_whole() const { return count == kDepth * kResidues; }
  // Where a tile starts in the operands, for this leaf, and how many columns it has.
  struct Place {
    int64_t in, out;  // addresses
    int columns;
  };
  __device__ Place place(int tile) const {
    const int outer = int(unsigned(tile) / unsigned(shape.across)), first = (tile - outer * shape.across) * kColumns;
    const int inner = int(call.size[call.dims - 1]);
    FusedStart start{};
    if (outer > 0) start = call.start(int64_t(outer) * inner);
    return {multiply_add(leaf * kLeaf, pitch.in, (start.in[0] + first) * kSize + int64_t(call.in[0])),
            multiply_add(leaf * kLeaf, pitch.out, (start.out + first) * kSize + int64_t(call.out)),
            inner - first < kColumns ? inner - first : kColumns};
  }

  // Starts the copies of a tile. Rows that a thread's group has lie `kGroups` apart, so that lanes read neighbours.
  __device__ __forceinline__ void load(const Place& from, char* tile) const {
    constexpr int kPieces = kColumns * kSize / 16, kLoaders = kGranules ? kPieces : 2 * kPieces;  // threads of a row
    constexpr int kStep = held_columns::kThreads / kLoaders;                                      // rows at once
    static_assert(kStep % 8 == 0 && kStep % kRun == 0, "all of a thread's rows start alike in a granule");
    const int first = int(threadIdx.x) / kLoaders, piece = int(threadIdx.x) % kLoaders;
    int64_t address = multiply_add(first, pitch.in, from.in);
    const int before = kGranules ? 0 : int(address & 15);
    if (piece * 16 >= before + from.columns * kSize || piece * 16 >= kPitch) return;
    address += piece * 16 - before;
    char* const to = tile + (first % kRun * kGroups + first / kRun) * kPitch + piece * 16;
    const auto place_of = [](int row) { return (row / kResidues * kRun * kGroups + row % kResidues / kRun) * kPitch; };
#pragma unroll 8
    for (int i = 0; i < kDepth * kResidues / kStep; ++i, address += int64_t(kStep) * pitch.in) {
      if (first + i * kStep >= count) break;
      copy_granule(to + place_of(i * kStep), reinterpret_cast<const char*>(address));
    }
  }
  __device__ __forceinline__ void copy_granule(char* to, const char* from) const {
    if constexpr (kGranules) {
      copy_async<16, true>(to, from);
    } else if (from >= call.in[0] && from + 16 <= pitch.end) {
      copy_async<16, true>(to, from);
    } else {
#pragma unroll 1
      for (int i = 0; i < 16; i += kSize)
        if (from + i >= call.in[0] && from + i < pitch.end)
          *reinterpret_cast<E*>(to + i) = *reinterpret_cast<const E*>(from + i);
    }
  }

  // The elements of the thread's columns.
  struct Held {
    Packed<uint32_t, kWords> raw[kSlots];
    __device__ F element(int slot, int own) const {
      if constexpr (kSize == 4 || !kGranules) return bit_cast<F>(raw[slot].item[own]);
      else return convert<F>(bit_cast<E>(uint16_t(raw[slot].item[own / 2] >> (own % 2 * 16))));
    }
  };
  __device__ __forceinline__ void take(const Place& from, const char* tile, Held& held) const {
    if constexpr (kGranules) {
      using Words = Packed<uint32_t, kWords>;
      const Words* const own = reinterpret_cast<const Words*>(tile) + threadIdx.x;
#pragma unroll
      for (int s = 0; s < kSlots; ++s) held.raw[s] = load_wide(own + s * held_columns::kThreads);
    } else {
      const int first = int(from.in & 15);
      const char* const own = tile + group() * kPitch + across() * kSize;
#pragma unroll
      for (int s = 0; s < kSlots; ++s) {  // rows of a residue, and kRun residues, start alike in a granule
        const int before = (first + s % kRun * pitch.in) & 15;
        held.raw[s].item[0] =
            bit_cast<uint32_t>(convert<F>(*reinterpret_cast<const E*>(own + s * (kGroups * kPitch) + before)));
      }
    }
    if (is_whole()) return;
    constexpr uint32_t kAbsent = kSize == 4 || !kGranules  ? 0xff800000u
                                 : std::is_same_v<E, BF16> ? 0xff80ff80u
                                                           : 0xfc00fc00u;  // -inf
#pragma unroll
    for (int s = 0; s < kSlots; ++s)
      if (row(s) >= count)
#pragma unroll
        for (uint32_t& word : held.raw[s].item) word = kAbsent;
  }

  // Of what the threads have of their columns, what the warp's lanes have of column lane % kColumns; combine() is in
  // the contiguous tree over residues. Meets once.
  template <class Combine>
  __device__ __forceinline__ static F meet(F (&own)[kOwn], F* of_warps, Combine combine) {
    const int lane = lane_id(), warp = int(threadIdx.x) / kLanes;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
#pragma unroll
      for (int d = kAcross; d < kLanes; d *= 2) own[i] = combine(own[i], shuffle(own[i], lane ^ d));
      if (lane < kAcross) of_warps[warp * kColumns + lane * kOwn + i] = own[i];
    }
    __syncthreads();
    F v[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) v[w] = of_warps[w * kColumns + lane % kColumns];
#pragma unroll
    for (int d = 1; d < kWarps; d *= 2)
#pragma unroll
      for (int w = 0; w < kWarps; w += 2 * d) v[w] = combine(v[w], v[w + d]);
    return v[0];
  }
  // Of column i of the thread, what its lane has.
  template <class V> __device__ __forceinline__ static V of_column(const V& value, int i) {
    return shuffle(value, across() * kOwn + i);
  }

  __device__ __forceinline__ static F greatest_of(const Held& held, int own) {
    F m = held.element(0, own);
#pragma unroll
    for (int s = 1; s < kSlots; ++s) m = greatest(m, held.element(s, own));
    return m;
  }
  __device__ __forceinline__ static void greatest_of(const Held& held, F (&m)[kOwn]) {
    if constexpr (kGranules && kSize == 2) {
      constexpr bool kBF16 = std::is_same_v<E, BF16>;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        uint32_t most = held.raw[0].item[w];
#pragma unroll
        for (int s = 1; s < kSlots; ++s) most = packed_maxima<kBF16>(most, held.raw[s].item[w]);
        m[2 * w] = convert<F>(bit_cast<E>(uint16_t(most)));
        m[2 * w + 1] = convert<F>(bit_cast<E>(uint16_t(most >> 16)));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) m[i] = greatest_of(held, i);
    }
  }

  // The states of a cluster's leaves, for the lanes' columns: those of turn number `turn`.
  __device__ __forceinline__ State meet_leaves([[maybe_unused]] const State& state, [[maybe_unused]] Barrier* arrived,
                                               [[maybe_unused]] int turn) const {
#ifdef TR_CLUSTERS
    Slot* const own = slots + (turn & 1) * shape.leaves * kColumns;
    Barrier* const b = arrived + (turn & 1);
    const int lane = lane_id(), warp = int(threadIdx.x) / kLanes;
    if (warp < shape.leaves && lane < kColumns) put(own + leaf * kColumns + lane, b, Slot{state}, warp);
    barrier_wait(b, uint32_t(turn / 2 & 1));
    __syncthreads();
    if (threadIdx.x == 0) expect(b);
    const int c = int(threadIdx.x) % kColumns, place = int(threadIdx.x) / kColumns;
#pragma unroll 1
    for (int d = 1; d < shape.leaves; d *= 2) {
      const int i = place * 2 * d;
      if (i + d < shape.leaves) {
        Slot* const to = own + i * kColumns + c;
        to->state = Op::merge(State(to->state), State(to[d * kColumns].state));
      }
      __syncthreads();
    }
    return own[lane % kColumns].state;
#else
    return state;
#endif
  }
  __device__ void expect([[maybe_unused]] Barrier* b) const {
#ifdef TR_CLUSTERS
    barrier_expect(b, uint32_t(shape.leaves * kColumns * int(sizeof(Slot))));
#endif
  }

  // Stores what result(slot, own) gives.
  template <class Result> __device__ __forceinline__ void store(const Place& place, Result result) const {
    if (across() * kOwn >= place.columns) return;
    F y[kSlots][kOwn];
    bool nan = false;
#pragma unroll
    for (int s = 0; s < kSlots; ++s)
#pragma unroll
      for (int i = 0; i < kOwn; ++i) y[s][i] = result(s, i);
#pragma unroll
    for (int s = 0; s < kSlots; s += 2)
#pragma unroll
      for (int i = 0; i < kOwn; ++i) nan |= (y[s][i] != y[s][i]) | (y[s + 1][i] != y[s + 1][i]);  // one comparison
    const int64_t first = multiply_add(group() * kRun, pitch.out, place.out + across() * kOwn * kSize);
    const auto rows = [&](auto rounded) {
      const bool whole = is_whole();
#pragma unroll
      for (int s = 0; s < kSlots; ++s) {
        char* const to = reinterpret_cast<char*>(multiply_add(s / kRun * kResidues + s % kRun, pitch.out, first));
        if (whole || row(s) < count) rounded(to, y[s]);
      }
    };
    using Words = Packed<uint32_t, kWords>;
    if (nan || (!kLooksForNan<E, F>)) {
      rows([](char* to, const F(&v)[kOwn]) {
        E x[kOwn];
#pragma unroll
        for (int i = 0; i < kOwn; ++i) x[i] = round_to<E>(v[i]);
        if constexpr (kGranules) store_wide(reinterpret_cast<Words*>(to), bit_cast_words<Words>(x));
        else store_item(reinterpret_cast<E*>(to), x[0]);
      });
    } else if constexpr (kLooksForNan<E, F>) {
      rows([](char* to, const F(&v)[kOwn]) {
        if constexpr (kGranules) {
          Words w;
#pragma unroll
          for (int i = 0; i < kWords; ++i) {
            if constexpr (kSize == 4) w.item[i] = bit_cast<uint32_t>(v[i]);
            else w.item[i] = round_pair<E>(v[2 * i], v[2 * i + 1]);
          }
          store_granule(reinterpret_cast<Words*>(to), w);
        } else if constexpr (kSize == 4) {
          store_item(reinterpret_cast<F*>(to), v[0]);
        } else {
          store_item(reinterpret_cast<uint16_t*>(to), uint16_t(round_pair<E>(v[0], v[0])));
        }
      });
    }
  }
};

template <class Op, class E, int kDepth, bool kGranules>
__global__ void __launch_bounds__(held_columns::kThreads, 1)
    held_columns_kernel(TR_GRID_CONSTANT FusedRowsCall call, TR_GRID_CONSTANT HeldColumnsShape shape,
                        TR_GRID_CONSTANT ColumnPitch pitch) {
#if !defined(__CUDA_ARCH__) || defined(TR_LARGE_BLOCKS)  // others have no room for its tiles
  using H = HeldColumns<Op, E, kDepth, kGranules>;
  using F = float;
  static_assert(Op::kFirst == First::Greatest && Op::kFills && Op::kSums == 1, "absent elements are -inf");
  TR_DYNAMIC_SHARED(dynamic, 16);
  __shared__ Barrier arrived[2];
  const int first = int(blockIdx.x) / shape.leaves, step = int(gridDim.x) / shape.leaves;
  const int leaf = int(blockIdx.x) - first * shape.leaves;
  const H h(call, shape, pitch, leaf, dynamic);
#ifdef TR_CLUSTERS
  if (shape.leaves > 1) {
    if (threadIdx.x == 0) {
      for (Barrier& b : arrived) barrier_init(&b, 1);
      barriers_made();
      for (Barrier& b : arrived) h.expect(&b);
    }
    cluster_arrive();
    cluster_wait();
  }
#endif
  const auto load = [&](int tile, int buffer) {
    if (tile < shape.tiles) h.load(h.place(tile), h.tiles + buffer * H::kTile);
    end_copies();
  };
#pragma unroll 1
  for (int b = 0; b < shape.buffers; ++b) load(first + b * step, b);
  int buffer = 0, turn = 0;
#pragma unroll 1
  for (int tile = first; tile < shape.tiles; tile += step, ++turn) {
    if (shape.buffers == 1) wait_copies<0>();
    else if (shape.buffers == 2) wait_copies<1>();
    else wait_copies<2>();
    __syncthreads();
    const auto place = h.place(tile);
    typename H::Held held;
    h.take(place, h.tiles + buffer * H::kTile, held);

    F found[H::kOwn];
    H::greatest_of(held, found);
    const F most = H::meet(found, h.found_of, [](F a, F b) { return greatest(a, b); });
    load(tile + shape.buffers * step, buffer);  // since all have met, the tile is in registers
    buffer = buffer + 1 < shape.buffers ? buffer + 1 : 0;

    const auto given = Op::given(call.options, call.memory, 0);
    const auto of_leaf = Op::seen(most, h.count, given);
    F terms[Op::kTerm ? H::kSlots : 1][H::kOwn], total[H::kOwn];
#pragma unroll
    for (int i = 0; i < H::kOwn; ++i) {
      const auto seen = H::of_column(of_leaf, i);
      F run[H::kRun];
#pragma unroll
      for (F& sum : run) sum = F(-0.0);
#pragma unroll
      for (int s = 0; s < H::kSlots; ++s) {
        const F x = held.element(s, i);
        if constexpr (Op::kTerm) {
          terms[s][i] = Op::term(x, seen);
          run[s % H::kRun] = run[s % H::kRun] + terms[s][i];
        } else {
          Op::step(&run[s % H::kRun], &x, F(1), seen, given);
        }
      }
#pragma unroll
      for (int d = 1; d < H::kRun; d *= 2)
#pragma unroll
        for (int r = 0; r < H::kRun; r += 2 * d) run[r] = run[r] + run[r + d];
      total[i] = run[0];
    }
    const F sum = H::meet(total, h.sums_of, [](F a, F b) { return a + b; });
    const auto state = Op::state(most, &sum, h.count);
    const auto row_state = shape.leaves > 1 ? h.meet_leaves(state, arrived, turn) : state;
    const auto row = Op::row(row_state, call.length, given, call.options, [](int64_t) { return F(0); });
    const auto of_columns = Op::at(row, state);
    std::decay_t<decltype(of_columns)> at[H::kOwn];
#pragma unroll
    for (int i = 0; i < H::kOwn; ++i) at[i] = H::of_column(of_columns, i);
    h.store(place, [&](int s, int i) {
      if constexpr (Op::kTerm) {
        return Op::map(terms[s][i], F(1), F(-0.0), 0, at[i]);
      } else {
        const F x = held.element(s, i);
        return Op::map(&x, F(1), F(-0.0), 0, at[i]);
      }
    });
  }
#endif
}

}  // namespace torchreduce::gpu
