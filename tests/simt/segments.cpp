#include "segments.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "array.h"
#include "emulator.h"
#include "kernels/reduce/segments.h"
#include "ops.h"
#include "reference.h"

using namespace torchreduce;

namespace torchreduce::cpu::baseline {
bool segment_sums(const SegmentCall& call, int64_t threads,
                  void (*)(int64_t, void (*)(void*, int64_t, int64_t), void*));
}

namespace {

// Once, twice, as many as a warp adds up alone and one more, a leaf, one more, several leaves; long ones side by side.
constexpr int64_t kLengths[] = {1, 0, 2, 7, 64, 65, 300, 2048, 2049, 4100, 0, 1};
constexpr int64_t kSegments = std::size(kLengths), kSkipped = 3;

struct Case {
  Dtype dtype;
  int64_t columns;
  int gap, ahead;  // elements between rows, and before the first one
  int multiprocessors;
  Values values;
};

// The elements of out, which were zero.
template <class E> std::vector<char> expected(const SegmentCall& call) {
  const Sum<E> op{OpOptions{}};
  std::vector<E> out(size_t(kSegments * call.columns), E{});
  for (int64_t s = 0, first = 0; s < kSegments; first += kLengths[s++])
    for (int64_t c = 0; c < call.columns && s != call.skipped && kLengths[s] > 0; ++c) {
      const auto acc = reference::reduce(op, kLengths[s], [&](int64_t i) {
        return static_cast<const E*>(call.in)[call.order[first + i] * call.pitch + c];
      });
      out[size_t(s * call.columns + c)] = round_to<E>(acc);
    }
  const char* bytes = reinterpret_cast<const char*>(out.data());
  return {bytes, bytes + out.size() * sizeof(E)};
}
std::vector<char> expected(const SegmentCall& call) {
  switch (call.dtype) {
    case Dtype::F32: return expected<float>(call);
    case Dtype::F64: return expected<double>(call);
    case Dtype::BF16: return expected<BF16>(call);
    default: return expected<F16>(call);
  }
}

void check(const Case& c, uint32_t seed) {
  const int64_t size = size_of(c.dtype), pitch = c.columns + c.gap;
  std::vector<int64_t> segment, order;
  for (int64_t s = 0; s < kSegments; ++s) segment.insert(segment.end(), size_t(kLengths[s]), s);
  const int64_t places = int64_t(segment.size());
  for (int64_t p = 0; p < places; ++p)
    order.push_back((p * 7919 + 5) % places);  // anywhere: 7919 divides no number here
  segment.push_back(kSegments);                // no row of out
  order.push_back(0);

  std::vector<char> elements = make_elements(c.dtype, c.ahead + places * pitch, seed, c.values);
  elements.resize(size_t((c.ahead + places * pitch - c.gap) * size));
  elements.shrink_to_fit();
  PlannedSegments call;
  call.in = elements.data() + c.ahead * size;
  call.pitch = pitch;
  call.dtype = c.dtype;
  call.segment = segment.data();
  call.order = order.data();
  call.places = places + 1;
  call.columns = c.columns;
  call.segments = kSegments;
  call.skipped = kSkipped;

  std::string what = "segments of dtype ";
  what += std::to_string(int(c.dtype)) + ", " + std::to_string(c.columns) + " columns " + std::to_string(pitch) +
          " apart, from " + std::to_string(c.ahead);
  const std::vector<char> wanted = expected(call);
  const auto judge = [&](const std::vector<char>& out, const char* by) {
    if (out == wanted) return;
    const auto at = std::mismatch(out.begin(), out.end(), wanted.begin()).first - out.begin();
    printf("FAILED: %s, %s: the bits of row %lld, column %lld differ\n", what.c_str(), by,
           static_cast<long long>(at / size / c.columns), static_cast<long long>(at / size % c.columns));
    fflush(stdout);
    exit(1);
  };
  std::vector<char> out(size_t(kSegments * c.columns * size), 0);
  call.out = out.data();
  if (!cpu::baseline::segment_sums(call, 1, nullptr)) exit(1);
  judge(out, "on the CPU");

  simt::options.seed = seed;
  simt::options.title = what;
  std::fill(out.begin(), out.end(), 0);
  call.plan = plan(call, DeviceFacts{true, c.multiprocessors});
  const std::vector<char> filled(size_t(workspace_bytes(call.plan)), char(0x7f));
  std::vector<char> workspace = filled;
  if (const char* error = gpu::segment_sums(call, workspace.data(), nullptr)) {
    printf("FAILED: %s: %s\n", what.c_str(), error);
    exit(1);
  }
  judge(out, "emulated");
}

}  // namespace

long check_segments(uint32_t seed, long every, bool few) {
  long seen = 0, done = 0;
  for (Dtype dtype : {Dtype::F32, Dtype::BF16, Dtype::F64, Dtype::F16}) {
    if (few && dtype == Dtype::F16) continue;
    for (const Case& c : {Case{dtype, 12, 0, 0, 132, Values::Plain}, Case{dtype, 5, 3, 0, 1, Values::Hostile},
                          Case{dtype, 8, 0, 1, 1, Values::NegativeZeros}, Case{dtype, 132, 4, 4, 1, Values::Hostile}}) {
      const long turn = seen++;
      if (turn % std::min(every, 12l) == 0) check(c, seed + uint32_t(turn)), ++done;
    }
  }
  return done;
}
