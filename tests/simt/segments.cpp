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
#include "kernels/reduce/segment_rows.h"
#include "reference.h"

using namespace torchreduce;

namespace torchreduce::cpu::baseline {
bool reduce_segments(const SegmentReduction& call, int64_t threads,
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

std::vector<int64_t> offsets_of(const Lengths& lengths, int64_t first) {
  std::vector<int64_t> offsets{first};
  for (int64_t rows : lengths) offsets.push_back(offsets.back() + rows);
  return offsets;
}

// Fills in the output of a call, segment by segment.
template <class Op> void expect(const SegmentReduction& call) {
  const Op op{OpOptions{}};
  for (int64_t outer = 0; outer < call.outer; ++outer)
    for (int64_t s = 0; s < call.segments; ++s)
      for (int64_t c = 0; c < call.inner; ++c) {
        const int64_t begin = call.begin(s), rows = std::max<int64_t>(0, call.begin(s + 1) - begin);
        const auto offset = [&](int64_t i) {
          return outer * call.outer_stride + call.row_at(begin + i) * call.row_stride + c * call.inner_stride;
        };
        typename Op::Acc acc = op.absent();
        if (rows) acc = reference::reduce(op, rows, [&](int64_t i) { return load_element<Op>(call, offset(i)); });
        finish_segment<Op>(call, acc, rows, (outer * call.segments + s) * call.inner + c, offset);
      }
}
template <template <class> class Op> void expect_of(const SegmentReduction& call) {
  if (call.in.accumulator == Dtype::F64) expect<Op<double>>(call);
  else if (call.in.accumulator == Dtype::I64) expect<Op<int64_t>>(call);
  else expect<Op<float>>(call);
}
void expect(const SegmentReduction& call) {
  switch (call.op) {
    case Reduction::Sum: return expect_of<Sum>(call);
    case Reduction::Product: return expect_of<Product>(call);
    case Reduction::Extreme: return expect<Extreme<int64_t>>(call);
    default: return expect<ArgExtreme<int64_t>>(call);
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

  // The same for the CPU: what is left out comes last, so that segment kSkipped is empty.
  Lengths lengths = c.lengths;
  if (kSkipped < segments) lengths[size_t(kSkipped)] = 0;
  const std::vector<int64_t> offsets = offsets_of(lengths, 0);
  SegmentReduction same{};
  same.op = Reduction::Sum;
  same.in = Source{call.in, c.dtype, natural_accumulator(c.dtype)};
  same.out.dtype = c.dtype;
  same.rows = places;
  same.inner = c.columns;
  same.segments = segments;
  same.row_stride = pitch;
  same.inner_stride = 1;
  same.offsets = offsets.data();
  same.order = order.data();

  std::string what = "segments of dtype ";
  what += std::to_string(int(c.dtype)) + ", " + std::to_string(c.columns) + " columns " + std::to_string(pitch) +
          " apart, from " + std::to_string(c.ahead) + ", " + std::to_string(segments) + " segments of " +
          std::to_string(places) + " places";
  const std::vector<char> self = make_elements(c.dtype, segments * c.columns, seed + 7, c.values);
  std::vector<char> wanted, out;
  const auto judge = [&](const char* by) {
    if (out == wanted) return;
    const auto at = std::mismatch(out.begin(), out.end(), wanted.begin()).first - out.begin();
    printf("FAILED: %s, %s: the bits of row %lld, column %lld differ\n", what.c_str(), by,
           static_cast<long long>(at / size / c.columns), static_cast<long long>(at / size % c.columns));
    fflush(stdout);
    exit(1);
  };
  const std::string title = what;
  const auto run = [&](const SumFinish& finish, const char* how) {
    what = title + how;
    same.finish = call.finish = finish;
    same.options.mean = finish.mean;
    wanted = self;
    same.out.values = wanted.data();
    expect(same);
    out = self;
    same.out.values = out.data();
    if (!cpu::baseline::reduce_segments(same, 1, nullptr)) exit(1);
    judge("on the CPU");
    simt::options.title = what;
    out = self;
    call.out = out.data();
    call.plan = plan(call, DeviceFacts{true, c.multiprocessors});
    std::vector<char> workspace(size_t(workspace_bytes(call.plan)), char(0x7f));
    if (const char* error = gpu::segment_sums(call, workspace.data(), nullptr)) {
      printf("FAILED: %s: %s\n", what.c_str(), error);
      exit(1);
    }
    judge("emulated");
  };
  run({}, ", by keys");

  std::vector<int64_t> found(size_t(segments + 1), -1);
  PlannedOffsets find;
  find.keys = sorted.data();
  find.places = places;
  find.segments = segments;
  find.found = found.data();
  if (gpu::segment_offsets(find, nullptr, nullptr)) exit(1);
  if (found != offsets) {
    printf("FAILED: %s: the offsets of sorted keys differ\n", title.c_str());
    exit(1);
  }

  std::vector<int32_t> narrow(offsets.begin(), offsets.end());
  call.keys = nullptr;
  call.offsets = narrow.data();
  call.offsets_dtype = Dtype::I32;
  run({Onto::Self, 0.75}, ", by offsets onto self with alpha");
  run({Onto::Self, 1, true}, ", by offsets, the mean with self");
  run({Onto::Place, 1, true}, ", by offsets, the mean in its place");
  run({Onto::New, 1, true}, ", by offsets, the mean");
  // Rows as they lie; from the third one on where a segment can do with two less.
  Lengths fewer = lengths;
  const auto long_one = std::find_if(fewer.begin(), fewer.end(), [](int64_t rows_of_it) { return rows_of_it > 2; });
  if (long_one != fewer.end()) *long_one -= 2;
  const std::vector<int64_t> from_third = offsets_of(fewer, long_one != fewer.end() ? 2 : 0);
  call.offsets = same.offsets = from_third.data();
  call.offsets_dtype = Dtype::I64;
  call.order = same.order = nullptr;
  run({}, ", by offsets without an order");
}

// Whatever is no sum of rows: each op, of which `outer`, `inner`, and where elements lie.
struct AnyCase {
  Reduction op;
  Dtype dtype;
  Values values;
  int64_t outer, inner;
  bool across;  // rows are neighbours, else inner elements
  Lengths lengths;
  SumFinish finish = {};
};

void check(const AnyCase& c, uint32_t seed) {
  std::vector<int64_t> offsets = offsets_of(c.lengths, 3), order;
  const int64_t rows = offsets.back() + 5, segments = int64_t(c.lengths.size()), elements = c.outer * rows * c.inner;
  for (int64_t p = 0; p < rows; ++p) order.push_back((p * 7919 + 5) % rows);
  const std::vector<char> x = make_elements(c.dtype, elements, seed, c.values);
  const Dtype accumulator = natural_accumulator(c.dtype);
  const bool sums = c.op == Reduction::Sum || c.op == Reduction::Product;
  const Dtype result = sums && !is_float(c.dtype) ? Dtype::I64 : c.dtype;
  PlannedSegmentReduction call{};
  call.op = c.op;
  call.in = Source{x.data(), c.dtype, accumulator};
  call.out.dtype = result;
  call.outer = c.outer;
  call.rows = rows;
  call.inner = c.inner;
  call.segments = segments;
  call.outer_stride = rows * c.inner;
  call.row_stride = c.across ? 1 : c.inner;
  call.inner_stride = c.across ? rows : 1;
  call.offsets = offsets.data();
  call.finish = c.finish;
  const int64_t count = c.outer * segments * c.inner;
  const std::vector<char> self = make_elements(result, count, seed + 7, c.values);
  for (bool min : {false, true}) {
    if (sums && min) continue;
    call.options.min = min;
    call.order = min || sums ? order.data() : nullptr;
    std::string what = "segments by op " + std::to_string(int(c.op)) + ", dtype " + std::to_string(int(c.dtype)) +
                       ", " + std::to_string(c.outer) + " x " + std::to_string(segments) + " x " +
                       std::to_string(c.inner) + (min ? ", least" : "");
    std::vector<char> values[3] = {self, self, self};
    std::vector<int64_t> indices[3];
    for (int by = 0; by < 3; ++by) {
      indices[by].assign(size_t(count), -7);
      call.out.values = values[by].data();
      call.out.indices = c.op == Reduction::ArgExtreme ? indices[by].data() : nullptr;
      simt::options.title = what;
      if (by == 0) expect(call);
      else if (by == 1 && !cpu::baseline::reduce_segments(call, 1, nullptr)) exit(1);
      else if (by == 2) {
        call.plan = plan(static_cast<const SegmentReduction&>(call), DeviceFacts{true, 2});
        if (gpu::reduce_segments(call, nullptr, nullptr)) exit(1);
      }
      if (values[by] == values[0] && indices[by] == indices[0]) continue;
      printf("FAILED: %s, %s: bits differ\n", what.c_str(), by == 1 ? "on the CPU" : "emulated");
      fflush(stdout);
      exit(1);
    }
  }
}

// Offsets that fall, overlap or lie outside: nothing is read or written elsewhere, whatever the sums are. (Segments of
// several leaves that overlap also share what they keep of these, as no others do.)
void check_wrong_offsets(uint32_t seed) {
  const int64_t rows = kLeaf, columns = 4;
  const std::vector<char> x = make_elements(Dtype::F32, rows * columns, seed, Values::Plain);
  std::vector<int64_t> offsets{-5, 1500, 1000, int64_t(1) << 40};
  for (int i = 0; i < 20; ++i) offsets.insert(offsets.end(), {0, rows});
  const int64_t segments = int64_t(offsets.size()) - 1;
  std::vector<char> out(size_t(segments * columns * 4));
  PlannedSegments call;
  call.in = x.data();
  call.pitch = columns;
  call.offsets = offsets.data();
  call.places = rows;
  call.columns = columns;
  call.segments = segments;
  call.out = out.data();
  call.plan = plan(call, DeviceFacts{true, 2});
  std::vector<char> workspace(size_t(workspace_bytes(call.plan)), char(0x7f));
  simt::options.seed = seed;
  simt::options.title = "wrong offsets";
  if (gpu::segment_sums(call, workspace.data(), nullptr)) exit(1);
}

// Keys are in the order of the numbers of their segments, whatever type they have.
void check_keys() {
  for (int64_t count : {int64_t(0), int64_t(1), int64_t(255), int64_t(256), int64_t(65535), int64_t(65536),
                        (int64_t(1) << 32) - 1, int64_t(1) << 32, INT64_MAX})
    for (int64_t index : {int64_t(0), int64_t(1), count / 2, count - 1, count, int64_t(-1), INT64_MIN, INT64_MAX}) {
      int64_t key = 0;
      KeyCall call{&index, Dtype::I64, 1, count, 1, &key, {}};
      call.take(0);
      const bool counts = index >= 0 && index < count && index != 1;
      if (segments::number_at(&key, segments::key_dtype(count), 0) == (counts ? index : count)) continue;
      printf("FAILED: the key of %lld of %lld\n", static_cast<long long>(index), static_cast<long long>(count));
      exit(1);
    }
  // Of elements of (2, 3, 4), which go to those of (2, 5, 4).
  int64_t place = 0;
  for (int64_t outer = 0; outer < 2; ++outer)
    for (int64_t row = 0; row < 3; ++row)
      for (int64_t inner = 0; inner < 4; ++inner, ++place)
        for (int64_t index : {int64_t(0), int64_t(4), int64_t(5), int64_t(-1)}) {
          std::vector<int64_t> all(24, index);
          std::vector<uint8_t> keys(24);
          KeyCall call{all.data(), Dtype::I64, 24, 40, -1, keys.data(), Elements{12, 5, 4}};
          call.take(place);
          const int64_t wanted = index < 0 || index >= 5 ? 40 : (outer * 5 + index) * 4 + inner;
          if (segments::number_at(keys.data(), segments::key_dtype(40), place) == wanted) continue;
          printf("FAILED: the key of element %lld\n", static_cast<long long>(place));
          exit(1);
        }
}

}  // namespace

long check_segments(uint32_t seed, long every, bool few) {
  long seen = 0, done = 0;
  const auto take = [&](const auto& c) {
    const long turn = seen++;
    if (turn % std::min(every, 7l) == 0) check(c, seed + uint32_t(turn)), ++done;
  };
  check_keys();
  check_wrong_offsets(seed);
  for (Dtype dtype : {Dtype::F32, Dtype::BF16, Dtype::F64, Dtype::F16}) {
    if (few && dtype == Dtype::F16) continue;
    for (const Case& c :
         {Case{dtype, 12, 0, 0, 132, Values::Plain, kMixed}, Case{dtype, 5, 3, 0, 1, Values::Hostile, kMixed},
          Case{dtype, 8, 0, 1, 1, Values::NegativeZeros, kMixed}, Case{dtype, 132, 4, 4, 1, Values::Hostile, kMixed},
          Case{dtype, 1, 0, 0, 2, Values::Plain, kOne}, Case{dtype, 100, 0, 0, 132, Values::Hostile, kFewLeaves},
          Case{dtype, 20, 0, 0, 2, Values::NegativeZeros, no_repeats(200, 1)},
          Case{dtype, 12, 1, 0, 132, Values::Hostile, no_repeats(300, 2)},
          Case{dtype, 1, 0, 0, 1, Values::Plain, no_repeats(65536, 1001)}})
      take(c);
    const Lengths long_ones = {9 * kLeaf + 3, 0, 17};
    for (Reduction op : {Reduction::Sum, Reduction::Product, Reduction::Extreme, Reduction::ArgExtreme}) {
      take(AnyCase{op, dtype, Values::Plain, 2, 3, false, kMixed});
      take(AnyCase{op, dtype, Values::Hostile, 1, 40, false, {5, 0, 300, 2, 1}});
      take(AnyCase{op, dtype, Values::Hostile, 1, 2, true, long_ones});
      if (op == Reduction::ArgExtreme) continue;
      take(AnyCase{op, dtype, Values::NegativeZeros, 3, 1, true, kMixed, {Onto::Self, op == Reduction::Sum ? 0.5 : 1}});
      take(AnyCase{op, dtype, Values::Hostile, 1, 5, true, kMixed, {Onto::Place, 1, op == Reduction::Sum}});
    }
  }
  for (Dtype dtype : {Dtype::U8, Dtype::Bool, Dtype::I16, Dtype::I64})
    for (Reduction op : {Reduction::Sum, Reduction::Product, Reduction::Extreme, Reduction::ArgExtreme})
      take(AnyCase{op, dtype, Values::Plain, 1, 3, false, kMixed});
  return done;
}
