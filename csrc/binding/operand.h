// Tensors without torch, and the way from them to a kernel: what both layers that meet torch share, binding/ops.cpp by
// its stable ABI and aten.cpp by its full one.
#pragma once
#include <algorithm>
#include <array>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "plan/call.h"
#include "plan/rowwise_plan.h"

namespace torchreduce {

// A tensor and its device, which is the CPU if the type is 0.
struct Operand : TensorFacts {
  int32_t device_type = 0, device_index = -1;

  bool on_cpu() const { return device_type == 0; }
  int64_t numel() const {
    int64_t n = 1;
    for (int d = 0; d < dims; ++d) n *= sizes[d];
    return n;
  }
};

inline bool supported(Dtype d) {
#define TR_CASE(T) case DtypeOf<T>::value:
  switch (d) { TR_FOR_EACH_TYPE(TR_CASE) return true; }
#undef TR_CASE
  return false;
}

template <class Error, class... Parts> [[noreturn]] void raise(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw Error(message.str());
}

inline std::vector<int64_t> reduced_sizes(const Operand& x, uint64_t mask, bool keepdim) {
  std::vector<int64_t> sizes;
  for (int d = 0; d < x.dims; ++d) {
    const bool reduced = mask >> d & 1u;
    if (!reduced) sizes.push_back(x.sizes[d]);
    else if (keepdim) sizes.push_back(1);
  }
  return sizes;
}

// Strides of `out` (of shape reduced_sizes) for each dim of x.
inline std::array<int64_t, kMaxDims> spread_strides(const Operand& x, uint64_t mask, bool keepdim, const Operand& out) {
  std::array<int64_t, kMaxDims> strides;
  for (int d = 0, o = 0; d < x.dims; ++d) {
    const bool reduced = mask >> d & 1u;
    strides[d] = reduced ? 0 : out.strides[o];
    if (!reduced || keepdim) ++o;
  }
  return strides;
}

// Of two of one shape. The stride of a dim that is never stepped along means nothing.
inline bool same_layout(const Operand& a, const Operand& b) {
  if (a.numel() == 0) return true;
  for (int d = 0; d < a.dims; ++d)
    if (a.sizes[d] != 1 && a.strides[d] != b.strides[d]) return false;
  return true;
}

// The dim with the i-th least stride: channels, and then the others from the last one.
inline int channels_last_dim(int dims, int i) { return i == 0 ? 1 : i == dims - 1 ? 0 : dims - i; }
// Whether torch takes x to be channels last, by its strides: Tensor::suggest_memory_format().
inline bool is_channels_last(const TensorFacts& x) {
  if ((x.dims != 4 && x.dims != 5) || x.strides[1] == 0) return false;
  int64_t least = 0;
  for (int i = 0; i < x.dims; ++i) {
    const int d = channels_last_dim(x.dims, i);
    if (x.sizes[d] == 0 || x.strides[d] < least || (d == 0 && least == x.strides[1])) return false;
    least = x.strides[d] * x.sizes[d];
  }
  return true;
}
// Of a new tensor.
inline std::array<int64_t, kMaxDims> new_strides(const std::vector<int64_t>& sizes, bool channels_last) {
  std::array<int64_t, kMaxDims> strides;
  int64_t stride = 1;
  for (int dims = int(sizes.size()), i = 0; i < dims; ++i) {
    const int d = channels_last ? channels_last_dim(dims, i) : dims - 1 - i;
    strides[d] = stride;
    stride *= std::max<int64_t>(1, sizes[d]);
  }
  return strides;
}

// ---- memory shared by input and output ---------------------------------------------------------------------------------

struct Span { const char *begin, *end; };
inline Span span(const Operand& v) {
  const char* begin = static_cast<const char*>(v.data);
  int64_t last = 0;
  for (int d = 0; d < v.dims; ++d) {
    if (v.sizes[d] == 0) return {begin, begin};
    last += (v.sizes[d] - 1) * v.strides[d];
  }
  return {begin, begin + (last + 1) * size_of(v.dtype)};
}
inline bool overlap(const Operand& a, const Operand& b) {
  const Span s = span(a), t = span(b);
  return s.begin < t.end && t.begin < s.end;
}
inline bool same_view(const Operand& a, const Operand& b) {
  return a.data == b.data && size_of(a.dtype) == size_of(b.dtype) && a.dims == b.dims &&
         std::equal(a.sizes, a.sizes + a.dims, b.sizes) && same_layout(a, b);
}
// Its elements fill its span, each place once.
inline bool dense(const Operand& v) {
  const Span s = span(v);
  bool repeats = false;
  for (int d = 0; d < v.dims; ++d) repeats = repeats || (v.strides[d] == 0 && v.sizes[d] > 1);
  return !repeats && s.end - s.begin == v.numel() * size_of(v.dtype);
}

// ---- calls, as binding/ops.cpp runs them -----------------------------------------------------------------------------------

struct Op {
  const char* name;
  Reduction reduction;
  OpOptions options;
};
#define TR_ROW(name, signature, reduction, ...) constexpr Op k_##name{#name, Reduction::reduction, {__VA_ARGS__}};
TR_FOR_EACH_REDUCTION_OP(TR_ROW)
#undef TR_ROW

struct ScanOp {
  const char* name;
  Scan scan;
  bool min;
};
#define TR_ROW(name, signature, scan, min) constexpr ScanOp k_##name{#name, Scan::scan, min};
TR_FOR_EACH_SCAN_OP(TR_ROW)
#undef TR_ROW

// The accumulator of `op` on x, and the dtypes of its values, of its result alone (an indexed op's is the index), and
// of its second one, if it has two.
struct Types {
  Dtype accumulator, values, result, second;
  bool indexed, truth;
};
Types types_of(const Op& op, const Operand& x, std::optional<Dtype> dtype);

// Writes values, indices (or another second result, by its type in `types`) or both; the other is null. Both have the
// shape of the result, and the same strides. Bit d of `mask` is set for each reduced dim. `fast`: the dims are reduced
// in the order of memory, where no index is asked for.
void reduce_into(const Op& op, const Operand& x, uint64_t mask, bool keepdim, const Types& types, const Operand* values,
                 const Operand* indices, bool fast = false);

// The same of tensors on one device, each wholly reduced to one value: by one launch for many where kernels can.
struct WholeReduction {
  Operand x;
  Types types;
  Operand value;
};
void reduce_each_into(const Op& op, const std::vector<WholeReduction>& all);

// Writes the values and, of an indexed scan, the indices, which have the values' strides.
// `more` are further inputs of x's dtype and strides, or null.
void scan_into(const ScanOp& op, const Operand& x, int dim, bool exclusive, bool reverse, const Operand& out,
               const Operand* indices = nullptr, const Operand* const* more = nullptr);

// A call on the rows of x along the dims of `mask` (ops/rowwise.h), to be filled in, and run once. What has one element
// a row is contiguous, in the order of the other dims. binding/rowwise.cpp runs it.
struct RowwiseRun {
  const char* name;
  const Operand x;
  const uint64_t mask;
  PlannedRowwise call{};

  RowwiseRun(const char* op, Rowwise which, const Operand& input, uint64_t along, Dtype result);
  int64_t row_count() const;
  // How run() would, on such a device.
  RowwisePlan planned(const Operand* out, const DeviceFacts& device);
  // An element for each goes to `out`; where op has a second input, that is `second`.
  void run(const Operand* out = nullptr, const Operand* second = nullptr);
  // The gradients of weights: columns are the positions of a row, and are summed over rows.
  void run_over_rows(const Operand& second);
  // The gradient of a norm, and those of its weights by the op `of_weights`, to which the call's values belong:
  // together where that is served, else one after the other. The bits are the same.
  void run_with_weights(Rowwise of_weights, const Operand& out, const Operand& second);

 private:
  void lay_out(const Operand* out, const Operand* second);
  void start();
};

}  // namespace torchreduce
