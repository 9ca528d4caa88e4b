#include "rowwise.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "emulator.h"
#include "kernels/common/gpu.h"
#include "kernels/rowwise/losses.h"
#include "plan/rowwise_plan.h"
#include "reference.h"

using namespace torchreduce;

namespace torchreduce::cpu::baseline {
bool rowwise_rows(const RowwiseCall& call, bool across, int64_t threads,
                  void (*)(int64_t, void (*)(void*, int64_t, int64_t), void*));
}

namespace {

#define TR_NAME(name) #name,
constexpr const char* kNames[] = {TR_FOR_EACH_ROWWISE(TR_NAME) "RmsNormWeights", "LayerNormWeights"};
#undef TR_NAME

// Rows of n elements, (before, n, after) in memory: rows lie side by side where `after` is more than 1. Tensors start
// `skipped` elements into their memory, which ends with them, and slices lie `gap` elements apart.
struct Case {
  Rowwise op;
  Dtype dtype;
  int64_t before, n, after = 1;
  int skipped = 0, gap = 0;
  const char* family = nullptr;
  Dtype accumulator = Dtype::F32, result = dtype;
  int apart = 0;          // elements that results start later in their granule than the input
  bool together = false;  // the gradient of a norm comes together with those of its weights
  bool plain = false;     // no weights
  bool few = false;       // rows are not taken for many
  bool unbiased = false;  // there is no gradient of a bias
  int64_t run = 0;        // positions lie in runs of so many, (n / run, before, run) in memory
  int leaves = -1;        // force_plan's
};

std::string describe(const Case& c) {
  return std::string(kNames[int(c.op)]) + " of (" + std::to_string(c.before) + ", " + std::to_string(c.n) + ", " +
         std::to_string(c.after) + "), dtypes " + std::to_string(int(c.dtype)) + " to " +
         std::to_string(int(c.result)) + ", skipped " + std::to_string(c.skipped) + ", gap " + std::to_string(c.gap);
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
  void* data() { return bytes.empty() ? nullptr : bytes.data() + first; }
};

struct Tensors { Memory in[2], out, sum, weight, bias, stats, values[3], labels; };

double draw(uint64_t& state) {  // from -4 to 4
  state = state * 6364136223846793005u + 1442695040888963407u;
  return double(int64_t(state) >> 20) * 0x1p-41;
}

// Some rows hold NaN, infinities, nothing but -inf, a leaf of -inf, large numbers, leaves that fall, or what has
// exponentials that are 0, subnormal or normal, one element that is not masked, squares that leave the range, or zeros.
double element(uint64_t& state, bool hostile, int64_t row, int64_t i, int64_t n) {
  const double v = draw(state);
  if (!hostile) return v;
  switch (row % 13) {
    case 1: return -INFINITY;
    case 2: return i == n / 2 ? NAN : v;
    case 3: return i == n - 1 ? INFINITY : v;
    case 4: return i < n / 2 ? -INFINITY : v;
    case 5: return v * 3e37;
    case 6: return v - double(i / kLeaf) * 20;
    case 7: return 1e4 + v;
    case 8: return v * 20;
    case 9: return i == n / 2 ? v : -INFINITY;
    case 10: return v * 0x1p-76;
    case 11: return v * 0x1p66;
    case 12: return 0;
    default: return v;
  }
}

// Whose statistics a gradient reads; the op itself if it reads none.
Rowwise forward(Rowwise op) {
  switch (op) {
    case Rowwise::LogSumExpGradient: return Rowwise::LogSumExp;
    case Rowwise::CrossEntropyGradient: return Rowwise::CrossEntropy;
    case Rowwise::EntropyGradient: return Rowwise::Entropy;
    case Rowwise::MomentsGradient: return Rowwise::Moments;
    case Rowwise::RmsNormGradient:
    case Rowwise::RmsNormWeights: return Rowwise::RmsNorm;
    case Rowwise::LayerNormGradient:
    case Rowwise::LayerNormWeights: return Rowwise::LayerNorm;
    default: return op;
  }
}
int values_of(Rowwise op) {
  switch (op) {
    case Rowwise::LogSumExp:
    case Rowwise::LogSumExpGradient:
    case Rowwise::Entropy:
    case Rowwise::EntropyGradient:
    case Rowwise::RmsNormWeights: return 1;
    case Rowwise::CrossEntropy: return 3;
    case Rowwise::CrossEntropyGradient:
    case Rowwise::Moments:
    case Rowwise::MomentsGradient:
    case Rowwise::LayerNormWeights: return 2;
    default: return 0;
  }
}

bool adds(Rowwise op) { return op == Rowwise::RmsNormSum || op == Rowwise::LayerNormSum; }

Rowwise of_weights(Rowwise gradient) {
  return gradient == Rowwise::RmsNormGradient ? Rowwise::RmsNormWeights : Rowwise::LayerNormWeights;
}

void lay_out(RowwiseCall& call, const Case& c, bool maps) {
  const int64_t size[3] = {c.before, c.n, c.after}, stride[3] = {c.n * c.after + c.gap, c.after, 1};
  const int64_t row[3] = {c.after, 0, 1}, position[3] = {0, 1, 0};
  std::vector<Dim> kept, reduced;
  if (c.run) {
    kept = {{c.before, c.run, 0, {0, 1}}};
    reduced = {{c.n / c.run, c.before * c.run + c.gap, 0}, {c.run, 1, 0}};
    call.layout = fold(std::move(kept), reduced, &call.more_strides);
    return;
  }
  for (int d = 0; d < 3; ++d)
    if (sums_over_rows(call.op)) (d == 1 ? kept : reduced).push_back({size[d], stride[d], position[d], {stride[d], 0}});
    else (d == 1 ? reduced : kept).push_back({size[d], stride[d], maps ? stride[d] : 0, {stride[d], row[d]}});
  call.layout = fold(std::move(kept), reduced, &call.more_strides);
}

void solve_by_cpu(const RowwiseCall& call) { cpu::baseline::rowwise_rows(call, false, 1, nullptr); }
void solve_by_cpu(const RowwiseCall& call, const Case& c) {
  if (!c.together) return solve_by_cpu(call);
  RowwiseCall rows = call, sums = call;
  for (void*& values : rows.memory.values) values = nullptr;  // which have an element a column
  solve_by_cpu(rows);
  sums.op = of_weights(c.op);
  sums.out = nullptr;
  lay_out(sums, c, false);
  solve_by_cpu(sums);
}

// The call, on memory of its own.
RowwiseCall make(const Case& c, Tensors& t, uint64_t seed) {
  const RowwiseFacts f = facts(c.op);
  const int64_t rows = c.before * c.after, gaps = (c.run ? c.n / c.run : c.before) - 1;
  const int64_t elements = rows * c.n + gaps * c.gap;
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  RowwiseCall call{};
  call.op = c.op;
  call.dtype = c.dtype;
  call.accumulator = c.accumulator;
  call.out_dtype = c.result;
  call.options = {1e-5, 1.0, seed % 2 == 0, seed % 4 == 1, -100};
  for (int k = 0; k < f.inputs; ++k) {
    t.in[k].make(elements, size_of(c.dtype), c.skipped);
    for (int64_t a = 0; a < c.before; ++a)
      for (int64_t i = 0; i < c.n; ++i)
        for (int64_t b = 0; b < c.after; ++b) {
          double v = element(state, seed % 3 == 0, a * c.after + b, i, c.n);
          if (k == 1 && c.op == Rowwise::LogSoftmaxGradient) v = -std::fabs(v);
          const int64_t of_runs = c.run ? i / c.run * (c.before * c.run + c.gap) + a * c.run + i % c.run : 0;
          store_as<double>(c.dtype, t.in[k].data(), c.run ? of_runs : a * (c.n * c.after + c.gap) + i * c.after + b, v);
        }
    call.in[k] = t.in[k].data();
  }
  if (f.maps) {
    t.out.make(elements, size_of(c.result), c.skipped + c.apart);
    call.out = t.out.data();
  }
  if (adds(c.op)) {
    t.sum = t.out;
    call.sum = t.sum.data();
  }
  const auto of_positions = [&](Memory& memory) {
    call.weight_dtype = seed % 2 ? c.dtype : Dtype::F32;
    memory.make(c.n, size_of(call.weight_dtype));
    for (int64_t i = 0; i < c.n; ++i) store_as<double>(call.weight_dtype, memory.data(), i, draw(state));
    return memory.data();
  };
  if (f.weights && seed % 4 && !c.plain) call.weight = of_positions(t.weight);
  if (f.biases && seed % 4 && !c.plain) call.bias = of_positions(t.bias);
  RowMemory& m = call.memory;
  if (forward(c.op) == Rowwise::CrossEntropy) {
    t.labels.make(rows, 8);
    for (int64_t r = 0; r < rows; ++r)
      static_cast<int64_t*>(t.labels.data())[r] = r % 5 == 1 ? -100 : r % 7 == 3 ? c.n : (r * 7919) % c.n;
    m.labels = static_cast<const int64_t*>(t.labels.data());
    m.classes = c.n;
    call.options.smoothing = seed % 2 ? 0.1 : 0.0;
  }
  if (f.stats) {
    t.stats.make(rows * f.stats, size_of(c.accumulator));
    m.stats = t.stats.data();
    m.plane = rows;
  }
  const bool of_columns = sums_over_rows(c.op) || c.together;
  for (int k = 0; k < (c.unbiased ? 1 : c.together ? values_of(of_weights(c.op)) : values_of(c.op)); ++k) {
    m.dtypes[k] = forward(c.op) == Rowwise::CrossEntropy ? c.accumulator : c.result;
    t.values[k].make(of_columns ? c.n : rows, size_of(m.dtypes[k]));
    m.values[k] = t.values[k].data();
    if (forward(c.op) != c.op && !of_columns)
      for (int64_t r = 0; r < rows; ++r) store_as<double>(m.dtypes[k], m.values[k], r, draw(state));
  }
  if (forward(c.op) != c.op) {  // the statistics
    RowwiseCall first = call;
    Memory out, values[3];
    first.op = forward(c.op);
    first.in[0] = call.in[f.inputs - 1];
    first.in[1] = nullptr;
    out.make(elements, size_of(c.result));
    first.out = facts(first.op).maps ? out.data() : nullptr;
    for (int k = 0; k < 2; ++k) {
      values[k].make(rows, 8);
      first.memory.values[k] = k < values_of(first.op) ? values[k].data() : nullptr;
      first.memory.dtypes[k] = Dtype::F64;
    }
    lay_out(first, c, first.out != nullptr);
    solve_by_cpu(first);
  }
  lay_out(call, c, f.maps);
  return call;
}

// False where the plan cannot serve the case.
bool check(const Case& c, uint64_t seed) {
  Tensors expected, actual;
  PlannedRowwise call{};
  const RowwiseCall judge = make(c, expected, seed);
  static_cast<RowwiseCall&>(call) = make(c, actual, seed);
  DeviceFacts device{true, 132};
  const std::string family = c.family ? c.family : "";
  if (!facts(c.op).looks() && seed % 2) device.multiprocessors = 2;  // fewer and wider tiles
  device.clusters = c.together;
  if (c.leaves > 0) device.multiprocessors = 2;  // more rows to a block
  if (c.together || family == "held_columns" || family == "wide_columns" || family == "columns") {
    device.bulk_copies = device.large_blocks = true;
    device.shared = simt::kMostShared;
  }
  PlanOverride forced;
  forced.family = c.family;
  forced.leaves = c.leaves;
  if (facts(c.op).weights && !c.few && seed / 4 % 2) forced.lanes = 32;  // few rows as many of them
  force_plan(forced);
  try {
    call.plan = plan(call, device);
  } catch (const std::invalid_argument& error) {
    if (c.family) return force_plan({}), false;
    printf("FAILED: %s: %s\n", describe(c).c_str(), error.what());
    exit(1);
  }
  force_plan({});
  solve_by_cpu(judge, c);
  simt::options.title = describe(c) + ", plan " + call.plan.family;
  simt::options.bulk_copies = call.plan.launch().shared > kPortableShared;
  Memory workspace;
  workspace.make(workspace_bytes(call.plan), 1);
  if (const char* error = gpu::rowwise_rows(call, workspace.data(), nullptr)) {
    printf("FAILED: %s: %s\n", simt::options.title.c_str(), error);
    exit(1);
  }
  const auto same = [&](Memory& a, Memory& b, const char* what) {
    if (a.bytes == b.bytes) return;
    size_t i = 0;
    while (a.bytes[i] == b.bytes[i]) ++i;
    printf("FAILED: %s: %s differ from byte %zu of %zu on\n", simt::options.title.c_str(), what, i, a.bytes.size());
    fflush(stdout);
    exit(1);
  };
  same(actual.out, expected.out, "the elements");
  same(actual.sum, expected.sum, "the sums");
  same(actual.stats, expected.stats, "the statistics");
  for (int k = 0; k < 3; ++k) same(actual.values[k], expected.values[k], "the values");
  return true;
}

// The mean of `count` losses, by weights that are any, or 1 and 0.
template <class F> void check_mean_loss(int count, bool counts, Dtype result) {
  uint64_t state = uint64_t(count) * 2 + counts;
  Memory losses, weights, mean, divisor;
  losses.make(count, sizeof(F));
  weights.make(count, sizeof(F));
  mean.make(1, size_of(result));
  divisor.make(1, sizeof(F));
  F* const x = static_cast<F*>(losses.data());
  F* const w = static_cast<F*>(weights.data());
  for (int i = 0; i < count; ++i) {
    x[i] = i % 5 == 2 ? F(0) : F(draw(state));
    w[i] = i % 5 == 2 ? F(0) : counts ? F(1) : F(draw(state));
  }
  PlannedMeanLoss call;
  call.losses = x;
  call.weights = w;
  call.count = count;
  call.dtype = DtypeOf<F>::value;
  call.counts = counts;
  call.mean = mean.data();
  call.mean_dtype = result;
  call.divisor = divisor.data();
  call.plan = plan(call, DeviceFacts{true, 132});
  simt::options.title = "the mean of " + std::to_string(count) + " losses";
  const char* const error = gpu::mean_loss(call, nullptr, nullptr);
  const Sum<F> op{};
  const F total = reference::reduce(op, count, [&](int64_t i) { return x[i]; });
  const F n = reference::reduce(op, count, [&](int64_t i) { return w[i]; });
  Memory expected;
  expected.make(1, size_of(result));
  store_as(result, expected.data(), 0, total / n);
  if (!error && expected.bytes == mean.bytes && !memcmp(divisor.data(), &n, sizeof n)) return;
  printf("FAILED: %s: %s\n", simt::options.title.c_str(), error ? error : "another mean or divisor");
  exit(1);
}

}  // namespace

long check_rowwise(uint32_t seed, long every, bool few) {
  uint64_t turn = 0;
  long done = 0;
  for (int count : {1, 42, 257, 2048, 5000, 3 * 2048 + 1, 5 * 2048 + 300, kMostMeanLosses})
    for (bool counts : {true, false}) {
      check_mean_loss<float>(count, counts, count % 2 ? Dtype::F32 : Dtype::BF16);
      check_mean_loss<double>(count, counts, Dtype::F64);
      done += 2;
    }
  const auto run = [&](const Case& c, bool always = false) {
    const uint64_t number = seed + turn++, drawn = number * 0x9E3779B97F4A7C15u >> 20;
    if ((drawn % uint64_t(every) && !always) || (few && c.dtype == Dtype::F16)) return;
    simt::options.seed = uint32_t(number);
    simt::options.reverse = number % 2;
    done += check(c, number);
  };
  for (int i = 0; i <= int(Rowwise::LayerNormWeights); ++i) {
    const Rowwise op = Rowwise(i);
    for (Dtype d : {Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::F64}) {
      const Dtype wide = d == Dtype::F64 ? Dtype::F64 : Dtype::F32;
      const auto with = [&](Case c) {
        c.op = op;
        c.dtype = c.result = d;
        c.accumulator = wide;
        return c;
      };
      if (sums_over_rows(op)) {
        for (int64_t rows : {1, 5, 300, 2049, 4100})
          for (int64_t n : {1, 8, 40, 136}) run(with({op, d, rows, n, 1, 0, n == 40 ? 8 : 0}));
        continue;
      }
      for (int64_t n : {1, 3, 8, 17, 64, 65, 100, 201, 256, 257, 300, 700, 1023, 1024, 1500, 2048, 2049, 5000, 9000}) {
        const int64_t rows = n < 64 ? 70 : n < 2048 ? 9 : 3;
        run(with({op, d, rows, n}));
        run(with({op, d, rows, n, 1, 1 + int(n % 7)}));
        run(with({op, d, rows, n, 1, 0, 1 + int(n % 3)}));
      }
      for (int64_t n : {64, 1024, 2048, 4096}) run(with({op, d, 5, n, 1, 0, 16}));
      // Whole granules, in some lanes or in all.
      for (int64_t n : {48, 160, 192, 264, 392, 512, 768, 1000, 1280, 1792, 2304})
        if (size_of(d) == 2) run(with({op, d, 9, n, 1, 0, n == 768 ? 0 : 16}));
      for (int64_t n : {3000, 70000}) {
        run(with({op, d, 2, n, 1, 0, 0, "split_rows"}));
        run(with({op, d, 2, n, 1, 3, 0, "split_rows"}));
        run(with({op, d, 1, n + 1, 1, 0, 0, "split_rows"}));  // starts with a granule, and ends in one
      }
      for (int64_t n : {70, 300, 2500}) {
        run(with({op, d, 3, n, 1, 1, 2, "strided"}));
        Case apart = with({op, d, 3, n});
        apart.apart = 1;
        run(apart);
      }
      // Without weights, which leaves more families to choose from: either the input or the output off a granule.
      if (facts(op).weights && size_of(d) == 2)
        for (int skipped : {0, 7}) {
          Case apart = with({op, d, 3, 300, 1, skipped});
          apart.apart = 1;
          apart.plain = true;
          run(apart, true);
        }
      // Results of the other width.
      if (d != Dtype::F64 && facts(op).maps && facts(op).inputs == 1 && facts(op).looks())
        for (int64_t n : {24, 64, 201, 300, 768, 1024, 2047, 2048, 4104})
          for (Dtype result : {Dtype::F32, Dtype::BF16, Dtype::F16}) {
            if ((d == Dtype::F32) == (result == Dtype::F32)) continue;
            Case converted = with({op, d, n < 100 ? 37 : 5, n, 1, n == 64 ? 8 : 0, n == 1024 ? 16 : 0});
            converted.result = result;
            run(converted);
          }
      for (int64_t n : {1, 9, 64, 300, 2100})
        for (int64_t after : {2, 33, 64}) run(with({op, d, 2, n, after, int(n % 3), after == 64 ? 8 : 0}));
      if (d != Dtype::F64 && (op == Rowwise::Softmax || op == Rowwise::LogSoftmax)) {
        for (int64_t n : {600, 1100, 2048})
          for (int64_t after : {128, 200}) run(with({op, d, 2, n, after, 0, after == 200 ? 8 : 0, "held_columns"}));
        for (const auto& [n, after] : {std::pair(130, 67), {600, 301}, {1100, 67}, {2500, 40}})
          run(with({op, d, n == 600 ? 1 : 2, n, after, n % 3, n == 600 ? 0 : 1, "wide_columns"}));
      }
      // Threads with columns of their own: granules, words and lone elements; some groups that meet, or many.
      if (d != Dtype::F64 && facts(op).maps && facts(op).sums == 1 && !facts(op).weights)
        for (const auto& [n, after, skipped, gap, apart] :
             {std::tuple(1, 264, 0, 0, 0), {2, 40, 0, 8, 0},   {5, 128, 0, 0, 0},   {7, 301, 0, 0, 0},
              {8, 2056, 0, 0, 0},          {9, 16, 0, 16, 0},  {15, 96, 8, 0, 0},   {16, 66, 0, 0, 0},
              {17, 72, 0, 0, 2},           {19, 72, 0, 0, 1},  {24, 64, 2, 0, 0},   {33, 67, 3, 1, 0},
              {64, 144, 0, 0, 0},          {65, 40, 0, 0, 0},  {72, 34, 0, 2, 0},   {130, 41, 1, 0, 0},
              {200, 24, 0, 0, 0},          {249, 16, 0, 0, 0}, {256, 72, 0, 0, 0},  {256, 23, 0, 0, 5},
              {257, 40, 0, 8, 0},          {700, 24, 0, 0, 0}, {1024, 16, 8, 0, 0}, {1025, 32, 0, 0, 0},
              {1676, 24, 0, 0, 0},         {2048, 16, 0, 0, 0}}) {
          Case own = with({op, d, 3, n, after, skipped, gap, "columns"});
          own.apart = apart;
          run(own);
        }
      if (d != Dtype::F64 && (op == Rowwise::RmsNormGradient || op == Rowwise::LayerNormGradient))
        for (const auto& [rows, n, leaves] : {std::tuple(260, 256, -1),
                                              {2400, 256, -1},
                                              {260, 2056, -1},
                                              {1, 1024, -1},
                                              {7, 264, -1},
                                              {3, 4104, -1},
                                              {3, 8200, -1},
                                              {260, 2304, 1},  // by clusters
                                              {1, 8, -1},
                                              {2300, 32, 1},
                                              {300, 64, -1},
                                              {2400, 72, 1},
                                              {20, 248, -1}}) {  // in registers
          Case together = with({op, d, rows, n, 1, 0, n == 256 || n == 72 ? 8 : 0, "norm_gradients"});
          together.together = true;
          together.leaves = leaves;
          run(together);
        }
      // The same of rows that start anywhere: at every place of a granule, alike in all tensors or not; in memory that
      // ends with them.
      if (d != Dtype::F64 && (op == Rowwise::RmsNormGradient || op == Rowwise::LayerNormGradient))
        for (const auto& [rows, n, skipped, gap, apart, leaves] : {std::tuple(300, 257, 0, 0, 0, -1),
                                                                   {1, 257, 7, 0, 0, -1},
                                                                   {2400, 259, 1, 0, 0, -1},
                                                                   {5, 264, 3, 0, 0, -1},
                                                                   {5, 264, 0, 1, 1, -1},
                                                                   {40, 879, 0, 0, 0, -1},
                                                                   {9, 2045, 2, 0, 3, -1},
                                                                   {7, 2049, 0, 0, 0, 1},  // by clusters
                                                                   {260, 2306, 5, 3, 0, 1},
                                                                   {4, 4097, 0, 0, 0, -1},
                                                                   {3, 9358, 0, 0, 0, -1},
                                                                   {3, 8197, 0, 0, 0, -1},
                                                                   {1, 1, 0, 0, 0, -1},
                                                                   {700, 1, 1, 0, 0, -1},
                                                                   {530, 3, 0, 2, 1, 1},
                                                                   {2300, 17, 1, 0, 0, 1},
                                                                   {300, 64, 3, 0, 5, -1},
                                                                   {600, 127, 0, 0, 0, -1},
                                                                   {600, 129, 2, 0, 0, 1},
                                                                   {20, 250, 0, 1, 0, -1},
                                                                   {21, 255, 7, 0, 0, -1}}) {  // in registers
          Case together = with({op, d, rows, n, 1, skipped, gap, "norm_gradients"});
          together.together = true;
          together.leaves = leaves;
          together.apart = apart;
          run(together);
        }
      // Few rows, around the borders of pairs and leaves, and of the rows that a warp and a block have.
      if (d != Dtype::F64 && (op == Rowwise::RmsNormGradient || op == Rowwise::LayerNormGradient))
        for (const auto& [rows, n, skipped, gap, unbiased] : {std::tuple(1, 2, 0, 0, true),
                                                              {2, 768, 0, 0, false},
                                                              {3, 254, 2, 0, true},
                                                              {4, 256, 0, 2, false},
                                                              {8, 258, 0, 0, true},
                                                              {9, 2046, 2, 2, true},
                                                              {17, 2048, 0, 0, false},
                                                              {5, 2050, 0, 6, true},
                                                              {33, 1026, 0, 0, true},
                                                              {64, 130, 0, 0, false},
                                                              {65, 300, 2, 0, true},
                                                              {128, 66, 0, 0, true},
                                                              {129, 2052, 0, 0, true},
                                                              {255, 128, 0, 8, false},
                                                              {256, 322, 0, 0, true},
                                                              {2, 10244, 0, 0, true},
                                                              {3, 16384, 0, 0, true},
                                                              {3, 16386, 0, 0, true}}) {  // by a cluster
          Case together = with({op, d, rows, n, 1, skipped, gap, "norm_gradients"});
          together.together = true;
          together.few = true;
          together.unbiased = unbiased;
          run(together);
        }
      // Several tiles to a line, rows that follow one another in one tensor alone, and columns of whole granules.
      if (!facts(op).looks())
        for (const auto& [rows, n, after] : {std::tuple(3, 20000, 1), {2, 37, 600}, {40, 5, 3}, {600, 2, 1}}) {
          run(with({op, d, rows, n, after, n % 4}));
          run(with({op, d, rows, n, after, 0, 8}));
        }
      if (op == Rowwise::Moments)
        for (const auto& [rows, n, length] :
             {std::tuple(3, 98, 49), {20, 300, 3}, {5, 4900, 49}, {2, 9000, 3000}, {14, 2048, 64}, {13, 2116, 4}})
          for (int gap : {0, 5}) {
            Case c = with({op, d, rows, n, 1, gap, gap});
            c.run = length;
            run(c);
          }
      Case mixed = with({op, d, 3, 700});
      mixed.accumulator = mixed.result = Dtype::F64;
      run(mixed);
    }
  }
  return done;
}
