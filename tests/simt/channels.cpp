#include "channels.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "emulator.h"
#include "kernels/channels/contiguous.h"
#include "kernels/common/gpu.h"
#include "plan/channel_plan.h"

using namespace torchreduce;

namespace torchreduce::cpu::baseline {
bool channels(const ChannelCall& call, int64_t threads, void (*)(int64_t, void (*)(void*, int64_t, int64_t), void*));
}

namespace {

// (samples, channels, length) in memory, or (samples, length, channels) with channels last; `gap` elements between
// samples, `skipped` before the first.
struct Case {
  Channels op;
  Dtype dtype;
  int64_t samples, channels, length, groups = 0;
  bool last = false;
  int skipped = 0, gap = 0;
  const char* family = nullptr;
  bool of_groups = false;  // Sums: also of groups
};

std::string describe(const Case& c) {
  constexpr const char* kNames[] = {"Normalize", "Sums", "Gradient", "Move", "Lay"};
  return std::string(kNames[int(c.op)]) + " of (" + std::to_string(c.samples) + ", " + std::to_string(c.channels) +
         ", " + std::to_string(c.length) + "), dtype " + std::to_string(int(c.dtype)) + ", groups " +
         std::to_string(c.groups) + (c.of_groups ? " summed" : "") + (c.last ? ", channels last" : "") + ", skipped " +
         std::to_string(c.skipped) + ", gap " + std::to_string(c.gap);
}

// Memory of its own size, filled with bytes that no one writes.
struct Memory {
  std::vector<char> bytes;
  int64_t first = 0;

  void make(int64_t elements, int size, int skipped = 0) {
    bytes.assign(size_t((elements + skipped) * size), char(0x7f));
    bytes.shrink_to_fit();
    first = skipped * size;
  }
  void* data() { return bytes.data() + first; }
};
struct Tensors { Memory x, g, out, stats, mean, variance, weight, bias, means, values[2]; };

double draw(uint64_t& state) {  // from -4 to 4
  state = state * 6364136223846793005u + 1442695040888963407u;
  return double(int64_t(state) >> 20) * 0x1p-41;
}

ChannelCall make(const Case& c, Tensors& t, uint64_t seed) {
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  const int64_t line = c.channels * c.length + c.gap, elements = c.samples * line - c.gap;
  const Dtype wide = c.dtype == Dtype::F64 ? Dtype::F64 : Dtype::F32;
  const int size = size_of(c.dtype);
  ChannelCall call{};
  call.op = c.op;
  call.dtype = c.dtype;
  call.accumulator = wide;
  call.samples = c.samples;
  call.channels = c.channels;
  call.length = c.length;
  call.groups = c.groups;
  call.epsilon = 1e-5;
  const auto operand = [&](Memory& memory, int64_t count, bool filled, bool last) {
    memory.make(count, size, c.skipped);
    for (int64_t i = 0; filled && i < count; ++i) {
      double v = draw(state);
      if (seed % 3 == 0 && i % 701 == 5) v = NAN;
      if (seed % 3 == 0 && i % 503 == 9) v = INFINITY;
      store_as<double>(c.dtype, memory.data(), i, v);
    }
    return ChannelOperand{memory.data(), line, last ? 1 : c.length, last ? c.channels : 1};
  };
  const auto numbers = [&](Memory& memory, Dtype dtype, int64_t count, bool positive = false) {
    memory.make(count, size_of(dtype));
    for (int64_t i = 0; i < count; ++i) {
      const double v = draw(state);
      store_as<double>(dtype, memory.data(), i, positive ? std::fabs(v) + 0.1 : v);
    }
    return memory.data();
  };
  if (c.op == Channels::Move) {
    call.momentum = 0.3;
    call.given_dtype = seed % 2 ? c.dtype : wide;
    call.mean = numbers(t.mean, call.given_dtype, c.channels);
    call.variance = seed % 3 ? numbers(t.variance, call.given_dtype, c.channels) : nullptr;
    call.means = numbers(t.means, wide, 2 * c.channels);
    return call;
  }
  call.x = operand(t.x, elements, true, c.last);
  if (c.op == Channels::Lay) {
    call.out = operand(t.out, elements, false, !c.last);
    return call;
  }
  if (c.op != Channels::Normalize) call.g = operand(t.g, elements, true, c.last);
  if (c.op != Channels::Sums) call.out = operand(t.out, elements, false, c.last);
  if (c.groups == 0 && seed % 4 == 1) {
    call.given_dtype = seed % 8 == 1 ? c.dtype : Dtype::F32;
    call.mean = numbers(t.mean, call.given_dtype, c.channels);
    call.variance = numbers(t.variance, call.given_dtype, c.channels, true);
  } else {
    call.stats = numbers(t.stats, wide, 3 * call.stats_rows());
  }
  call.weight_dtype = seed % 2 ? c.dtype : wide;
  if (seed % 5) call.weight = numbers(t.weight, call.weight_dtype, c.channels);
  if (seed % 5 > 1 && c.op == Channels::Normalize) call.bias = numbers(t.bias, call.weight_dtype, c.channels);
  if (c.op == Channels::Gradient && seed % 7) call.means = numbers(t.means, wide, 2 * call.stats_rows());
  if (c.op == Channels::Sums) {
    if (c.of_groups || (c.groups == 0 && seed % 2)) {
      t.means.make(2 * call.stats_rows(), size_of(wide));
      call.means = t.means.data();
    }
    call.value_dtype = call.weight_dtype;
    for (int k = 0; k < 2 && !(c.of_groups && seed % 4 == 0); ++k) {
      t.values[k].make(c.channels, size_of(call.value_dtype));
      call.values[k] = t.values[k].data();
    }
  }
  return call;
}

void check(const Case& c, uint64_t seed) {
  Tensors expected, actual;
  PlannedChannels call{};
  const ChannelCall judge = make(c, expected, seed);
  static_cast<ChannelCall&>(call) = make(c, actual, seed);
  PlanOverride forced;
  forced.family = c.family;
  force_plan(forced);
  const DeviceFacts device{true, seed % 2 ? 132 : 1};
  call.plan = plan(call, device);
  force_plan({});
  if (c.op == Channels::Lay && !transposes(call, device)) return;
  cpu::baseline::channels(judge, 1, nullptr);
  simt::options.title = describe(c) + ", way " + std::to_string(int(call.plan.shape.way));
  simt::options.bulk_copies = false;
  Memory workspace;
  workspace.make(workspace_bytes(call.plan), 1);
  if (const char* error = gpu::channels(call, workspace.data(), nullptr)) {
    printf("FAILED: %s: %s\n", simt::options.title.c_str(), error);
    exit(1);
  }
  // Which of two NaNs goes on is nothing that sums, which are no results, promise.
  for (Memory* m : {&actual.means, &expected.means})
    for (int64_t i = 0; i < int64_t(m->bytes.size()) / size_of(call.accumulator); ++i)
      if (const double v = load_as<double>(call.accumulator, m->data(), i, false); v != v)
        store_as<double>(call.accumulator, m->data(), i, NAN);
  const auto same = [&](Memory& a, Memory& b, const char* what) {
    if (a.bytes == b.bytes) return;
    size_t i = 0;
    while (a.bytes[i] == b.bytes[i]) ++i;
    printf("FAILED: %s: %s differ from byte %zu of %zu on\n", simt::options.title.c_str(), what, i, a.bytes.size());
    fflush(stdout);
    exit(1);
  };
  same(actual.out, expected.out, "the elements");
  same(actual.means, expected.means, "the means");
  same(actual.mean, expected.mean, "the running mean");
  same(actual.variance, expected.variance, "the running variance");
  for (int k = 0; k < 2; ++k) same(actual.values[k], expected.values[k], "the values");
}

}  // namespace

// A copy of the rows of a tensor of such sizes, whose dims lie in memory as `order` says, the last one fastest, of
// which those from `kept` on are reduced.
void check_copy(const std::vector<int64_t>& sizes, const std::vector<int>& order, int kept, Dtype dtype, int skipped,
                int64_t gap, uint64_t seed) {
  const int dims = int(sizes.size()), size = size_of(dtype);
  std::vector<Dim> dim(sizes.size());
  int64_t stride = 1, extent = 1, row = 1;
  for (int k = dims - 1; k >= 0; --k) {
    const size_t d = size_t(order[size_t(k)]);
    dim[d] = {sizes[d], stride, 0};
    extent += (sizes[d] - 1) * stride;
    stride = stride * sizes[d] + gap;
  }
  for (int d = kept - 1; d >= 0; --d) {
    dim[size_t(d)].out = row;
    row *= sizes[size_t(d)];
  }
  Memory from, to;
  from.make(extent, size, skipped);
  for (int64_t i = 0; i < extent * size; ++i)
    static_cast<char*>(from.data())[i] = char((uint64_t(i) * 2654435761u + seed) >> 8);
  ReduceCall call{};
  call.op = Reduction::Sum;
  call.in = {from.data(), dtype, natural_accumulator(dtype)};
  call.layout = fold({dim.begin(), dim.begin() + kept}, {dim.begin() + kept, dim.end()});
  std::optional<PlannedCopy> copy = contiguous::copy_of(call, seed % 2 ? 132 : 1);
  if (!copy) {
    printf("FAILED: no kernel copies the rows of a case\n");
    exit(1);
  }
  const Layout laid = contiguous::layout_of_copy(call.layout);
  to.make(copy->elements(), size);
  copy->to = to.data();
  simt::options.title = "copy of dtype " + std::to_string(int(dtype));
  for (int d = 0; d < dims; ++d)
    simt::options.title +=
        (d ? " x " : ", ") + std::to_string(sizes[size_t(d)]) + "@" + std::to_string(dim[size_t(d)].in);
  if (const char* error = gpu::copy_rows(*copy, nullptr, nullptr)) {
    printf("FAILED: %s: %s\n", simt::options.title.c_str(), error);
    exit(1);
  }
  for (int64_t r = 0; r < call.layout.rows; ++r)
    for (int64_t i = 0; i < call.layout.length; ++i) {
      const int64_t in = row_start(call.layout, r).in + position_offset(call.layout, i);
      const int64_t at = row_start(laid, r).in + position_offset(laid, i);
      if (memcmp(static_cast<char*>(from.data()) + in * size, static_cast<char*>(to.data()) + at * size,
                 size_t(size)) == 0 &&
          row_start(call.layout, r).out == row_start(laid, r).out && at < copy->elements())
        continue;
      printf("FAILED: %s: position %ld of row %ld\n", simt::options.title.c_str(), long(i), long(r));
      exit(1);
    }
}

long check_channels(uint32_t seed, long every, bool few) {
  uint64_t turn = 0;
  long done = 0;
  const auto run = [&](const Case& c) {
    const uint64_t number = seed + turn++, drawn = number * 0x9E3779B97F4A7C15u >> 20;
    if (drawn % uint64_t(every) || (few && c.dtype == Dtype::F16)) return;
    simt::options.seed = uint32_t(number);
    simt::options.reverse = number % 2;
    check(c, number);
    ++done;
  };
  struct Permuted {
    std::vector<int64_t> sizes;
    std::vector<int> order;
    int kept;
  };
  for (Dtype d : {Dtype::F32, Dtype::BF16, Dtype::F64})
    for (const auto& [sizes, order, kept] : {Permuted{{5, 700}, {1, 0}, 0},
                                             {{700, 5}, {1, 0}, 0},
                                             {{131, 67}, {1, 0}, 0},
                                             {{290, 411}, {1, 0}, 0},
                                             {{2, 300}, {1, 0}, 0},
                                             {{300, 2}, {1, 0}, 0},
                                             {{2, 3, 1500}, {0, 2, 1}, 0},
                                             {{3, 7, 5, 16}, {0, 2, 1, 3}, 0},
                                             {{3, 7, 5, 17}, {0, 2, 1, 3}, 1},
                                             {{6, 9, 4, 5}, {1, 3, 2, 0}, 0},
                                             {{6, 9, 40, 5}, {1, 3, 2, 0}, 1},
                                             {{4, 3, 70, 21}, {3, 0, 2, 1}, 2},
                                             {{3, 2, 4, 3, 5, 9}, {5, 1, 3, 0, 2, 4}, 2},
                                             {{184, 40, 2, 8}, {1, 2, 3, 0}, 0},
                                             {{9, 1100, 8}, {1, 0, 2}, 1}})
      for (int skipped : {0, 1})
        for (int64_t gap : {0, 3}) {
          const uint64_t number = seed + turn++, drawn = number * 0x9E3779B97F4A7C15u >> 20;
          if (drawn % uint64_t(every)) continue;
          simt::options.seed = uint32_t(number);
          check_copy(sizes, order, kept, d, skipped, gap, number);
          ++done;
        }
  struct Shape { int64_t samples, channels, length, groups; };
  for (Channels op : {Channels::Normalize, Channels::Sums, Channels::Gradient, Channels::Move, Channels::Lay})
    for (Dtype d : {Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::F64})
      for (const auto& [samples, channels, length, groups] : {Shape{2, 8, 49, 2},
                                                              {5, 16, 1, 4},
                                                              {3, 6, 7, 3},
                                                              {2, 32, 64, 8},
                                                              {1, 4, 700, 1},
                                                              {300, 8, 9, 8},
                                                              {70, 24, 33, 4},
                                                              {40, 136, 16, 8},
                                                              {2, 8, 4100, 4},
                                                              {2, 6, 2048, 2},
                                                              {1, 4, 4096, 4},
                                                              {3, 1, 5, 1},
                                                              {2500, 8, 1, 2},
                                                              {1, 264, 3, 33}})
        for (bool last : {false, true}) {
          run({op, d, samples, channels, length, 0, last});
          run({op, d, samples, channels, length, 0, last, 1});
          run({op, d, samples, channels, length, 0, last, 0, 8, "elements"});
          run({op, d, samples, channels, length, groups, last});
          run({op, d, samples, channels, length, groups, last, 0, 3});
          if (op == Channels::Sums) {
            run({op, d, samples, channels, length, groups, last, 0, 0, nullptr, true});
            run({op, d, samples, channels, length, 0, last, 0, 0, "lines"});
          }
        }
  return done;
}
