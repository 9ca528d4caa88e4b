// Norms over channels (plan/channel_call.h), on the CPU. Compiled once per instruction set.
#include "cpu/channels.h"

namespace torchreduce::cpu::TR_ISA {

constexpr int64_t kSerialElements = 8192;  // a smaller call is not worth a second thread

template <class F> bool moved(const ChannelCall& call) {
  for (int which = 0; which < 2; ++which)
    for (int64_t c = 0; c < call.channels; ++c) call.move<F>(c, which);
  return true;
}

bool channels(const ChannelCall& call, int64_t threads, ParallelFor parallel_for) {
  if (call.samples * call.channels * call.length < kSerialElements) threads = 1;
  const auto run = [&]<class F>() {
    switch (call.op) {
      case Channels::Normalize: return MappedChannels<Channels::Normalize, F>{call}.run(threads, parallel_for);
      case Channels::Gradient: return MappedChannels<Channels::Gradient, F>{call}.run(threads, parallel_for);
      case Channels::Sums:
        for (const bool of_groups : {false, true})
          if (call.sums(of_groups) && !SummedChannels<F>{call, of_groups}.run(threads, parallel_for)) return false;
        return true;
      case Channels::Move: return moved<F>(call);
      case Channels::Lay: return MappedChannels<Channels::Lay, F>{call}.run(threads, parallel_for);
    }
    return true;
  };
  return call.accumulator == Dtype::F64 ? run.template operator()<double>() : run.template operator()<float>();
}

}  // namespace torchreduce::cpu::TR_ISA
