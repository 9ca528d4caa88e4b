// Reductions by segments through torch's stable ABI: those of segments=, scatters, and the gradient of an embedding.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <string>
#include <tuple>

#include "kernels/reduce/segment_index.h"
#include "plan/line_scatter.h"
#include "run.h"
#include "scatters.h"

namespace torchreduce {

static int64_t cpu_threads() { return int64_t(torch::stable::get_num_threads()); }

// The sum of the rows of x, (rows, columns).
static SegmentReduction sum_of_rows(const Operand& x, const Operand& out) {
  SegmentReduction call{};
  call.op = Reduction::Sum;
  call.in = Source{x.data, x.dtype, natural_accumulator(x.dtype)};
  call.out = Output{const_cast<void*>(out.data), nullptr, out.dtype};
  call.rows = x.sizes[0];
  call.inner = x.sizes[1];
  call.segments = out.sizes[0];
  call.row_stride = x.strides[0];
  call.inner_stride = 1;
  return call;
}
// Runs a call by offsets on the GPU of x.
static void segments_on_gpu(const char* op, const SegmentReduction& call, const Operand& x) {
  PlannedSegments planned{call, {}};
#ifdef TORCHREDUCE_GPU
  run_on_gpu(op, planned, x, gpu::reduce_segments);
#else
  run_on_gpu(op, planned, x, nullptr);
#endif
}
// Runs a call by an index on the GPU of x, unless this build has no sort for it.
static bool indexed_on_gpu(const char* op, const SegmentReduction& call, const Operand& index, int64_t skipped,
                           const Elements& elements, const Operand& x) {
#ifdef TORCHREDUCE_GPU
  if (!segments::plan_sort(call.rows, call.segments).sorts()) return false;
  PlannedIndexed planned{{call, index.data, index.dtype, skipped, elements}, {}};
  run_on_gpu(op, planned, x, gpu::reduce_by_index);
  return true;
#else
  return false;
#endif
}

bool indexed_sums_into(const char* op, const Operand& x, const Operand& index, int64_t skipped, const Operand& out) {
  return !x.on_cpu() && indexed_on_gpu(op, sum_of_rows(x, out), index, skipped, {}, x);
}

Dtype segment_key_dtype(int64_t count) { return segments::key_dtype(count); }

void segment_keys_into(const char* op, const Operand& indices, int64_t count, int64_t skipped, const Operand& keys,
                       const Elements& elements) {
  PlannedKeys call{keys_of(indices.data, indices.dtype, indices.numel(), count, skipped, elements), {}};
  call.torchs = const_cast<void*>(keys.data);
  if (indices.on_cpu()) {
    for (int64_t place = 0; place < call.places; ++place) call.take(place);
    return;
  }
#ifdef TORCHREDUCE_GPU
  run_on_gpu(op, call, indices, gpu::segment_keys);
#else
  run_on_gpu(op, call, indices, nullptr);
#endif
}

static void offsets_on_gpu(const char* op, PlannedOffsets& find, const Operand& x) {
#ifdef TORCHREDUCE_GPU
  run_on_gpu(op, find, x, gpu::segment_offsets);
#else
  run_on_gpu(op, find, x, nullptr);
#endif
}

void segment_sums_into(const char* op, const Operand& x, const Operand& keys, const Operand& order,
                       const Operand& out) {
  const int64_t places = keys.sizes[0], count = out.sizes[0];
  SegmentReduction call = sum_of_rows(x, out);
  call.order = static_cast<const int64_t*>(order.data);
  if (x.on_cpu()) {
    std::vector<int64_t> offsets(size_t(count + 1), places);
    for (int64_t place = 0, next = 0; place < places; ++place)
      for (const int64_t number = segments::number_at(keys.data, keys.dtype, place); next <= number; ++next)
        offsets[size_t(next)] = place;
    call.offsets = offsets.data();
    return cpu::reduce_segments(call, cpu_threads(), parallel_for);
  }
  const Tensor offsets = allocate({count + 1}, Dtype::I64, x);
  PlannedOffsets find;
  find.torchs = keys.data;
  find.places = places;
  find.count = count;
  find.offsets = static_cast<int64_t*>(offsets.data_ptr());
  offsets_on_gpu(op, find, x);
  call.offsets = find.offsets;
  segments_on_gpu(op, call, x);
}

namespace {

using torch::headeronly::ScalarType;
using torch::stable::contiguous;
using torch::stable::reshape;

// The keys in ascending order, equal ones in theirs; and where each was.
std::pair<Tensor, Tensor> sorted(const Tensor& keys) {
  using torch::stable::detail::from;
  using torch::stable::detail::to;
  std::array<StableIValue, 4> stack{from(keys), from(std::optional<bool>(true)), from(int64_t(0)), from(false)};
  check(torch_call_dispatcher("aten::sort", "stable", stack.data(), TORCH_ABI_VERSION));
  return {to<Tensor>(stack[0]), to<Tensor>(stack[1])};
}

// (count, columns): row i is the sum over dim 0 of the rows of g whose index is i, in their order, or zero where there
// is none, and where i is `skipped`. g: (*indices, columns), of a floating dtype.
Tensor embedding_backward(const Tensor& g, const Tensor& indices, int64_t count, int64_t skipped, int64_t) {
  constexpr const char* name = "embedding_backward";
  const View x(g), of(indices);
  check_input(name, x);
  if (!is_float(x.dtype)) raise<std::runtime_error>(name, ": needs a floating dtype, got number ", int(x.dtype));
  if (of.dtype != Dtype::I64) raise<std::runtime_error>(name, ": needs int64 indices, got number ", int(of.dtype));
  if (x.dims != of.dims + 1 || !std::equal(of.sizes, of.sizes + of.dims, x.sizes) || x.device_type != of.device_type ||
      x.device_index != of.device_index)
    raise<std::runtime_error>(name, ": needs a row of the gradient for each index, on one device");
  if (count < 0) raise<std::runtime_error>(name, ": needs a number of rows of at least 0, got ", count);
  const int64_t columns = x.sizes[x.dims - 1];
  Tensor out = allocate({count, columns}, x.dtype, x);
  if (x.numel() == 0 || count == 0) return torch::stable::zero_(out);
  const Tensor rows = reshape(contiguous(g), std::vector<int64_t>{-1, columns});
  const Tensor places = contiguous(indices);
  if (indexed_sums_into(name, View(rows), View(places), skipped, View(out))) return out;
  const Tensor keys = allocate({of.numel()}, segment_key_dtype(count), x);
  segment_keys_into(name, View(places), count, skipped, View(keys));
  const auto [numbers, order] = sorted(keys);
  segment_sums_into(name, View(rows), View(numbers), View(order), View(out));
  return out;
}

// ---- indices --------------------------------------------------------------------------------------------------------

void check_index(const char* name, const char* argument, const View& index) {
  if (index.dtype != Dtype::I32 && index.dtype != Dtype::I64)
    raise<std::runtime_error>(name, ": ", argument, " must be int32 or int64, got number ", int(index.dtype));
}

// By the sort of this build, or torch's. `order` is made.
void index_on_gpu(const char* name, const Operand& numbers, SegmentIndex& call, Tensor* order) {
#ifdef TORCHREDUCE_GPU
  if (order && segments::plan_sort(call.places, call.count).sorts()) {
    *order = allocate({call.places}, Dtype::I64, numbers);
    PlannedIndex planned{call, {}};
    planned.order = static_cast<int64_t*>(order->data_ptr());
    return run_on_gpu(name, planned, numbers, gpu::index_segments);
  }
#endif
  PlannedOffsets find;
  find.numbers = numbers.data;
  find.dtype = numbers.dtype;
  find.places = call.places;
  find.count = call.count;
  find.offsets = call.offsets;
  Tensor keys;
  if (order) {
    keys = allocate({call.places}, segment_key_dtype(call.count), numbers);
    if (call.places > 0) segment_keys_into(name, numbers, call.count, -1, View(keys), call.elements);
    std::tie(keys, *order) = sorted(keys);
    find.torchs = View(keys).data;
  }
  offsets_on_gpu(name, find, numbers);
}
// Fills in offsets and, where it is given, makes order. On a CPU returns the first place that is out of range, and
// fills nothing then; else -1.
int64_t index_into(const char* name, const Operand& numbers, SegmentIndex& call, Tensor* order) {
  call.index = numbers.data;
  call.dtype = numbers.dtype;
  call.places = numbers.numel();
  if (!numbers.on_cpu()) {
    index_on_gpu(name, numbers, call, order);
    return -1;
  }
  if (order) {
    *order = allocate({call.places}, Dtype::I64, numbers);
    call.order = static_cast<int64_t*>(order->data_ptr());
  }
  return cpu::index_segments(call, cpu_threads(), parallel_for);
}

// Where the elements of each number lie: offsets of size + 1 elements, and the places in their order, of none of an
// index that is sorted. On a CPU every number has to be one of [0, size).
std::tuple<Tensor, Tensor> index_segments(const Tensor& index, int64_t size, bool is_sorted, int64_t) {
  constexpr const char* name = "segments";
  const Tensor flat = contiguous(index);
  const View numbers(flat);
  check_index(name, "index", numbers);
  if (size < 0) raise<std::runtime_error>(name, ": size must be at least 0, got ", size);
  Tensor offsets = allocate({size + 1}, Dtype::I64, numbers), order;
  SegmentIndex call;
  call.count = size;
  call.offsets = static_cast<int64_t*>(offsets.data_ptr());
  const int64_t outside = index_into(name, numbers, call, is_sorted ? nullptr : &order);
  if (outside >= 0)
    raise<std::out_of_range>(name, ": an index is out of range: expected at least 0 and less than ", size, ", got ",
                             call.number_at(outside));
  return {offsets, is_sorted ? allocate({0}, Dtype::I64, numbers) : order};
}

// ---- reductions -----------------------------------------------------------------------------------------------------

// The stride of the dims [first, last) taken for one, if they are one.
std::optional<int64_t> joined_stride(const Operand& x, int first, int last) {
  int64_t stride = 1, size = 1;
  for (int d = last - 1; d >= first; --d) {
    if (x.sizes[d] == 1) continue;
    if (size > 1 && x.strides[d] != stride * size) return {};
    if (size == 1) stride = x.strides[d];
    size *= x.sizes[d];
  }
  return stride;
}
int64_t size_of_dims(const Operand& x, int first, int last) {
  int64_t size = 1;
  for (int d = first; d < last; ++d) size *= x.sizes[d];
  return size;
}
int checked_dim(const char* name, const View& x, int64_t dim) {
  if (x.dims == 0 || dim < -x.dims || dim >= x.dims)
    raise<std::out_of_range>(name, ": dim ", dim, " is out of range for a tensor of ", x.dims, " dims");
  return int(dim < 0 ? dim + x.dims : dim);
}

}  // namespace

bool is_one_matrix(const Operand& x, int dim) { return joined_stride(x, 0, dim) && joined_stride(x, dim + 1, x.dims); }

namespace {

// The input of a call: x along dim.
SegmentReduction reading(const Operand& x, int dim) {
  SegmentReduction call{};
  call.in = Source{x.data, x.dtype, natural_accumulator(x.dtype)};
  call.outer = size_of_dims(x, 0, dim);
  call.rows = x.sizes[dim];
  call.inner = size_of_dims(x, dim + 1, x.dims);
  call.outer_stride = *joined_stride(x, 0, dim);
  call.row_stride = x.strides[dim];
  call.inner_stride = *joined_stride(x, dim + 1, x.dims);
  return call;
}

// `from`: whose device it is.
void run(const char* name, const SegmentReduction& call, const Operand& from) {
  if (call.outer * call.segments * call.inner == 0) return;
  if (from.on_cpu()) return cpu::reduce_segments(call, cpu_threads(), parallel_for);
  segments_on_gpu(name, call, from);
}

void check_offsets(const char* name, const SegmentReduction& call) {
  int64_t before = 0;
  for (int64_t k = 0; k <= call.segments; ++k) {
    const int64_t at = index_at(call.offsets, call.offsets_dtype, k);
    if (at < before || at > call.rows)
      raise<std::runtime_error>(name, ": offsets must not fall, and be from 0 to ", call.rows, ", got ", at, " at ", k,
                                k ? " after " : "", k ? std::to_string(before) : "");
    before = at;
  }
}

// The tensors of a call, contiguous where kernels need that, and the call without op and output.
struct Segmented {
  Tensor x, offsets, order;
  SegmentReduction call{};
  std::vector<int64_t> sizes;  // of the output

  Segmented(const char* name, const Tensor& input, const Tensor& given, const std::optional<Tensor>& places,
            int64_t along)
      : x(input), offsets(contiguous(given)) {
    const View shape(input), bounds(offsets);
    check_input(name, shape);
    const int dim = checked_dim(name, shape, along);
    check_index(name, "offsets", bounds);
    const auto here = [&](const View& v) {
      return v.device_type == shape.device_type && v.device_index == shape.device_index;
    };
    if (bounds.dims != 1 || bounds.sizes[0] < 1 || !here(bounds))
      raise<std::runtime_error>(name, ": offsets must have one dim, at least one element, and the input's device");
    if (!is_one_matrix(shape, dim)) x = contiguous(input);
    const View v(x);
    call = reading(v, dim);
    call.segments = bounds.sizes[0] - 1;
    call.offsets = bounds.data;
    call.offsets_dtype = bounds.dtype;
    if (places) {
      order = contiguous(*places);
      const View rows(order);
      if (rows.dtype != Dtype::I64 || rows.numel() != call.rows || !here(rows))
        raise<std::runtime_error>(name, ": order must have an int64 for each of the ", call.rows,
                                  " rows, on the input's device");
      call.order = static_cast<const int64_t*>(rows.data);
    }
    if (shape.on_cpu()) check_offsets(name, call);
    sizes.assign(v.sizes, v.sizes + v.dims);
    sizes[size_t(dim)] = call.segments;
  }
};

// Fills in the op and `values`, indices or both; a null one is not written.
void set_op(const Op& op, SegmentReduction& call, const Types& types, void* values, void* indices) {
  call.op = op.reduction;
  call.options = op.options;
  call.finish.mean = op.options.mean;
  call.in.accumulator = types.accumulator;
  call.in.truth = types.truth;
  call.out = Output{values, static_cast<int64_t*>(indices), types.values};
}
// The same, and runs the call.
void reduce_segments_into(const Op& op, SegmentReduction& call, const Types& types, const Operand& from, void* values,
                          void* indices) {
  set_op(op, call, types, values, indices);
  run(op.name, call, from);
}
Types segment_types(const Op& op, const Tensor& x, const std::optional<ScalarType>& dtype) {
  if (dtype && !facts(op.reduction, View(x).dtype).converts) raise<std::runtime_error>(op.name, ": has no dtype=");
  return types_of(op, View(x), dtype ? std::optional(Dtype(*dtype)) : std::nullopt);
}

template <const Op& op>
Tensor reduce_segments(const Tensor& x, const Tensor& offsets, const std::optional<Tensor>& order,
                       const std::optional<Tensor>&, int64_t dim, const std::optional<ScalarType>& dtype, int64_t) {
  Segmented of(op.name, x, offsets, order, dim);
  const Types types = segment_types(op, x, dtype);
  Tensor result = allocate(of.sizes, types.result, View(x));
  void* const to = result.data_ptr();
  reduce_segments_into(op, of.call, types, View(of.x), types.indexed ? nullptr : to, types.indexed ? to : nullptr);
  return result;
}
template <const Op& op>
std::tuple<Tensor, Tensor> reduce_segments_pair(const Tensor& x, const Tensor& offsets,
                                                const std::optional<Tensor>& order, const std::optional<Tensor>&,
                                                int64_t dim, const std::optional<ScalarType>& dtype, int64_t) {
  Segmented of(op.name, x, offsets, order, dim);
  const Types types = segment_types(op, x, dtype);
  Tensor values = allocate(of.sizes, types.values, View(x)), indices = allocate(of.sizes, Dtype::I64, View(x));
  reduce_segments_into(op, of.call, types, View(of.x), values.data_ptr(), indices.data_ptr());
  return {values, indices};
}

// ---- scatters ---------------------------------------------------------------------------------------------------------

const Op& scatter_op(const std::string& reduce) {
  for (const Op* op : {&k_sum, &k_mean, &k_prod, &k_amax, &k_amin})
    if (reduce == op->name) return *op;
  raise<std::runtime_error>("scatter_segments: reduce must be sum, mean, prod, amax or amin, got ", reduce);
}

}  // namespace

void reduce_segments_into(const char* name, const Op& op, const Operand& x, int dim, const Operand& offsets,
                          const int64_t* order, const Types& types, void* values, void* indices) {
  SegmentReduction call = reading(x, dim);
  call.segments = offsets.sizes[0] - 1;
  call.offsets = offsets.data;
  call.offsets_dtype = offsets.dtype;
  call.order = order;
  if (x.on_cpu()) check_offsets(name, call);
  reduce_segments_into(op, call, types, x, values, indices);
}

int64_t scatter_into(const char* name, const Op& op, const Operand& self, const Operand& x, const Operand& index,
                     int dim, bool include_self, double alpha) {
  if (x.numel() == 0) return -1;
  const bool by_elements = index.dims > 1;
  const Types types = types_of(op, x, {});
  LineScatter call{reading(x, dim)};
  call.segments = self.sizes[dim];
  call.finish.onto = include_self ? Onto::Self : Onto::Place;
  call.finish.alpha = alpha;
  set_op(op, call, types, const_cast<void*>(self.data), nullptr);
  if (x.on_cpu() && (by_elements || call.inner == 1) && call.rows < int64_t(1) << 31) {
    call.index = index.data;
    call.index_dtype = index.dtype;
    if (by_elements) {
      call.index_outer = call.rows * call.inner;
      call.index_row = call.inner;
      call.index_inner = 1;
    }
    return cpu::scatter_lines(call, cpu_threads(), parallel_for);
  }
  SegmentIndex of;
  if (by_elements) {
    of.elements = Elements{call.rows * call.inner, call.segments, call.inner};
    call.rows = x.numel();
    call.segments = self.numel();
    call.outer = call.inner = call.row_stride = call.inner_stride = 1;
  }
  of.count = call.segments;
  const bool on_gpu = !x.on_cpu() && call.outer * call.segments * call.inner != 0;
  if (on_gpu && indexed_on_gpu(op.name, call, index, -1, of.elements, x)) return -1;
  const Tensor offsets = allocate({of.count + 1}, Dtype::I64, x);
  Tensor order;
  of.offsets = static_cast<int64_t*>(offsets.data_ptr());
  if (const int64_t outside = index_into(name, index, of, &order); outside >= 0) return outside;
  call.offsets = of.offsets;
  call.order = static_cast<const int64_t*>(order.data_ptr());
  run(op.name, call, x);
  return -1;
}

namespace {

// By index, in place; self is contiguous, and shares no memory with the others.
void scatter_(Tensor self, const Tensor& input, const Tensor& given, int64_t along, const std::string& reduce,
              bool include_self, double alpha, int64_t) {
  constexpr const char* name = "scatter";
  const Op& op = scatter_op(reduce);
  const Tensor numbers = contiguous(given);
  const View to(self), index(numbers);
  const int dim = checked_dim(name, to, along);
  const bool by_elements = index.dims > 1;
  Tensor x = input;
  if (by_elements || !is_one_matrix(View(x), dim)) x = contiguous(x);
  const View from(x);
  check_input(name, from);
  check_index(name, "index", index);
  if (!is_float(from.dtype)) raise<std::runtime_error>(name, ": needs a floating dtype, got number ", int(from.dtype));
  std::vector<int64_t> sizes(from.sizes, from.sizes + from.dims);
  const bool fits =
      from.dims == to.dims && index.dims == (by_elements ? from.dims : 1) &&
      (by_elements ? std::equal(sizes.begin(), sizes.end(), index.sizes) : index.sizes[0] == sizes[size_t(dim)]);
  if (!fits || index.device_type != to.device_type || index.device_index != to.device_index)
    raise<std::runtime_error>(name, ": index must have one dim and an element for each row, or the input's shape");
  sizes[size_t(dim)] = to.sizes[dim];
  check_out(name, from, sizes, to, from.dtype);
  if (!joined_stride(to, 0, to.dims) || *joined_stride(to, 0, to.dims) != 1 || overlap(from, to))
    raise<std::runtime_error>(name, ": self must be contiguous, and not share memory with the input");
  const int64_t outside = scatter_into(name, op, to, from, index, dim, include_self, alpha);
  if (outside >= 0)
    raise<std::out_of_range>(name, ": an index is out of range: expected at least 0 and less than ", to.sizes[dim],
                             ", got ", index_at(index.data, index.dtype, outside));
}

// What self[.., k, ..] becomes with the elements of segment k.
Tensor scatter_segments(const Tensor& self, const Tensor& x, const Tensor& offsets, const std::optional<Tensor>& order,
                        const std::optional<Tensor>&, int64_t dim, const std::string& reduce, bool include_self,
                        double alpha, int64_t) {
  constexpr const char* name = "scatter_segments";
  const Op& op = scatter_op(reduce);
  Segmented of(name, x, offsets, order, dim);
  const View from(of.x), to(self);
  if (!is_float(from.dtype)) raise<std::runtime_error>(name, ": needs a floating dtype, got number ", int(from.dtype));
  Tensor result = allocate({to.sizes, to.sizes + to.dims}, to.dtype, to);
  check_out(name, from, of.sizes, View(result), from.dtype);
  torch::stable::copy_(result, self);
  of.call.finish.onto = include_self ? Onto::Self : Onto::Place;
  of.call.finish.alpha = alpha;
  reduce_segments_into(op, of.call, types_of(op, from, {}), from, result.data_ptr(), nullptr);
  return result;
}

// ---- registration -----------------------------------------------------------------------------------------------------

#define TR_FOR_EACH_SEGMENT_OP(X) X(sum) X(mean) X(prod) X(amax) X(amin) X(argmax) X(argmin)
#define TR_FOR_EACH_SEGMENT_PAIR(X) X(max) X(min)

using torch::stable::detail::StableLibrary;
const bool registered = [] {
  auto* schemas = new StableLibrary(StableLibrary::Kind::FRAGMENT, "torchreduce", nullptr, __FILE__, __LINE__);
  schemas->def("embedding_backward.raw(Tensor g, Tensor indices, int count, int skipped, int level) -> Tensor");
  const std::string of = "Tensor x, Tensor offsets, Tensor? order, Tensor? index, int dim, ";
  const auto define = [&](const std::string& name, const std::string& rest) {
    for (const char* overload : {"(", ".raw("}) schemas->def((name + overload + rest).c_str());
  };
  define("segments", "Tensor index, SymInt size, bool is_sorted, int level) -> (Tensor offsets, Tensor order)");
#define TR_ROW(name) define(#name "_segments", of + "ScalarType? dtype, int level) -> Tensor");
  TR_FOR_EACH_SEGMENT_OP(TR_ROW)
#undef TR_ROW
#define TR_ROW(name) define(#name "_segments", of + "ScalarType? dtype, int level) -> (Tensor values, Tensor indices)");
  TR_FOR_EACH_SEGMENT_PAIR(TR_ROW)
#undef TR_ROW
  const std::string how = of + "str reduce, bool include_self, float alpha, int level) -> ";
  define("scatter_segments", "Tensor self, " + how + "Tensor");
  schemas->def(
      "scatter_.raw(Tensor(a!) self, Tensor x, Tensor index, int dim, str reduce, bool include_self, float alpha, int "
      "level) -> ()");
  for (const char* key : {"CPU", "CUDA"}) {
    auto* kernels = new StableLibrary(StableLibrary::Kind::IMPL, "torchreduce", key, __FILE__, __LINE__);
    kernels->impl("embedding_backward.raw", TORCH_BOX(&embedding_backward));
    for (const char* name : {"segments", "segments.raw"}) kernels->impl(name, TORCH_BOX(&index_segments));
#define TR_ROW(name)                                                       \
  kernels->impl(#name "_segments", TORCH_BOX(&reduce_segments<k_##name>)); \
  kernels->impl(#name "_segments.raw", TORCH_BOX(&reduce_segments<k_##name>));
    TR_FOR_EACH_SEGMENT_OP(TR_ROW)
#undef TR_ROW
#define TR_ROW(name)                                                            \
  kernels->impl(#name "_segments", TORCH_BOX(&reduce_segments_pair<k_##name>)); \
  kernels->impl(#name "_segments.raw", TORCH_BOX(&reduce_segments_pair<k_##name>));
    TR_FOR_EACH_SEGMENT_PAIR(TR_ROW)
#undef TR_ROW
    for (const char* name : {"scatter_segments", "scatter_segments.raw"})
      kernels->impl(name, TORCH_BOX(&scatter_segments));
    kernels->impl("scatter_.raw", TORCH_BOX(&scatter_));
  }
  return true;
}();

}  // namespace
}  // namespace torchreduce
