// Norms over channels (plan/channel_call.h): what both layers that meet torch share. binding/channels.cpp has it.
#pragma once
#include "operand.h"
#include "plan/channel_call.h"

namespace torchreduce {

// A call on x of shape (samples, channels, ...), to be filled in, and run once. On a GPU kernels are fast where x, g
// and the output are dense and laid out alike, contiguous or with channels last; the latter not of groups.
struct ChannelRun {
  const char* name;
  const Operand x;
  ChannelCall call{};

  // Statistics are those of `groups` groups of each sample, of each channel if that is 0.
  ChannelRun(const char* op, const Operand& input, int64_t groups);
  int64_t row_count() const { return call.stats_rows(); }  // of statistics

  // Writes the three planes of statistics, and in the accumulator type the means and the variances with Bessel's
  // correction, where there are places for them.
  void moments(double epsilon, void* stats, void* mean, void* variance);
  void normalize(const Operand& out);
  // Writes what call.means and call.values have places for.
  void sum(const Operand& g);
  void gradient(const Operand& g, const Operand& out);
  // Copies x to out, which has its channels last where x has not, or the other way; false, and nothing is done, where
  // no kernel does that fast.
  bool lay(const Operand& out);
  // Moves call.mean and call.variance towards call.means.
  void move();

 private:
  ChannelOperand operand(const Operand& t) const;
  void run(Channels op);
};

}  // namespace torchreduce
