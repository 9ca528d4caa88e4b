// Norms over channels (batch_norm, group_norm, instance_norm), of tensors of shape (samples, channels, length): the
// calls, and what is done with an element, the same on a CPU and a GPU.
//
// Statistics come from Moments, with the option `norm`. Those of a batch are of each channel over all samples; those of
// groups are of each group of each sample's channels. What is made of them is
//   Normalize   fma(xh, weight, bias), where xh = ((x - high) - low) r
//   Sums        in canonical order over a row's elements, of u and of fma(u, xh): of channels, whose rows are (samples,
//               length), u = g; of groups, whose rows are (channels of the group, length), u = g weight
//   Gradient    with a and b these sums divided by the row's length: of a batch fma(-xh, b, g - a) (r weight), of
//   groups
//               fma(-xh, b, g weight - a) r, of statistics that are given g (r weight)
//   Move        running (1 - momentum) + value momentum, in place, of running means and variances
//   Lay         x, in the layout of the output
#pragma once
#include "numerics/dtype.h"
#include "ops/rowwise.h"

namespace torchreduce {

enum class Channels : int { Normalize, Sums, Gradient, Move, Lay };

// An input or the output: elements from a sample to the next, from a channel, from a position.
struct ChannelOperand {
  const void* data = nullptr;
  int64_t sample = 0, channel = 0, position = 0;
};

struct ChannelCall {
  Channels op;
  Dtype dtype, accumulator;  // of x, g and out; F32 or F64
  int64_t samples, channels, length;
  int64_t groups = 0;  // of a sample's channels, with statistics of each; 0: a channel's are of all samples
  ChannelOperand x, g, out;
  // Three planes in the accumulator type, an element for each row of statistics; or what is given, of each channel.
  const void* stats = nullptr;
  const void *mean = nullptr, *variance = nullptr;
  Dtype given_dtype = Dtype::F32;  // of both
  double momentum = 0;             // Move: of these, which move towards `means`
  double epsilon = 0;
  // An element for each channel, or null; of one dtype.
  const void *weight = nullptr, *bias = nullptr;
  Dtype weight_dtype = Dtype::F32;
  // Two planes in the accumulator type, an element for each row of statistics, which Sums writes where they are wanted
  // and Gradient reads: a and b, the sums of u and of u xh divided by the row's length. Gradient without them takes the
  // statistics as given.
  void* means = nullptr;
  // Where the sums of channels go, rounded, if they are wanted: to the weight, to the bias.
  void* values[2] = {};
  Dtype value_dtype = Dtype::F32;

  TR_HD int64_t in_group() const { return channels / groups; }
  // The statistics of a channel of a sample.
  TR_HD int64_t stats_row(int64_t sample, int64_t channel) const {
    return groups ? sample * groups + channel / in_group() : channel;
  }
  TR_HD int64_t stats_rows() const { return groups ? samples * groups : channels; }
  template <class F> TR_HD typename LayerNorm<F>::Row statistics(int64_t row) const {
    if (stats) return kept_statistics<F>(row);
    const F under = load_as<F>(given_dtype, variance, row, false) + F(epsilon);
    return {load_as<F>(given_dtype, mean, row, false), F(0), F(1) / root(under)};
  }
  template <class F> TR_HD typename LayerNorm<F>::Row kept_statistics(int64_t row) const {
    const F* const s = static_cast<const F*>(stats) + row;
    const int64_t plane = stats_rows();
    return {s[0], s[plane], s[2 * plane]};
  }
  template <class F> TR_HD F weight_of(int64_t channel) const {
    return weight ? load_as<F>(weight_dtype, weight, channel, false) : F(1);
  }

  // Move: the running mean, or the variance if `which` is 1, of a channel.
  template <class F> TR_HD void move(int64_t channel, int which) const {
    void* const running = const_cast<void*>(which ? variance : mean);
    if (!running) return;
    const F value = static_cast<const F*>(means)[which * channels + channel] * F(momentum);
    const F kept = load_as<F>(given_dtype, running, channel, false) * F(1 - momentum);
    store_as(given_dtype, running, channel, kept + value);
  }

  // ---- rows of sums: `runs` times `length` positions --------------------------------------------------------------------

  // Whether sums of groups are wanted, or those of channels.
  TR_HD bool sums(bool of_groups) const {
    return of_groups ? means && groups : values[0] || values[1] || (means && !groups);
  }
  TR_HD int64_t sums_rows(bool of_groups) const { return of_groups ? samples * groups : channels; }
  TR_HD int64_t sums_length(bool of_groups) const { return (of_groups ? in_group() : samples) * length; }
  // What is kept of a row's sums: of u, and of u xh.
  template <class F> TR_HD void keep(bool of_groups, int64_t row, int which, F sum) const {
    if (means && of_groups == (groups > 0))
      static_cast<F*>(means)[which * stats_rows() + row] = divided(sum, sums_length(of_groups));
    if (!of_groups && values[1 - which]) store_as(value_dtype, values[1 - which], row, sum);
  }
  // The sample and the channel of run `run` of a row.
  struct Line { int64_t sample, channel; };
  TR_HD Line line(bool of_groups, int64_t row, int64_t run) const {
    if (!of_groups) return {run, row};
    const int64_t sample = row / groups;
    return {sample, (row - sample * groups) * in_group() + run};
  }
};

inline namespace TR_ISA {

// What all elements of a channel of a sample are mapped by, whose statistics are row `number`.
template <Channels kOp, class F> struct ChannelMap;

template <class F> struct ChannelMap<Channels::Normalize, F> {
  static constexpr int kInputs = 1;
  typename LayerNorm<F>::Row row;
  F weight, bias;

  TR_HD static ChannelMap of(const ChannelCall& call, int64_t number, int64_t channel) {
    return {call.statistics<F>(number), call.weight_of<F>(channel),
            call.bias ? load_as<F>(call.weight_dtype, call.bias, channel, false) : F(-0.0)};
  }
  TR_HD F operator()(F x, F) const { return LayerNorm<F>::map(&x, weight, bias, 0, row); }
};

template <class F> struct ChannelMap<Channels::Lay, F> {
  static constexpr int kInputs = 1;
  TR_HD static ChannelMap of(const ChannelCall&, int64_t, int64_t) { return {}; }
  TR_HD F operator()(F x, F) const { return x; }
};

template <class F> struct ChannelMap<Channels::Gradient, F> {
  static constexpr int kInputs = 2;
  typename LayerNorm<F>::Row row;
  F a, b, weight, scale;
  bool given;

  TR_HD static ChannelMap of(const ChannelCall& call, int64_t number, int64_t channel) {
    ChannelMap m{call.statistics<F>(number), F(0), F(0), F(1), F(0), !call.means};
    const F w = call.weight_of<F>(channel);
    m.scale = call.groups ? m.row.r : m.row.r * w;
    if (call.groups) m.weight = w;
    if (m.given) return m;
    const F* const means = static_cast<const F*>(call.means) + number;
    m.a = means[0];
    m.b = means[call.stats_rows()];
    return m;
  }
  TR_HD F operator()(F x, F g) const {
    if (given) return g * scale;
    return fma_of(-LayerNorm<F>::normal(x, row), b, g * weight - a) * scale;
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
