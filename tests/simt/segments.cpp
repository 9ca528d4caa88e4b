#include "segments.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "array.h"
#include "emulator.h"
#include "kernels/reduce/segments.h"
#include "ops/reductions.h"
#include "reference.h"

using namespace torchreduce;

namespace torchreduce::cpu::baseline {
bool segment_sums(const SegmentCall& call, int64_t threads,
                  void (*)(int64_t, void (*)(void*, int64_t, int64_t), void*));
}

namespace {

// Of each segment. Once, twice, as many as a team adds up alone and one more, a leaf, one more, several leaves; long
// ones side by side.
using Lengths = std::vector<int64_t>;
const Lengths kMixed = {1, 0, 2, 7, 17, 128, 129, 300, 2048, 2049, 4100, 0, 1};
// One segment has every place: of more leaves than the last kernel adds up at once, and a rest.
const Lengths kOne = {0, 66 * kLeaf + 3}, kFewLeaves = {2 * kLeaf + 1};
constexpr int64_t kSkipped = 3;

// `count` segments without repeats, and only every `step`th with a place: their keys have 1, 2 and 4 bytes.
Lengths no_repeats(int64_t count, int64_t step) {
  Lengths lengths(size_t(count), 0);
  for (int64_t s = 0; s < count; s += step) lengths[size_t(s)] = 1;
  return lengths;
}

struct Case {
  Dtype dtype;
  int64_t columns;
  int gap, ahead;  // elements between rows, and before the first one
  int multiprocessors;
  Values values;
  Lengths lengths;
};

// The elements of out.
template <class E> std::vector<char> expected(const SegmentCall& call, const Lengths& lengths) {
  const Sum<E> op{OpOptions{}};
  std::vector<E> out(size_t(call.segments * call.columns), E{});
  int64_t first = 0;
  for (int64_t s = 0; s < call.segments; ++s) {
    const int64_t rows = s == kSkipped ? 0 : lengths[size_t(s)];
    for (int64_t c = 0; c < call.columns && rows > 0; ++c) {
      const auto acc = reference::reduce(
          op, rows, [&](int64_t i) { return static_cast<const E*>(call.in)[call.order[first + i] * call.pitch + c]; });
      out[size_t(s * call.columns + c)] = round_to<E>(acc);
    }
    first += rows;
  }
  const char* bytes = reinterpret_cast<const char*>(out.data());
  return {bytes, bytes + out.size() * sizeof(E)};
}
std::vector<char> expected(const SegmentCall& call, const Lengths& lengths) {
  switch (call.dtype) {
    case Dtype::F32: return expected<float>(call, lengths);
    case Dtype::F64: return expected<double>(call, lengths);
    case Dtype::BF16: return expected<BF16>(call, lengths);
    default: return expected<F16>(call, lengths);
  }
}

void check(const Case& c, uint32_t seed) {
  const int64_t size = size_of(c.dtype), pitch = c.columns + c.gap, segments = int64_t(c.lengths.size());
  std::vector<int64_t> indices, order;
  for (int64_t s = 0; s < segments; ++s) indices.insert(indices.end(), size_t(c.lengths[size_t(s)]), s);
  const int64_t rows = int64_t(indices.size());
  indices.insert(indices.end(), {segments, -1, int64_t(1) << 40});  // no rows of out
  const int64_t places = int64_t(indices.size());

  PlannedKeys keys;
  const Dtype key = segments::key_dtype(segments);
  std::vector<char> unsorted(size_t(places * size_of(key))), sorted = unsorted;
  keys.indices = indices.data();
  keys.places = places;
  keys.count = segments;
  keys.skipped = kSkipped;
  keys.keys = unsorted.data();
  keys.plan = plan(keys, DeviceFacts{true, c.multiprocessors});
  simt::options.seed = seed;
  simt::options.title = "keys";
  if (gpu::segment_keys(keys, nullptr, nullptr)) exit(1);
  std::vector<int64_t> by_key(static_cast<size_t>(places));
  std::iota(by_key.begin(), by_key.end(), 0);
  std::stable_sort(by_key.begin(), by_key.end(), [&](int64_t a, int64_t b) {
    return segments::number_at(unsorted.data(), key, a) < segments::number_at(unsorted.data(), key, b);
  });
  for (int64_t p = 0; p < places; ++p) {
    memcpy(&sorted[size_t(p * size_of(key))], &unsorted[size_t(by_key[size_t(p)] * size_of(key))],
           size_t(size_of(key)));
    order.push_back((p * 7919 + 5) % rows);  // anywhere: 7919 divides no number here
  }

  std::vector<char> elements = make_elements(c.dtype, c.ahead + rows * pitch, seed, c.values);
  elements.resize(size_t((c.ahead + rows * pitch - c.gap) * size));
  elements.shrink_to_fit();
  PlannedSegments call;
  call.in = elements.data() + c.ahead * size;
  call.pitch = pitch;
  call.dtype = c.dtype;
  call.keys = sorted.data();
  call.order = order.data();
  call.places = places;
  call.columns = c.columns;
  call.segments = segments;

  std::string what = "segments of dtype ";
  what += std::to_string(int(c.dtype)) + ", " + std::to_string(c.columns) + " columns " + std::to_string(pitch) +
          " apart, from " + std::to_string(c.ahead) + ", " + std::to_string(segments) + " segments of " +
          std::to_string(places) + " places";
  const std::vector<char> wanted = expected(call, c.lengths);
  const auto judge = [&](const std::vector<char>& out, const char* by) {
    if (out == wanted) return;
    const auto at = std::mismatch(out.begin(), out.end(), wanted.begin()).first - out.begin();
    printf("FAILED: %s, %s: the bits of row %lld, column %lld differ\n", what.c_str(), by,
           static_cast<long long>(at / size / c.columns), static_cast<long long>(at / size % c.columns));
    fflush(stdout);
    exit(1);
  };
  std::vector<char> out(size_t(segments * c.columns * size), char(0x7f));
  call.out = out.data();
  if (!cpu::baseline::segment_sums(call, 1, nullptr)) exit(1);
  judge(out, "on the CPU");

  simt::options.title = what;
  std::fill(out.begin(), out.end(), char(0x7f));
  call.plan = plan(call, DeviceFacts{true, c.multiprocessors});
  const std::vector<char> filled(size_t(workspace_bytes(call.plan)), char(0x7f));
  std::vector<char> workspace = filled;
  if (const char* error = gpu::segment_sums(call, workspace.data(), nullptr)) {
    printf("FAILED: %s: %s\n", what.c_str(), error);
    exit(1);
  }
  judge(out, "emulated");
}

// Keys are in the order of the numbers of their segments, whatever type they have.
void check_keys() {
  for (int64_t count : {int64_t(0), int64_t(1), int64_t(255), int64_t(256), int64_t(65535), int64_t(65536),
                        (int64_t(1) << 32) - 1, int64_t(1) << 32, INT64_MAX})
    for (int64_t index : {int64_t(0), int64_t(1), count / 2, count - 1, count, int64_t(-1), INT64_MIN, INT64_MAX}) {
      int64_t key = 0;
      KeyCall call{&index, 1, count, 1, &key};
      call.take(0);
      const bool counts = index >= 0 && index < count && index != 1;
      if (segments::number_at(&key, segments::key_dtype(count), 0) == (counts ? index : count)) continue;
      printf("FAILED: the key of %lld of %lld\n", static_cast<long long>(index), static_cast<long long>(count));
      exit(1);
    }
}

}  // namespace

long check_segments(uint32_t seed, long every, bool few) {
  long seen = 0, done = 0;
  check_keys();
  for (Dtype dtype : {Dtype::F32, Dtype::BF16, Dtype::F64, Dtype::F16}) {
    if (few && dtype == Dtype::F16) continue;
    for (const Case& c :
         {Case{dtype, 12, 0, 0, 132, Values::Plain, kMixed}, Case{dtype, 5, 3, 0, 1, Values::Hostile, kMixed},
          Case{dtype, 8, 0, 1, 1, Values::NegativeZeros, kMixed}, Case{dtype, 132, 4, 4, 1, Values::Hostile, kMixed},
          Case{dtype, 1, 0, 0, 2, Values::Plain, kOne}, Case{dtype, 100, 0, 0, 132, Values::Hostile, kFewLeaves},
          Case{dtype, 20, 0, 0, 2, Values::NegativeZeros, no_repeats(200, 1)},
          Case{dtype, 12, 1, 0, 132, Values::Hostile, no_repeats(300, 2)},
          Case{dtype, 1, 0, 0, 1, Values::Plain, no_repeats(65536, 1001)}}) {
      const long turn = seen++;
      if (turn % std::min(every, 7l) == 0) check(c, seed + uint32_t(turn)), ++done;
    }
  }
  return done;
}
