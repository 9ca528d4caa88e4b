// softmax, logsumexp, variances, norms and their gradients, as aten has them.
#pragma once
#include <array>

#include "reductions.h"
#include "scans.h"

namespace torchreduce::aten {

// One dim, or the last `count` ones.
inline uint64_t single(const Tensor& x, int dim) { return x.dim() ? uint64_t(1) << dim : 0; }
inline uint64_t trailing(const Tensor& x, size_t count) {
  const auto below = [](int64_t bits) { return bits >= 64 ? ~uint64_t(0) : (uint64_t(1) << bits) - 1; };
  return below(x.dim()) & ~below(x.dim() - int64_t(count));
}

// An op on the rows of x, and what it holds while it runs.
struct Rows : RowwiseRun {
  at::SmallVector<Tensor, 4> held;

  Rows(Rowwise op, const Tensor& x, uint64_t mask, ScalarType result)
      : RowwiseRun("rows", op, read(x), mask, Dtype(result)) {}

  ScalarType wide() const { return ScalarType(call.accumulator); }
  // Statistics, (planes, rows), to be written or as they are given.
  Tensor stats(const Tensor& like) {
    const int64_t rows = row_count();
    const int64_t sizes[] = {facts(call.op).stats, rows};
    Tensor planes = allocate(sizes, call.accumulator, like);
    use_stats(planes);
    return planes;
  }
  void use_stats(const Tensor& planes) {
    call.memory.stats = planes.mutable_data_ptr();
    call.memory.plane = planes.size(1);
  }
  // A value for each row: a contiguous tensor.
  void value(int k, const Tensor& t) {
    call.memory.values[k] = t.mutable_data_ptr();
    call.memory.dtypes[k] = Dtype(t.scalar_type());
  }
  const void* of_positions(const Tensor& weight) {
    call.weight_dtype = Dtype(weight.scalar_type());
    return held.emplace_back(weight.contiguous()).const_data_ptr();
  }
  void map(const Tensor& out, const Tensor* second = nullptr) {
    const Operand to = written(out), other = second ? read(*second) : Operand{};
    run(&to, second ? &other : nullptr);
  }
};

// Statistics have a dim more than x.
inline Why plan_rows(const Tensor& x) {
  return is_named(x) || x.dim() >= kMaxDims ? Why::Kind
         : !is_float(x.scalar_type())       ? Why::Dtype
         : x.numel() == 0                   ? Why::Empty
                                            : Why::Served;
}

template <Rowwise op> struct Softmax {
  static Why plan(const Tensor& x, int64_t dim, bool half_to_float) {
    if (const Why why = plan_rows(x); why != Why::Served) return why;
    if (half_to_float && (x.is_cpu() || x.element_size() != 2)) return Why::Dtype;
    return scanned(x, dim) ? Why::Served : Why::Dims;
  }
  static void run(const Tensor& x, int64_t dim, const Tensor& out) {
    Rows(op, x, single(x, *scanned(x, dim)), out.scalar_type()).map(out);
  }
  template <class R> static R call(Why& why, const Tensor& x, int64_t dim, bool half_to_float) {
    why = plan(x, dim, half_to_float);
    if (why != Why::Served) return Tensor();
    Tensor result = allocate(x.sizes(), half_to_float ? Dtype::F32 : Dtype(x.scalar_type()), x);
    run(x, dim, result);
    return result;
  }
  template <class R> static R call(Why& why, const Tensor& x, int64_t dim, bool half_to_float, Tensor& out) {
    why = plan(x, dim, half_to_float);
    const Dtype result = half_to_float ? Dtype::F32 : Dtype(x.scalar_type());
    if (why == Why::Served) why = fit(out, x.sizes(), result, x, x.is_cpu());  // in place as in binding/rowwise.cpp
    if (why == Why::Served) run(x, dim, out);
    return out;
  }
};

// Of what is of the result's shape, g, and the result, y.
template <Rowwise op> struct SoftmaxBackward {
  static Why plan(const Tensor& g, const Tensor& y, int64_t dim, ScalarType dtype) {
    if (const Why why = plan_rows(y); why != Why::Served) return why;
    if (g.scalar_type() != y.scalar_type() || !is_float(dtype)) return Why::Dtype;
    return g.sizes() == y.sizes() && g.device() == y.device() && scanned(y, dim) ? Why::Served : Why::Dims;
  }
  static void run(const Tensor& g, const Tensor& y, int64_t dim, const Tensor& out) {
    Rows(op, g, single(g, *scanned(g, dim)), out.scalar_type()).map(out, &y);
  }
  template <class R> static R call(Why& why, const Tensor& g, const Tensor& y, int64_t dim, ScalarType dtype) {
    why = plan(g, y, dim, dtype);
    if (why != Why::Served) return Tensor();
    Tensor result = allocate(g.sizes(), Dtype(dtype), g);
    run(g, y, dim, result);
    return result;
  }
  template <class R>
  static R call(Why& why, const Tensor& g, const Tensor& y, int64_t dim, ScalarType dtype, Tensor& out) {
    why = plan(g, y, dim, dtype);
    if (why == Why::Served) why = fit(out, g.sizes(), Dtype(dtype), g);
    if (why == Why::Served && out.is_alias_of(y)) why = Why::Out;
    if (why == Why::Served) run(g, y, dim, out);
    return out;
  }
};

struct LogSumExp {
  static void run(const Tensor& x, uint64_t mask, const Tensor& out) {
    Rows rows(Rowwise::LogSumExp, x, mask, x.scalar_type());
    const Tensor stats = rows.stats(x);
    rows.value(0, out);
    rows.RowwiseRun::run();
  }
  template <class R, class... A> static R call(Why& why, const Tensor& x, A&&... a) {
    Arguments given;
    (given.take(a), ...);
    why = plan_rows(x);
    Reducing r;
    if (why == Why::Served) why = r.plan(k_sum, x, given.dims, given.keepdim, {});  // the same dims and shape
    if constexpr (std::is_reference_v<R>) {
      Tensor& out = *given.outs[0];
      if (why == Why::Served) why = fit(out, r.shape, Dtype(x.scalar_type()), x);
      if (why == Why::Served && !out.is_contiguous()) why = Why::Out;
      if (why == Why::Served) run(x, r.mask, out);
      return out;
    } else {
      if (why != Why::Served) return Tensor();
      Tensor result = allocate(r.shape, Dtype(x.scalar_type()), x);
      run(x, r.mask, result);
      return result;
    }
  }
};

// var and std, alone or with the mean. Where no degree of freedom is left torch warns.
template <bool root> struct Variance {
  static Why plan(Reducing& r, const Tensor& x, const at::OptionalIntArrayRef& dim,
                  const std::optional<at::Scalar>& correction, bool keepdim) {
    if (const Why why = plan_rows(x); why != Why::Served) return why;
    if (correction && correction->isComplex()) return Why::Option;
    if (const Why why = r.plan(k_sum, x, dim ? *dim : at::IntArrayRef(), keepdim, {}); why != Why::Served) return why;
    int64_t length = 1;
    for (int64_t d = 0; d < x.dim(); ++d) length *= r.mask >> d & 1u ? x.size(d) : 1;
    return double(length) > by(correction) ? Why::Served : Why::Option;
  }
  static double by(const std::optional<at::Scalar>& correction) { return correction ? correction->toDouble() : 1; }
  static void run(const Tensor& x, uint64_t mask, double correction, const Tensor& out, const Tensor* mean = nullptr) {
    Rows rows(Rowwise::Moments, x, mask, x.scalar_type());
    rows.call.options.correction = correction;
    rows.call.options.root = root;
    const Tensor stats = rows.stats(x);
    rows.value(0, out);
    if (mean) rows.value(1, *mean);
    rows.RowwiseRun::run();
  }
  template <class R> static R call(Why& why, const Tensor& x, const at::OptionalIntArrayRef& dim,
                                   const std::optional<at::Scalar>& correction, bool keepdim) {
    Reducing r;
    why = plan(r, x, dim, correction, keepdim);
    if (why != Why::Served) return {};
    const Dtype dtype = Dtype(x.scalar_type());
    Tensor result = allocate(r.shape, dtype, x);
    if constexpr (std::is_same_v<R, Tensor>) {
      run(x, r.mask, by(correction), result);
      return result;
    } else {
      Tensor mean = allocate(r.shape, dtype, x);
      run(x, r.mask, by(correction), result, &mean);
      return {result, mean};
    }
  }
  template <class R> static R call(Why& why, const Tensor& x, const at::OptionalIntArrayRef& dim,
                                   const std::optional<at::Scalar>& correction, bool keepdim, Tensor& out) {
    Reducing r;
    why = plan(r, x, dim, correction, keepdim);
    if (why == Why::Served) why = fit(out, r.shape, Dtype(x.scalar_type()), x);
    if (why == Why::Served && !out.is_contiguous()) why = Why::Out;
    if (why == Why::Served) run(x, r.mask, by(correction), out);
    return out;
  }
};

// ---- norms ---------------------------------------------------------------------------------------------------------------

using MaybeTensor = std::optional<Tensor>;
inline bool given(const MaybeTensor& t) { return t && t->defined(); }

// x, its rows' shape, and what has an element for each position of a row: of x's dtype, or float32 beside 16 bits on a
// CPU, as torch takes them.
template <class Shape>
inline Why plan_norm(const Tensor& x, const Shape& shape, std::initializer_list<const MaybeTensor*> of_positions) {
  if (const Why why = plan_rows(x); why != Why::Served) return why;
  const int64_t n = int64_t(shape.size());
  if (n < 1 || n > x.dim()) return Why::Dims;
  for (int64_t d = 0; d < n; ++d)
    if (shape[size_t(d)] != x.size(x.dim() - n + d)) return Why::Dims;
  std::optional<ScalarType> dtype;
  for (const MaybeTensor* t : of_positions) {
    if (!given(*t)) continue;
    const ScalarType type = (*t)->scalar_type();
    const bool mixed = x.is_cpu() && x.element_size() == 2 && type == ScalarType::Float;
    if ((type != x.scalar_type() && !mixed) || (dtype && type != *dtype)) return Why::Dtype;
    if ((*t)->device() != x.device() || (*t)->sizes() != x.sizes().slice(size_t(x.dim() - n))) return Why::Dims;
    dtype = type;
  }
  return Why::Served;
}

// A plane of statistics in the shape that torch keeps them in; of 16 bits without float32 weights, on a CPU, in x's
// dtype.
inline Tensor kept(const Tensor& stats, int64_t plane, const Tensor& x, size_t dims, bool mixed) {
  at::DimVector sizes(x.sizes().begin(), x.sizes().end()), strides(sizes.size());
  std::fill(sizes.end() - long(dims), sizes.end(), 1);
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0; stride *= sizes[d]) strides[d] = stride;
  const Tensor t = at::_ops::as_strided::redispatch(own_key(x), stats, c10::fromIntArrayRefSlow(sizes),
                                                    c10::fromIntArrayRefSlow(strides), plane * stride);
  return x.is_cpu() && x.element_size() == 2 && !mixed ? t.to(x.scalar_type()) : t;
}

// torch keeps the mean in one part, and torchreduce's derivative is that of two. So the mean and the reciprocal root
// that go to torch are planes of one tensor, with the second part between them. Its storage has room for some elements
// more, so that nothing else looks like it.
constexpr int64_t kMark = 5;

inline Tensor marked_planes(const Tensor& x, int64_t rows, Dtype wide) {
  return allocate(3 * rows + kMark, wide, x).narrow(0, 0, 3 * rows).view({3, rows});
}
// The planes, if `mean` and `rstd` are still what went to torch. A hook on saved tensors, say, makes others of them.
inline std::optional<Tensor> planes_of(const Tensor& mean, const Tensor& rstd, int64_t rows, ScalarType wide) {
  for (const Tensor* t : {&mean, &rstd})
    if (!t->defined() || t->scalar_type() != wide || t->numel() != rows || !t->is_contiguous()) return {};
  const bool ours = mean.is_alias_of(rstd) && mean.storage_offset() == 0 && rstd.storage_offset() == 2 * rows &&
                    mean.storage().nbytes() == size_t(3 * rows + kMark) * mean.element_size();
  return ours ? std::optional(mean.as_strided({3, rows}, {rows, 1}, 0)) : std::nullopt;
}

struct LayerNorm {
  template <class R> static R call(Why& why, const Tensor& x, c10::SymIntArrayRef shape, const MaybeTensor& weight,
                                   const MaybeTensor& bias, double epsilon) {
    why = plan_norm(x, shape, {&weight, &bias});
    if (why != Why::Served) return {};
    Rows rows(Rowwise::LayerNorm, x, trailing(x, shape.size()), x.scalar_type());
    rows.call.options.epsilon = epsilon;
    if (given(weight)) rows.call.weight = rows.of_positions(*weight);
    if (given(bias)) rows.call.bias = rows.of_positions(*bias);
    const Tensor stats = marked_planes(x, rows.row_count(), rows.call.accumulator);
    const Tensor out = allocate(x.sizes(), Dtype(x.scalar_type()), x);
    rows.use_stats(stats);
    rows.map(out);
    const bool mixed = rows.call.weight_dtype == Dtype::F32 && (given(weight) || given(bias));
    return {out, kept(stats, 0, x, shape.size(), mixed), kept(stats, 2, x, shape.size(), mixed)};
  }
};

struct LayerNormBackward {
  template <class R> static R call(Why& why, const Tensor& g, const Tensor& x, c10::SymIntArrayRef shape,
                                   const Tensor& mean, const Tensor& rstd, const MaybeTensor& weight,
                                   const MaybeTensor& bias, const std::array<bool, 3>& wanted) {
    why = plan_norm(x, shape, {&weight, &bias});
    // torch tells by the weight alone whether these are mixed.
    const bool is_refused = !given(weight) && given(bias) && bias->scalar_type() != x.scalar_type();
    if (why == Why::Served && (g.scalar_type() != x.scalar_type() || is_refused)) why = Why::Dtype;
    if (why == Why::Served && (g.sizes() != x.sizes() || g.device() != x.device())) why = Why::Dims;
    if (why == Why::Served && ((wanted[1] && !given(weight)) || (wanted[2] && !given(bias)))) why = Why::Option;
    if (why != Why::Served) return {};
    const uint64_t mask = trailing(x, shape.size());
    Rows moments(Rowwise::Moments, x, mask, x.scalar_type());
    if (rstd.numel() != moments.row_count() || rstd.device() != x.device()) {
      why = Why::Dims;
      return {};
    }
    std::optional<Tensor> stats = planes_of(mean, rstd, moments.row_count(), moments.wide());
    if (!stats) {  // the mean once more, from x: the same bits
      stats = moments.stats(x);
      moments.RowwiseRun::run();
      stats->select(0, 2).copy_(rstd.reshape({-1}));
    }
    const MaybeTensor& any = given(weight) ? weight : bias;
    return gradients<R, Rowwise::LayerNormGradient, Rowwise::LayerNormWeights>(
        g, x, mask, shape.size(), *stats, weight, given(any) ? any->scalar_type() : x.scalar_type(), wanted);
  }
  // Of x, weight and bias, those that are wanted; the latter two in a dtype of theirs.
  template <class R, Rowwise of_input, Rowwise of_weights>
  static R gradients(const Tensor& g, const Tensor& x, uint64_t mask, size_t dims, const Tensor& stats,
                     const MaybeTensor& weight, ScalarType of_positions, const std::array<bool, 3>& wanted) {
    R result;
    const bool sums_over_rows = wanted[1] || wanted[2];
    if (!wanted[0] && !sums_over_rows) return result;
    Rows rows(wanted[0] ? of_input : of_weights, g, mask, x.scalar_type());
    rows.use_stats(stats);
    Tensor sums[2];
    if (sums_over_rows)
      for (int k = 0; k < (of_weights == Rowwise::LayerNormWeights ? 2 : 1); ++k) {
        sums[k] = allocate(x.sizes().slice(size_t(x.dim()) - dims), Dtype(of_positions), x);
        rows.value(k, sums[k]);
      }
    if (wanted[0]) {
      if (given(weight)) rows.call.weight = rows.of_positions(*weight);
      const Tensor& out = std::get<0>(result) = allocate(x.sizes(), Dtype(x.scalar_type()), x);
      if (sums_over_rows) rows.run_with_weights(of_weights, written(out), read(x));
      else rows.map(out, &x);
    } else {
      rows.run_over_rows(read(x));
    }
    if (sums_over_rows) {
      if (wanted[1]) std::get<1>(result) = sums[0];
      if constexpr (std::tuple_size_v<R> == 3)
        if (wanted[2]) std::get<2>(result) = sums[1];
    }
    return result;
  }
};

// torch has these on GPUs alone: on a CPU it takes them apart before.
struct RmsNorm {
  template <class R> static R call(Why& why, const Tensor& x, at::IntArrayRef shape, const MaybeTensor& weight,
                                   const std::optional<double>& epsilon) {
    why = plan_norm(x, shape, {&weight});
    if (why != Why::Served) return {};
    Rows rows(Rowwise::RmsNorm, x, trailing(x, shape.size()), x.scalar_type());
    rows.call.options.epsilon = epsilon.value_or(rows.call.accumulator == Dtype::F64 ? 0x1p-52 : 0x1p-23);
    if (given(weight)) rows.call.weight = rows.of_positions(*weight);
    const Tensor stats = rows.stats(x), out = allocate(x.sizes(), Dtype(x.scalar_type()), x);
    rows.map(out);
    return {out, kept(stats, 0, x, shape.size(), true)};
  }
};
struct RmsNormBackward {
  template <class R>
  static R call(Why& why, const Tensor& g, const Tensor& x, at::IntArrayRef shape, const Tensor& rstd,
                const MaybeTensor& weight, const std::array<bool, 2>& wanted) {
    why = plan_norm(x, shape, {&weight});
    if (why != Why::Served) return {};
    const uint64_t mask = trailing(x, shape.size());
    const Rows rows(Rowwise::RmsNorm, x, mask, x.scalar_type());
    if (g.scalar_type() != x.scalar_type() || rstd.scalar_type() != rows.wide()) why = Why::Dtype;
    else if (g.sizes() != x.sizes() || g.device() != x.device() || rstd.device() != x.device()) why = Why::Dims;
    else if (rstd.numel() != rows.row_count()) why = Why::Dims;
    else if (wanted[1] && !given(weight)) why = Why::Option;
    if (why != Why::Served) return {};
    const Tensor stats = rstd.reshape({1, -1}).contiguous();
    return LayerNormBackward::gradients<R, Rowwise::RmsNormGradient, Rowwise::RmsNormWeights>(
        g, x, mask, shape.size(), stats, weight, x.scalar_type(), {wanted[0], wanted[1], false});
  }
};

}  // namespace torchreduce::aten
