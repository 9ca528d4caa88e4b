// How a GPU serves a norm over channels.
#pragma once
#include "channel_call.h"
#include "kernels/channels/channels.h"

namespace torchreduce {

struct ChannelPlan { ChannelShape shape; };
// Whether a kernel serves Lay of such a call.
bool transposes(const ChannelCall& call, const DeviceFacts& device);
// By the family lines, columns or elements that is forced, if it can serve the call.
ChannelPlan plan(const ChannelCall& call, const DeviceFacts& device);
inline int64_t workspace_bytes(const ChannelPlan& plan) { return plan.shape.workspace; }

struct PlannedChannels : ChannelCall { ChannelPlan plan; };

}  // namespace torchreduce
