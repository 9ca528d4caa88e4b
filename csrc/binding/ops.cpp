// The ops as torch sees them: schemas, checks, allocation, and the way to the kernels. Met through LibTorch's stable
// ABI (target 2.10), so that one build serves every later torch, with or without CUDA.
//
// Python has checked the arguments before, with torch's exception types; what is checked here again is what memory
// safety needs when an op is called directly.
#include <torch/csrc/stable/library.h>

#include <string>
#include <tuple>

#include "direct_ops.h"
#include "kernels/reduce/listed_rows.h"
#include "plan/reduce_copy.h"
#include "plan/segment_offsets.h"
#include "run.h"

namespace torchreduce {

using torch::headeronly::ScalarType;

// The level of determinism at which dims are reduced in the order of memory (torchreduce/determinism.py).
constexpr int64_t kFast = 1;

// ---- reductions --------------------------------------------------------------------------------------------------------

// Whether an op has results of integers.
template <template <class> class Op> constexpr bool has_integers() {
  if constexpr (Op<float>::kConverts) return Op<float>::kIntegers;
  else return true;
}
static bool has_integers(Reduction op) {
#define TR_CASE(name) \
  case Reduction::name: return has_integers<name>();
  switch (op) { TR_FOR_EACH_REDUCTION(TR_CASE) }
#undef TR_CASE
  return false;
}

Types types_of(const Op& op, const Operand& x, std::optional<Dtype> dtype) {
  const ReductionFacts known = facts(op.reduction, x.dtype);
  const bool verdict = op.options.verdict != Verdict::Count;
  const Dtype values = dtype                             ? *dtype
                       : verdict                         ? x.dtype == Dtype::U8 ? Dtype::U8 : Dtype::Bool
                       : op.options.of == Of::Magnitudes ? x.dtype
                                                         : known.result;
  if (!supported(values)) raise<std::runtime_error>(op.name, ": dtype= has the unsupported number ", int(values));
  if ((op.options.mean || !has_integers(op.reduction)) && !is_float(values))
    raise<std::runtime_error>(op.name, ": needs a floating dtype; give one by dtype=");
  const Dtype accumulator = known.converts ? accumulator_of(x.dtype, values) : natural_accumulator(x.dtype);
  const Dtype result = known.indexed ? Dtype::I64 : values;
  const Dtype second = op.reduction == Reduction::Extremes ? values : Dtype::I64;
  return {accumulator, values, result, second, known.indexed, dtype && values == Dtype::Bool};
}

static PlannedReduction reduction(const Op& op, const Operand& x, uint64_t mask, bool keepdim, const Types& types,
                                  const Operand* values, const Operand* indices, bool fast) {
  PlannedReduction call{};
  call.op = op.reduction;
  call.in = Source{x.data, x.dtype, types.accumulator, types.truth};
  const Operand& out = values ? *values : *indices;
  call.layout = fold(x, mask, spread_strides(x, mask, keepdim, out).data());
  call.options = op.options;
  call.options.count = call.layout.length;
  if (op.reduction == Reduction::Count) count_bits(call);
  order_by_memory(call, fast);
  call.out = Output{values ? const_cast<void*>(values->data) : nullptr,
                    indices ? static_cast<int64_t*>(const_cast<void*>(indices->data)) : nullptr,
                    values ? values->dtype : Dtype::I64};
  if (call.layout.length == 0 && !facts(op.reduction, x.dtype).has_empty)
    raise<std::out_of_range>(op.name, ": the reduced dims of the input hold no elements, and there is no identity");
  return call;
}

static void run(const Op& op, PlannedReduction& call, const Operand& x) {
  if (call.layout.rows == 0) return;
#ifdef TORCHREDUCE_GPU
  std::optional<Tensor> copied;
  if (!x.on_cpu())
    if (std::optional<PlannedCopy> copy = copy_first(call, gpu::facts(x.device_index))) {
      try {
        copied = allocate({copy->elements()}, x.dtype, x);
      } catch (const std::exception&) {  // out of memory: it is slower without
      }
      if (copied) {
        copy->to = copied->data_ptr();
        run_on_gpu(op.name, *copy, x, gpu::copy_rows);
        static_cast<ReduceCall&>(call) = of_copy(call, copy->to);
      }
    }
  if (!x.on_cpu() && facts(op.reduction, x.dtype).two && !looks_once(call, gpu::facts(x.device_index))) {
    for (const ReduceCall& half : halves(call)) {
      PlannedReduction alone{half, {}};
      run_on_gpu(op.name, alone, x, gpu::reduce);
    }
    return;
  }
  if (!x.on_cpu()) by_width(call);
  run<PlannedReduction>(op.name, call, x, cpu::reduce, gpu::reduce);
#else
  run<PlannedReduction>(op.name, call, x, cpu::reduce, nullptr);
#endif
}

void reduce_into(const Op& op, const Operand& x, uint64_t mask, bool keepdim, const Types& types, const Operand* values,
                 const Operand* indices, bool fast) {
  PlannedReduction call = reduction(op, x, mask, keepdim, types, values, indices, fast);
  run(op, call, x);
}

void reduce_each_into(const Op& op, const std::vector<WholeReduction>& all) {
  [[maybe_unused]] ListedReduction listed;
  for (const auto& [x, types, value] : all) {
    const uint64_t every = x.dims == kMaxDims ? ~uint64_t(0) : (uint64_t(1) << x.dims) - 1;
    PlannedReduction call = reduction(op, x, every, false, types, &value, nullptr, false);
#ifdef TORCHREDUCE_GPU
    const auto same = [&] {
      const ReduceCall& first = listed.calls.front();
      return first.in.dtype == call.in.dtype && first.out.dtype == call.out.dtype;
    };
    if (!x.on_cpu() && listed_rows::serves(call, gpu::facts(x.device_index)) && (listed.calls.empty() || same())) {
      listed.calls.push_back(call);
      continue;
    }
#endif
    run(op, call, x);
  }
#ifdef TORCHREDUCE_GPU
  if (!listed.calls.empty()) run_on_gpu(op.name, listed, all.front().x, gpu::reduce_listed);
#endif
}

namespace {
std::optional<Dtype> as_dtype(std::optional<ScalarType> dtype) {
  return dtype ? std::optional(Dtype(*dtype)) : std::nullopt;
}

// The result alone: values, or indices for the arg ops.
Tensor reduce_one(const Op& op, const Tensor& input, const Dims& dim, bool keepdim, std::optional<ScalarType> dtype,
                  int64_t level) {
  const View x(input);
  check_input(op.name, x);
  const uint64_t mask = dim_mask(op.name, x, dim);
  const Types types = types_of(op, x, as_dtype(dtype));
  Tensor result = allocate(reduced_sizes(x, mask, keepdim), types.result, x);
  const View out(result);
  reduce_into(op, x, mask, keepdim, types, types.indexed ? nullptr : &out, types.indexed ? &out : nullptr,
              level == kFast);
  return result;
}
void reduce_one_out(const Op& op, const Tensor& input, const Dims& dim, bool keepdim, std::optional<ScalarType> dtype,
                    int64_t level, const Tensor& result) {
  const View whole(input), out(result);
  check_input(op.name, whole);
  const uint64_t mask = dim_mask(op.name, whole, dim);
  const Types types = types_of(op, whole, as_dtype(dtype));
  check_out(op.name, whole, reduced_sizes(whole, mask, keepdim), out, types.result);
  const Tensor source = apart_from(op.name, input, whole, out, false);
  reduce_into(op, View(source), mask, keepdim, types, types.indexed ? nullptr : &out, types.indexed ? &out : nullptr,
              level == kFast);
}

// Values and indices, or two other results.
std::tuple<Tensor, Tensor> reduce_pair(const Op& op, const Tensor& input, const Dims& dim, bool keepdim,
                                       std::optional<ScalarType> dtype, int64_t level) {
  const View x(input);
  check_input(op.name, x);
  const uint64_t mask = dim_mask(op.name, x, dim);
  const Types types = types_of(op, x, as_dtype(dtype));
  const std::vector<int64_t> sizes = reduced_sizes(x, mask, keepdim);
  Tensor values = allocate(sizes, types.values, x), indices = allocate(sizes, types.second, x);
  const View v(values), i(indices);
  reduce_into(op, x, mask, keepdim, types, &v, &i, level == kFast);
  return {values, indices};
}
void reduce_pair_out(const Op& op, const Tensor& input, const Dims& dim, bool keepdim, std::optional<ScalarType> dtype,
                     int64_t level, Tensor values, Tensor indices) {
  const View x(input), v(values), i(indices);
  check_input(op.name, x);
  const Types types = types_of(op, x, as_dtype(dtype));
  const std::vector<int64_t> sizes = reduced_sizes(x, dim_mask(op.name, x, dim), keepdim);
  check_out(op.name, x, sizes, v, types.values);
  check_out(op.name, x, sizes, i, types.second);
  write_pair(op.name, input, values, indices, [&](const Tensor& source, const Tensor& to, const Tensor& index) {
    const View from(source), values_to(to), indices_to(index);
    reduce_into(op, from, dim_mask(op.name, from, dim), keepdim, types, &values_to, &indices_to, level == kFast);
  });
}

// ---- scans -------------------------------------------------------------------------------------------------------------

// Runs a call whose strides are still those of memory, `more` those of the further inputs along the scanned dim: a
// reverse scan starts at the last element, with negative strides.
void run_scan(const char* name, PlannedScan& call, const Operand& x, std::array<int64_t, 2> more) {
  Layout& l = call.layout;
  if (l.rows == 0 || l.length == 0) return;
  if (call.reverse && l.reduced) {
    int64_t &in = l.in[l.kept], &to = l.out[l.kept];
    const int64_t last = l.length - 1;
    advance(call.in.data, last * in, call.in.dtype);
    for (int i = 0; i < 2; ++i) advance(call.in.more[i], last * more[i], call.in.dtype);
    advance(call.out.values, last * to, call.out.dtype);
    if (call.out.indices) call.out.indices += last * to;
    in = -in;
    to = -to;
    call.more_strides[0][l.kept] = -more[0];
  }
#ifdef TORCHREDUCE_GPU
  run<PlannedScan>(name, call, x, cpu::scan, gpu::scan);
#else
  run<PlannedScan>(name, call, x, cpu::scan, nullptr);
#endif
}
}  // namespace

void scan_into(const ScanOp& op, const Operand& x, int dim, bool exclusive, bool reverse, const Operand& out,
               const Operand* indices, const Operand* const* more) {
  PlannedScan call{};
  call.op = op.scan;
  call.options.min = op.min;
  call.in = Source{x.data, x.dtype, accumulator_of(x.dtype, out.dtype), false};
  call.out = Output{const_cast<void*>(out.data),
                    indices ? static_cast<int64_t*>(const_cast<void*>(indices->data)) : nullptr, out.dtype};
  for (int i = 0; more && i < 2; ++i) call.in.more[i] = more[i]->data;
  call.exclusive = exclusive;
  call.reverse = reverse;
  call.layout = fold(x, x.dims ? uint64_t(1) << dim : 0, out.strides);
  const int64_t in = position_stride(call.layout);
  run_scan(op.name, call, x, {in, in});
}

namespace {
Dtype scan_result(const char* name, const View& x, std::optional<ScalarType> dtype) {
  const Dtype result = dtype ? Dtype(*dtype) : is_float(x.dtype) ? x.dtype : Dtype::I64;
  if (!supported(result) || result == Dtype::Bool)
    raise<std::runtime_error>(name, ": dtype= has the unsupported number ", int(result));
  return result;
}
int scan_dim(const char* name, const View& x, int64_t dim) {
  const uint64_t mask = dim_mask(name, x, std::vector<int64_t>{dim});
  int d = 0;
  while (mask && !(mask >> d & 1u)) ++d;
  return d;
}

Tensor scan_one(const ScanOp& op, const Tensor& input, int64_t dim, std::optional<ScalarType> dtype, bool exclusive,
                bool reverse) {
  const View x(input);
  check_input(op.name, x);
  const int d = scan_dim(op.name, x, dim);
  Tensor result = allocate({x.sizes, x.sizes + x.dims}, scan_result(op.name, x, dtype), x);
  scan_into(op, x, d, exclusive, reverse, View(result));
  return result;
}
void scan_one_out(const ScanOp& op, const Tensor& input, int64_t dim, std::optional<ScalarType> dtype, bool exclusive,
                  bool reverse, const Tensor& result) {
  const View x(input), out(result);
  check_input(op.name, x);
  const int d = scan_dim(op.name, x, dim);
  check_out(op.name, x, {x.sizes, x.sizes + x.dims}, out, scan_result(op.name, x, dtype));
  const Tensor source = apart_from(op.name, input, x, out, !exclusive);
  scan_into(op, View(source), d, exclusive, reverse, out);
}

// A scan without dtype=, of floats alone.
void check_floats(const char* name, const View& x) {
  if (!is_float(x.dtype)) raise<std::runtime_error>(name, ": needs a floating dtype, got number ", int(x.dtype));
}

// The sums of Decay, over three tensors of one shape, of float32 or float64. Where their layouts differ, copies are
// read.
Tensor decayed_sum(const Tensor& g, const Tensor& x, const Tensor& o, int64_t dim, bool reverse, int64_t) {
  constexpr ScanOp op{"decayed_sum", Scan::Decay, false};
  const View first(g), others[2] = {View(x), View(o)};
  if (first.dtype != Dtype::F32 && first.dtype != Dtype::F64)
    raise<std::runtime_error>(op.name, ": needs float32 or float64, got number ", int(first.dtype));
  for (const View& v : others)
    if (v.dtype != first.dtype || v.dims != first.dims || v.device_type != first.device_type ||
        v.device_index != first.device_index || !std::equal(v.sizes, v.sizes + v.dims, first.sizes))
      raise<std::runtime_error>(op.name, ": the inputs must have one shape, dtype and device");
  const bool alike = same_layout(first, others[0]) && same_layout(first, others[1]);
  auto laid_out = [&](const Tensor& t) { return alike ? t : torch::stable::contiguous(t); };
  const Tensor inputs[3] = {laid_out(g), laid_out(x), laid_out(o)};
  const View view(inputs[0]), more[2] = {View(inputs[1]), View(inputs[2])};
  const int d = scan_dim(op.name, view, dim);
  Tensor result = allocate({view.sizes, view.sizes + view.dims}, view.dtype, view);
  const Operand* const pointers[2] = {&more[0], &more[1]};
  scan_into(op, view, d, false, reverse, View(result), nullptr, pointers);
  return result;
}

// a, b and initial of one floating dtype; a and b broadcast against each other, initial to their shape without dim.
// `shifted`: a position takes the a of the one before it, in the direction of the scan, and there is no initial.
// Writes to `given`, or where there is none to a tensor that it allocates; returns what it wrote.
Tensor linear_scan_to(const Tensor& a, const Tensor& b, const std::optional<Tensor>& initial, int64_t dim, bool reverse,
                      bool shifted, const std::optional<Tensor>& given) {
  constexpr const char* name = "linear_scan";
  const View left(a), right(b), first(initial ? *initial : b);
  check_floats(name, right);
  for (const View* v : {&left, &first})
    if (v->dtype != right.dtype || v->device_type != right.device_type || v->device_index != right.device_index)
      raise<std::runtime_error>(name, ": a, b and initial must have one dtype and device");
  if (shifted && initial) raise<std::runtime_error>(name, ": a shifted scan has no initial");
  const std::vector<int64_t> sizes = broadcast(name, left, right);
  View whole = right;  // b, broadcast
  const std::vector<int64_t> strides = broadcast_strides(name, right, sizes);
  whole.dims = int(sizes.size());
  whole.sizes = sizes.data();
  whole.strides = strides.data();
  check_input(name, whole);
  const int along = scan_dim(name, whole, dim);
  const std::vector<int64_t> a_strides = broadcast_strides(name, left, sizes);
  std::vector<int64_t> initial_strides(sizes.size(), 0);
  if (initial) {
    std::vector<int64_t> rows = sizes;
    if (!rows.empty()) rows.erase(rows.begin() + along);
    initial_strides = broadcast_strides(name, first, rows);
    if (!sizes.empty()) initial_strides.insert(initial_strides.begin() + along, 0);
  }
  if (given) check_out(name, right, sizes, View(*given), right.dtype);
  Tensor result = given ? *given : allocate(sizes, right.dtype, right);
  const View out(result);
  if (given && (overlap(left, out) || overlap(right, out) || (initial && overlap(first, out)))) {
    Tensor apart = linear_scan_to(a, b, initial, dim, reverse, shifted, {});
    torch::stable::copy_(result, apart);
    return result;
  }

  PlannedScan call{};
  call.op = Scan::LinearScan;
  call.options.initial = initial.has_value();
  call.in = Source{
      right.data, right.dtype, natural_accumulator(right.dtype), false, {left.data, initial ? first.data : nullptr}};
  call.out = Output{const_cast<void*>(out.data), nullptr, right.dtype};
  call.reverse = reverse;
  call.shifted = shifted;
  std::vector<Dim> kept, reduced;
  for (int d = 0; d < whole.dims; ++d)
    (d == along ? reduced : kept).push_back({sizes[d], strides[d], out.strides[d], {a_strides[d], initial_strides[d]}});
  call.layout = fold(std::move(kept), reduced, &call.more_strides);
  const int64_t step = call.layout.reduced ? call.more_strides[0][call.layout.kept] : 0;
  if (shifted) advance(call.in.more[0], reverse ? step : -step, right.dtype);
  run_scan(name, call, right, {step, 0});
  return result;
}

Tensor linear_scan(const Tensor& a, const Tensor& b, const std::optional<Tensor>& initial, int64_t dim, bool reverse,
                   bool shifted, int64_t) {
  return linear_scan_to(a, b, initial, dim, reverse, shifted, {});
}
void linear_scan_out(const Tensor& a, const Tensor& b, const std::optional<Tensor>& initial, int64_t dim, bool reverse,
                     bool shifted, int64_t, Tensor out) {
  linear_scan_to(a, b, initial, dim, reverse, shifted, out);
}

// Values and indices.
std::tuple<Tensor, Tensor> scan_pair(const ScanOp& op, const Tensor& input, int64_t dim, bool reverse) {
  const View x(input);
  check_input(op.name, x);
  const int d = scan_dim(op.name, x, dim);
  const std::vector<int64_t> sizes(x.sizes, x.sizes + x.dims);
  Tensor values = allocate(sizes, x.dtype, x), indices = allocate(sizes, Dtype::I64, x);
  const View v(values), i(indices);
  scan_into(op, x, d, false, reverse, v, &i);
  return {values, indices};
}
void scan_pair_out(const ScanOp& op, const Tensor& input, int64_t dim, bool reverse, Tensor values, Tensor indices) {
  const View x(input), v(values), i(indices);
  check_input(op.name, x);
  const std::vector<int64_t> sizes(x.sizes, x.sizes + x.dims);
  check_out(op.name, x, sizes, v, x.dtype);
  check_out(op.name, x, sizes, i, Dtype::I64);
  write_pair(op.name, input, values, indices, [&](const Tensor& source, const Tensor& to, const Tensor& index) {
    const View indices_to(index);
    scan_into(op, View(source), scan_dim(op.name, x, dim), false, reverse, View(to), &indices_to);
  });
}

// ---- schemas -----------------------------------------------------------------------------------------------------------

// What the ops of one signature have in common: how the dispatcher calls them, with the level of determinism last.
struct WithDtype {
  static constexpr const char* kArguments = "Tensor x, int[]? dim, bool keepdim, ScalarType? dtype, int level";
  static constexpr const char *kResult = "Tensor", *kOut = "Tensor(a!) out";
  template <const Op& op> static Tensor call(const Tensor& x, Dims dim, bool keepdim, std::optional<ScalarType> dtype,
                                             int64_t level) {
    return reduce_one(op, x, dim, keepdim, dtype, level);
  }
  template <const Op& op>
  static void out(const Tensor& x, Dims dim, bool keepdim, std::optional<ScalarType> dtype, int64_t level, Tensor to) {
    reduce_one_out(op, x, dim, keepdim, dtype, level, to);
  }
};
struct AlongDims {
  static constexpr const char* kArguments = "Tensor x, int[]? dim, bool keepdim, int level";
  static constexpr const char *kResult = "Tensor", *kOut = "Tensor(a!) out";
  template <const Op& op> static Tensor call(const Tensor& x, Dims dim, bool keepdim, int64_t level) {
    return reduce_one(op, x, dim, keepdim, {}, level);
  }
  template <const Op& op> static void out(const Tensor& x, Dims dim, bool keepdim, int64_t level, Tensor to) {
    reduce_one_out(op, x, dim, keepdim, {}, level, to);
  }
};
struct AllDims {
  static constexpr const char* kArguments = "Tensor x, bool keepdim, int level";
  static constexpr const char *kResult = "Tensor", *kOut = "Tensor(a!) out";
  template <const Op& op> static Tensor call(const Tensor& x, bool keepdim, int64_t level) {
    return reduce_one(op, x, {}, keepdim, {}, level);
  }
  template <const Op& op> static void out(const Tensor& x, bool keepdim, int64_t level, Tensor to) {
    reduce_one_out(op, x, {}, keepdim, {}, level, to);
  }
};
struct WithIndex {
  static constexpr const char* kArguments = "Tensor x, int[] dim, bool keepdim, int level";
  static constexpr const char *kResult = "(Tensor values, Tensor indices)",
                              *kOut = "Tensor(a!) values, Tensor(b!) indices";
  template <const Op& op>
  static std::tuple<Tensor, Tensor> call(const Tensor& x, std::vector<int64_t> dim, bool keepdim, int64_t level) {
    return reduce_pair(op, x, dim, keepdim, {}, level);
  }
  template <const Op& op>
  static void out(const Tensor& x, std::vector<int64_t> dim, bool keepdim, int64_t level, Tensor values,
                  Tensor indices) {
    reduce_pair_out(op, x, dim, keepdim, {}, level, values, indices);
  }
};
struct LeastAndGreatest {
  static constexpr const char* kArguments = AlongDims::kArguments;
  static constexpr const char *kResult = "(Tensor min, Tensor max)", *kOut = "Tensor(a!) min, Tensor(b!) max";
  template <const Op& op> static std::tuple<Tensor, Tensor> call(const Tensor& x, Dims dim, bool keepdim,
                                                                 int64_t level) {
    return reduce_pair(op, x, dim, keepdim, {}, level);
  }
  template <const Op& op>
  static void out(const Tensor& x, Dims dim, bool keepdim, int64_t level, Tensor least, Tensor greatest) {
    if (!overlap(View(least), View(greatest))) return reduce_pair_out(op, x, dim, keepdim, {}, level, least, greatest);
    const auto [first, second] = reduce_pair(op, x, dim, keepdim, {}, level);  // columns of one tensor, say
    torch::stable::copy_(least, first);
    torch::stable::copy_(greatest, second);
  }
};
struct TotalAndCount {
  static constexpr const char* kArguments = WithDtype::kArguments;
  static constexpr const char *kResult = "(Tensor values, Tensor count)", *kOut = "Tensor(a!) values, Tensor(b!) count";
  template <const Op& op> static std::tuple<Tensor, Tensor> call(const Tensor& x, Dims dim, bool keepdim,
                                                                 std::optional<ScalarType> dtype, int64_t level) {
    return reduce_pair(op, x, dim, keepdim, dtype, level);
  }
  template <const Op& op> static void out(const Tensor& x, Dims dim, bool keepdim, std::optional<ScalarType> dtype,
                                          int64_t level, Tensor values, Tensor count) {
    reduce_pair_out(op, x, dim, keepdim, dtype, level, values, count);
  }
};

struct Scanning {
  static constexpr const char* kArguments =
      "Tensor x, int dim, ScalarType? dtype, bool exclusive, bool reverse, int level";
  static constexpr const char *kResult = "Tensor", *kOut = "Tensor(a!) out";
  template <const ScanOp& op>
  static Tensor call(const Tensor& x, int64_t dim, std::optional<ScalarType> dtype, bool exclusive, bool reverse,
                     int64_t) {
    return scan_one(op, x, dim, dtype, exclusive, reverse);
  }
  template <const ScanOp& op>
  static void out(const Tensor& x, int64_t dim, std::optional<ScalarType> dtype, bool exclusive, bool reverse, int64_t,
                  Tensor to) {
    scan_one_out(op, x, dim, dtype, exclusive, reverse, to);
  }
};
struct ScanningFloats {
  static constexpr const char* kArguments = "Tensor x, int dim, bool exclusive, bool reverse, int level";
  static constexpr const char *kResult = "Tensor", *kOut = "Tensor(a!) out";
  template <const ScanOp& op>
  static Tensor call(const Tensor& x, int64_t dim, bool exclusive, bool reverse, int64_t) {
    check_floats(op.name, View(x));
    return scan_one(op, x, dim, {}, exclusive, reverse);
  }
  template <const ScanOp& op>
  static void out(const Tensor& x, int64_t dim, bool exclusive, bool reverse, int64_t, Tensor to) {
    check_floats(op.name, View(x));
    scan_one_out(op, x, dim, {}, exclusive, reverse, to);
  }
};
struct ScanningIndex {
  static constexpr const char* kArguments = "Tensor x, int dim, bool reverse, int level";
  static constexpr const char *kResult = WithIndex::kResult, *kOut = WithIndex::kOut;
  template <const ScanOp& op>
  static std::tuple<Tensor, Tensor> call(const Tensor& x, int64_t dim, bool reverse, int64_t) {
    return scan_pair(op, x, dim, reverse);
  }
  template <const ScanOp& op>
  static void out(const Tensor& x, int64_t dim, bool reverse, int64_t, Tensor values, Tensor indices) {
    scan_pair_out(op, x, dim, reverse, values, indices);
  }
};

// `name` is differentiable (torchreduce/_autograd/reductions.py), and `name.out` writes to tensors of the result's
// shape and dtype, which refuses to be differentiated; `name.raw` and `name.raw_out` are the same kernels, of which
// autograd knows nothing.
template <class Signature> void define(torch::stable::detail::StableLibrary& library, const std::string& name) {
  const std::string arguments = Signature::kArguments, result = Signature::kResult;
  library.def((name + "(" + arguments + ") -> " + result).c_str());
  library.def((name + ".raw(" + arguments + ") -> " + result).c_str());
  for (const char* overload : {".out(", ".raw_out("})
    library.def((name + overload + arguments + ", *, " + Signature::kOut + ") -> ()").c_str());
}

void implement(torch::stable::detail::StableLibrary& library) {
#define TR_ROW(name, signature, reduction, ...)                      \
  library.impl(#name, TORCH_BOX(&signature::call<k_##name>));        \
  library.impl(#name ".raw", TORCH_BOX(&signature::call<k_##name>)); \
  library.impl(#name ".out", TORCH_BOX(&signature::out<k_##name>));  \
  library.impl(#name ".raw_out", TORCH_BOX(&signature::out<k_##name>));
  TR_FOR_EACH_REDUCTION_OP(TR_ROW)
#undef TR_ROW
#define TR_ROW(name, signature, scan, min)                           \
  library.impl(#name, TORCH_BOX(&signature::call<k_##name>));        \
  library.impl(#name ".raw", TORCH_BOX(&signature::call<k_##name>)); \
  library.impl(#name ".out", TORCH_BOX(&signature::out<k_##name>));  \
  library.impl(#name ".raw_out", TORCH_BOX(&signature::out<k_##name>));
  TR_FOR_EACH_SCAN_OP(TR_ROW)
#undef TR_ROW
  library.impl("decayed_sum", TORCH_BOX(&decayed_sum));
  for (const char* overload : {"linear_scan", "linear_scan.raw"}) library.impl(overload, TORCH_BOX(&linear_scan));
  for (const char* overload : {"linear_scan.out", "linear_scan.raw_out"})
    library.impl(overload, TORCH_BOX(&linear_scan_out));
}

// Registered for good: torch's registries may be destroyed before this library's statics when the process ends.
using torch::stable::detail::StableLibrary;
const bool registered = [] {
  auto* schemas = new StableLibrary(StableLibrary::Kind::DEF, "torchreduce", nullptr, __FILE__, __LINE__);
#define TR_ROW(name, signature, reduction, ...) define<signature>(*schemas, #name);
  TR_FOR_EACH_REDUCTION_OP(TR_ROW)
#undef TR_ROW
#define TR_ROW(name, signature, scan, min) define<signature>(*schemas, #name);
  TR_FOR_EACH_SCAN_OP(TR_ROW)
#undef TR_ROW
  schemas->def("decayed_sum(Tensor g, Tensor x, Tensor o, int dim, bool reverse, int level) -> Tensor");
  const std::string linear = "(Tensor a, Tensor b, Tensor? initial, int dim, bool reverse, bool shifted, int level";
  for (const char* overload : {"linear_scan", "linear_scan.raw"})
    schemas->def((overload + linear + ") -> Tensor").c_str());
  for (const char* overload : {"linear_scan.out", "linear_scan.raw_out"})
    schemas->def((overload + linear + ", *, Tensor(a!) out) -> ()").c_str());
  for (const char* key : {"CPU", "CUDA"})
    implement(*new StableLibrary(StableLibrary::Kind::IMPL, "torchreduce", key, __FILE__, __LINE__));

#define TR_ROW(name, signature, ...) direct_ops().push_back(direct<&signature::call<k_##name>>(#name));
  TR_FOR_EACH_REDUCTION_OP(TR_ROW)
  TR_FOR_EACH_SCAN_OP(TR_ROW)
#undef TR_ROW
  direct_ops().push_back(direct<&linear_scan>("linear_scan"));
  return true;
}();

}  // namespace

std::vector<DirectOp>& direct_ops() {
  static auto* all = new std::vector<DirectOp>;  // for good, as what is registered
  return *all;
}
void drop_tensor(void* handle) { aoti_torch_delete_tensor_object(static_cast<AtenTensorHandle>(handle)); }

DeviceFacts gpu_facts([[maybe_unused]] int device) {
#ifdef TORCHREDUCE_GPU
  return gpu::facts(device);
#else
  return {};
#endif
}

}  // namespace torchreduce
