// One call of a row-wise op (ops/rowwise.h), type-erased, as call.h has those of reductions.
#pragma once
#include "call.h"
#include "ops/rowwise.h"

namespace torchreduce {

// The structs of ops/rowwise.h by kind, X(struct): the kernels of a kind are compiled together.
#define TR_ROWWISE_SOFTMAX(X) X(Softmax) X(LogSoftmax) X(SoftmaxGradient) X(LogSoftmaxGradient)
#define TR_ROWWISE_EXPONENTIALS(X) \
  X(LogSumExp) X(LogSumExpGradient) X(CrossEntropy) X(CrossEntropyGradient) X(Entropy) X(EntropyGradient)
#define TR_ROWWISE_MOMENTS(X) X(Moments) X(MomentsGradient) X(LayerNorm) X(LayerNormSum) X(LayerNormGradient)
#define TR_ROWWISE_SQUARES(X) X(RmsNorm) X(RmsNormSum) X(RmsNormGradient)
#define TR_FOR_EACH_ROWWISE_KIND(X) X(SOFTMAX) X(EXPONENTIALS) X(MOMENTS) X(SQUARES)
// All of them; after them come the gradients of weights, which sum over rows.
#define TR_FOR_EACH_ROWWISE(X) \
  TR_ROWWISE_SOFTMAX(X) TR_ROWWISE_EXPONENTIALS(X) TR_ROWWISE_MOMENTS(X) TR_ROWWISE_SQUARES(X)

#define TR_NAME(name) name,
enum class Rowwise : int { TR_FOR_EACH_ROWWISE(TR_NAME) RmsNormWeights, LayerNormWeights };
#undef TR_NAME

struct RowwiseCall {
  Rowwise op;
  RowwiseOptions options;
  Dtype dtype;        // of the elements of all inputs
  Dtype accumulator;  // F32 or F64
  const void* in[2] = {};
  void* out = nullptr;  // an element for each, if the op maps
  Dtype out_dtype;
  void* sum = nullptr;  // where the sums go, if the op adds: laid out as `out`
  // One for each position of a row, contiguous; null where there are none. Of one dtype, the elements' or another.
  const void* weight = nullptr;
  const void* bias = nullptr;
  Dtype weight_dtype = Dtype::F32;
  RowMemory memory;  // what has one element a row: of kept dims; of the gradients of weights, of reduced ones
  // Rows are the kept dims, positions the reduced ones; `out` is that of the mapped elements. Of the gradients of
  // weights: columns are the kept dims, rows the reduced ones, in order; `out` is that of memory.values, contiguous.
  Layout layout;
  MoreStrides more_strides;  // of the second input; of what has one element a row

  bool maps() const { return out != nullptr; }
};

struct RowwiseFacts {
  int inputs, stats;
  bool maps, weights, biases;
  bool term;
  int sums;
  constexpr bool looks() const { return sums > 0; }
  constexpr int sides() const { return weights + biases; }
};
template <class Op> constexpr RowwiseFacts kFacts = {kReads<Op>,  Op::kStats, Op::kMaps, Op::kWeights,
                                                     Op::kBiases, Op::kTerm,  Op::kSums};
RowwiseFacts facts(Rowwise op);

// Whether a kernel for elements of the call's type serves it: they enter the accumulator that is theirs.
inline bool is_static(const RowwiseCall& call) { return call.accumulator == natural_accumulator(call.dtype); }

}  // namespace torchreduce
