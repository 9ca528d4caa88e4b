#include "channel_plan.h"

#include "plan_tools.h"

namespace torchreduce {

using namespace plans;

namespace {

// Whether samples, channels and positions fill memory in the order of a contiguous tensor, or with channels last.
bool contiguous(const ChannelCall& c, const ChannelOperand& o) {
  return (c.length == 1 || o.position == 1) && (c.channels == 1 || o.channel == c.length) &&
         (c.samples == 1 || o.sample == c.channels * c.length);
}
bool channels_last(const ChannelCall& c, const ChannelOperand& o) {
  return (c.channels == 1 || o.channel == 1) && (c.length == 1 || o.position == c.channels) &&
         (c.samples == 1 || o.sample == c.channels * c.length);
}

}  // namespace

bool transposes(const ChannelCall& call, const DeviceFacts& device) {
  const bool types = call.dtype == Dtype::F32 || call.dtype == Dtype::BF16 || call.dtype == Dtype::F16;
  const int64_t per = 16 / size_of(call.dtype);
  const auto other_way = [&](const ChannelOperand& from, const ChannelOperand& to) {
    return channels_last(call, from) && contiguous(call, to);
  };
  return types && device.wide_reductions && call.channels % per == 0 && call.length % per == 0 &&
         aligned(call.x.data) && aligned(call.out.data) && (other_way(call.x, call.out) || other_way(call.out, call.x));
}

ChannelPlan plan(const ChannelCall& call, const DeviceFacts& device) {
  const PlanOverride forced = forced_plan();
  const bool types = call.dtype == Dtype::F32 || call.dtype == Dtype::BF16 || call.dtype == Dtype::F16;
  const int size = size_of(call.dtype), per = 16 / size;
  const ChannelOperand* operands[] = {&call.x, &call.g, &call.out};
  bool granules = types && device.wide_reductions && call.accumulator == natural_accumulator(call.dtype) &&
                  call.channels * std::max(call.samples, call.length) < INT32_MAX / 2;
  const auto all = [&](auto is) {
    for (const ChannelOperand* o : operands)
      if (o->data && !(is(call, *o) && aligned(o->data))) return false;
    return granules;
  };
  const bool lines = all(contiguous) && call.length < INT32_MAX / 2;
  const bool columns = !call.groups && call.channels % per == 0 && all(channels_last);

  ChannelShape s;
  s.way = columns && !(lines && call.length > 1) ? ChannelWay::Columns
          : lines                                ? ChannelWay::Lines
                                                 : ChannelWay::Elements;
  // Other names are of the plan for the statistics.
  const std::string name = forced.family ? forced.family : "";
  if ((name == "columns" && columns) || (name == "lines" && lines) || name == "elements")
    s.way = name == "columns" ? ChannelWay::Columns : name == "lines" ? ChannelWay::Lines : ChannelWay::Elements;
  if (call.op == Channels::Lay) s.way = transposes(call, device) ? ChannelWay::Transposed : ChannelWay::Elements;
  channels_of::shape(call, s);
  check_launch(s.blocks, 0, device.shared);
  return {s};
}

}  // namespace torchreduce
