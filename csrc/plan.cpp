#include "call.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <stdexcept>

#include "order.h"

namespace torchreduce {

Layout fold(std::vector<Dim> kept, const std::vector<Dim>& reduced) {
  std::stable_sort(kept.begin(), kept.end(), [](const Dim& a, const Dim& b) { return a.in > b.in; });
  Layout layout;
  int last = 0;  // dims so far
  auto append = [&](const Dim& d, int first) {
    if (d.size == 1) return;
    if (last > first) {  // merge with the dim before, when stepping over its end continues at this one's start
      int64_t &size = layout.size[last - 1], &in = layout.in[last - 1], &out = layout.out[last - 1];
      if (in == d.size * d.in && out == d.size * d.out) {
        size *= d.size;
        in = d.in;
        out = d.out;
        return;
      }
    }
    layout.size[last] = d.size;
    layout.in[last] = d.in;
    layout.out[last] = d.out;
    ++last;
  };
  for (const Dim& d : kept) {
    layout.rows *= d.size;
    append(d, 0);
  }
  layout.kept = last;
  for (const Dim& d : reduced) {
    layout.length *= d.size;
    append(d, layout.kept);
  }
  layout.reduced = last - layout.kept;
  return layout;
}

namespace {

std::mutex forced_mutex;
PlanOverride forced_fields;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t power_of_two(int64_t n) {  // the least one that is >= n
  int64_t p = 1;
  while (p < n) p *= 2;
  return p;
}
int64_t magnitude(int64_t stride) { return stride < 0 ? -stride : stride; }

// Lanes go where the smallest stride is.
bool lanes_across_rows(const Layout& l) {
  return l.kept > 0 && l.reduced > 0 && magnitude(row_stride(l)) < magnitude(position_stride(l));
}

void take(int forced, int& field, int most, const char* name) {
  if (forced < 0) return;
  if (forced < 1 || forced > most || (forced & (forced - 1)) != 0)
    throw std::invalid_argument(std::string("force_plan: ") + name + " must be a power of two from 1 to " +
                                std::to_string(most) + ", got " + std::to_string(forced));
  field = forced;
}

Family family_of(int forced, Family chosen, bool scan) {
  if (forced < 0) return chosen;
  if (!scan && forced > int(Family::Columns))
    throw std::invalid_argument("force_plan: reductions have the families rows and columns");
  return Family(forced);
}

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// Every row is one run of neighbours, and starts a multiple of 16 bytes from the first.
bool rows_packed(const Layout& l, int in_size, int out_size) {
  if (l.reduced != 1 || l.in[l.kept] != 1 || (out_size && l.out[l.kept] != 1)) return false;
  for (int d = 0; d < l.kept; ++d)
    if (l.in[d] * in_size % 16 != 0 || l.out[d] * out_size % 16 != 0) return false;
  return true;
}

// Bytes of one accumulator of the kernel that serves `call`.
template <template <class> class Op> int64_t accumulator_bytes(const Source& in) {
  if (Op<float>::kConverts) return size_of(in.accumulator);
#define TR_CASE(T) \
  case DtypeOf<T>::value: return sizeof(typename Op<T>::Acc);
  switch (in.dtype) { TR_FOR_EACH_TYPE(TR_CASE) }
#undef TR_CASE
  return 0;
}
int64_t accumulator_bytes(const ReduceCall& call) {
#define TR_CASE(name) \
  case Reduction::name: return accumulator_bytes<name>(call.in);
  switch (call.op) { TR_FOR_EACH_REDUCTION(TR_CASE) }
#undef TR_CASE
  return 0;
}

struct ScanBytes { int64_t acc, wide; };
template <class S> ScanBytes scan_bytes() { return {sizeof(typename S::Acc), sizeof(typename S::Wide)}; }
template <template <class> class Op> ScanBytes scan_bytes(const Source& in) {
  constexpr bool kIntegers = Op<float>::kIntegers;
  if (kIntegers && in.accumulator == Dtype::I64) return scan_bytes<Op<std::conditional_t<kIntegers, int64_t, float>>>();
  if (Op<float>::kIndexed && size_of(in.dtype) == 2)
    return scan_bytes<Op<std::conditional_t<Op<float>::kIndexed, F16, float>>>();
  return in.accumulator == Dtype::F64 ? scan_bytes<Op<double>>() : scan_bytes<Op<float>>();
}
ScanBytes scan_bytes(const ScanCall& call) {
#define TR_CASE(name) \
  case Scan::name: return scan_bytes<name>(call.in);
  switch (call.op) { TR_FOR_EACH_SCAN(TR_CASE) }
#undef TR_CASE
  return {0, 0};
}

void check_grid(const Plan& plan) {
  if (plan.blocks > INT32_MAX) throw std::invalid_argument("the launch needs more than 2^31 - 1 blocks");
}

// Launch shape, chosen so far by reasoning and not by measurement: enough blocks for four waves of the device before a
// block takes more than the least work.
constexpr int kThreads = 256;  // of a block
constexpr int kWarps = kThreads / 32;
constexpr int kMaxLeaves = 64;       // of a run
constexpr int kBlocksWanted = 4;     // for each multiprocessor
constexpr int kWarpRows = 32;        // rows for each multiprocessor from which on a warp walks a row of a scan
constexpr int kThreadColumns = 128;  // columns for each multiprocessor from which on a thread walks a column

}  // namespace

ReductionFacts facts(Reduction op, Dtype d) {
#define TR_CASE(name)   \
  case Reduction::name: \
    return {name<float>::result(d), name<float>::kIndexed, name<float>::kHasEmpty, name<float>::kConverts};
  switch (op) { TR_FOR_EACH_REDUCTION(TR_CASE) }
#undef TR_CASE
  throw std::invalid_argument("unknown reduction");
}
ScanFacts facts(Scan op) {
#define TR_CASE(name)                                                                                            \
  case Scan::name:                                                                                               \
    return {name<float>::kIndexed, name<float>::kConverts, name<float>::kIntegers, name<float>::kIntegerKernels, \
            kHasStart<name<float>>};
  switch (op) { TR_FOR_EACH_SCAN(TR_CASE) }
#undef TR_CASE
  throw std::invalid_argument("unknown scan");
}

void force_plan(const PlanOverride& forced) {
  const std::lock_guard<std::mutex> lock(forced_mutex);
  forced_fields = forced;
}
PlanOverride forced_plan() {
  const std::lock_guard<std::mutex> lock(forced_mutex);
  return forced_fields;
}

const char* family_name(Family family) {
  switch (family) {
    case Family::Rows: return "rows";
    case Family::Columns: return "columns";
    case Family::Chain: return "chain";
    default: return "columns_chain";
  }
}

Layout fold(const TensorFacts& x, uint64_t along, const int64_t* out_strides) {
  std::vector<Dim> kept, reduced;
  for (int d = 0; d < x.dims; ++d)
    (along >> d & 1u ? reduced : kept).push_back({x.sizes[d], x.strides[d], out_strides[d]});
  return fold(std::move(kept), reduced);
}

Plan plan(const ReduceCall& call, const DeviceFacts& device) {
  const Layout& l = call.layout;
  const PlanOverride forced = forced_plan();
  Plan plan;
  plan.family = family_of(forced.family, lanes_across_rows(l) ? Family::Columns : Family::Rows, false);
  if (!device.gpu) {
    plan.blocks = std::max(1, device.multiprocessors);
    return plan;
  }
  plan.threads = kThreads;
  const int64_t n = l.length, leaves = std::max<int64_t>(1, ceil_div(n, kLeaf));
  const int64_t wanted = int64_t(kBlocksWanted) * device.multiprocessors;

  if (plan.family == Family::Rows) {
    const int needed = int(std::min<int64_t>(32, power_of_two(ceil_div(n, kGroup))));
    plan.lanes = std::max(1, needed);
    take(forced.lanes, plan.lanes, 32, "lanes");
    if (plan.lanes < needed) throw std::invalid_argument("force_plan: too few lanes for a row of " + std::to_string(n));
    if (plan.lanes == 32) {
      plan.warps = int(std::min<int64_t>(kWarps, power_of_two(leaves)));
      take(forced.warps, plan.warps, kWarps, "warps");
    }
    const int64_t per_warp = power_of_two(ceil_div(leaves, plan.warps));
    plan.leaves = int(std::min<int64_t>(kMaxLeaves, per_warp));
    auto blocks = [&] {
      plan.splits = ceil_div(leaves, int64_t(plan.warps) * plan.leaves);
      return ceil_div(l.rows * plan.splits, kThreads / (plan.lanes * plan.warps));
    };
    while (plan.leaves > 1 && blocks() < wanted) plan.leaves /= 2;
    take(forced.leaves, plan.leaves, kMaxLeaves, "leaves");
    plan.blocks = blocks();
    plan.vector_loads = is_static(call.in) && aligned(call.in.data) && rows_packed(l, size_of(call.in.dtype), 0);
    if (forced.vector_loads == 0) plan.vector_loads = false;
  } else {
    const int residues = int(std::min<int64_t>(kResidues, power_of_two(std::max<int64_t>(1, n))));
    const int columns = int(std::min<int64_t>(32, power_of_two(l.rows)));
    plan.lanes = n <= 32 ? 1 : std::min(residues, kThreads / columns);
    take(forced.lanes, plan.lanes, residues, "lanes");
    plan.leaves = int(std::min<int64_t>(kMaxLeaves, power_of_two(leaves)));
    auto blocks = [&] {
      plan.splits = ceil_div(leaves, plan.leaves);
      return ceil_div(l.rows, kThreads / plan.lanes) * plan.splits;
    };
    while (plan.leaves > 1 && blocks() < wanted) plan.leaves /= 2;
    take(forced.leaves, plan.leaves, kMaxLeaves, "leaves");
    plan.blocks = blocks();
  }
  if (plan.splits > 1) plan.workspace = l.rows * plan.splits * accumulator_bytes(call);
  check_grid(plan);
  return plan;
}

Plan plan(const ScanCall& call, const DeviceFacts& device) {
  const Layout& l = call.layout;
  const PlanOverride forced = forced_plan();
  const int64_t n = l.length;
  const bool across = lanes_across_rows(l);
  Plan plan;
  if (!device.gpu) {
    plan.family = family_of(forced.family, across ? Family::Columns : Family::Rows, true);
    plan.blocks = std::max(1, device.multiprocessors);
    return plan;
  }
  const bool many_rows = l.rows >= int64_t(kWarpRows) * device.multiprocessors;
  const bool many_columns = l.rows >= int64_t(kThreadColumns) * device.multiprocessors;
  const Family chosen = across ? (many_columns || n <= kGroup ? Family::Columns : Family::ColumnsChain)
                               : (many_rows || n <= kTile ? Family::Rows : Family::Chain);
  plan.family = family_of(forced.family, chosen, true);
  plan.threads = kThreads;
  plan.splits = ceil_div(n, kBlockTile);
  const void* const pointers[] = {call.in.data, call.in.more[0], call.in.more[1], call.out.values, call.out.indices};
  plan.vector_loads = is_static(call.in, call.out.dtype, facts(call.op).integer_kernels) &&
                      std::all_of(std::begin(pointers), std::end(pointers), aligned) &&
                      (plan.family == Family::Rows || plan.family == Family::Chain) &&
                      rows_packed(l, size_of(call.in.dtype), size_of(call.out.dtype));
  if (forced.vector_loads == 0) plan.vector_loads = false;

  switch (plan.family) {
    case Family::Rows: {
      const int needed = int(std::min<int64_t>(32, power_of_two(ceil_div(n, kGroup))));
      plan.lanes = needed;
      take(forced.lanes, plan.lanes, 32, "lanes");
      if (plan.lanes < needed)
        throw std::invalid_argument("force_plan: too few lanes for a row of " + std::to_string(n));
      plan.splits = 1;
      plan.blocks = ceil_div(l.rows, kThreads / plan.lanes);
      break;
    }
    case Family::Columns:
      plan.splits = 1;
      plan.blocks = ceil_div(l.rows, kThreads);
      break;
    case Family::Chain:
      plan.lanes = 32;
      plan.blocks = l.rows * plan.splits;
      break;
    case Family::ColumnsChain: {
      const int columns = int(std::min<int64_t>(32, power_of_two(l.rows)));
      plan.lanes = std::min(kFan, kThreads / columns);
      take(forced.lanes, plan.lanes, kFan, "lanes");
      plan.threads = plan.lanes * std::min(columns, kThreads / plan.lanes);
      plan.blocks = ceil_div(l.rows, plan.threads / plan.lanes) * plan.splits;
    }
  }
  if (plan.family == Family::Chain || plan.family == Family::ColumnsChain) {
    // scan_chain.cuh: a flag beside each 4 bytes of a block tile's total, and of the two values of a superblock.
    const ScanBytes bytes = scan_bytes(call);
    const int64_t total = 2 * bytes.acc, superblock = 2 * 2 * bytes.wide;
    plan.workspace = 8 + l.rows * (plan.splits * total + ceil_div(plan.splits, kFan) * superblock);
  }
  check_grid(plan);
  return plan;
}

}  // namespace torchreduce
