// One call of an op, type-erased: what binding/ops.cpp hands to the CPU and to the GPU, and how either finds the
// kernel. Plans (scan_plan.h, reduce_plan.h) read all of it; the pointers only for their alignment.
#pragma once
#include <array>

#include "ops/scans.h"
#include "plan.h"

namespace torchreduce {

// The structs of ops/reductions.h and ops/scans.h, X(struct).
#define TR_FOR_EACH_REDUCTION(X) X(Sum) X(SumOf) X(Count) X(Product) X(Extreme) X(ArgExtreme) X(Extremes) X(CountedSum)
#define TR_FOR_EACH_SCAN(X) X(CumSum) X(CumExtreme) X(CumProd) X(LogCumSumExp) X(Decay) X(LinearScan)

// The reductions by name, X(name, signature, struct, options that are not the default); the signatures stand in
// binding/ops.cpp. max_all and min_all have the values of amax and amin, and the gradient of torch.max(x) where there
// are NaNs.
#define TR_FOR_EACH_REDUCTION_OP(X)                                    \
  X(sum, WithDtype, Sum)                                               \
  X(mean, WithDtype, Sum, .mean = true)                                \
  X(nansum, WithDtype, SumOf, .of = Of::Numbers)                       \
  X(prod, WithDtype, Product)                                          \
  X(norm1, WithDtype, SumOf, .of = Of::Magnitudes)                     \
  X(norm2, WithDtype, SumOf, .of = Of::Squares)                        \
  X(norm0, WithDtype, Count, .of = Of::Magnitudes)                     \
  X(norm_greatest, WithDtype, Extreme, .of = Of::Magnitudes)           \
  X(norm_least, WithDtype, Extreme, .min = true, .of = Of::Magnitudes) \
  X(any, AlongDims, Count, .verdict = Verdict::Any)                    \
  X(all, AlongDims, Count, .verdict = Verdict::All)                    \
  X(count_nonzero, AlongDims, Count)                                   \
  X(amax, AlongDims, Extreme)                                          \
  X(amin, AlongDims, Extreme, .min = true)                             \
  X(max_all, AllDims, Extreme)                                         \
  X(min_all, AllDims, Extreme, .min = true)                            \
  X(max, WithIndex, ArgExtreme)                                        \
  X(min, WithIndex, ArgExtreme, .min = true)                           \
  X(argmax, AlongDims, ArgExtreme)                                     \
  X(argmin, AlongDims, ArgExtreme, .min = true)                        \
  X(aminmax, LeastAndGreatest, Extremes)                               \
  X(nansum_and_count, TotalAndCount, CountedSum, .of = Of::Numbers)

// The scans by name, X(name, signature, struct, min).
// Not among them, since they take more than one tensor: linear_scan, by LinearScan; decayed_sum, by Decay, which serves
// gradients alone.
#define TR_FOR_EACH_SCAN_OP(X)                         \
  X(cumsum, Scanning, CumSum, false)                   \
  X(cumprod, Scanning, CumProd, false)                 \
  X(logcumsumexp, ScanningFloats, LogCumSumExp, false) \
  X(cummax, ScanningIndex, CumExtreme, false)          \
  X(cummin, ScanningIndex, CumExtreme, true)

#define TR_NAME(name) name,
enum class Reduction : int { TR_FOR_EACH_REDUCTION(TR_NAME) };
enum class Scan : int { TR_FOR_EACH_SCAN(TR_NAME) };
#undef TR_NAME

// How elements enter the accumulator when the kernel is not compiled for their type: any type, converted one by one.
// Elements of the static kernels are read as they are.
struct Source {
  const void* data = nullptr;
  Dtype dtype = Dtype::F32;
  Dtype accumulator = Dtype::F32;  // F32, F64 or I64; only sums and scans have a choice
  bool truth = false;              // elements count as 1 if not zero, else 0 (sum with dtype=bool)
  // Further inputs, of the same dtype. Of three inputs: the second and third, of the same strides. linear_scan, whose
  // b is `data`: a and initial, the latter null if there is none.
  const void* more[2] = {};
};

struct ReduceCall {
  Reduction op;
  OpOptions options;
  Source in;
  Output out;
  Layout layout;
};

struct ScanCall {
  Scan op;
  OpOptions options;
  Source in;
  Output out;
  bool exclusive;  // result i goes to position i + 1; position 0 gets the op's start
  bool reverse;    // positions count from the end of the scanned dim
  Layout layout;   // one reduced dim, with strides in `in` and `out`, negative for a reverse scan
  // linear_scan: strides of a and initial, for each dim of the layout; along the reduced one that of a is as above.
  MoreStrides more_strides;
  // linear_scan: a position takes the a of the one before it, and at position 0 there is none to read.
  bool shifted;

  // The index along the scanned dim of a position.
  TR_HD int64_t index_of(int64_t position) const { return reverse ? layout.length - 1 - position : position; }
};

// What a caller knows of a tensor.
struct TensorFacts {
  const void* data = nullptr;
  Dtype dtype = Dtype::F32;
  int dims = 0;
  const int64_t* sizes = nullptr;
  const int64_t* strides = nullptr;
};

// The folded shape of an op along the dims whose bit is set in `along`. `out_strides` has a stride for each dim of x, 0
// for a reduced one.
Layout fold(const TensorFacts& x, uint64_t along, const int64_t* out_strides);

// Where neither the order nor the positions of elements show in the result (extremes, sums of integers), reduced dims
// go by their strides, so that those merge which are one run of memory. `fast`: also where the order shows, in a sum's
// rounding; where positions show they never do.
void order_by_memory(ReduceCall& call, bool fast = false);

// For Count: elements become the integers of their width, and the options say which of them count: those that are not
// zero, or NaN where the count is Of::Numbers.
void count_bits(ReduceCall& call);

// For the kernels of a GPU, which have fewer types: sums and extremes of bools become counts, whose accumulators are as
// wide or wider, and kernels for int8 are told of uint8 (ops/reductions.h, as_signed).
void by_width(ReduceCall& call);

// The two calls that have the results of one that has both (ops/reductions.h, kTwo).
std::array<ReduceCall, 2> halves(const ReduceCall& both);

// What its struct says of an op on elements of type d.
struct ReductionFacts {
  Dtype result;    // the dtype of its values without dtype=
  bool indexed;    // it finds positions
  bool has_empty;  // a row without elements has a result
  bool converts;   // elements may enter an accumulator that is not their own
  bool reads;      // kernels read elements of type d as they are
  bool two;        // it has two results that are no values with indices
};
ReductionFacts facts(Reduction op, Dtype d);

// What its struct says of a scan.
struct ScanFacts {
  bool indexed, converts, integers, integer_kernels, exclusive;
  int inputs;
};
ScanFacts facts(Scan op);

// The accumulator a static kernel for elements of type d uses.
TR_HD constexpr Dtype natural_accumulator(Dtype d) {
  return d == Dtype::F64 ? Dtype::F64 : is_float(d) ? Dtype::F32 : Dtype::I64;
}
// The accumulator of sums and scans of elements of type `in` with results of type `out`.
TR_HD constexpr Dtype accumulator_of(Dtype in, Dtype out) {
  return !is_float(out) ? Dtype::I64 : in == Dtype::F64 || out == Dtype::F64 ? Dtype::F64 : Dtype::F32;
}
TR_HD constexpr bool is_widened(Dtype in, Dtype out) { return is_float(in) && size_of(in) == 2 && out == Dtype::F32; }
TR_HD bool is_static(const Source& in) { return !in.truth && in.accumulator == natural_accumulator(in.dtype); }
// Whether a kernel for elements of the call's type serves it.
inline bool is_static(const ReduceCall& call) { return is_static(call.in) && facts(call.op, call.in.dtype).reads; }

// A scan's static kernels have the output dtype that torch gives by default, too; where there are such for integers,
// also float32 of 16-bit floats.
TR_HD bool is_static(const Source& in, Dtype out, bool integer_kernels) {
  const bool own = is_float(in.dtype) ? out == in.dtype : out == Dtype::I64 && integer_kernels;
  return is_static(in) && (own || (integer_kernels && is_widened(in.dtype, out)));
}

}  // namespace torchreduce
