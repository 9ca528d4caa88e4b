// Norms over channels, as aten has them below its composites: torch's own kernels, which cuDNN's are no part of.
#pragma once
#include "../channels.h"
#include "rowwise.h"

namespace torchreduce::aten {

// x, whose channels are in dim 1; what has an element for each channel: of x's dtype, or, where it may be `mixed`,
// float32 beside 16 bits.
inline Why plan_channels(const Tensor& x, bool mixed, std::initializer_list<const MaybeTensor*> of_channels) {
  if (const Why why = plan_rows(x); why != Why::Served) return why;
  if (x.dim() < 2 || x.dim() >= kMaxDims) return Why::Dims;
  for (const MaybeTensor* t : of_channels) {
    if (!given(*t)) continue;
    const ScalarType type = (*t)->scalar_type();
    if (type != x.scalar_type() && !(mixed && x.element_size() == 2 && type == ScalarType::Float)) return Why::Dtype;
    if ((*t)->device() != x.device() || (*t)->dim() != 1 || (*t)->size(0) != x.size(1)) return Why::Dims;
  }
  return Why::Served;
}

// A norm of x, and what it holds while it runs.
struct ChannelNorm : ChannelRun {
  const Tensor source;
  at::SmallVector<Tensor, 4> held;

  // Channels last where x is; of groups on a CPU alone.
  static Tensor laid_out(const Tensor& x, at::MemoryFormat format) { return x.contiguous(format); }
  static at::MemoryFormat format_of(const Tensor& x, int64_t groups) {
    return groups == 0 || x.is_cpu() ? x.suggest_memory_format() : at::MemoryFormat::Contiguous;
  }
  ChannelNorm(const Tensor& x, int64_t groups) : ChannelNorm(laid_out(x, format_of(x, groups)), groups, 0) {}
  ChannelNorm(Tensor laid, int64_t groups, int) : ChannelRun("channels", read(laid), groups), source(std::move(laid)) {}

  Dtype wide() const { return call.accumulator; }
  const void* of_channels(const Tensor& t, Dtype& dtype) {
    dtype = Dtype(t.scalar_type());
    return held.emplace_back(t.contiguous()).const_data_ptr();
  }
  // weight and bias, in one dtype.
  void weights(const MaybeTensor& weight, const MaybeTensor& bias = {}) {
    const bool apart = given(weight) && given(bias) && weight->scalar_type() != bias->scalar_type();
    const auto in_one = [&](const Tensor& t) { return apart ? t.to(ScalarType(wide())) : t; };
    if (given(weight)) call.weight = of_channels(in_one(*weight), call.weight_dtype);
    if (given(bias)) call.bias = of_channels(in_one(*bias), call.weight_dtype);
  }
  void running(const MaybeTensor& mean, const MaybeTensor& variance, double epsilon) {
    call.mean = of_channels(*mean, call.given_dtype);
    call.variance = of_channels(*variance, call.given_dtype);
    call.epsilon = epsilon;
  }
  Operand second(const Tensor& g) { return read(held.emplace_back(laid_out(g, source.suggest_memory_format()))); }
  Tensor new_like() const { return at::empty_like(source); }
  Tensor planes(int64_t count, int64_t rows) const {
    const int64_t sizes[] = {count, rows};
    return allocate(sizes, wide(), source);
  }
  // Makes the statistics. `moments`: two planes, or none.
  void take(const Tensor& stats, double epsilon, const Tensor* moments = nullptr) {
    char* const values = moments ? static_cast<char*>(moments->mutable_data_ptr()) : nullptr;
    ChannelRun::moments(epsilon, stats.mutable_data_ptr(), values,
                        values ? values + row_count() * size_of(wide()) : nullptr);
    call.stats = stats.const_data_ptr();
  }
  // Of x, and of weight and bias in `dtype`, those that are wanted. `given`: statistics are numbers.
  std::tuple<Tensor, Tensor, Tensor> gradients(const Tensor& grad, bool given, ScalarType dtype,
                                               const std::array<bool, 3>& wanted) {
    std::tuple<Tensor, Tensor, Tensor> result;
    const Operand g = second(grad);
    const bool of_weights = wanted[1] || wanted[2];
    Tensor means, values[2];
    if (of_weights) {
      call.value_dtype = Dtype(dtype);
      for (int k = 0; k < 2; ++k) {
        values[k] = allocate(call.channels, call.value_dtype, source);
        call.values[k] = values[k].mutable_data_ptr();
      }
      if (wanted[1]) std::get<1>(result) = values[0];
      if (wanted[2]) std::get<2>(result) = values[1];
    }
    if (wanted[0] && !given) {
      means = planes(2, row_count());
      call.means = means.mutable_data_ptr();
    }
    if (of_weights || call.means) sum(g);
    if (!wanted[0]) return result;
    gradient(g, written(std::get<0>(result) = new_like()));
    return result;
  }
};

// ---- batches ---------------------------------------------------------------------------------------------------------

struct BatchNorm {
  static Why plan(const Tensor& x, const MaybeTensor& weight, const MaybeTensor& bias, const MaybeTensor& mean,
                  const MaybeTensor& variance, bool training) {
    if (given(mean) != given(variance) || (!training && !given(mean))) return Why::Option;
    if (const Why why = plan_channels(x, true, {&weight, &bias, &mean, &variance}); why != Why::Served) return why;
    if (given(mean) && mean->scalar_type() != variance->scalar_type()) return Why::Dtype;
    if (training && given(mean) && !(mean->is_contiguous() && variance->is_contiguous())) return Why::Option;
    return training && x.numel() == x.size(1) ? Why::Option : Why::Served;  // torch divides by 0
  }
  template <class R>
  static R call(Why& why, const Tensor& x, const MaybeTensor& weight, const MaybeTensor& bias, const MaybeTensor& mean,
                const MaybeTensor& variance, bool training, double momentum, double epsilon) {
    why = plan(x, weight, bias, mean, variance, training);
    if (why != Why::Served) return {};
    ChannelNorm norm(x, 0);
    norm.weights(weight, bias);
    const Tensor out = norm.new_like();
    if (!training) {
      norm.running(mean, variance, epsilon);
      norm.normalize(written(out));
      const Tensor none = allocate(int64_t(0), norm.wide(), x);
      return {out, none, none.clone()};
    }
    const Tensor stats = marked_planes(x, x.size(1), norm.wide());
    const Tensor moments = given(mean) ? norm.planes(2, x.size(1)) : Tensor();
    norm.take(stats, epsilon, given(mean) ? &moments : nullptr);
    norm.normalize(written(out));
    if (given(mean)) {
      norm.call.means = moments.mutable_data_ptr();
      norm.call.mean = mean->mutable_data_ptr();
      norm.call.variance = variance->mutable_data_ptr();
      norm.call.given_dtype = Dtype(mean->scalar_type());
      norm.call.momentum = momentum;
      norm.move();
    }
    return {out, saved(stats, 0, x, {&weight, &bias, &mean}), saved(stats, 2, x, {&weight, &bias, &mean})};
  }
  // A plane, on a CPU in the dtype that torch keeps it in there.
  static Tensor saved(const Tensor& stats, int64_t plane, const Tensor& x,
                      std::initializer_list<const MaybeTensor*> params) {
    bool mixed = false;
    for (const MaybeTensor* t : params) mixed |= given(*t) && (*t)->scalar_type() != x.scalar_type();
    const Tensor kept = stats.select(0, plane);
    return x.is_cpu() && x.element_size() == 2 && !mixed ? kept.to(x.scalar_type()) : kept;
  }
};

struct BatchNormBackward {
  template <class R>
  static R call(Why& why, const Tensor& g, const Tensor& x, const MaybeTensor& weight, const MaybeTensor& mean,
                const MaybeTensor& variance, const MaybeTensor& saved_mean, const MaybeTensor& saved_r, bool training,
                double epsilon, const std::array<bool, 3>& wanted) {
    why =
        BatchNorm::plan(x, weight, {}, training ? MaybeTensor() : mean, training ? MaybeTensor() : variance, training);
    if (why == Why::Served && g.scalar_type() != x.scalar_type()) why = Why::Dtype;
    if (why == Why::Served && (g.sizes() != x.sizes() || g.device() != x.device())) why = Why::Dims;
    if (why != Why::Served) return {};
    ChannelNorm norm(x, 0);
    norm.weights(weight);
    Tensor stats;
    if (!training) {
      norm.running(mean, variance, epsilon);
    } else {
      std::optional<Tensor> kept;
      if (given(saved_mean) && given(saved_r))
        kept = planes_of(*saved_mean, *saved_r, x.size(1), ScalarType(norm.wide()));
      if (kept) {
        stats = *kept;
        norm.call.stats = stats.const_data_ptr();
      } else {  // once more, from x: the same bits
        stats = norm.planes(3, x.size(1));
        norm.take(stats, epsilon);
      }
    }
    const auto [to_x, to_weight, to_bias] =
        norm.gradients(g, !training, given(weight) ? weight->scalar_type() : ScalarType(norm.wide()), wanted);
    return {to_x, to_weight, to_bias};
  }
};

// ---- groups ----------------------------------------------------------------------------------------------------------

// torch keeps the statistics of groups in x's dtype. Those of 16 bits are followed by nothing and preceded by the
// planes that they are rounded from, in one storage.
struct GroupNorm {
  static Why plan(const Tensor& x, const MaybeTensor& weight, const MaybeTensor& bias, const c10::SymInt& samples,
                  const c10::SymInt& channels, const c10::SymInt& length, int64_t groups) {
    if (const Why why = plan_channels(x, x.is_cpu(), {&weight, &bias}); why != Why::Served) return why;
    if (groups < 1 || x.size(1) % groups != 0) return Why::Dims;
    const bool same = samples.expect_int() == x.size(0) && channels.expect_int() == x.size(1) &&
                      samples.expect_int() * channels.expect_int() * length.expect_int() == x.numel();
    return same ? Why::Served : Why::Dims;
  }
  // Whether the statistics that torch gets are rounded.
  static bool rounds(const Tensor& x, const MaybeTensor& weight, const MaybeTensor& bias) {
    const auto mixed = [&](const MaybeTensor& t) { return given(t) && t->scalar_type() != x.scalar_type(); };
    return x.element_size() == 2 && !mixed(weight) && !mixed(bias);
  }
  template <class R> static R call(Why& why, const Tensor& x, const MaybeTensor& weight, const MaybeTensor& bias,
                                   const c10::SymInt& samples, const c10::SymInt& channels, const c10::SymInt& length,
                                   int64_t groups, double epsilon) {
    why = plan(x, weight, bias, samples, channels, length, groups);
    if (why != Why::Served) return {};
    ChannelNorm norm(x, groups);
    norm.weights(weight, bias);
    const int64_t rows = norm.row_count();
    const Tensor out = norm.new_like();
    const bool rounded = rounds(x, weight, bias);
    const Tensor memory = allocate(3 * rows + kMark + (rounded ? rows : 0), norm.wide(), x);
    norm.take(memory.narrow(0, 0, 3 * rows).view({3, rows}), epsilon);
    norm.normalize(written(out));
    const auto plane = [&](int64_t k) {
      const Tensor own = memory.narrow(0, k * rows, rows);
      if (!rounded) return own.view({x.size(0), groups});
      const Tensor to = memory.view(x.scalar_type()).narrow(0, 6 * rows + (k ? rows : 0), rows);
      return to.copy_(own).view({x.size(0), groups});
    };
    return {out, plane(0), plane(2)};
  }
  // The planes, if `mean` and `rstd` are still what went to torch.
  static std::optional<Tensor> kept(const Tensor& x, const Tensor& mean, const Tensor& rstd, int64_t rows,
                                    ScalarType wide) {
    if (mean.scalar_type() == wide) return planes_of(mean, rstd, rows, wide);
    for (const Tensor* t : {&mean, &rstd})
      if (!t->defined() || t->scalar_type() != x.scalar_type() || t->numel() != rows || !t->is_contiguous()) return {};
    const bool ours = x.element_size() == 2 && mean.is_alias_of(rstd) && mean.storage_offset() == 6 * rows &&
                      rstd.storage_offset() == 7 * rows && mean.storage().nbytes() == size_t(4 * rows + kMark) * 4;
    if (!ours) return {};
    Tensor all = at::empty({0}, mean.options().dtype(wide));
    all.set_(mean.storage(), 0, {3, rows}, {rows, 1});
    return all;
  }
};

struct GroupNormBackward {
  template <class R>
  static R call(Why& why, const Tensor& g, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                const MaybeTensor& weight, const c10::SymInt& samples, const c10::SymInt& channels,
                const c10::SymInt& length, int64_t groups, const std::array<bool, 3>& wanted) {
    why = GroupNorm::plan(x, weight, {}, samples, channels, length, groups);
    if (why == Why::Served && g.scalar_type() != x.scalar_type()) why = Why::Dtype;
    if (why == Why::Served && (g.sizes() != x.sizes() || g.device() != x.device())) why = Why::Dims;
    if (why == Why::Served && (rstd.numel() != x.size(0) * groups || rstd.device() != x.device())) why = Why::Dims;
    if (why != Why::Served) return {};
    ChannelNorm norm(x, groups);
    norm.weights(weight);
    std::optional<Tensor> stats = GroupNorm::kept(x, mean, rstd, norm.row_count(), ScalarType(norm.wide()));
    if (!stats) {  // the mean once more, from x: the same bits
      stats = norm.planes(3, norm.row_count());
      norm.take(*stats, 0);
      stats->select(0, 2).copy_(rstd.reshape({-1}));
    }
    norm.call.stats = stats->const_data_ptr();
    const auto [to_x, to_weight, to_bias] =
        norm.gradients(g, false, given(weight) ? weight->scalar_type() : x.scalar_type(), wanted);
    return {to_x, to_weight, to_bias};
  }
};

}  // namespace torchreduce::aten
