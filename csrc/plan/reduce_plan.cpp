#include "reduce_plan.h"

#include <algorithm>

#include "reduce_copy.h"

namespace torchreduce {

using namespace plans;

namespace {

// Bytes of one accumulator of the kernel that serves elements of `in`.
template <template <class> class Op> int64_t accumulator_bytes(const Source& in) {
#define TR_CASE(T) \
  case DtypeOf<T>::value: return sizeof(typename Op<T>::Acc);
  switch (Op<float>::kConverts ? in.accumulator : in.dtype) { TR_FOR_EACH_TYPE(TR_CASE) }
#undef TR_CASE
  return 0;
}

template <auto kServes> constexpr auto kShapeOf = shape_of<ReduceCall, Shape, kServes>;

}  // namespace

int64_t accumulator_bytes(const ReduceCall& call) {
#define TR_CASE(name) \
  case Reduction::name: return accumulator_bytes<name>(call.in);
  switch (call.op) { TR_FOR_EACH_REDUCTION(TR_CASE) }
#undef TR_CASE
  return 0;
}

template <template <class> class Op> static ColumnFacts column_facts(const Source& in) {
#define TR_CASE(T)                                                                                 \
  case DtypeOf<T>::value:                                                                          \
    return {int(sizeof(typename Op<T>::Near)), int(sizeof(typename Op<T>::Acc)), Op<T>::kAnyOrder, \
            has_columns<Op<T>>(DtypeOf<T>::value), has_small_columns<Op<T>>(DtypeOf<T>::value)};
  switch (in.dtype) { TR_FOR_EACH_TYPE(TR_CASE) }
#undef TR_CASE
  return {};
}
ColumnFacts column_facts(const ReduceCall& call) {
#define TR_CASE(name) \
  case Reduction::name: return column_facts<name>(call.in);
  switch (call.op) { TR_FOR_EACH_REDUCTION(TR_CASE) }
#undef TR_CASE
  return {};
}

void count_bits(ReduceCall& call) {
  const Dtype d = call.in.dtype;
  const int64_t infinity = d == Dtype::F16    ? Ordering<F16>::kInf
                           : d == Dtype::BF16 ? Ordering<BF16>::kInf
                           : d == Dtype::F32  ? Ordering<float>::kInf
                                              : Ordering<double>::kInf;
  const bool nan = call.options.of == Of::Numbers;
  const int size = size_of(d);
  call.options.high = !is_float(d) && !nan;
  call.options.limit = !nan ? 0 : is_float(d) ? infinity : (uint64_t(1) << (size * 8 - 1)) - 1;
  call.in.dtype = size == 1 ? Dtype::I8 : size == 2 ? Dtype::I16 : size == 4 ? Dtype::I32 : Dtype::I64;
  call.in.accumulator = Dtype::I64;
}

void by_width(ReduceCall& call) {
  if (!is_static(call.in)) return;
  if (call.in.dtype == Dtype::U8) call.options.high = true;
  if (call.in.dtype != Dtype::Bool || (call.op != Reduction::Sum && call.op != Reduction::Extreme)) return;
  if (call.op == Reduction::Extreme) call.options.verdict = call.options.min ? Verdict::All : Verdict::Any;
  call.op = Reduction::Count;
  call.options.of = Of::Elements;
  count_bits(call);
}

std::array<ReduceCall, 2> halves(const ReduceCall& both) {
  ReduceCall first = both, second = both;
  first.out.indices = nullptr;
  if (both.op == Reduction::Extremes) {
    first.op = second.op = Reduction::Extreme;
    first.options.min = true;
    second.out = {both.out.indices, nullptr, both.out.dtype};
  } else {
    first.op = Reduction::SumOf;
    second.op = Reduction::Count;
    second.out = {both.out.indices, nullptr, Dtype::I64};
    count_bits(second);
  }
  for (ReduceCall* half : {&first, &second}) {
    order_by_memory(*half);
    by_width(*half);
  }
  return {first, second};
}

void order_by_memory(ReduceCall& call, bool fast) {
  const Layout& l = call.layout;
  const ReductionFacts f = facts(call.op, call.in.dtype);
  if (l.reduced < 2 || f.indexed || (!fast && f.converts && call.in.accumulator != Dtype::I64)) return;
  std::vector<Dim> kept, reduced;
  for (int d = 0; d < l.kept + l.reduced; ++d) (d < l.kept ? kept : reduced).push_back({l.size[d], l.in[d], l.out[d]});
  std::stable_sort(reduced.begin(), reduced.end(), [](const Dim& a, const Dim& b) { return a.in > b.in; });
  call.layout = fold(std::move(kept), reduced);
}

// How a family is chosen, by shape and dtype; the shapes are examples, and what decides is each family's serves().
//
//   Kernels read elements of this dtype as they are (is_static), and the device has the families that read 16 bytes a
//   lane:
//     Neighbours are reduced, (rows, n) over dim 1:
//       rows of at most 4 KiB that are no whole 16-byte vectors                      packed_rows      (1000, 100)
//         or of which lanes hold too little for an op that finds positions           packed_rows      argmax (1000, 36)
//       whole vectors, more than 128 a row, so few that all are loaded at once       few_rows         (8, 151936)
//       others                                                                       rows             (4096, 4096)
//     Neighbours are kept, (batch, n, columns) over dim 1; extremes of floats, int32 and int64 alone:
//       lanes are used well across columns (Columns::wide):
//         n is at most 8, and elements are float32, float16 or bfloat16              short_columns    (8, 100000)
//         others                                                                     wide_columns     (4096, 4096)
//       they are not:
//         slices of at most 256 rows and 40 KiB, of the same dtypes                  column_slices    (5000, 49, 32)
//         rows that follow each other, or runs of whole vectors, 1024 elements       narrow_columns   (100000, 32)
//         a fifth of the lanes is used                                               wide_columns     (9, 70, 99)[:,
//                                                                                                     :, 9:80]
//     Neighbours are reduced, but along a dim before the last one; the same dtypes, and ops whose order shows or that
//     find positions, but for products                                               transposed_rows  (64, 99).T, all
//   What is left, and elements that dtype= converts                                  strided          (1000, 4096)[:,
//                                                                                                     ::2]
//   On other devices:
//     the smallest stride is that of a kept dim                                      columns          (4096, 4096)
//     others                                                                         strided
const std::vector<Family<ReduceCall, Shape>> kReduceFamilies = {
    {"packed_rows", "runs of short rows copied to shared memory", kShapeOf<packed_rows::serves>},
    {"few_rows", "all elements of few rows at once, 16 bytes a lane", kShapeOf<few_rows::serves>},
    {"rows", "lanes along rows of neighbours, 16 bytes each", kShapeOf<rows::serves>},
    {"short_columns", "lanes across columns of at most eight rows", kShapeOf<short_columns::serves>},
    {"column_slices", "small slices, whole, in shared memory", kShapeOf<column_slices::serves>},
    {"narrow_columns", "lanes along runs of rows, several accumulators deep", kShapeOf<narrow_columns::serves>},
    {"wide_columns", "lanes across columns, warps down them", kShapeOf<wide_columns::serves>},
    {"transposed_rows", "lanes across what is not neighbours along a row", kShapeOf<transposed_rows::serves>},
    {"columns", "lanes across rows, each walking its own", kShapeOf<columns::serves>, true},
    {"strided", "lanes along each row, element by element", kShapeOf<strided::serves>, true},
};

static PlanOverride forced_family() {
  PlanOverride forced = forced_plan();
  if (forced.family && std::string(forced.family) == kContiguous) forced.family = nullptr;
  return forced;
}

bool looks_once(const ReduceCall& call, const DeviceFacts& device) {
  const PlanOverride forced = forced_family();
  if (!device.gpu || !device.wide_reductions || call.layout.length > CountedSum<float>::kLongest) return false;
  return std::any_of(kReduceFamilies.begin(), kReduceFamilies.end(), [&](const auto& family) {
    return !family.general && (!forced.family || std::string(forced.family) == family.name) &&
           family.serves(call, device, forced);
  });
}

ReducePlan plan(const ReduceCall& call, const DeviceFacts& facts) {
  const PlanOverride forced = forced_family();
  DeviceFacts device = facts;
  device.multiprocessors = std::max(1, device.multiprocessors);  // families divide by it
  if (!device.gpu) {
    CpuShape shape;
    shape.blocks = device.multiprocessors;
    shape.across = cpu_across(forced_plan(), lanes_across_rows(call.layout), "reductions");
    return {shape.across ? "columns" : "rows", shape};
  }
  auto [family, shape] = first_that_serves(kReduceFamilies, call, device, forced, "reductions",
                                           [&](const auto& f) { return f.general || device.wide_reductions; });
  ReducePlan plan{family, std::move(shape)};
  check_launch(plan.launch().blocks, plan.launch().shared, device.shared);
  return plan;
}

// A copy costs a write and a read of it, where other kernels read the input alone: it is faster where they would do so
// element by element, or by few blocks. H200, 14,532 random reductions of permuted tensors of 2^16 to 2^27 bytes, time
// by a copy in that without one, geometric mean:
//   strided, an element a lane       sums 0.60, products 0.66, argmax 0.40
//   strided, 16 bytes a lane         argmax 0.74; others 0.72 up to kMostOfGranules; above, 1.26, but 0.69 where the
//                                    last two dims have fewer positions than a leaf
//   transposed_rows, argmax          0.83 up to kMostOfStretches, 1.05 above
//   transposed_rows, tiles           0.77 up to kMostOfTiles, 1.09 above; 1.05 of stretches below kLeastStretch
//   transposed_rows, long, 16 bits   0.78 up to kMostOfStretches, 1.12 above; of 32 bits 1.35
constexpr int64_t kLeastCopied = 1 << 16;  // bytes
constexpr int64_t kMostOfGranules = 1 << 23, kMostOfTiles = 1 << 24, kMostOfStretches = 1 << 25;
constexpr int64_t kLeastStretch = 128;
static bool copies(const ReduceCall& call, const DeviceFacts& device, int64_t bytes) {
  const ReduceCall looking = facts(call.op, call.in.dtype).two && !looks_once(call, device) ? halves(call)[0] : call;
  const bool indexed = facts(call.op, call.in.dtype).indexed;
  const ReducePlan there = plan(looking, device);
  if (const auto* s = std::get_if<StridedShape>(&there.shape)) {
    const int last = call.layout.kept + call.layout.reduced - 1;
    const bool wraps = call.layout.size[last] * call.layout.size[last - 1] < kLeaf;
    return s->granules ? indexed || wraps || bytes <= kMostOfGranules : !s->window;
  }
  const auto* s = std::get_if<TransposedRowsShape>(&there.shape);
  if (!s) return false;
  if (indexed || (!s->tiles && size_of(call.in.dtype) == 2)) return bytes <= kMostOfStretches;
  return s->tiles && s->stretch >= kLeastStretch && bytes <= kMostOfTiles;
}

std::optional<PlannedCopy> copy_first(const ReduceCall& call, const DeviceFacts& device) {
  const PlanOverride forced = forced_plan();
  const bool is_forced = forced.family && std::string(forced.family) == kContiguous;
  std::optional<PlannedCopy> copy;
  if (device.gpu && device.wide_reductions && call.layout.reduced > 1 && is_static(call))
    copy = contiguous::copy_of(call, std::max(1, device.multiprocessors));
  if (is_forced && !copy) throw std::invalid_argument("force_plan: contiguous cannot serve this call");
  if (!copy || is_forced) return copy;
  const int64_t bytes = copy->elements() * copy->size;
  if (forced.family || bytes < kLeastCopied || !copies(call, device, bytes)) return {};
  return copy;
}
ReduceCall of_copy(const ReduceCall& call, const void* data) {
  ReduceCall copied = call;
  copied.in.data = data;
  copied.layout = contiguous::layout_of_copy(call.layout);
  return copied;
}

}  // namespace torchreduce
