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
#include "kernels/reduce/segment_index.h"
#include "reference.h"

using namespace torchreduce;

// The sort of kernels/common/sort.h, by the standard library.
namespace torchreduce::gpu {
int64_t sort_bytes(int64_t, int) { return 0; }
const char* sort_pairs(SortCall& call, void*, int64_t, void*) {
  std::vector<uint32_t> order(static_cast<size_t>(call.count));
  std::iota(order.begin(), order.end(), 0u);
  const uint64_t mask = (uint64_t(1) << call.bits) - 1;
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return (call.keys[0][a] & mask) < (call.keys[0][b] & mask); });
  for (size_t i = 0; i < order.size(); ++i) {
    call.keys[1][i] = call.keys[0][order[i]];
    call.values[1][i] = call.values[0][order[i]];
  }
  std::swap(call.keys[0], call.keys[1]);
  std::swap(call.values[0], call.values[1]);
  return nullptr;
}
}  // namespace torchreduce::gpu

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
// More than a block has, of packed ones; teams of one, four and a warp's threads.
const Lengths kMany = [] {
  Lengths lengths;
  for (int i = 0; i < 1500; ++i) lengths.push_back(i * 37 % 11);
  return lengths;
}();
const Lengths kMiddle = {40, 200, 0, 90, 257, 31, 33, 64}, kWide = {500, 256, 1025, 255, 1999, 0, 700};
// Of one column: about as many as two sizes of teams have room for, and more.
const Lengths kForty = {30, 64, 0, 65, 33, 7, 50, 1}, kEighty = {100, 128, 0, 129, 31, 64, 10, 90, 77, 128};
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

[[noreturn]] void fail(const std::string& what) {
  printf("FAILED: %s\n", what.c_str());
  fflush(stdout);
  exit(1);
}

// Runs a planned call, in a workspace of any content.
template <class Planned>
void run(Planned& call, int multiprocessors, const char* (*launch)(const Planned&, void*, void*),
         const std::string& what) {
  call.plan = plan(call, DeviceFacts{true, multiprocessors});
  std::vector<char> workspace(size_t(workspace_bytes(call.plan)), char(0x7f));
  simt::options.title = what;
  if (const char* error = launch(call, workspace.data(), nullptr)) fail(what + ": " + error);
}

// The number of each place, in an order without pattern, and some that are of no segment.
std::vector<int64_t> index_of(const Lengths& lengths) {
  std::vector<int64_t> sorted, index;
  for (size_t s = 0; s < lengths.size(); ++s) sorted.insert(sorted.end(), size_t(lengths[s]), int64_t(s));
  sorted.insert(sorted.end(), {int64_t(lengths.size()), -1, int64_t(1) << 40});
  const int64_t places = int64_t(sorted.size());
  for (int64_t p = 0; p < places; ++p)
    index.push_back(sorted[size_t(p * 7919 % places)]);  // which divides no number here
  return index;
}

void check(const Case& c, uint32_t seed) {
  const int64_t size = size_of(c.dtype), pitch = c.columns + c.gap, segments = int64_t(c.lengths.size());
  const std::vector<int64_t> index = index_of(c.lengths);
  const int64_t places = int64_t(index.size());
  std::vector<int64_t> order(static_cast<size_t>(places));
  std::iota(order.begin(), order.end(), 0);
  const auto number = [&](int64_t place) {
    const int64_t n = index[size_t(place)];
    return n < 0 || n >= segments ? segments : n;
  };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return number(a) < number(b); });
  std::vector<int64_t> offsets = offsets_of(c.lengths, 0);

  std::vector<char> elements = make_elements(c.dtype, c.ahead + places * pitch, seed, c.values);
  elements.resize(size_t((c.ahead + places * pitch - c.gap) * size));
  elements.shrink_to_fit();
  SegmentReduction call{};
  call.in = Source{elements.data() + c.ahead * size, c.dtype, natural_accumulator(c.dtype)};
  call.out.dtype = c.dtype;
  call.rows = places;
  call.inner = c.columns;
  call.segments = segments;
  call.row_stride = pitch;
  call.inner_stride = 1;
  call.offsets = offsets.data();
  call.order = order.data();

  std::string title = "segments of dtype ";
  title += std::to_string(int(c.dtype)) + ", " + std::to_string(c.columns) + " columns " + std::to_string(pitch) +
           " apart, from " + std::to_string(c.ahead) + ", " + std::to_string(segments) + " segments of " +
           std::to_string(places) + " places";
  simt::options.seed = seed;

  std::vector<int64_t> found(size_t(segments + 1), -1), ordered(size_t(places), -1);
  PlannedIndex find{};
  find.index = index.data();
  find.places = places;
  find.count = segments;
  find.offsets = found.data();
  find.order = ordered.data();
  run(find, c.multiprocessors, gpu::index_segments, title + ", their places");
  if (found != offsets || ordered != order) fail(title + ": the places of numbers differ");

  const std::vector<char> self = make_elements(c.dtype, segments * c.columns, seed + 7, c.values);
  std::vector<char> wanted, out;
  const auto judge = [&](const std::string& what) {
    if (out == wanted) return;
    const auto at = std::mismatch(out.begin(), out.end(), wanted.begin()).first - out.begin();
    fail(what + ": the bits of row " + std::to_string(at / size / c.columns) + ", column " +
         std::to_string(at / size % c.columns) + " differ");
  };
  const auto check_call = [&](const SumFinish& finish, const std::string& how, int64_t skipped = -1) {
    const std::string what = title + how;
    call.finish = finish;
    call.options.mean = finish.mean;
    wanted = self;
    call.out.values = wanted.data();
    expect(call);
    out = self;
    call.out.values = out.data();
    if (!cpu::baseline::reduce_segments(call, 1, nullptr)) exit(1);
    judge(what + ", on the CPU");
    PlannedSegments planned{call, {}};
    out = self;
    planned.out.values = out.data();
    run(planned, c.multiprocessors, gpu::reduce_segments, what);
    judge(what + ", emulated");
    if (!call.order) return;
    PlannedIndexed indexed{{call, index.data(), Dtype::I64, skipped, {}}, {}};
    indexed.offsets = indexed.order = nullptr;
    out = self;
    indexed.out.values = out.data();
    run(indexed, c.multiprocessors, gpu::reduce_by_index, what + ", by an index");
    judge(what + ", by an index");
  };
  for (Reduction op : {Reduction::Sum, Reduction::Extreme}) {
    const std::string name = op == Reduction::Sum ? ", sums" : ", extremes";
    call.op = op;
    call.options.min = c.gap > 0;
    check_call({}, name);
    check_call({Onto::Self, op == Reduction::Sum ? .75 : 1}, name + " onto self");
    if (op == Reduction::Extreme) continue;
    check_call({Onto::Self, 1, true}, ", the mean with self");
    check_call({Onto::Place, 1, true}, ", the mean in its place");
    check_call({Onto::New, 1, true}, ", the mean");
  }
  // Of a number that is left out no place is of a segment.
  if (kSkipped < segments) {
    Lengths fewer = c.lengths;
    fewer[size_t(kSkipped)] = 0;
    const std::vector<int64_t> bounds = offsets_of(fewer, 0);
    std::vector<int64_t> rest;
    for (int64_t place : order)
      if (number(place) != kSkipped && number(place) < segments) rest.push_back(place);
    rest.resize(order.size(), 0);
    call.op = Reduction::Sum;
    call.offsets = bounds.data();
    call.order = rest.data();
    check_call({}, ", without one of them", kSkipped);
  }
  // Rows as they lie, also from the third one on.
  call.order = nullptr;
  for (int64_t first : {0, 2}) {
    const std::vector<int64_t> bounds = offsets_of(c.lengths, first);
    std::vector<int32_t> narrow(bounds.begin(), bounds.end());
    call.offsets = bounds.data();
    call.offsets_dtype = Dtype::I64;
    if (first == 0) {
      call.offsets = narrow.data();
      call.offsets_dtype = Dtype::I32;
    }
    for (Reduction op : {Reduction::Sum, Reduction::Extreme}) {
      call.op = op;
      check_call({first ? Onto::New : Onto::Self},
                 op == Reduction::Sum ? ", sums without an order" : ", extremes without an order");
    }
  }
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
  PlannedSegments call{};
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
      else if (by == 2) { run(call, 2, gpu::reduce_segments, what); }
      if (values[by] == values[0] && indices[by] == indices[0]) continue;
      printf("FAILED: %s, %s: bits differ\n", what.c_str(), by == 1 ? "on the CPU" : "emulated");
      fflush(stdout);
      exit(1);
    }
  }
}

// Offsets that fall, overlap or lie outside: each segment has the rows between its own two, within the tensor.
void check_wrong_offsets(uint32_t seed) {
  const int64_t rows = kLeaf + 5;
  std::vector<int64_t> offsets{-5, 1500, 1000, int64_t(1) << 40};
  for (int i = 0; i < 20; ++i) offsets.insert(offsets.end(), {0, rows});
  const int64_t segments = int64_t(offsets.size()) - 1;
  for (int64_t columns : {1, 3, 12})
    for (Reduction op : {Reduction::Sum, Reduction::Extreme}) {
      const std::vector<char> x = make_elements(Dtype::F32, rows * columns, seed, Values::Plain);
      std::vector<char> out(size_t(segments * columns * 4)), wanted = out;
      PlannedSegments call{};
      call.op = op;
      call.in = Source{x.data(), Dtype::F32, Dtype::F32};
      call.rows = rows;
      call.inner = call.row_stride = columns;
      call.segments = segments;
      call.inner_stride = 1;
      call.offsets = offsets.data();
      call.out = Output{wanted.data(), nullptr, Dtype::F32};
      expect(call);
      call.out.values = out.data();
      simt::options.seed = seed;
      const std::string what = "wrong offsets of " + std::to_string(columns) + " columns";
      run(call, 2, gpu::reduce_segments, what);
      if (out != wanted) fail(what + ": bits differ");
    }
}

// Sums of float32 that go to 16 bits.
void check_narrow_results(uint32_t seed) {
  for (int64_t columns : {1, 12}) {
    const Lengths lengths = {5, 0, 200, 2500, 1};
    const std::vector<int64_t> offsets = offsets_of(lengths, 0);
    const int64_t rows = offsets.back(), count = int64_t(lengths.size()) * columns;
    const std::vector<char> x = make_elements(Dtype::F32, rows * columns, seed, Values::Plain);
    std::vector<char> out(size_t(count * 2)), wanted = out;
    PlannedSegments call{};
    call.op = Reduction::Sum;
    call.in = Source{x.data(), Dtype::F32, Dtype::F32};
    call.rows = rows;
    call.inner = call.row_stride = columns;
    call.segments = int64_t(lengths.size());
    call.inner_stride = 1;
    call.offsets = offsets.data();
    call.out = Output{wanted.data(), nullptr, Dtype::BF16};
    expect(call);
    call.out.values = out.data();
    run(call, 2, gpu::reduce_segments, "sums of float32 in bfloat16");
    if (out != wanted) fail("sums of float32 in bfloat16: bits differ");
  }
}

// Keys are in the order of the numbers of their segments, whatever type they have.
void check_keys() {
  for (int64_t count : {int64_t(0), int64_t(1), int64_t(255), int64_t(256), int64_t(65535), int64_t(65536),
                        (int64_t(1) << 32) - 1, int64_t(1) << 32, INT64_MAX})
    for (int64_t index : {int64_t(0), int64_t(1), count / 2, count - 1, count, int64_t(-1), INT64_MIN, INT64_MAX}) {
      int64_t key = 0;
      KeyCall call{&index, Dtype::I64, 1, count, 1, {}};
      call.torchs = &key;
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
          KeyCall call{all.data(), Dtype::I64, 24, 40, -1, Elements{12, 5, 4}};
          call.torchs = keys.data();
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
    if (turn % std::min(every, 5l) == 0) check(c, seed + uint32_t(turn)), ++done;
  };
  check_keys();
  check_wrong_offsets(seed);
  check_narrow_results(seed);
  for (Dtype dtype : {Dtype::F32, Dtype::BF16, Dtype::F64, Dtype::F16}) {
    if (few && dtype == Dtype::F16) continue;
    for (const Case& c :
         {Case{dtype, 12, 0, 0, 132, Values::Plain, kMixed}, Case{dtype, 5, 3, 0, 1, Values::Hostile, kMixed},
          Case{dtype, 1, 0, 0, 2, Values::Hostile, kMixed}, Case{dtype, 1, 0, 3, 2, Values::Plain, kMixed},
          Case{dtype, 3, 0, 1, 1, Values::NegativeZeros, kMixed}, Case{dtype, 4, 0, 0, 1, Values::Hostile, kMany},
          Case{dtype, 2, 0, 0, 1, Values::Plain, kMiddle}, Case{dtype, 1, 0, 5, 2, Values::Plain, kWide},
          Case{dtype, 8, 0, 1, 1, Values::NegativeZeros, kMixed}, Case{dtype, 132, 4, 4, 1, Values::Hostile, kMixed},
          Case{dtype, 1, 0, 1, 1, Values::Hostile, kMany}, Case{dtype, 1, 0, 2, 1, Values::Hostile, kForty},
          Case{dtype, 1, 0, 0, 1, Values::NegativeZeros, kEighty}, Case{dtype, 1, 0, 3, 1, Values::Hostile, kMiddle},
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
