// Norms over channels, and their gradients: an element of the output is made of those of the inputs at its place and of
// what is known of its channel (plan/channel_call.h).
//
// Memory is met by granules of 16 bytes where it is one run, the same in all operands (channels.h). A thread of
// map_lines has kEach of them, a block's width apart, and finds for each which line it is in, or in which two; one of
// map_columns has granules of the same channels, and finds what is known of these once. Shared memory: none.
#pragma once
#include "channels.h"
#include "kernels/common/gpu_rows.cuh"
#include "kernels/reduce/granule.cuh"
#include "kernels/rowwise/column_granule.cuh"

namespace torchreduce::gpu {

// The granules of the inputs at element `at`, of which there are none where it is not wanted.
template <class Map, class E> struct MapInputs {
  Granule x, g;

  __device__ __forceinline__ void load(const ChannelCall& call, bool wanted, int64_t at) {
    x = g = Granule{};
    const bool of_x = Map::kInputs == 1 || call.means;
    load_if(wanted && of_x, reinterpret_cast<const Granule*>(static_cast<const E*>(call.x.data) + at), x);
    if constexpr (Map::kInputs == 2)
      load_if(wanted, reinterpret_cast<const Granule*>(static_cast<const E*>(call.g.data) + at), g);
  }
  // map(i, x, g) of each element.
  template <class Each> __device__ __forceinline__ Granule mapped(Each map) const {
    constexpr int V = kPerGranule<E>;
    E a[V], b[V];
    float y[V];
    elements_of(x, a);
    elements_of(g, b);
#pragma unroll
    for (int i = 0; i < V; ++i) y[i] = map(i, convert<float>(a[i]), convert<float>(b[i]));
    return rounded_granule<E, false>(y);
  }
};

template <class Map, class E>
__global__ void TR_BLOCKS_BOUND(channels_of::kThreads, 3)
    map_lines(TR_GRID_CONSTANT ChannelCall call, TR_GRID_CONSTANT ChannelShape shape) {
  constexpr int V = kPerGranule<E>, kEach = channels_of::kEach, kStep = channels_of::kThreads * V;
  // From the end on: what the sums have read last is still in the cache.
  const int64_t total = call.samples * call.channels * call.length;
  const int64_t tile = int64_t(gridDim.x - 1 - blockIdx.x) * (kStep * kEach);
  const int length = int(call.length), channels = int(call.channels);
  const int64_t above = quotient(tile, call.length);
  const int phase = int(tile - above * call.length), own = int(threadIdx.x) * V;
  MapInputs<Map, E> in[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int64_t at = tile + own + k * kStep;
    in[k].load(call, at + V <= total, at);
  }
  const auto map_of = [&](int line) {
    const int sample = shape.by_channels.quotient(line), channel = line - sample * channels;
    return Map::of(call, call.groups ? sample * call.groups + shape.by_group.quotient(channel) : channel, channel);
  };
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int64_t at = tile + own + k * kStep;
    if (at >= total) break;
    const int place = phase + own + k * kStep, passed = shape.by_length.quotient(place);
    const int left = (passed + 1) * length - place;  // elements of the line, from here on
    int line = int(above) + passed;
    if (at + V > total) {  // the tensor's end
      for (int i = 0, rest = left; at + i < total; ++i, --rest) {
        if (rest == 0) {
          ++line;
          rest = length;
        }
        const auto element = [&](const ChannelOperand& o) {
          return convert<float>(static_cast<const E*>(o.data)[at + i]);
        };
        const float x = element(call.x);
        static_cast<E*>(const_cast<void*>(call.out.data))[at + i] =
            round_to<E>(map_of(line)(x, Map::kInputs == 2 ? element(call.g) : x));
      }
      break;
    }
    Granule y;
    const Map first = map_of(line);
    if (left >= V) {
      y = in[k].mapped([&](int, float x, float g) { return first(x, g); });
    } else if (length >= V) {
      const Map second = map_of(line + 1);
      y = in[k].mapped([&](int i, float x, float g) {
        const float one = first(x, g), other = second(x, g);
        return i < left ? one : other;
      });
    } else {
      Map now = first;
      int rest = left;
      y = in[k].mapped([&](int, float x, float g) {
        if (rest == 0) {
          now = map_of(++line);
          rest = length;
        }
        --rest;
        return now(x, g);
      });
    }
    store_item(reinterpret_cast<Granule*>(static_cast<E*>(const_cast<void*>(call.out.data)) + at), y);
  }
}

template <class Map, class E>
__global__ void TR_BLOCKS_BOUND(channels_of::kThreads, 2)
    map_columns(TR_GRID_CONSTANT ChannelCall call, TR_GRID_CONSTANT ChannelShape shape) {
  constexpr int V = kPerGranule<E>, kEach = channels_of::kEach;
  const int64_t own = int64_t(blockIdx.x) * channels_of::kThreads + threadIdx.x;
  if (own >= shape.together) return;
  const int64_t granules = call.samples * call.channels * call.length / V, row = call.channels / V;
  const int channel = int(own - quotient(own, row) * row) * V;
  Map map[V];
#pragma unroll
  for (int i = 0; i < V; ++i) map[i] = Map::of(call, channel + i, channel + i);
#pragma unroll 1
  for (int64_t first = own; first < granules; first += kEach * shape.together) {
    MapInputs<Map, E> in[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int64_t at = first + k * shape.together;
      in[k].load(call, at < granules, at * V);
    }
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int64_t at = first + k * shape.together;
      if (at >= granules) break;
      const Granule y = in[k].mapped([&](int i, float x, float g) { return map[i](x, g); });
      store_item(reinterpret_cast<Granule*>(static_cast<E*>(const_cast<void*>(call.out.data))) + at, y);
    }
  }
}

// Of any strides and any types: a thread has an element.
template <class Map, class F>
__global__ void __launch_bounds__(channels_of::kThreads) map_elements(TR_GRID_CONSTANT ChannelCall call) {
  const int64_t i = int64_t(blockIdx.x) * channels_of::kThreads + threadIdx.x;
  const int64_t line = i / call.length, position = i - line * call.length;
  const int64_t sample = line / call.channels, channel = line - sample * call.channels;
  if (sample >= call.samples) return;
  const auto offset = [&](const ChannelOperand& o) {
    return sample * o.sample + channel * o.channel + position * o.position;
  };
  const F x = load_as<F>(call.dtype, call.x.data, offset(call.x), false);
  F g = x;
  if constexpr (Map::kInputs == 2) g = load_as<F>(call.dtype, call.g.data, offset(call.g), false);
  const Map map = Map::of(call, call.stats_row(sample, channel), channel);
  store_as(call.dtype, const_cast<void*>(call.out.data), offset(call.out), map(x, g));
}

// A thread has a channel.
template <class F>
__global__ void __launch_bounds__(channels_of::kThreads) move_running(TR_GRID_CONSTANT ChannelCall call) {
  const int64_t channel = int64_t(blockIdx.x) * channels_of::kThreads + threadIdx.x;
  if (channel >= call.channels) return;
  call.template move<F>(channel, 0);
  call.template move<F>(channel, 1);
}

}  // namespace torchreduce::gpu
