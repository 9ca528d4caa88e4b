// Row-wise ops on rows of any strides and types: a warp takes a leaf, element by element, and reads it again for each
// pass.
//
// Serves: everything (strided.h); ops that add as the same of one tensor, which a call with a `sum` adds up. Of rows of
// one leaf one launch does all; else one leaves the states of all leaves, one makes of them the rows', and one writes
// what follows.
#pragma once
#include "states.cuh"
#include "strided.h"

namespace torchreduce::gpu {

// Elements of a row of call.in[k], converted. kMayAdd: where there is a call.sum, of the one input the sums of both,
// rounded to their type.
template <class F, bool kMayAdd = false> struct StridedRow {
  const RowwiseCall& call;
  int64_t start[2];

  __device__ StridedRow(const RowwiseCall& call, int64_t row, int inputs) : call(call), start{} {
    start[0] = row_start(call.layout, row).in;
    if (inputs > 1 || (kMayAdd && call.sum)) start[1] = row_offset(call.layout, call.more_strides[0], row);
  }
  __device__ F element(int k, int64_t i) const {
    if (kMayAdd && call.sum) return as_stored(loaded(0, i) + loaded(1, i));
    return loaded(k, i);
  }
  __device__ F as_stored(F x) const {
    switch (call.dtype) {
      case Dtype::F16: return convert<F>(round_to<F16>(x));
      case Dtype::BF16: return convert<F>(round_to<BF16>(x));
      default: return x;
    }
  }
  __device__ F loaded(int k, int64_t i) const {
    const auto& strides = k == 0 ? call.layout.in : call.more_strides[0];
    return float_as<F>(call.dtype, call.in[k], start[k] + position_offset(call.layout, strides, i));
  }
  // Floats alone: no more code than that.
  template <class To> __device__ static To float_as(Dtype dtype, const void* base, int64_t at) {
    switch (dtype) {
      case Dtype::F16: return convert<To>(global(static_cast<const F16*>(base))[at]);
      case Dtype::BF16: return convert<To>(global(static_cast<const BF16*>(base))[at]);
      case Dtype::F64: return convert<To>(global(static_cast<const double*>(base))[at]);
      default: return convert<To>(global(static_cast<const float*>(base))[at]);
    }
  }
};

// The canonical sums over the leaf of `count` elements, by a warp: step(sums, i) adds position i. Every lane gets them.
template <int kSums, class F, class Step> __device__ __forceinline__ void leaf_sums(int count, F (&total)[kSums],
                                                                                    Step step) {
  const auto add = [](F a, F b) { return a + b; };
  TreeStack<F, 4> tree[kSums];  // over runs of residues, one a lane
#pragma unroll 1
  for (int first = lane_id(); first < kResidues; first += kLanes) {
    F sums[kSums];
#pragma unroll
    for (F& s : sums) s = F(-0.0);
#pragma unroll 1
    for (int i = first; i < count; i += kResidues) step(sums, i);
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
#pragma unroll 1
      for (int d = 1; d < kLanes; d *= 2) sums[s] = sums[s] + shuffle(sums[s], lane_id() ^ d);
      tree[s].push(sums[s], add);
    }
  }
#pragma unroll
  for (int s = 0; s < kSums; ++s) total[s] = tree[s].total(F(-0.0), add);
}

// Both looks at the leaf of `count` elements, by a warp: element(k, i) is number i of input k, weight(i) its weight.
// kScaled: at elements times `scale`; else, of ops that may have to look again, `scale` becomes what they are to be
// multiplied by then, or 1.
template <bool kScaled, class Op, class F, class Given, class Element, class Weight>
__device__ __forceinline__ typename Op::State strided_look(int count, const Given& given, [[maybe_unused]] F& scale,
                                                           Element element, Weight weight) {
  const auto scaled = [&](int k, int i) {
    if constexpr (kScaled) return element(k, i) * scale;
    else return element(k, i);
  };
  F found = first_absent<Op::kFirst, F>();
  if constexpr (Op::kFirst == First::Greatest) {
#pragma unroll 1
    for (int i = lane_id(); i < count; i += kLanes) found = greatest(found, scaled(0, i));
#pragma unroll 1
    for (int d = 1; d < kLanes; d *= 2) found = greatest(found, shuffle(found, lane_id() ^ d));
  } else if constexpr (Op::kFirst == First::Sum) {
    F sum[1];
    leaf_sums(count, sum, [&](F* s, int i) { s[0] = s[0] + scaled(0, i); });
    found = sum[0];
  }
  const auto seen = Op::seen(found, count, given);
  const auto step = [&](F* s, int i) {
    F v[Op::kInputs];
#pragma unroll
    for (int k = 0; k < Op::kInputs; ++k) v[k] = scaled(k, i);
    Op::step(s, v, weight(i), seen, given);
  };
  F sums[Op::kSums];
  if constexpr (kScaled) {  // one at a time: they would take more registers than the first time
#pragma unroll 1
    for (int which = 0; which < Op::kSums; ++which) {
      F sum[1];
      leaf_sums(count, sum, [&](F* s, int i) {
        F all[Op::kSums];
#pragma unroll
        for (F& a : all) a = s[0];
        step(all, i);
        s[0] = all[0];
#pragma unroll
        for (int k = 1; k < Op::kSums; ++k) s[0] = chosen(k == which, all[k], s[0]);
      });
#pragma unroll
      for (int k = 0; k < Op::kSums; ++k) sums[k] = which <= k ? sum[0] : sums[k];
    }
  } else {
    leaf_sums(count, sums, step);
    if constexpr (Op::kScales) scale = Op::rescale(sums, seen);
  }
  return Op::state(found, sums, count);
}

enum class StridedPart : int8_t { Whole, States, Output };

template <class Op, class F>
__global__ void __launch_bounds__(rowwise_strided::kThreads)
    rowwise_strided_leaf(TR_GRID_CONSTANT RowwiseCall call, int64_t leaves, StridedPart part,
                         typename Op::State* states, const typename Op::State* totals) {
  using State = typename Op::State;
  const Layout& l = call.layout;
  const int64_t item = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes, row = item / leaves;
  const int64_t first = (item - row * leaves) * kLeaf, rest = l.length - first;
  if (row >= l.rows) return;
  const int count = int(rest < kLeaf ? rest : kLeaf);
  constexpr bool kMayAdd = Op::kWeights && Op::kInputs == 1;
  const StridedRow<F, kMayAdd> x(call, row, Op::kInputs);
  const int64_t value = row_offset(l, call.more_strides[1], row);
  const auto given = Op::given(call.options, call.memory, value);
  const bool skips = Op::skips(given);
  const auto weight = [&](const void* w, int64_t i, F missing) {
    return w ? StridedRow<F>::template float_as<F>(call.weight_dtype, w, first + i) : missing;
  };

  State state = Op::none();
  if constexpr (Op::kSums > 0) {
    if (part != StridedPart::Output && !skips && count > 0) {
      const auto element = [&](int k, int i) { return x.element(k, first + i); };
      const auto weight_at = [&](int i) { return Op::kWeights ? weight(call.weight, i, F(1)) : F(1); };
      F scale = F(1);
      state = strided_look<false, Op>(count, given, scale, element, weight_at);
      if constexpr (Op::kScales) {
        if (scale != F(1)) {
          TR_RARE_PATH;
          state = Op::scaled_back(strided_look<true, Op>(count, given, scale, element, weight_at), state, scale);
        }
      }
    }
    if (part == StridedPart::States) {
      if (lane_id() == 0) states[item] = state;
      return;
    }
  }
  State total = state;
  if constexpr (Op::kSums > 0)
    if (part == StridedPart::Output) {
      state = states[item];
      total = totals[row];
    }
  if (!Op::kMaps && first > 0) return;
  const auto values = Op::row(total, l.length, given, call.options, [&](int64_t i) { return x.element(0, i); });
  if (first == 0 && lane_id() == 0) Op::write(values, call.memory, value);
  if constexpr (Op::kMaps) {
    const auto& at = Op::at(values, state);
    const int64_t to = row_start(l, row).out;
#pragma unroll 1
    for (int i = lane_id(); i < count; i += kLanes) {
      F element[Op::kInputs];
#pragma unroll
      for (int k = 0; k < Op::kInputs; ++k) element[k] = x.element(k, first + i);
      const F w = Op::kWeights ? weight(call.weight, i, F(1)) : F(1);
      const F b = Op::kBiases ? weight(call.bias, i, F(-0.0)) : F(-0.0);
      F y;
      if constexpr (Op::kTerm) y = Op::map(Op::term(element[0], Op::seen(state.l, count, given)), w, b, first + i, at);
      else y = Op::map(element, w, b, first + i, at);
      const int64_t place = to + position_offset(l, l.out, first + i);
      if (kMayAdd && call.sum) store_as(call.dtype, global(static_cast<char*>(call.sum)), place, element[0]);
      store_as(call.out_dtype, global(static_cast<char*>(call.out)), place, y);
    }
  }
}

// ---- rows of several leaves ------------------------------------------------------------------------------------------

// Writes the values of a row, of an op that writes nothing else.
template <class Op, class F>
__device__ __forceinline__ void write_row(const RowwiseCall& call, int64_t row, const typename Op::State& total) {
  const StridedRow<F> x(call, row, 1);
  const int64_t value = row_offset(call.layout, call.more_strides[1], row);
  const auto given = Op::given(call.options, call.memory, value);
  const auto values =
      Op::row(total, call.layout.length, given, call.options, [&](int64_t i) { return x.element(0, i); });
  Op::write(values, call.memory, value);
}

// By a block for each row: its state, from those of its leaves, goes to `totals`; or of an op that writes nothing else,
// its values are written. One kernel for all ops that share States: the call says which it is. `trees`: room for half
// as many states, rounded up, as a row has leaves.
template <class States, class F>
__global__ void __launch_bounds__(kThreads)
    fold_states(TR_GRID_CONSTANT RowwiseCall call, int64_t leaves, const typename States::State* states,
                typename States::State* trees, typename States::State* totals) {
  const int64_t row = blockIdx.x;
  const auto total = block_tree<States>(states + row * leaves, trees + row * LeafStates{leaves}.tree(), leaves);
  if (threadIdx.x > 0) return;
#define TR_WRITE(name)                                                               \
  if constexpr (std::is_same_v<typename name<F>::States, States> && !name<F>::kMaps) \
    if (call.op == Rowwise::name) return write_row<name<F>, F>(call, row, total);
  TR_FOR_EACH_ROWWISE(TR_WRITE)
#undef TR_WRITE
  totals[row] = total;
}

}  // namespace torchreduce::gpu
