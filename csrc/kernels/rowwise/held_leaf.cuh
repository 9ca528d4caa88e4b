// What a warp does with a leaf in its registers, or with several short rows: loads it, looks at it, writes what
// follows.
//
// Elements are in chunks of 8 a lane, as one of the holders has them. Terms that the second look makes wait for the
// results in registers, those of the first chunks in dynamic shared memory, [chunk][half][lane] of four floats a warp.
// Of leaves whose data allows it (ops/rowwise.h), which all lanes ask of each other, elements take fewer instructions.
#pragma once
#include "held_granules.cuh"
#include "held_quads.cuh"
#include "held_words.cuh"
#include "states.cuh"

namespace torchreduce::gpu {

template <class E, int kChunks, held_rows::Form kForm>
using HeldByGranules =
    std::conditional_t<sizeof(E) == 2,
                       HeldGranules<E, kChunks, held_rows::is_short(kForm), held_rows::is_aligned(2, kForm),
                                    held_rows::runs(kChunks, kForm)>,
                       HeldQuads<E, kChunks, held_rows::is_short(kForm)>>;
template <class E, int kChunks, held_rows::Form kForm>
using Held = std::conditional_t<held_rows::by_granules(kForm), HeldByGranules<E, kChunks, kForm>,
                                HeldWords<E, kChunks, held_rows::is_short(kForm)>>;

// Registers of a lane, by the threads that a multiprocessor is to have room for.
template <class Op, class E, int kChunks, held_rows::Form kForm> constexpr int kHeldThreads =
    held_rows::threads(kFacts<Op>, int(sizeof(E)), kChunks, kForm);
template <class Op, class E, int kChunks> constexpr int kSharedTerms =
    Op::kTerm ? held_rows::shared_terms(int(sizeof(E)), kChunks) : 0;

template <class Op> constexpr bool kMarks = Op::kInputs == 1 && !Op::kTerm && Op::kSums == 0;  // marked()

// What a warp does with its leaf, or with its rows where they are short.
template <class Op, class E, int kChunks, held_rows::Form kForm> struct HeldLeaf {
  using F = float;
  using H = Held<E, kChunks, kForm>;
  using State = typename Op::State;
  static constexpr int kInputs = Op::kInputs, kSums = Op::kSums, kAway = kSharedTerms<Op, E, kChunks>;
  using Four = Packed<float, 4>;
  static constexpr bool kPartWarps = held_rows::is_short(kForm);
  static constexpr bool kAligned = held_rows::is_aligned(int(sizeof(E)), kForm);
  static constexpr bool kConverts = Op::kMaps && held_rows::may_convert(kFacts<Op>, int(sizeof(E))) &&
                                    (sizeof(E) == 4 || held_rows::by_granules(kForm));
  static constexpr bool kNumbers = Op::kTerm && sizeof(E) == 2 && kChunks == held_rows::kLeafChunks;  // opposite()

  static constexpr bool kWeighs = Op::kWeights && kInputs > 1;  // sums are of elements by their weights
  static constexpr bool kMeets = kChunks == held_rows::kLeafChunks && kSums > 0;  // leaves of a row
  static constexpr int kSpan = kSums > 0 ? kLeaf : kChunks * kGroup * kLanes;     // of a warp
  // After the looks, so that no register keeps it.
  static constexpr bool kFindsAgain =
      kMeets && !Op::kTerm && (Op::kMaps || kSums > 1 || !std::is_empty_v<typename Op::Given>);

  const RowwiseKernelCall& call;
  Place p;
  int64_t first;  // the leaf's position in its row
  bool skips;
  H held[kInputs];
  float kept[Op::kTerm ? (kChunks - kAway) * kGroup : 1];  // terms
  Four* away = nullptr;                                    // those of the first chunks

  __device__ __forceinline__ explicit HeldLeaf(const RowwiseKernelCall& call) : call(call) {
    if constexpr (kAway > 0) {
      TR_DYNAMIC_SHARED(dynamic, 16);
      away = reinterpret_cast<Four*>(dynamic) + int(threadIdx.x) / kLanes * (2 * kAway * kLanes) + lane_id();
    }
  }

  __device__ static int away_bytes() { return kAway * kGroup * int(sizeof(F)) * int(blockDim.x); }

  // Which leaf of which row this warp of block number `block` has.
  struct Where {
    int64_t row;
    int number;  // of the leaf
    bool there;  // else the last row stands for it
    RowwiseStart start;
  };
  __device__ static bool is_alone(const HeldRowsShape& shape) {  // leaves are rows
    return (kSums > 0 && !kMeets) || shape.leaves == 1;
  }
  __device__ __forceinline__ Where find(const HeldRowsShape& shape, uint32_t block) {
    const unsigned warp = threadIdx.x / unsigned(kLanes), warps = blockDim.x / unsigned(kLanes);
    Where at{};
    p.lanes = kForm == held_rows::Form::HalfWarps ? 1 << held_rows::kLogHalfLanes : kPartWarps ? shape.lanes() : kLanes;
    p.lane = int(threadIdx.x) & (p.lanes - 1);
    if (is_alone(shape)) {
      at.row = (int64_t(block) * blockDim.x + threadIdx.x) >> shape.log_lanes;
    } else {
      uint32_t row = block, part = 0;
      if (shape.splits > 1) {
        row = block / uint32_t(shape.splits);
        part = block - row * uint32_t(shape.splits);
      }
      at.row = row;
      at.number = int(part * warps + warp);
    }
    at.there = at.row < call.rows;
    if (!at.there) at.row = call.rows - 1;
    at.start = call.start(at.row);
    first = int64_t(at.number) * kSpan;
    const int64_t rest = call.length - first;
    p.count = kAligned && !kMeets ? int(call.length) : int(rest < 0 ? 0 : rest < kSpan ? rest : kSpan);
    p.before = 0;
    if constexpr (kAligned) {
      p.whole = kMeets && p.count == kLeaf;
      p.full = true;
      return at;
    }
    if constexpr (H::kGranules) p.before = elements_before(static_cast<const E*>(call.in[0]) + at.start.in[0] + first);
    p.whole = p.before == 0 && p.count > 0;
    if constexpr (kChunks == held_rows::kLeafChunks) {
      p.full = p.count == kLeaf;
      p.whole &= p.full;
    } else {
      p.whole &= p.count % (p.lanes * kGroup) == 0;
      p.full = p.whole;
    }
    return at;
  }
  __device__ __forceinline__ void load(const RowwiseStart& start, bool wanted) {
    skips = !wanted;
#pragma unroll
    for (int k = 0; k < kInputs; ++k)
      held[k].template load<Op::kMaps ? Stay::Long : Stay::Short>(
          call, k, static_cast<const E*>(call.in[k]) + start.in[k] + first, p, wanted, Op::fill(k));
    if constexpr (Op::kAdds) {
      H other;
      other.template load<Stay::Long>(call, 1, static_cast<const E*>(call.in[1]) + start.in[1] + first, p, wanted,
                                      F(-0.0));
      held[0].add(other, p);
    }
  }

  __device__ __forceinline__ void elements(int c, float (&v)[kInputs][kGroup]) const {
#pragma unroll
    for (int k = 0; k < kInputs; ++k) held[k].chunk(c, v[k]);
  }
  // kFull: the place is, or it has all that there are chunks for. W: the weights' type, of which there are; or void,
  // where they may be missing.
  template <bool kFull, class W> __device__ __forceinline__ void weights(const void* w, F missing, int c,
                                                                         float (&v)[kGroup]) const {
    if constexpr (!std::is_void_v<W>) {
      H::template weights<kFull, !kWeighs>(static_cast<const W*>(w), first, p, c, v);
    } else {
      if (!kFull || !w)
#pragma unroll
        for (int i = 0; i < kGroup; ++i) v[i] = missing;
      if (!w) return;
      if (sizeof(E) == 2 && call.weight_dtype == Dtype::F32) weights<kFull, F>(w, missing, c, v);
      else weights<kFull, E>(w, missing, c, v);
    }
  }
  __device__ __forceinline__ void keep(int c, int i, float term) {
    if (c >= kAway) kept[(c - kAway) * kGroup + i] = term;
    else away[(2 * c + i / 4) * kLanes].item[i % 4] = term;
  }
  __device__ __forceinline__ void terms(int c, float (&v)[kGroup]) const {
    if (c >= kAway) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) v[i] = kept[(c < kAway ? 0 : c - kAway) * kGroup + i];
    } else {
      const Four low = away[2 * c * kLanes], high = away[(2 * c + 1) * kLanes];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[i] = low.item[i];
        v[4 + i] = high.item[i];
      }
    }
  }

  // Calls take(chunk, i, x, weight, whether it is there) for each element; those of a residue in their order. Of ops
  // that have elements to fill in, and where kAll, all are there. kBrief: in less code, where it matters little how
  // long it takes.
  template <bool kAll, bool kBrief = false, class Take, int kCount>
  __device__ __forceinline__ void each(Take take, F (&sums)[kCount][H::kSlots]) const {
    constexpr bool kLate = !kAll && H::kGranules && !kAligned && H::kSlots == kGroup;  // wrapped elements come last
    const int late = kLate && p.lane == 0 ? p.before : 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!(kAll && kChunks == held_rows::kLeafChunks) && !H::has_chunk(p, c)) break;
      float v[kInputs][kGroup], w[kGroup];
      elements(c, v);
      if constexpr (kWeighs) weights<kAll, void>(call.weight, F(1), c, w);
      const auto elements_where = [&](auto is_there) {
#pragma unroll
        for (int begin = 0; begin < kGroup; begin += H::kTogether) {
          const bool there = is_there(begin);
          if (H::kTogether > 1 && !there) continue;
#pragma unroll
          for (int i = begin; i < begin + H::kTogether; ++i) {
            F x[kInputs];
#pragma unroll
            for (int k = 0; k < kInputs; ++k) x[k] = v[k][i];
            take(c, i, x, kWeighs ? w[i] : F(1), there);
          }
        }
      };
      constexpr bool kAsks = kChunks == held_rows::kLeafChunks && !kAligned && !kBrief;
      if (Op::kFills || kAll || (kAsks && H::is_whole(p, c) && !skips)) {
        elements_where([&](int i) { return !kLate || c > 0 || i >= late; });
      } else {
        elements_where([&](int i) { return H::is_there(p, c, i) && (c > 0 || i >= late) && !skips; });
      }
    }
    if constexpr (kLate && Op::kFirst == First::Greatest && !Op::kTerm) {
      if (p.before > 0) late_by_lanes(take, sums);
    } else if constexpr (kLate) {
      if (late > 0) {
        float v[kInputs][kGroup];
        if constexpr (Op::kTerm) terms(0, v[0]);
        else elements(0, v);
#pragma unroll
        for (int i = 0; i < kGroup - 1; ++i) {
          if constexpr (Op::kTerm) {
            if (i < late) sums[0][i] = sums[0][i] + v[0][i];
          } else {
            F x[kInputs];
#pragma unroll
            for (int k = 0; k < kInputs; ++k) x[k] = v[k][i];
            take(0, i, x, F(1), i < late && H::position(p, 0, i) < p.count && !skips);
          }
        }
      }
    }
  }
  // The wrapped elements of lane 0, of which lane i has number i meanwhile: exponentials take longer than to hand sums
  // there and back.
  template <class Take, int kCount>
  __device__ __forceinline__ void late_by_lanes(Take take, F (&sums)[kCount][H::kSlots]) const {
    F v[kInputs][kGroup], x[kInputs], first[kCount], own[kCount];
    elements(0, v);
    const auto of_lane = [&](const F(&values)[kGroup]) {  // of lane 0's, number `lane`
      F value = F(0);
#pragma unroll
      for (int i = 0; i < kGroup - 1; ++i) value = chosen(p.lane == i, shuffle(values[i], 0), value);
      return value;
    };
#pragma unroll
    for (int k = 0; k < kInputs; ++k) x[k] = of_lane(v[k]);
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      first[s] = sums[s][0];
      sums[s][0] = of_lane(sums[s]);
    }
    take(0, 0, x, F(1), p.lane < p.before && kLanes * kChunks * kGroup - p.before + p.lane < p.count && !skips);
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      own[s] = sums[s][0];
      sums[s][0] = first[s];
#pragma unroll
      for (int i = 0; i < kGroup - 1; ++i)
        sums[s][i] = chosen(p.lane == 0 && i < p.before, shuffle(own[s], i), sums[s][i]);
    }
  }
  // The same where whether the place is whole is known only now.
  template <bool kBrief, class Take, int kCount>
  __device__ __forceinline__ void each_there(Take take, F (&sums)[kCount][H::kSlots]) const {
    if constexpr (!Op::kFills && !kBrief) {
      if (p.whole && !skips) return each<true>(take, sums);
    }
    each<false, kBrief>(take, sums);
  }

  // The state of the leaf. Every lane gets it. kScaled: that of its elements times `scale`, which is rare; else, of ops
  // that may have to look again, `scale` becomes what elements are to be multiplied by then, or 1.
  template <bool kScaled, class Given>
  __device__ __forceinline__ State look(const Given& given, [[maybe_unused]] F& scale) {
    const auto scaled = [&](F x) {
      if constexpr (kScaled) return x * scale;
      else return x;
    };
    F found = first_absent<Op::kFirst, F>();
    bool fast = false;
    if constexpr (Op::kFirst == First::Greatest) {
      const Bounds e = held[0].extremes(p);
      found = e.greatest;
      found = over_lanes<kPartWarps, kNumbers>(p, found, [](F a, F b) { return greatest(a, b); });
      if constexpr (Op::kFast) fast = !ballot(!Op::allows_fast(found, e.least));
    } else if constexpr (Op::kFirst == First::Sum) {
      F acc[1][H::kSlots];
#pragma unroll
      for (F& a : acc[0]) a = F(-0.0);
      each_there<kScaled>(
          [&](int c, int i, const F* x, F, bool there) {
            F& a = acc[0][H::slot(c, i)];
            if (there) a = a + scaled(x[0]);
          },
          acc);
      found = H::template tree<kNumbers>(acc[0], p);
    }
    const auto seen = Op::seen(found, p.count, given);
    F acc[kSums][H::kSlots];
#pragma unroll
    for (int s = 0; s < kSums; ++s)
#pragma unroll
      for (F& a : acc[s]) a = F(-0.0);
    const auto take = [&](int c, int i, const F* x, F weight, bool there) {
      if constexpr (Op::kTerm) {
        const F term = Op::term(x[0], seen);
        F& sum = acc[0][H::slot(c, i)];
        if (there) sum = sum + term;
        keep(c, i, term);
      } else if (there) {
        F sums[kSums], own[kInputs];
#pragma unroll
        for (int s = 0; s < kSums; ++s) sums[s] = acc[s][H::slot(c, i)];
#pragma unroll
        for (int k = 0; k < kInputs; ++k) own[k] = scaled(x[k]);
        Op::step(sums, own, weight, seen, given);
#pragma unroll
        for (int s = 0; s < kSums; ++s) acc[s][H::slot(c, i)] = sums[s];
      }
    };
    if constexpr (Op::kFast) {
      const auto take_fast = [&](int c, int i, const F* x, F, bool there) {
        F& sum = acc[0][H::slot(c, i)];
        if constexpr (Op::kTerm) {
          const F term = Op::fast_term(x[0], seen);
          if (there) sum = sum + term;
          keep(c, i, term);
        } else if (there) {
          F next[1] = {sum};
          Op::fast_step(next, x, seen);
          sum = next[0];
        }
      };
      if (fast) each<false>(take_fast, acc);
      else each<false>(take, acc);
    } else {
      each_there<kScaled>(take, acc);
    }
    F sums[kSums];
#pragma unroll
    for (int s = 0; s < kSums; ++s) sums[s] = H::template tree<kNumbers>(acc[s], p);
    if constexpr (Op::kScales && !kScaled) scale = Op::rescale(sums, seen);
    return skips ? Op::none() : Op::state(found, sums, p.count);
  }

  // Writes the elements of the leaf, by chunks. kFast: the data is. W: as of weights().
  template <bool kFull, bool kFast, class W = void, class Out, class At>
  __device__ __forceinline__ void write(Out out, const At& at) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!(kFull && kChunks == held_rows::kLeafChunks && !kAligned) && !H::has_chunk(p, c)) break;
      float v[kInputs][kGroup], w[kGroup], b[kGroup], y[kGroup];
      if constexpr (Op::kTerm) terms(c, v[0]);
      else elements(c, v);
      if constexpr (Op::kWeights) weights<kFull, W>(call.weight, F(1), c, w);
      if constexpr (Op::kBiases) weights<kFull, W>(call.bias, F(-0.0), c, b);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        F x[kInputs];
#pragma unroll
        for (int k = 0; k < kInputs; ++k) x[k] = v[k][i];
        if constexpr (kFast) {
          if constexpr (Op::kTerm) y[i] = Op::fast_map(x[0], at);
          else y[i] = Op::fast_map(x, at);
        } else {
          const int64_t position = first + H::position(p, c, i);
          const F weight = Op::kWeights ? w[i] : F(1), bias = Op::kBiases ? b[i] : F(-0.0);
          if constexpr (Op::kTerm) y[i] = Op::map(x[0], weight, bias, position, at);
          else y[i] = Op::map(x, weight, bias, position, at);
        }
      }
      out.store(c, y);
    }
    out.finish();
  }
  // The elements themselves, of ops that add.
  __device__ __forceinline__ void write_sums(int64_t to) const {
    typename H::template Out<false, false> out(static_cast<E*>(call.sum) + to, p);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!H::has_chunk(p, c)) break;
      float v[kGroup];
      held[0].chunk(c, v);
      out.store(c, v);
    }
    out.finish();
  }
  // The leaf starts at element `to` of the output.
  template <bool kFast, class At> __device__ __forceinline__ void write(int64_t to, const At& at) const {
    if constexpr (kConverts)
      if (call.out_dtype != DtypeOf<E>::value)
        return write<false, kFast>(typename H::template ConvertedOut<kFast>(call, to, p), at);
    E* const out = static_cast<E*>(call.out) + to;
    if constexpr (H::kGranules && !kAligned && !Op::kWeights)
      if (elements_before(out) != p.before)
        return write<false, kFast>(typename H::template ShiftedOut<kFast>(out, p), at);
    if constexpr (kFast || !Op::kFastMap)
      if (p.full) {
        const typename H::template Out<true, kFast> full(out, p);
        if constexpr (Op::kWeights && kAligned) {
          if (call.weight && (!Op::kBiases || call.bias)) {
            if (call.weight_dtype == Dtype::F32) return write<true, kFast, F>(full, at);
            return write<true, kFast, E>(full, at);
          }
        }
        return write<true, kFast>(full, at);
      }
    write<false, kFast>(typename H::template Out<false, kFast>(out, p), at);
  }
  // marked(i): what a marked element at position i of the row becomes.
  template <class At, class Marked>
  __device__ __forceinline__ void write(int64_t to, const At& at, bool there, Marked marked) const {
    if constexpr (Op::kFastMap) {
      if (!ballot(!Op::allows_fast_map(held[kInputs - 1].extremes(p).least, at))) {
        if (there) write<true>(to, at);
        if constexpr (kMarks<Op>) {
          const int64_t mark = Op::marked(at) - first;
          warp_barrier();  // by all lanes, of rows that are there or not
          if (there && p.lane == 0 && mark >= 0 && mark < p.count)
            store_item(static_cast<E*>(call.out) + to + mark, round_to<E>(marked(first + mark)));
        }
        return;
      }
    }
    if (there) write<false>(to, at);
  }
};

}  // namespace torchreduce::gpu
