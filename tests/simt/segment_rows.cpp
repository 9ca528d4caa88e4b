#include "segment_rows.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "array.h"
#include "emulator.h"
#include "kernels/rowwise/rowwise_segments.h"
#include "kernels/scan/scan_segments.h"

using namespace torchreduce;

namespace torchreduce::cpu::baseline {
using ParallelFor = void (*)(int64_t, void (*)(void*, int64_t, int64_t), void*);
bool scan_segments(const ScanSegments& call, int64_t threads, ParallelFor);
bool rowwise_segments(const RowwiseSegments& call, int64_t threads, ParallelFor);
}  // namespace torchreduce::cpu::baseline

// There under TSan, which reports races: segments that overlap have some.
extern "C" void __tsan_acquire(void*) __attribute__((weak));

namespace {

// Of each segment: none, one, a group, a tile and residues, rows of residues, a leaf, and one more; several leaves;
// more than a block holds and a block tile. Then one that has nearly all, of leaves for which warps are no power of
// two; many short ones, more than a block has; and those that a block holds a few of.
using Lengths = std::vector<int64_t>;
const Lengths kMixed = {3, 0, 1, 2, 17, 64, 65, 128, 129, 0, 255, 256, 257, 513, 1025, 2048, 2049, 4100, 8, 8195, 5};
const Lengths kOne = {2, 66 * kLeaf + 3, 1};
const Lengths kMany = [] {
  Lengths lengths;
  for (int i = 0; i < 300; ++i) lengths.push_back(i * 37 % 60);
  return lengths;
}();
// Of more than teams of 8 and of 16 lanes have room for.
const Lengths kForEight = [] {
  Lengths lengths = {64, 65, 1500, 0};
  for (int i = 0; i < 150; ++i) lengths.push_back(i * 37 % 60);
  return lengths;
}();
const Lengths kForSixteen = {100, 128, 0, 129, 31, 64, 10, 90, 77, 128};
const Lengths kLong = {2100, 4099, 0, 4000, 3, 300, 700, 1500, 2305};

struct Case {
  Dtype dtype;
  int64_t columns;
  bool across;                  // rows side by side, else along memory
  int leaves, multiprocessors;  // leaves: that a block has room for; -1: as planned
  Values values;
  Lengths lengths;
};

// What calls of a case have in common: elements of (n, columns), of which some are of no segment.
struct Data {
  const Case& c;
  std::vector<int64_t> offsets;
  int64_t n;
  std::string title;

  Data(const Case& of) : c(of), offsets{4} {
    for (int64_t length : c.lengths) offsets.push_back(offsets.back() + length);
    n = offsets.back() + 70;
    title = "segments of dtype " + std::to_string(int(c.dtype)) + ", " + std::to_string(c.columns) + " columns, " +
            std::to_string(c.lengths.size()) + " segments of " + std::to_string(n) + ", blocks of " +
            std::to_string(c.leaves) + " leaves";
  }
  Layout layout() const {
    Layout l{};
    l.kept = c.columns > 1;
    l.reduced = 1;
    l.rows = c.columns;
    l.length = n;
    if (l.kept) l.size[0] = c.columns, l.in[0] = l.out[0] = c.across ? 1 : n;
    l.size[l.kept] = n;
    l.in[l.kept] = l.out[l.kept] = c.across ? c.columns : 1;
    return l;
  }
  SegmentOffsets segments() const { return {offsets.data(), Dtype::I64, int64_t(c.lengths.size()), n}; }
  int64_t elements() const { return n * c.columns; }
  int64_t values() const { return int64_t(c.lengths.size()) * c.columns; }
};

[[noreturn]] void fail(const std::string& what) {
  printf("FAILED: %s\n", what.c_str());
  fflush(stdout);
  exit(1);
}

template <class Planned, class Call>
void emulate(const Call& call, const Case& c, const char* (*launch)(const Planned&, void*, void*),
             const std::string& what, bool in_one_block = false) {
  Planned planned{call, {}};
  force_plan({.leaves = c.leaves});
  planned.plan = plan(call, DeviceFacts{true, c.multiprocessors});
  force_plan({});
  if (in_one_block) {
    planned.plan.each = int(call.of.count) * (planned.plan.by_warps ? segment_runs::kWarps : 1);
    planned.plan.blocks = 1;
  }
  std::vector<int64_t> workspace(size_t(workspace_bytes(planned.plan) / 8), -1);
  simt::options.title = what;
  if (const char* error = launch(planned, workspace.data(), nullptr)) fail(what + ": " + error);
}
void judge(const std::vector<char>& got, const std::vector<char>& wanted, int size, const std::string& what) {
  if (got == wanted) return;
  const auto at = std::mismatch(got.begin(), got.end(), wanted.begin()).first - got.begin();
  fail(what + ": the bits of element " + std::to_string(at / size) + " differ");
}

// ---- scans -----------------------------------------------------------------------------------------------------------

void check_scan(const Case& c, uint32_t seed, bool linear, int options) {
  const Data data(c);
  const bool reverse = options & 1, exclusive = !linear && options & 2, initial = linear && options & 2;
  const bool shifted = linear && !initial && options & 4;
  const Dtype result = linear || is_float(c.dtype) ? c.dtype : Dtype::I64;
  const int64_t ahead = seed % 3 * size_of(c.dtype);  // of the inputs: they begin elsewhere than the result does
  const std::vector<char> x = make_elements(c.dtype, data.elements() + 2, seed, c.values),
                          a = make_elements(c.dtype, linear ? data.elements() + 2 : 3, seed + 1, Values::Factors),
                          h = make_elements(c.dtype, linear ? data.values() : 1, seed + 2, c.values);
  ScanSegments call{};
  call.op = linear ? Scan::LinearScan : Scan::CumSum;
  call.options.initial = initial;
  call.in = Source{x.data() + ahead,
                   c.dtype,
                   natural_accumulator(c.dtype),
                   false,
                   {linear ? a.data() + ahead : nullptr, initial ? h.data() : nullptr}};
  call.exclusive = exclusive;
  call.reverse = reverse;
  call.shifted = shifted;
  call.layout = data.layout();
  for (int d = 0; d < 2; ++d) call.more_strides[0][d] = call.layout.in[d];
  call.more_strides[1][0] = call.layout.kept;
  call.initial_step = c.columns;
  call.of = data.segments();
  std::vector<char> wanted(size_t(data.elements() * size_of(result)), 0), got(wanted.size(), kGap);
  call.out = Output{wanted.data(), nullptr, result};
  if (!cpu::baseline::scan_segments(call, 1, nullptr)) exit(1);
  call.out.values = got.data();
  const std::string what = (linear ? "linear_scan by " : "cumsum by ") + data.title + (reverse ? ", reverse" : "") +
                           (exclusive ? ", exclusive" : "") + (initial ? ", initial" : "") +
                           (shifted ? ", shifted" : "");
  simt::options.seed = seed;
  emulate<PlannedScanSegments>(call, c, gpu::scan_segments, what);
  judge(got, wanted, size_of(result), what);
}

// ---- row-wise ops ----------------------------------------------------------------------------------------------------

void check_rowwise(const Case& c, uint32_t seed, Rowwise op, bool wide) {
  const Data data(c);
  const RowwiseFacts known = facts(op);
  const Dtype result = wide ? Dtype::F64 : c.dtype, accumulator = accumulator_of(c.dtype, result);
  const int64_t ahead = seed % 3 * size_of(c.dtype);
  const std::vector<char> x = make_elements(c.dtype, data.elements() + 2, seed, c.values),
                          y = make_elements(c.dtype, data.elements() + 2, seed + 1, Values::Factors),
                          g = make_elements(c.dtype, data.values(), seed + 2, Values::Plain);
  std::vector<char> stats = make_elements(accumulator, 2 * data.values(), seed + 3, Values::Positive);
  RowwiseSegments call{};
  call.op = op;
  call.dtype = c.dtype;
  call.accumulator = accumulator;
  call.in[0] = x.data() + ahead;
  if (known.inputs > 1) call.in[1] = y.data() + ahead;
  call.layout = data.layout();
  for (int d = 0; d < 2; ++d) call.more_strides[0][d] = call.layout.in[d];
  call.more_strides[1][0] = call.layout.kept;
  call.value_step = c.columns;
  call.of = data.segments();
  call.out_dtype = result;
  call.memory.plane = data.values();
  call.memory.dtypes[0] = c.dtype;
  std::vector<char> outs[2], values[2], numbers[2];
  const std::string what = "row-wise op " + std::to_string(int(op)) + " by " + data.title + (wide ? ", wide" : "");
  simt::options.seed = seed;
  for (int emulated : {0, 1}) {
    outs[emulated].assign(known.maps ? size_t(data.elements() * size_of(result)) : 0, emulated ? kGap : 0);
    values[emulated] = g;
    numbers[emulated] = stats;
    if (known.maps) call.out = outs[emulated].data();
    if (known.stats) call.memory.values[0] = values[emulated].data();
    if (known.stats) call.memory.stats = numbers[emulated].data();
    if (emulated) emulate<PlannedRowwiseSegments>(call, c, gpu::rowwise_segments, what);
    else if (!cpu::baseline::rowwise_segments(call, 1, nullptr)) exit(1);
  }
  judge(outs[1], outs[0], size_of(result), what);
  judge(values[1], values[0], size_of(c.dtype), what + ", of segments");
  judge(numbers[1], numbers[0], size_of(accumulator), what + ", statistics");
}

// Offsets that fall, overlap or lie outside: each element is that of one of its segments, whichever comes last.
template <class Planned, class Call, class Launch, class OnCpu>
void check_wrong_offsets(uint32_t seed, Call call, Launch launch, OnCpu on_cpu, const std::vector<int64_t>& offsets) {
  const Case c{Dtype::F32, 1, false, 1, 1, Values::Plain, {kLeaf + 5}};
  Data data(c);
  const int64_t n = data.n = kLeaf + 5;
  data.offsets = offsets;
  const std::vector<char> x = make_elements(c.dtype, n, seed, c.values);
  simt::options.seed = seed;
  call.layout = data.layout();
  const auto run = [&](bool emulated, const int64_t* bounds, int64_t count) {
    std::vector<float> out(size_t(n), -7);
    call.of = {bounds, Dtype::I64, count, n};
    if constexpr (std::is_same<Call, ScanSegments>::value) {
      call.in = Source{x.data(), c.dtype, c.dtype};
      call.out = Output{out.data(), nullptr, c.dtype};
    } else {
      call.dtype = call.accumulator = call.out_dtype = c.dtype;
      call.in[0] = x.data();
      call.out = out.data();
    }
    if (emulated) emulate<Planned>(call, c, launch, "wrong offsets", true);
    else if (!on_cpu(call, 1, nullptr)) exit(1);
    return out;
  };
  const int64_t count = int64_t(offsets.size()) - 1;
  const std::vector<float> got = run(true, data.offsets.data(), count);
  std::vector<char> is_right(size_t(n), 0);
  for (int64_t s = 0; s < count; ++s) {
    const std::vector<float> wanted = run(false, data.offsets.data() + s, 1);
    call.of = data.segments();
    for (int64_t i = call.of.begin(s); i < call.of.begin(s + 1); ++i)
      is_right[size_t(i)] |= memcmp(&got[size_t(i)], &wanted[size_t(i)], sizeof(float)) == 0;
  }
  for (int64_t i = 0; i < n; ++i)
    if (!is_right[size_t(i)]) fail("wrong offsets: element " + std::to_string(i) + " is of no segment");
}
// All elements are in some segment. The last ones have more long segments than a list has room for.
std::vector<std::vector<int64_t>> wrong_offsets() {
  constexpr int64_t n = kLeaf + 5;
  if (__tsan_acquire) return {};
  std::vector<int64_t> all, half;
  for (int i = 0; i < 12; ++i) {
    all.insert(all.end(), {0, n});
    half.insert(half.end(), {i % 2 ? 0 : 300, i % 2 ? 600 : n});
  }
  return {{-5, 1500, 1000, int64_t(1) << 40, 7, 40, 30, 2 * kLeaf, 3, 900, 800, n}, all, half};
}

std::vector<Case> cases(Dtype dtype) {
  return {{dtype, 1, false, 1, 132, Values::Plain, kMixed},   {dtype, 1, false, -1, 1, Values::Hostile, kMixed},
          {dtype, 3, true, 2, 132, Values::Plain, kMixed},    {dtype, 2, false, 2, 1, Values::NegativeZeros, kMixed},
          {dtype, 1, false, -1, 2, Values::Plain, kMany},     {dtype, 5, true, -1, 1, Values::Hostile, kMany},
          {dtype, 1, false, 1, 132, Values::Plain, kOne},     {dtype, 1, false, 2, 1, Values::Plain, {20000, 0, 9}},
          {dtype, 2, true, 1, 132, Values::Plain, {0, 0}},    {dtype, 1, false, -1, 1, Values::Hostile, kLong},
          {dtype, 4, true, -1, 1, Values::Plain, kMany},      {dtype, 11, true, 1, 2, Values::NegativeZeros, kMixed},
          {dtype, 2, false, -1, 2, Values::Plain, kForEight}, {dtype, 1, false, -1, 1, Values::Hostile, kForSixteen},
          {dtype, 1, false, 1, 1, Values::Plain, kLong},      {dtype, 2, true, -1, 1, Values::Plain, kLong}};
}

}  // namespace

long check_scan_segments(uint32_t seed, long every, bool few) {
  long seen = 0, done = 0;
  ScanSegments sums{};
  sums.op = Scan::CumSum;
  for (const auto& offsets : wrong_offsets())
    check_wrong_offsets<PlannedScanSegments>(seed, sums, gpu::scan_segments, cpu::baseline::scan_segments, offsets);
  for (Dtype dtype : {Dtype::F32, Dtype::BF16, Dtype::F64, Dtype::F16, Dtype::I16, Dtype::Bool, Dtype::I64})
    for (const Case& c : cases(dtype))
      for (bool linear : {false, true})
        for (int options = 0; options < 6; ++options) {
          if ((linear && !is_float(dtype)) || (few && dtype == Dtype::F16)) continue;
          const long turn = seen++;
          if (turn % std::min(every, 5l) == 0) check_scan(c, seed + uint32_t(turn), linear, options), ++done;
        }
  return done;
}

long check_rowwise_segments(uint32_t seed, long every, bool few) {
  long seen = 0, done = 0;
  RowwiseSegments softmax{};
  softmax.op = Rowwise::Softmax;
  for (const auto& offsets : wrong_offsets())
    check_wrong_offsets<PlannedRowwiseSegments>(seed, softmax, gpu::rowwise_segments, cpu::baseline::rowwise_segments,
                                                offsets);
  for (Dtype dtype : {Dtype::F32, Dtype::BF16, Dtype::F64, Dtype::F16})
    for (const Case& c : cases(dtype))
      for (Rowwise op : {Rowwise::Softmax, Rowwise::LogSoftmax, Rowwise::SoftmaxGradient, Rowwise::LogSoftmaxGradient,
                         Rowwise::LogSumExp, Rowwise::LogSumExpGradient})
        for (bool wide : {false, true}) {
          const bool has_wide = facts(op).maps && op != Rowwise::LogSumExpGradient && dtype != Dtype::F64;
          if ((wide && !has_wide) || (few && dtype == Dtype::F16)) continue;
          const long turn = seen++;
          if (turn % std::min(every, 5l) == 0) check_rowwise(c, seed + uint32_t(turn), op, wide), ++done;
        }
  return done;
}
