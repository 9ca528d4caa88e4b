// Rows of neighbouring elements that stay on chip between the looks: read once, written once.
//
// Serves: float32, and 16-bit floats where all operands of a row start at the same place of a granule (held_rows.h).
// A warp has a leaf, or several rows that are short, in registers. The states of a row's leaves meet in shared memory,
// over a cluster of blocks where a row is longer than a block holds; or in device memory, between two launches.
// A lane's elements are in chunks of 8, one for each of the residues it stands for: of float32 those `lanes` apart,
// loaded one by one, so that rows may start anywhere; of 16-bit floats a granule. Where a leaf starts `before` elements
// into its first granule, residues are moved to their lanes before the tree; the elements at its end that share a
// granule's place with what comes before it lie in those first places of lane 0, and are added last.
// Shared memory: the states of a row's leaves; dynamic: of ops that keep terms, the first chunks of each thread.
#pragma once
#include "held_rows.h"
#include "kernels/reduce/granule.cuh"
#include "states.cuh"

namespace torchreduce::gpu {

// What a lane has of a leaf.
struct Place {
  int lane, lanes;  // of those that share the leaf
  int before;       // granules: elements that come before the leaf in its first one
  int count;        // elements of the leaf
};

__device__ __forceinline__ bool any_nan(const float (&v)[kGroup]) {
  bool nan = false;
#pragma unroll
  for (int i = 0; i < kGroup; i += 2) nan |= (v[i] != v[i]) | (v[i + 1] != v[i + 1]);  // one comparison
  return nan;
}

// ---- element by element -----------------------------------------------------------------------------------------------

template <class E, int kChunks> struct HeldWords {
  static constexpr bool kGranules = false;
  static constexpr int kSlots = kGroup;  // residues of a lane
  float x[kChunks * kGroup];
  __device__ static constexpr int slot(int, int i) { return i; }

  // From a lane's first position to that of element i of chunk c.
  __device__ static int step(const Place& p, int c, int i) {
    return (kChunks == 1 ? p.lanes : kLanes) * (c * kGroup + i);
  }
  __device__ static int position(const Place& p, int c, int i) { return p.lane + step(p, c, i); }
  // Whether all lanes have chunk c whole; whether any has an element of it.
  __device__ static bool is_whole(const Place& p, int c) { return (c + 1) * kGroup * kLanes <= p.count; }
  __device__ static bool has_chunk(const Place& p, int c) { return kChunks == 1 || c * kGroup * kLanes < p.count; }

  // Elements that are not there become `fill`.
  __device__ __forceinline__ void load(const FusedRowsCall&, int, const E* from, const Place& p, bool wanted,
                                       float fill) {
    const int left = (wanted ? p.count : 0) - p.lane;
    const E* const first = recomputed(from + p.lane);  // so that what is added to it is in the instructions
    if (kChunks > 1 && wanted && p.count == kChunks * kGroup * kLanes) {
#pragma unroll
      for (int k = 0; k < kChunks * kGroup; ++k) x[k] = convert<float>(load_item(first + k * kLanes));
      return;
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!has_chunk(p, c)) break;
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const int at = step(p, c, i);
        x[c * kGroup + i] = fill;
        if (at < left) x[c * kGroup + i] = convert<float>(load_item(first + at));
      }
    }
  }
  __device__ __forceinline__ void chunk(int c, float (&v)[kGroup]) const {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) v[i] = x[c * kGroup + i];
  }
  struct Rest {};
  __device__ __forceinline__ static void store(E* to, const Place& p, int c, float (&v)[kGroup], Rest&) {
    const int left = p.count - p.lane;
    if (kChunks > 1 && (c + 1) * kGroup * kLanes <= p.count) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) store_item(to + step(p, c, i), round_to<E>(v[i]));
    } else {
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        if (step(p, c, i) < left) store_item(to + step(p, c, i), round_to<E>(v[i]));
    }
  }
  __device__ __forceinline__ static void store_rest(E*, const Place&, const Rest&) {}
  // Where a lane stores, for store().
  __device__ __forceinline__ static E* base(E* to, const Place& p) { return recomputed(to + p.lane); }
  // The tree over residues; every lane gets it.
  __device__ __forceinline__ static float tree(float (&acc)[kGroup], const Place& p) {
    const auto add = [](float a, float b) { return a + b; };
    if (kChunks == 1 && p.lanes < kGroup) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        for (int d = 1; d < p.lanes; d *= 2) acc[i] = acc[i] + shuffle(acc[i], lane_id() ^ d);
#pragma unroll
      for (int d = 1; d < kGroup; d *= 2)
#pragma unroll
        for (int i = 0; i < kGroup; i += 2 * d) acc[i] = acc[i] + acc[i + d];
      return acc[0];
    }
    float sum = transposing_tree(acc, kChunks == 1 ? p.lanes : kLanes, add);
#pragma unroll
    for (int d = 1; d < kGroup; d *= 2) sum = sum + shuffle(sum, lane_id() ^ d);
    return sum;
  }
  // Where absent elements are -inf.
  __device__ __forceinline__ float greatest_of(const Place& p) const {
    float m = -kInfinity<float>;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!has_chunk(p, c)) break;
#pragma unroll
      for (int i = 0; i < kGroup; ++i) m = greatest(m, x[c * kGroup + i]);
    }
    return m;
  }
  // Weights of the positions from `first` on.
  __device__ __forceinline__ static void weights(const void* from, Dtype dtype, int64_t first, const Place& p, int c,
                                                 float (&v)[kGroup]) {
    const int left = p.count - p.lane;
    const auto take = [&](const auto* w) {
      w = recomputed(w + first + p.lane);
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        if (step(p, c, i) < left) v[i] = convert<float>(load_again(w + step(p, c, i)));
    };
    if (sizeof(E) == 4 || dtype == Dtype::F32) take(static_cast<const float*>(from));
    else take(static_cast<const E*>(from));
  }
};

// ---- 16-bit floats ---------------------------------------------------------------------------------------------------

template <class E, int kChunks> struct HeldGranules {
  static constexpr bool kGranules = true;
  static constexpr bool kShort = kChunks == held_rows::short_chunks(int(sizeof(E)));  // a residue has one element
  static constexpr int kSlots = kShort ? kChunks * kGroup : kGroup;
  static_assert(sizeof(E) == 2, "8 elements a granule");
  Granule g[kChunks];
  __device__ static constexpr int slot(int c, int i) { return kShort ? c * kGroup + i : i; }

  __device__ static int lanes_of(const Place& p) { return kShort ? p.lanes : kLanes; }
  __device__ static int number(const Place& p, int c) { return p.lane + lanes_of(p) * c; }
  // The last elements of a leaf may lie in the first places of lane 0.
  __device__ static int position(const Place& p, int c, int i) {
    const int at = number(p, c) * kGroup + i - p.before;
    return c == 0 && at < 0 ? at + lanes_of(p) * kChunks * kGroup : at;
  }
  __device__ static int step(const Place&, int, int i) { return i; }
  __device__ static bool is_whole(const Place& p, int c) {
    return (c > 0 || p.before == 0) && (c + 1) * kGroup * kLanes <= p.before + p.count;
  }
  __device__ static bool has_chunk(const Place& p, int c) {
    return kShort || c == 0 || c * kGroup * kLanes < p.before + p.count;
  }

  // Elements that are not there become `fill`.
  __device__ __forceinline__ void load(const FusedRowsCall& call, int input, const E* from, const Place& p, bool wanted,
                                       float fill) {
    const Granule absent = filled(fill);
    const int lanes = lanes_of(p), end = p.before + p.count;
    const int last = (end - 1) / kGroup;  // the granule with the last element
    const Granule* const first = granule_of(from);
    const auto inside = [&](int k) {
      return static_cast<const void*>(first + k) >= call.in[input] &&
             static_cast<const void*>(first + k + 1) <= call.end[input];
    };
    const Granule* const own = recomputed(first + p.lane);
    const bool any = wanted && p.count > 0;
    const bool ragged = p.before > 0 || end % kGroup > 0;
    const bool first_out = any && ragged && !inside(0), last_out = any && ragged && !inside(last);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!has_chunk(p, c)) break;
      const int k = number(p, c);
      g[c] = absent;
      load_once(any && k <= last && !(k == 0 && first_out) && !(k == last && last_out), own + lanes * c, g[c]);
    }
    if (!ballot(ragged)) return;
    // Of the granules at a leaf's ends: element by element where they reach out of the tensor.
    const auto edge = [&](int k, bool out, Granule& into) {
      if (out) {
        E x[kGroup];
        elements_of(absent, x);
#pragma unroll
        for (int i = 0; i < kGroup; ++i)
          if (k * kGroup + i >= p.before && k * kGroup + i < end) x[i] = reinterpret_cast<const E*>(first + k)[i];
        memcpy(&into, x, sizeof x);
      }
    };
    if (p.lane == 0) edge(0, first_out, g[0]);
    const int past = lanes * kChunks;  // the granule that has no lane of its own
    if (last > 0 && last < past && p.lane == last % lanes) {
      Granule end_granule = absent;
      edge(last, last_out, end_granule);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        if (!has_chunk(p, c)) break;
        if (number(p, c) == last) {
          if (last_out) g[c] = end_granule;
          mask<E>(g[c], 0, end - last * kGroup, absent);
        }
      }
    }
    if (p.lane == 0) {
      Granule wrapped = absent;
      if (last == past) {
        load_once(any && !last_out, first + past, wrapped);
        edge(past, last_out, wrapped);
        mask<E>(wrapped, 0, end - past * kGroup, absent);
      }
      mask<E>(g[0], p.before, last == 0 ? end : kGroup, wrapped);
    }
  }
  __device__ __forceinline__ void chunk(int c, float (&v)[kGroup]) const {
    E x[kGroup];
    elements_of(g[c], x);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) v[i] = to_float(x[i]);
  }
  // A granule that is not the leaf's alone, to be stored element by element: a lane has one besides its first at most.
  struct Rest {
    uint32_t w[kGroup / 2];
    int at = -1;
  };
  __device__ __forceinline__ static void store(E* to, const Place& p, int c, const float (&v)[kGroup], Rest& rest) {
    uint32_t w[kGroup / 2];
    if (any_nan(v)) {
      E x[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) x[i] = round_to<E>(v[i]);
      memcpy(w, x, sizeof w);
    } else {
#pragma unroll
      for (int i = 0; i < kGroup; i += 2) {
        if constexpr (std::is_same<E, BF16>::value) w[i / 2] = pack_bf16(v[i], v[i + 1]);
        else w[i / 2] = pack_f16(v[i], v[i + 1]);
      }
    }
    const int at = number(p, c) * kGroup - p.before;
    if (at >= 0 && at + kGroup <= p.count) {
      Granule g;
      memcpy(&g, w, sizeof w);
      store_granule(reinterpret_cast<Granule*>(to) + lanes_of(p) * c, g);
    } else if (c > 0) {
      if (at >= p.count) return;
#pragma unroll
      for (int i = 0; i < kGroup / 2; ++i) rest.w[i] = w[i];
      rest.at = at;
    } else {
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        if (position(p, c, i) < p.count) to[position(p, c, i) - base_position(p)] = half(w, i);
    }
  }
  __device__ __forceinline__ static void store_rest(E* to, const Place& p, const Rest& rest) {
    if (rest.at < 0) return;
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (rest.at + i < p.count) to[rest.at + i - base_position(p)] = half(rest.w, i);
  }
  __device__ static int base_position(const Place& p) { return p.lane * kGroup - p.before; }
  __device__ __forceinline__ static E* base(E* to, const Place& p) { return recomputed(to + base_position(p)); }
  __device__ static E half(const uint32_t (&w)[kGroup / 2], int i) {
    return bit_cast<E>(uint16_t(w[i / 2] >> (i % 2 * 16)));
  }
  // Residues go to the lane, and the slot, that stand for them: those of the last lane's runs to the next runs' first.
  template <int kBy> __device__ __forceinline__ static void move_down(float (&acc)[kSlots], bool moves,
                                                                      const Place& p) {
    constexpr int kRuns = kSlots / kGroup;
    const int after = lane_id() - p.lane + (p.lane + 1) % lanes_of(p);
    float moved[kSlots];
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      const int i = k % kGroup + kBy, run = k / kGroup;
      if (i < kGroup) {
        moved[k] = acc[run * kGroup + i];
      } else {
        const float next = acc[run * kGroup + i - kGroup], first = acc[(run + 1) % kRuns * kGroup + i - kGroup];
        moved[k] = shuffle(kRuns > 1 ? chosen(p.lane == 0, first, next) : next, after);
      }
    }
#pragma unroll
    for (int k = 0; k < kSlots; ++k) acc[k] = chosen(moves, moved[k], acc[k]);
  }
  __device__ __forceinline__ static float tree(float (&acc)[kSlots], const Place& p) {
    constexpr int kRuns = kSlots / kGroup;
    const int lanes = lanes_of(p);
    if (ballot(p.before > 0)) {
      move_down<4>(acc, (p.before & 4) != 0, p);
      move_down<2>(acc, (p.before & 2) != 0, p);
      move_down<1>(acc, (p.before & 1) != 0, p);
    }
#pragma unroll
    for (int d = 1; d < kGroup; d *= 2)
#pragma unroll
      for (int i = 0; i < kSlots; i += 2 * d) acc[i] = acc[i] + acc[i + d];
    float sum = acc[0];
    int d = 1;
    if constexpr (kRuns == 2) {
      if (lanes == 1) return sum + acc[kGroup];
      const bool odd = (p.lane & 1) != 0;  // even lanes go on with the first run, odd ones with the second
      const float run = acc[0], next = acc[kGroup];
      sum = chosen(odd, next, run) + shuffle(chosen(odd, run, next), lane_id() ^ 1);
      d = 2;
    }
    for (; d < lanes; d *= 2) sum = sum + shuffle(sum, lane_id() ^ d);
    if constexpr (kRuns == 2) sum = sum + shuffle(sum, lane_id() ^ 1);
    return sum;
  }
  __device__ __forceinline__ float greatest_of(const Place& p) const {
    constexpr bool kBF16 = std::is_same<E, BF16>::value;
    uint32_t m = kBF16 ? 0xff80ff80u : 0xfc00fc00u;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!has_chunk(p, c)) break;
#pragma unroll
      for (int i = 0; i < 4; ++i) m = packed_maxima<kBF16>(m, g[c].item[i]);
    }
    return to_float(E{uint16_t(packed_maxima<kBF16>(m, m >> 16))});
  }
  // Rows are whole granules.
  __device__ __forceinline__ static void weights(const void* from, Dtype dtype, int64_t first, const Place& p, int c,
                                                 float (&v)[kGroup]) {
    const int at = number(p, c) * kGroup;
    if (at >= p.count) return;
    if (dtype == Dtype::F32) {
      using Four = Packed<float, 4>;
      const Four* const w = reinterpret_cast<const Four*>(static_cast<const float*>(from) + first + at);
      const Four a = load_wide(w), b = load_wide(w + 1);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[i] = a.item[i];
        v[i + 4] = b.item[i];
      }
    } else {
      E x[kGroup];
      elements_of(load_wide(reinterpret_cast<const Granule*>(static_cast<const E*>(from) + first + at)), x);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) v[i] = to_float(x[i]);
    }
  }

 private:
  __device__ static Granule filled(float x) {
    const uint32_t bits = round_to<E>(x).bits;
    Granule g;
#pragma unroll
    for (uint32_t& w : g.item) w = bits << 16 | bits;
    return g;
  }
};
template <class E, int kChunks, bool kGranules = sizeof(E) == 2 && (kChunks > 1)> struct Held : HeldWords<E, kChunks> {
};
template <class E, int kChunks> struct Held<E, kChunks, true> : HeldGranules<E, kChunks> {};

// ---- where leaves meet -------------------------------------------------------------------------------------------------

template <class State> struct Meeting {
  struct alignas(8) Slot { State state; };
  Slot leaf[held_rows::kMostLeaves];
  Slot tree[held_rows::kMostLeaves / 2];
  Barrier arrived;

  // Before anything that takes time.
  __device__ __forceinline__ void begin([[maybe_unused]] const HeldRowsShape& shape) {
#ifdef TR_CLUSTERS
    if (shape.cluster > 1) {
      if (threadIdx.x == 0) {
        barrier_init(&arrived, 1);
        barriers_made();
        barrier_expect(&arrived, uint32_t(shape.cluster * (int(blockDim.x) / kLanes) * int(sizeof(Slot))));
      }
      cluster_arrive();
    }
#endif
  }
  // The state of the row, from those of its leaves, of which each warp brings one; for every lane.
  template <class Op> __device__ __forceinline__ State meet(const HeldRowsShape& shape, int number, const State& own) {
#ifdef TR_CLUSTERS
    if (shape.cluster > 1) {
      cluster_wait();
      if (lane_id() < shape.cluster) put(&leaf[number], &arrived, Slot{own}, lane_id());
      barrier_wait(&arrived, 0);
      if (shape.leaves > kLanes) __syncthreads();
    } else
#endif
    {
      if (lane_id() == 0) leaf[number].state = own;
      __syncthreads();
    }
    return total<Op>(shape.leaves);
  }
  // The same of states in memory.
  template <class Op> __device__ __forceinline__ State recall(const State* states, int leaves) {
    for (int i = threadIdx.x; i < leaves; i += blockDim.x) leaf[i].state = states[i];
    __syncthreads();
    return total<Op>(leaves);
  }

 private:
  template <class Op> __device__ __forceinline__ State total(int leaves) {
    int count = leaves;
    Slot* from = leaf;
#pragma unroll 1
    for (; count > kLanes; count = (count + 1) / 2) {
      Slot* const to = from == leaf ? tree : leaf;
#pragma unroll 1
      for (int i = threadIdx.x; 2 * i < count; i += blockDim.x) {
        const State first = from[2 * i].state;
        State both = first;
        if (2 * i + 1 < count) both = Op::merge(first, State(from[2 * i + 1].state));
        to[i].state = both;
      }
      __syncthreads();
      from = to;
    }
    return lanes_tree<Op>(count, [&](int i) { return from[i].state; });
  }
};

// ---- the kernel --------------------------------------------------------------------------------------------------------

// Registers of a lane, by the threads that a multiprocessor is to have room for.
template <class Op, class E, int kChunks> constexpr int kHeldThreads =
    held_rows::threads(int(sizeof(E)), Op::kInputs, Op::kTerm, Op::kWeights + Op::kBiases, kChunks);
template <class Op, class E, int kChunks> constexpr int kSharedTerms =
    Op::kTerm ? held_rows::shared_terms(int(sizeof(E)), kChunks) : 0;

template <class Op, class E, int kChunks>
__global__ void TR_BLOCK_BOUND((kHeldThreads<Op, E, kChunks>))
    held_rows_kernel(TR_GRID_CONSTANT FusedRowsCall call, TR_GRID_CONSTANT HeldRowsShape shape,
                     typename Op::State* states) {
  using F = float;
  using H = Held<E, kChunks>;
  using State = typename Op::State;
  constexpr bool kMeets = kChunks == held_rows::kLeafChunks && Op::kSums > 0;
  constexpr int kInputs = Op::kInputs, kSums = Op::kSums, kAway = kSharedTerms<Op, E, kChunks>;
  using Part = held_rows::Part;
  __shared__ std::conditional_t<kMeets, Meeting<State>, char> meeting;
  const int warp = int(threadIdx.x) / kLanes, warps = int(blockDim.x) / kLanes;
  const bool alone = (kSums > 0 && kChunks < held_rows::kLeafChunks) || shape.leaves == 1;  // leaves are rows
  constexpr int kSpan = kSums > 0 ? kLeaf : kChunks * kGroup * kLanes;                      // of a warp

  Place p;
  constexpr bool kPartWarps = kChunks <= held_rows::short_chunks(int(sizeof(E)));
  p.lanes = kPartWarps ? shape.lanes : kLanes;
  p.lane = lane_id() & (p.lanes - 1);
  int64_t row;
  int leaf = 0;
  if (alone) {
    row = (int64_t(blockIdx.x) * warps + warp) * (kLanes / p.lanes) + lane_id() / p.lanes;
  } else {
    row = blockIdx.x / shape.splits;
    leaf = int(blockIdx.x - row * shape.splits) * warps + warp;
  }
  if constexpr (kMeets)
    if (!alone) meeting.begin(shape);
  const bool there = row < call.rows;
  if (!there) row = call.rows - 1;
  const FusedStart start = call.start(row);
  const int64_t first = int64_t(leaf) * kSpan, rest = call.length - first;
  p.count = int(rest < 0 ? 0 : rest < kSpan ? rest : kSpan);
  p.before = 0;
  const E* from[kInputs];
#pragma unroll
  for (int k = 0; k < kInputs; ++k) from[k] = static_cast<const E*>(call.in[k]) + start.in[k] + first;
  if constexpr (H::kGranules) p.before = elements_before(from[0]);

  const auto given = Op::given(call.options, call.memory, start.value);
  const bool skips = Op::skips(given);
  H held[kInputs];
#pragma unroll
  for (int k = 0; k < kInputs; ++k) held[k].load(call, k, from[k], p, !skips, Op::fill(k));

  // Of chunk c: what an element is there for in the sums, the elements, and the weights.
  const auto elements = [&](int c, float (&v)[kInputs][kGroup]) {
#pragma unroll
    for (int k = 0; k < kInputs; ++k) held[k].chunk(c, v[k]);
  };
  const auto weights = [&](const void* w, F missing, int c, float (&v)[kGroup]) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) v[i] = missing;
    if (w) H::weights(w, call.weight_dtype, first, p, c, v);
  };
  // Calls take(chunk, i, x, weight, whether it is there) for each element; those of a residue in their order. Of ops
  // that have elements to fill in, all are there.
  [[maybe_unused]] const auto each = [&](auto take, auto& sums) {
    constexpr bool kLate = H::kGranules && H::kSlots == kGroup;  // wrapped elements come last
    const int late = kLate && p.lane == 0 ? p.before : 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!H::has_chunk(p, c)) break;
      float v[kInputs][kGroup], w[kGroup];
      if constexpr (H::kSlots > kGroup)
        if (c == 1 && p.lanes == kLanes) {  // residues come again
#pragma unroll
          for (auto& acc : sums)
#pragma unroll
            for (int i = 0; i < kGroup; ++i) {
              acc[kGroup + i] = acc[i];
              acc[i] = F(-0.0);
            }
        }
      elements(c, v);
      if constexpr (Op::kWeights) weights(call.weight, F(1), c, w);
      const int left = skips ? 0 : p.count - H::position(p, c, 0);
      const auto elements_where = [&](auto is_there) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
          F x[kInputs];
#pragma unroll
          for (int k = 0; k < kInputs; ++k) x[k] = v[k][i];
          if constexpr (Op::kFills) {
            if (kLate && c == 0) {
#pragma unroll
              for (int k = 0; k < kInputs; ++k) x[k] = chosen(i < late, Op::fill(k), x[k]);
            }
          }
          take(c, i, x, Op::kWeights ? w[i] : F(1), is_there(i));
        }
      };
      if (Op::kFills || (kChunks == held_rows::kLeafChunks && H::is_whole(p, c) && !skips)) {
        elements_where([](int) { return true; });
      } else {
        elements_where([&](int i) {
          return c == 0 ? H::position(p, c, i) < p.count && i >= late && !skips : H::step(p, 0, i) < left;
        });
      }
    }
    if constexpr (kLate) {
      if (late > 0) {
        float v[kInputs][kGroup];
        elements(0, v);
#pragma unroll
        for (int i = 0; i < kGroup - 1; ++i) {
          F x[kInputs];
#pragma unroll
          for (int k = 0; k < kInputs; ++k) x[k] = v[k][i];
          take(0, i, x, F(1), i < late && H::position(p, 0, i) < p.count && !skips);
        }
      }
    }
  };

  State state = Op::none();
  [[maybe_unused]] float kept[Op::kTerm ? (kChunks - kAway) * kGroup : 1];
  using Four = Packed<float, 4>;
  [[maybe_unused]] Four* away = nullptr;
  if constexpr (kAway > 0) {
    TR_DYNAMIC_SHARED(dynamic, 16);
    away = reinterpret_cast<Four*>(dynamic);
  }
  if constexpr (kSums > 0) {
    if (p.count > 0) {
      F found = first_absent<Op::kFirst, F>();
      if constexpr (Op::kFirst == First::Greatest) {
        found = held[0].greatest_of(p);
        for (int d = 1; d < p.lanes; d *= 2) found = greatest(found, shuffle(found, lane_id() ^ d));
      } else if constexpr (Op::kFirst == First::Sum) {
        F acc[1][H::kSlots];
#pragma unroll
        for (F& a : acc[0]) a = F(-0.0);
        each(
            [&](int c, int i, const F* x, F, bool there) {
              F& a = acc[0][H::slot(c, i)];
              if (there) a = a + x[0];
            },
            acc);
        found = H::tree(acc[0], p);
      }
      const auto seen = Op::seen(found, p.count, given);
      F acc[kSums][H::kSlots];
#pragma unroll
      for (int s = 0; s < kSums; ++s)
#pragma unroll
        for (F& a : acc[s]) a = F(-0.0);
      each(
          [&](int c, int i, const F* x, F weight, bool there) {
            if constexpr (Op::kTerm) {
              const F term = Op::term(x[0], seen);
              F& sum = acc[0][H::slot(c, i)];
              if (there) sum = sum + term;
              if (H::kGranules && c == 0 && !there) return;
              if (c >= kAway) kept[(c - kAway) * kGroup + i] = term;
              else reinterpret_cast<float*>(away + (2 * c + i / 4) * int(blockDim.x) + int(threadIdx.x))[i % 4] = term;
            } else if (there) {
              F sums[kSums];
#pragma unroll
              for (int s = 0; s < kSums; ++s) sums[s] = acc[s][H::slot(c, i)];
              Op::step(sums, x, weight, seen, given);
#pragma unroll
              for (int s = 0; s < kSums; ++s) acc[s][H::slot(c, i)] = sums[s];
            }
          },
          acc);
      F sums[kSums];
#pragma unroll
      for (int s = 0; s < kSums; ++s) sums[s] = H::tree(acc[s], p);
      if (!skips) state = Op::state(found, sums, p.count);
    }
  }

  State total = state;
  if constexpr (kMeets) {
    if (!alone) {
      if (shape.part == Part::Whole) {
        total = meeting.template meet<Op>(shape, leaf, state);
      } else if (shape.part == Part::States) {
        if (lane_id() == 0 && p.count > 0) states[row * shape.leaves + leaf] = state;
        return;
      } else if (shape.folded) {
        total = states[row];
      } else {
        total = meeting.template recall<Op>(states + row * shape.leaves, int(shape.leaves));
      }
    }
  }
  if (p.count == 0 || (!Op::kMaps && leaf > 0)) return;
  const FusedStart end = call.start(recomputed(row));  // the same, so that no register keeps it
  const auto values = Op::row(total, call.length, given, call.options,
                              [&](int64_t i) { return convert<F>(static_cast<const E*>(call.in[0])[end.in[0] + i]); });
  if (leaf == 0 && p.lane == 0 && there) Op::write(values, call.memory, end.value);
  if constexpr (Op::kMaps) {
    if (!there) return;
    const auto& at = Op::at(values, state);
    E* const to = H::base(static_cast<E*>(call.out) + end.out + first, p);
    typename H::Rest rest_of_row{};
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!H::has_chunk(p, c)) break;
      float v[kInputs][kGroup], w[kGroup], b[kGroup], y[kGroup];
      if constexpr (!Op::kTerm) elements(c, v);
      if constexpr (Op::kWeights) weights(call.weight, F(1), c, w);
      if constexpr (Op::kBiases) weights(call.bias, F(-0.0), c, b);
      if constexpr (Op::kTerm && kAway > 0)
        if (c < kAway) {
          const Four low = away[2 * c * int(blockDim.x) + int(threadIdx.x)];
          const Four high = away[(2 * c + 1) * int(blockDim.x) + int(threadIdx.x)];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            v[0][i] = low.item[i];
            v[0][4 + i] = high.item[i];
          }
        }
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const int64_t position = first + H::position(p, c, i);
        const F weight = Op::kWeights ? w[i] : F(1), bias = Op::kBiases ? b[i] : F(-0.0);
        if constexpr (Op::kTerm) {
          y[i] =
              Op::map(c < kAway ? v[0][i] : kept[(c < kAway ? 0 : c - kAway) * kGroup + i], weight, bias, position, at);
        } else {
          F x[kInputs];
#pragma unroll
          for (int k = 0; k < kInputs; ++k) x[k] = v[k][i];
          y[i] = Op::map(x, weight, bias, position, at);
        }
      }
      H::store(to, p, c, y, rest_of_row);
    }
    H::store_rest(to, p, rest_of_row);
  }
}

}  // namespace torchreduce::gpu
