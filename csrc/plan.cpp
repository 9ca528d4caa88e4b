#include "call.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <stdexcept>

#include "order.h"
#include "plan_tools.h"

namespace torchreduce {

using namespace plans;

Layout fold(std::vector<Dim> kept, const std::vector<Dim>& reduced, MoreStrides* more) {
  std::stable_sort(kept.begin(), kept.end(),
                   [](const Dim& a, const Dim& b) { return a.in + a.more[0] > b.in + b.more[0]; });
  Layout layout;
  MoreStrides none;
  MoreStrides& others = more ? *more : none;
  int last = 0;  // dims so far
  auto append = [&](const Dim& d, int first) {
    if (d.size == 1) return;
    if (last > first) {  // merge with the dim before, when stepping over its end continues at this one's start
      int64_t &size = layout.size[last - 1], &in = layout.in[last - 1], &out = layout.out[last - 1];
      int64_t &second = others[0][last - 1], &third = others[1][last - 1];
      if (in == d.size * d.in && out == d.size * d.out && second == d.size * d.more[0] && third == d.size * d.more[1]) {
        size *= d.size;
        in = d.in;
        out = d.out;
        second = d.more[0];
        third = d.more[1];
        return;
      }
    }
    layout.size[last] = d.size;
    layout.in[last] = d.in;
    layout.out[last] = d.out;
    others[0][last] = d.more[0];
    others[1][last] = d.more[1];
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

// The same of all operands together: one may be broadcast.
bool lanes_across_rows(const ScanCall& call) {
  const Layout& l = call.layout;
  if (facts(call.op).inputs != 2 || l.kept == 0 || l.reduced == 0) return plans::lanes_across_rows(l);
  auto strides = [&](int d) { return magnitude(l.in[d]) + magnitude(l.out[d]) + magnitude(call.more_strides[0][d]); };
  return strides(l.kept - 1) < strides(l.kept);
}

Family family_of(const char* forced, Family chosen) {
  if (!forced) return chosen;
  for (int f = 0; f < kFamilies; ++f)
    if (family_name(Family(f)) == std::string(forced)) return Family(f);
  throw std::invalid_argument(std::string("force_plan: scans have no family ") + forced);
}

// Every row is one run of neighbours, and starts a multiple of 16 bytes from the first.
bool rows_packed(const Layout& l, int in_size, int out_size) {
  const int64_t stride = l.reduced == 1 ? l.in[l.kept] : 0;  // a reverse scan goes down
  if ((stride != 1 && !(stride == -1 && out_size)) || (out_size && l.out[l.kept] != stride)) return false;
  for (int d = 0; d < l.kept; ++d)
    if (l.in[d] * in_size % 16 != 0 || l.out[d] * out_size % 16 != 0) return false;
  return true;
}

struct ScanSizes {
  int64_t acc, wide;
  int groups, tiles;  // kHeldGroups, kHeldTiles
};
template <class S> ScanSizes scan_sizes() {
  return {sizeof(typename S::Acc), sizeof(typename S::Wide), kHeldGroups<S>, kHeldTiles<S>};
}
template <template <class> class Op> ScanSizes scan_sizes(const Source& in) {
  constexpr bool kIntegers = Op<float>::kIntegers;
  if (kIntegers && in.accumulator == Dtype::I64) return scan_sizes<Op<std::conditional_t<kIntegers, int64_t, float>>>();
  if (Op<float>::kIndexed && size_of(in.dtype) == 2)
    return scan_sizes<Op<std::conditional_t<Op<float>::kIndexed, F16, float>>>();
  return in.accumulator == Dtype::F64 ? scan_sizes<Op<double>>() : scan_sizes<Op<float>>();
}
ScanSizes scan_sizes(const ScanCall& call) {
#define TR_CASE(name) \
  case Scan::name: return scan_sizes<name>(call.in);
  switch (call.op) { TR_FOR_EACH_SCAN(TR_CASE) }
#undef TR_CASE
  return {0, 0, 0, 0};
}

// The most bytes of shared memory that a block takes, with what its kernel declares, which alone is never more than
// kPortableShared.
int shared_bytes(const Plan& plan) {
  if (plan.family == Family::Pipeline || plan.strip_bytes) return kPipelineShared;
  if (plan.shared == 0) return kPortableShared;
  return plan.shared + (plan.family == Family::Chain ? kChainShared : kColumnShared);
}

constexpr int kThreads = 256;  // of a block
constexpr int kWarps = kThreads / 32;
constexpr int kLeastWalk = 32;  // positions that a lane's walk has to be longer than: fewer are read at once
constexpr int kWarpRows = 32;   // rows for each multiprocessor from which on a warp walks a row of a scan

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
#define TR_CASE(name)                                                                     \
  case Scan::name:                                                                        \
    return {name<float>::kIndexed,        name<float>::kConverts, name<float>::kIntegers, \
            name<float>::kIntegerKernels, kHasStart<name<float>>, name<float>::kInputs};
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
    case Family::Walk: return "walk";
    default: return "pipeline";
  }
}

Layout fold(const TensorFacts& x, uint64_t along, const int64_t* out_strides) {
  std::vector<Dim> kept, reduced;
  for (int d = 0; d < x.dims; ++d)
    (along >> d & 1u ? reduced : kept).push_back({x.sizes[d], x.strides[d], out_strides[d]});
  return fold(std::move(kept), reduced);
}

static int64_t out_stride(const Layout& l) { return l.reduced ? l.out[l.kept] : 0; }

// Whether a kernel is compiled for the call's types.
static bool typed(const ScanCall& call) { return is_static(call.in, call.out.dtype, facts(call.op).integer_kernels); }
// The same of the kernels for one input, one output and small accumulators (scan_rows.cuh: kCompact).
static bool compact(const ScanCall& call) {
  return typed(call) && facts(call.op).inputs == 1 && !call.out.indices && scan_sizes(call).acc <= 8;
}
// The same of those for two inputs (kHeld).
static bool held_rows(const ScanCall& call) { return typed(call) && facts(call.op).inputs == 2; }
// Bytes of an element as the kernels of one input see it.
static int element_bytes(const ScanCall& call) { return size_of(typed(call) ? call.in.dtype : call.in.accumulator); }
// Whether results can take the place of elements where there is such a kernel.
static bool in_place(const ScanCall& call) { return compact(call) && call.in.dtype == call.out.dtype; }

// Whether rows are runs of neighbours, of types that the pipeline is compiled for. Of two inputs, those of b and of the
// results have to be aligned.
static bool pipelined(const ScanCall& call, bool vector_loads) {
  const Layout& l = call.layout;
  const int64_t in = position_stride(l), out = out_stride(l);
  if (!is_float(call.in.dtype) || size_of(call.in.dtype) > 4 || in != out || magnitude(in) != 1) return false;
  if (facts(call.op).indexed) return typed(call);
  return in_place(call) || (held_rows(call) && vector_loads && call.more_strides[0][l.kept] == in);
}

// Whether lanes can hold whole rows. Of one input, results are stored 16 bytes at a time, if need be by way of shared
// memory.
static bool whole_rows(const ScanCall& call, bool vector_loads) {
  const Layout& l = call.layout;
  if (held_rows(call)) return l.length <= int64_t(kWarps) * most_held_groups(size_of(call.in.dtype)) * kTile;
  if (!compact(call) || l.length > int64_t(kWarps) * scan_sizes(call).tiles * kTile) return false;
  if (vector_loads) return true;
  const bool neighbours = l.length == 1 || (magnitude(position_stride(l)) == 1 && out_stride(l) == position_stride(l));
  const bool one_run = l.kept == 0 || (l.kept == 1 && l.out[0] == l.length);
  return neighbours && (l.length > kTile || one_run);
}

// Whether two block tiles of a row are what a block's lanes can hold.
static bool two_block_tiles(const ScanCall& call, bool vector_loads) {
  const int64_t n = call.layout.length;
  return compact(call) && vector_loads && kWarps * scan_sizes(call).tiles == kFan && n > kBlockTile &&
         n <= 2 * kBlockTile;
}

// Whether rows are far shorter than a group, and one run of memory that is read and written 16 bytes at a time.
static bool packed_rows(const ScanCall& call) {
  const Layout& l = call.layout;
  const int64_t n = l.length, size = size_of(call.in.dtype), stride = position_stride(l);
  if (!in_place(call) || n < 1 || n >= kGroup || n * size > kPackedBytes) return false;
  if (n > 1 && (magnitude(stride) != 1 || out_stride(l) != stride)) return false;
  if (l.kept > 1 || (l.kept == 1 && (l.in[0] != n || l.out[0] != n))) return false;
  // The lowest element: of a reverse scan the last of its row.
  auto fits = [&](const void* p) { return aligned(static_cast<const char*>(p) - (stride < 0 ? (n - 1) * size : 0)); };
  return fits(call.in.data) && fits(call.out.values);
}

// Whether neighbouring columns can be taken several at a time.
static bool column_vectors(const ScanCall& call, int vector) {
  const Layout& l = call.layout;
  const int size = size_of(call.in.dtype), bytes = vector * size, last = l.kept - 1;
  auto fits = [&](const void* p) { return reinterpret_cast<uintptr_t>(p) % uintptr_t(bytes) == 0; };
  if (!in_place(call) || vector * scan_sizes(call).acc > kColumnAccs || l.kept == 0 || l.reduced == 0) return false;
  if (l.in[last] != 1 || l.out[last] != 1 || l.size[last] % vector != 0) return false;
  for (int d = 0; d < l.kept + l.reduced; ++d)
    if (d != last && (l.in[d] * size % bytes != 0 || l.out[d] * size % bytes != 0)) return false;
  return fits(call.in.data) && fits(call.out.values);
}

// Whether columns are one run of memory.
static bool one_run(const ScanCall& call) {
  const Layout& l = call.layout;
  if (!in_place(call) || l.kept == 0 || l.reduced == 0) return false;
  const int last = l.kept - 1;
  const int64_t width = l.size[last], stride = l.in[l.kept];
  return l.in[last] == 1 && l.out[last] == 1 && magnitude(stride) == width && l.out[l.kept] == stride;
}
// The same where it is read and written 16 bytes at a time.
static bool run_of_granules(const ScanCall& call) {
  const Layout& l = call.layout;
  if (!one_run(call)) return false;
  const int size = size_of(call.in.dtype), last = l.kept - 1;
  const int64_t row = l.size[last] * size, stride = l.in[l.kept];
  for (int d = 0; d < last; ++d)
    if (l.in[d] * size % 16 != 0 || l.out[d] * size % 16 != 0) return false;
  if (call.exclusive && row % 16 != 0) return false;  // results lie a row further on
  // The lowest element: of a reverse scan the last of its rows.
  auto fits = [&](const void* p) {
    return (reinterpret_cast<uintptr_t>(p) + uintptr_t((stride < 0 ? (l.length - 1) * stride : 0) * size)) % 16 == 0 &&
           (stride > 0 || l.length * row % 16 == 0);
  };
  return fits(call.in.data) && fits(call.out.values);
}
// Whether columns are one run of memory, and so few that there is a pipeline for them (kNarrowPipelined).
static bool narrow_run(const ScanCall& call) {
  return one_run(call) && is_float(call.in.dtype) && scan_sizes(call).acc <= 4 &&
         call.layout.size[call.layout.kept - 1] <= kMostNarrow;
}

// The bytes of a strip's row where there is a pipeline for strips that blocks share (kStripPipelined), else 0. Where
// more than a part of the last strip's lanes lacked columns it would lose (100 float32 columns: 12 %).
static int strip_row(const ScanCall& call) {
  const Layout& l = call.layout;
  const int size = size_of(call.in.dtype);
  if (!is_float(call.in.dtype) || size > 4 || !in_place(call) || scan_sizes(call).acc > kStripAcc || l.length <= kTile)
    return 0;
  if (!column_vectors(call, 16 / size) || l.length > INT32_MAX - 2 * kTile) return 0;
  const int64_t row = l.size[l.kept - 1] * size, lacking = (kStripRow - row % kStripRow) % kStripRow;
  if (row < kStripRow) return row >= 16 && kStripRow % row == 0 && run_of_granules(call) ? int(row) : 0;
  // What copies of tiles (tile_map.cuh) reach: rows apart, and one dim of batches.
  auto fits = [&](const int64_t (&strides)[kMaxDims]) {
    return l.kept <= 2 && magnitude(strides[l.kept]) >= l.size[l.kept - 1] &&
           magnitude(strides[l.kept]) * size < int64_t(1) << 40 &&
           (l.kept < 2 || (strides[0] > 0 && strides[0] * size < int64_t(1) << 40));
  };
  return 32 * lacking <= row + lacking && fits(l.in) && fits(l.out) ? kStripRow : 0;
}

// Whether columns lie side by side, wherever their rows start: such as have no tiles of words, and of float32 more than
// few (H200, of a copy's speed by tiles: 100 columns 0.98, here 0.98; 129 0.88, 0.98; 1001 0.84, 1.09). Not in place:
// what is read around a strip's rows may be another strip's results.
static bool ragged(const ScanCall& call) {
  const Layout& l = call.layout;
  const int size = size_of(call.in.dtype), last = l.kept - 1;
  return in_place(call) && ragged_columns(size, int(scan_sizes(call).acc)) && l.kept > 0 && l.length > kTile &&
         l.in[last] == 1 && l.out[last] == 1 && l.size[last] * size >= kLeastRaggedBytes &&
         !column_vectors(call, size < 4 ? 2 : 4) && (size < 4 || l.size[last] > kSectorColumns) &&
         call.in.data != call.out.values;
}

// Whether a lane can walk each column, or two neighbouring ones, with what scan_walk.cuh is compiled for (kLaneWalks).
static bool lane_walks(const ScanCall& call) {
  const Layout& l = call.layout;
  const ScanFacts known = facts(call.op);
  const int size = size_of(call.in.dtype), vector = walk_vector(size), last = l.kept - 1;
  if (!typed(call) || size < 2 || (known.inputs < 2 && !known.indexed) || (known.inputs == 3 && size < 4)) return false;
  if (known.indexed && l.length > kNearRows) return false;
  if (vector == 1) return true;
  if (l.kept == 0 || l.size[last] % vector != 0) return false;
  auto fits = [&](const void* p, int bytes) { return reinterpret_cast<uintptr_t>(p) % uintptr_t(vector * bytes) == 0; };
  auto steps = [&](const int64_t (&strides)[kMaxDims]) {
    for (int d = 0; d < l.kept + l.reduced; ++d)
      if (d == last ? strides[d] != 1 : strides[d] % vector != 0) return false;
    return true;
  };
  return steps(l.in) && steps(l.out) && (known.inputs < 2 || steps(call.more_strides[0])) && fits(call.in.data, size) &&
         fits(call.in.more[0], size) && fits(call.out.values, size) && fits(call.out.indices, 8);
}

static int shared_of(const DeviceFacts& device) { return device.bulk_copies ? device.shared : kPortableShared; }

// Whether teams of lanes can (kTeamWalks). Of no more than kTile positions most of a team would have none.
static bool team_walks(const ScanCall& call, const DeviceFacts& device) {
  const int size = size_of(call.in.dtype);
  const ScanSizes bytes = scan_sizes(call);
  return facts(call.op).inputs == 2 && lane_walks(call) && size <= 4 && call.layout.length > kTile &&
         team_shared(size, int(bytes.acc), int(bytes.wide)) + kColumnShared <= shared_of(device);
}

// Whether tiles of columns are of records (kExtremeColumns).
static bool record_tiles(const ScanCall& call) {
  return typed(call) && facts(call.op).indexed && size_of(call.in.dtype) <= 4 && call.layout.length <= kNearRows;
}
// Whether they lie in shared memory, several neighbouring columns a lane where they are words (kStagedTiles).
static bool staged_tiles(const ScanCall& call) {
  const bool sums = is_float(call.in.dtype) && size_of(call.in.dtype) <= 4 && (in_place(call) || held_rows(call));
  return sums || record_tiles(call);
}
// The neighbouring columns of a lane.
static int tile_vector(const ScanCall& call) {
  const int vector = walk_vector(size_of(call.in.dtype));
  if (!staged_tiles(call) || forced_plan().vector_loads == 0) return 1;
  return (in_place(call) ? column_vectors(call, vector) : lane_walks(call)) ? vector : 1;
}

// Where 16-byte accesses along the row have to be aligned: the end that lies highest in a row walked downwards.
static bool row_aligned(const void* data, int64_t stride, int size) {
  return aligned(static_cast<const char*>(data) + (stride < 0 ? size : 0));
}

// Columns of at most two tiles, `vector` of them a thread. The plan asks for more shared memory than every GPU has only
// where there are bulk copies. Code for large blocks cannot do with less of it than its constants say.
static void take_short(Plan& plan, const ScanCall& call, const DeviceFacts& device, int vector) {
  const Layout& l = call.layout;
  const int element = typed(call) ? size_of(call.in.dtype) * facts(call.op).inputs : size_of(call.in.accumulator);
  const int acc = int(scan_sizes(call).acc), threads = column_threads(vector, element, acc);
  const int64_t width = l.kept ? l.size[l.kept - 1] : 1, columns = ceil_div(width, vector);
  plan.vector = vector;
  plan.vector_loads = vector > 1;
  plan.splits = 1;
  plan.warps = l.length > kTile ? 2 : 1;
  plan.lanes = plan.warps > 1 ? kFan : int(power_of_two(ceil_div(l.length, kGroup)));
  const int rows = plan.lanes * plan.warps, step = std::max(1, 32 / rows);  // blocks are whole warps
  for (int most = device.large_blocks ? threads : std::min(threads, kSmallBlock); most > 0; most -= 64) {
    const int64_t widest = std::max(step, most / rows / step * step), strips = ceil_div(columns, widest);
    plan.strip = int(ceil_div(ceil_div(columns, std::max<int64_t>(1, strips)), step) * step);
    plan.threads = plan.strip * rows;
    const int positions = device.large_blocks ? threads : plan.threads;
    plan.shared = 2 * kGroup * positions * vector * element + rows * (plan.strip + 1) * vector * acc +
                  (plan.warps > 1 ? plan.strip * vector * acc : 0);
    if (device.large_blocks || plan.shared + kColumnShared <= shared_of(device)) break;
  }
  const int fit = std::max(1, (224 << 10) / (plan.shared + (2 << 10)));  // of a multiprocessor
  plan.blocks = std::min(ceil_div(columns, plan.strip) * (l.rows / width), int64_t(device.multiprocessors) * fit);
}

// Strips of columns whose rows start anywhere.
static void take_ragged(Plan& plan, const ScanCall& call, const DeviceFacts& device) {
  const Layout& l = call.layout;
  const ScanSizes bytes = scan_sizes(call);
  const int64_t width = l.size[l.kept - 1];
  plan.ragged = true;
  plan.vector = 4 / size_of(call.in.dtype);
  plan.vector_loads = true;
  plan.lanes = kFan;
  plan.warps = 1;
  const int64_t words = ceil_div(width, plan.vector);
  const bool whole_sectors = plan.vector == 1 && words > kRaggedMerged;
  plan.strip = whole_sectors ? kRaggedStrip : int(ceil_div(words, ceil_div(words, 32)));
  plan.splits = ceil_div(l.length, kTile);
  plan.threads = ragged_block(size_of(call.in.dtype));
  const int sides = ragged_sides(plan.strip);
  const int64_t columns = 32 * sides * plan.vector, strips = ceil_div(words, plan.strip);
  plan.shared = int((2 + kRaggedBehind) * (kTile / sides) * ragged_pitch(sides) +
                    columns * (kColumnCarries * (bytes.wide + bytes.acc) + (sides - 1) * bytes.acc) +
                    kRaggedBehind * (kFan / sides) * (columns + 1) * bytes.acc);
  plan.blocks = std::min<int64_t>(strips * (l.rows / width) * plan.splits, device.multiprocessors);
}

// Strips whose rows have `bytes` bytes.
static void take_strips(Plan& plan, const ScanCall& call, const DeviceFacts& device, int bytes) {
  const Layout& l = call.layout;
  const int64_t width = l.size[l.kept - 1], columns = bytes / size_of(call.in.dtype);
  plan.strip_bytes = bytes;
  plan.vector = 4;
  plan.vector_loads = true;
  plan.lanes = kFan;
  plan.warps = kStripRow / bytes;
  plan.strip = int(columns) / plan.vector;
  plan.splits = ceil_div(l.length, kTile);
  plan.threads = kStripThreads;
  plan.shared = kStripStages * kStripStage;
  const int64_t jobs = l.rows / width * ceil_div(width, columns) * ceil_div(plan.splits, plan.warps);
  plan.blocks = std::min<int64_t>(jobs, device.multiprocessors);
}

// Tiles of columns, `vector` of them a lane: of as many rows with indices as the lanes of a warp have, else of kTile.
static void take_tiles(Plan& plan, const ScanCall& call, int vector) {
  const Layout& l = call.layout;
  const int64_t width = l.kept ? l.size[l.kept - 1] : 1, columns = ceil_div(width, vector),
                across = column_tile_lanes(facts(call.op).inputs), strips = ceil_div(columns, across),
                each = ceil_div(columns, strips);
  plan.tiled = true;
  plan.vector = vector;
  plan.vector_loads = vector > 1;
  plan.strip = int(strips > 1 ? ceil_div(each, 8) * 8 : each);  // 32 bytes of memory are of one strip, if aligned
  if (record_tiles(call)) {
    plan.lanes = kWarps * (32 / plan.strip);
    plan.splits = ceil_div(l.length, plan.lanes * kExtremeSteps);
  } else {
    plan.threads = column_tile_threads(facts(call.op).inputs);
    plan.lanes = plan.threads / int(across);
    while (2 * plan.warps * plan.strip <= across) plan.warps *= 2;
    plan.splits = ceil_div(l.length, kTile);
  }
  plan.blocks = strips * (l.rows / width) * ceil_div(plan.splits, plan.warps);
}

Plan plan(const ScanCall& call, const DeviceFacts& device) {
  const Layout& l = call.layout;
  const PlanOverride forced = forced_plan();
  const int64_t n = l.length;
  const bool across = lanes_across_rows(call);
  const int inputs = facts(call.op).inputs;
  Plan plan;
  if (!device.gpu) {
    plan.family = family_of(forced.family, across ? Family::Columns : Family::Rows);
    plan.blocks = std::max(1, device.multiprocessors);
    return plan;
  }
  const int in_size = size_of(call.in.dtype), out_size = size_of(call.out.dtype);
  const int64_t stride = position_stride(l);
  plan.vector_loads = typed(call) && rows_packed(l, in_size, out_size) && row_aligned(call.in.data, stride, in_size) &&
                      row_aligned(call.out.values, stride, out_size) &&
                      (compact(call) || inputs == 2 ||
                       (aligned(call.in.more[0]) && aligned(call.in.more[1]) &&
                        (!call.out.indices || row_aligned(call.out.indices, stride, 8))));
  if (forced.vector_loads == 0) plan.vector_loads = false;
  const bool many_rows = l.rows >= int64_t(kWarpRows) * device.multiprocessors;
  const bool room = device.bulk_copies && shared_of(device) >= kPipelineShared;
  const bool few = room && forced.vector_loads != 0 && narrow_run(call),
             pipeline = few || (room && pipelined(call, plan.vector_loads));
  // Where each block tile has a multiprocessor of its own.
  const bool few_tiles = l.rows * ceil_div(n, kBlockTile) <= device.multiprocessors,
             two = few_tiles && device.large_blocks &&
                   two_block_tiles(call, plan.vector_loads),  // by one block, which waits for no other
      whole = forced.whole != 0 && (two || whole_rows(call, plan.vector_loads)), indexed = facts(call.op).indexed;
  const bool walked = whole || scan_sizes(call).acc <= kWalkedAcc;
  const bool chains = inputs < 3;  // of three inputs a block tile takes more registers than there are
  // Where each block tile has a multiprocessor of its own, it is for a chain, which starts sooner (H200, from a graph:
  // cumsum float32 of 2^14 6.3 us, in the pipeline 7.3, of 10^6 7.9 and 9.6, of 8 by 32000 7.4 and 8.0; of more tiles,
  // 2^21, 11.8 and 11.5; cumprod, with larger totals, of 2^20 10.9 and 9.8).
  const bool brief = plan.vector_loads && inputs == 1 && !indexed && scan_sizes(call).acc <= 4 && few_tiles;
  const int64_t longest_walk = !many_rows ? kExtremeWalk : pipeline ? kExtremePipelined - 1 : n;  // with indices
  const Family along = !walked                                                   ? Family::Chain
                       : n <= kTile || whole                                     ? Family::Rows
                       : indexed && n <= longest_walk                            ? Family::Rows
                       : pipeline && !brief && !(many_rows && inputs == 2)       ? Family::Pipeline
                       : many_rows && !indexed && (plan.vector_loads || !chains) ? Family::Rows
                       : chains                                                  ? Family::Chain
                                                                                 : Family::Columns;
  const int acc = int(scan_sizes(call).acc);
  const int strips = room && forced.vector_loads != 0 && l.kept > 0 && l.reduced > 0 ? strip_row(call) : 0;
  const bool loose = device.large_blocks && forced.vector_loads != 0 && ragged(call);
  // Strips of two inputs, or with indices, are narrow, unless columns are short: float32 linear_scan 0.15 of a copy's
  // speed. So lanes that walk are worth it from about one block of them a multiprocessor on. Where there are tiles for
  // two inputs, from more on (H200, float32 and bfloat16: 16384 columns 0.47 of a copy's speed, tiles 0.54 and 0.41;
  // 32768 0.79 and 0.31, tiles 0.59 and 0.44).
  // Teams of lanes have a strip of columns a block, so that they are worth it from where strips are nearly two a
  // multiprocessor (H200, float32 and bfloat16: 16384 columns 0.81 and 0.45 of a copy's speed, tiles 0.53 and 0.38;
  // 32768 0.87 and 0.65, a lane each 0.79 and 0.42).
  const int64_t walkers = int64_t(kWalkThreads) * walk_vector(in_size) * device.multiprocessors;
  const bool teams = team_walks(call, device) && forced.lanes != 1;
  const bool wide = teams ? 4 * l.rows >= 7 * kTeamColumns * int64_t(device.multiprocessors)
                          : inputs == 2 && lane_walks(call) && 3 * l.rows >= 8 * walkers;
  const bool many_columns = wide || (4 * l.rows >= 3 * walkers && (n <= kTile || !staged_tiles(call)));
  const Family chosen = !across                                              ? along
                        : few && n > kBlockTile                              ? Family::Pipeline
                        : many_columns && n > kLeastWalk && lane_walks(call) ? Family::Walk
                                                                             : Family::Columns;
  plan.family = family_of(forced.family, chosen);
  plan.vector_loads = plan.vector_loads &&
                      (plan.family == Family::Rows || plan.family == Family::Chain || plan.family == Family::Pipeline);
  plan.threads = kThreads;
  plan.splits = ceil_div(n, kBlockTile);

  switch (plan.family) {
    case Family::Rows: {
      if (!walked) throw std::invalid_argument("force_plan: there are no rows of two inputs of float64");
      plan.splits = 1;
      if (indexed) {
        const int least = int(std::min<int64_t>(32, power_of_two(ceil_div(n, 2)))), size = element_bytes(call);
        plan.lanes = least;
        take(forced.lanes, plan.lanes, 32, "lanes");
        if (plan.lanes < least)
          throw std::invalid_argument("force_plan: too few lanes for a row of " + std::to_string(n));
        const int rows = extreme_rows(n, size);  // of a warp at a time
        plan.blocks = ceil_div(l.rows, int64_t(kWarps) * (32 / plan.lanes) * rows);
        if (rows > 1) plan.blocks = std::min(plan.blocks, int64_t(kExtremeBlocks) * device.multiprocessors);
        break;
      }
      plan.whole = whole;
      const int groups = int(std::min<int64_t>(32, std::max<int64_t>(1, ceil_div(n, kGroup))));
      plan.lanes = whole ? groups : int(power_of_two(groups));
      take(forced.lanes, plan.lanes, 32, "lanes");
      if (plan.lanes < groups)
        throw std::invalid_argument("force_plan: too few lanes for a row of " + std::to_string(n));
      if (whole && held_rows(call)) {
        plan.lanes = int(power_of_two(plan.lanes));
        if (n > kTile) {
          const int64_t tiles = power_of_two(ceil_div(n, kTile));
          plan.warps = int(std::min<int64_t>(kWarps, std::max<int64_t>(1, tiles / held_groups_wanted(in_size))));
          take(forced.warps, plan.warps, kWarps, "warps");
        }
        const int groups = held_groups(l, in_size, plan.warps);
        if (groups > most_held_groups(in_size))
          throw std::invalid_argument("force_plan: too few warps for a row of " + std::to_string(n));
        plan.blocks = ceil_div(l.rows, kThreads / (plan.lanes * plan.warps) * (n > kTile ? 1 : groups));
        break;
      }
      const ScanSizes held_by = scan_sizes(call);
      const int held = n <= kTile ? held_by.groups : n <= 2 * kTile ? 2 : held_by.tiles;
      if (whole && plan.lanes == 1 && forced.vector_loads != 0 && packed_rows(call)) {
        plan.vector = kPackedRows;
        plan.blocks = ceil_div(l.rows, kThreads * kPackedRows);
      } else if (whole && n <= kTile) {
        plan.blocks = ceil_div(l.rows, kWarps * held * (32 / plan.lanes));
      } else if (whole) {
        plan.warps = int(power_of_two(ceil_div(n, held * kTile)));
        take(forced.warps, plan.warps, std::max(kWarps, plan.warps), "warps");
        if (plan.warps * held * kTile < n)
          throw std::invalid_argument("force_plan: too few warps for a row of " + std::to_string(n));
        // Warps of one row alone wait for each other less; those that store by way of shared memory have too much of
        // it.
        if (plan.warps > 1 && plan.vector_loads) plan.threads = plan.warps * 32;
        plan.blocks = ceil_div(l.rows, plan.threads / 32 / plan.warps);
      } else {
        plan.blocks = ceil_div(l.rows, kThreads / plan.lanes);
      }
      break;
    }
    case Family::Columns: {
      const int vector = column_vector(in_size, acc);
      const bool vectors = forced.vector_loads != 0 && column_vectors(call, vector);
      auto fits = [&] { return plan.shared + kColumnShared <= shared_of(device); };
      if (n <= kTile) {
        take_short(plan, call, device, vectors ? vector : 1);
        if (vectors && !fits()) take_short(plan, call, device, 1);
      } else if (strips) {
        take_strips(plan, call, device, strips);
      } else {
        const Plan none = plan;
        if (loose) take_ragged(plan, call, device);
        if (!loose || !fits()) take_tiles(plan = none, call, tile_vector(call));
      }
      break;
    }
    case Family::Chain:
      if (!chains) throw std::invalid_argument("force_plan: there are no chains of three inputs");
      plan.lanes = 32;
      if (indexed) {
        const int size = element_bytes(call), tile = extreme_tile(size);
        plan.splits = ceil_div(n + kExtremeLead, tile);
        plan.blocks = l.rows * plan.splits;
        plan.shared = tile * size;
        break;
      }
      plan.blocks = l.rows * plan.splits;
      plan.shared = kBlockTile * (typed(call) ? in_size * inputs : size_of(call.in.accumulator));
      if (plan.shared + kChainShared > shared_of(device)) plan.shared = 0;
      break;
    case Family::Pipeline:
      if (!pipeline) throw std::invalid_argument("force_plan: the pipeline cannot serve this call on this device");
      plan.lanes = 32;
      plan.threads = pipeline_threads(in_size, int(scan_sizes(call).acc));
      if (few) {
        plan.vector = int(l.size[l.kept - 1]);
        plan.splits = ceil_div(n, kBlockTile / narrow_parts(plan.vector, in_size));
        plan.threads = narrow_threads(plan.vector, in_size);
      } else if (indexed) {
        plan.splits = ceil_div(n + kExtremeLead, extreme_tile(in_size));
        plan.threads = kExtremePipelineThreads;
      }
      plan.blocks = std::min<int64_t>(l.rows / plan.vector * plan.splits, device.multiprocessors);
      break;
    case Family::Walk:
      if (!lane_walks(call)) throw std::invalid_argument("force_plan: lanes cannot walk the columns of this call");
      plan.vector = walk_vector(in_size);
      plan.splits = 1;
      plan.threads = kWalkThreads;
      plan.blocks = ceil_div(l.rows, int64_t(plan.vector) * kWalkThreads);
      if (teams) {
        plan.lanes = kTeam;
        plan.threads = team_threads(in_size);
        plan.shared = team_shared(in_size, acc, int(scan_sizes(call).wide));
        plan.blocks = ceil_div(l.rows, kTeamColumns);
      }
      if (forced.lanes > 1 && forced.lanes != plan.lanes)
        throw std::invalid_argument("force_plan: columns are walked by a lane each, or by " + std::to_string(kTeam));
      break;
  }
  // Chains take tickets even where rows are not split. scan_chain.cuh, column_carry.cuh: a flag beside each 4 bytes of
  // a value.
  const ScanSizes bytes = scan_sizes(call);
  const int64_t total = 2 * bytes.acc, carry = 2 * bytes.wide;
  if (plan.strip_bytes) {
    const int64_t blocks = ceil_div(plan.splits, kFan);
    plan.workspace = 16 + l.rows * (plan.splits * total + (blocks + ceil_div(blocks, kFan)) * carry);
  } else if (plan.tiled && record_tiles(call)) {
    const int64_t groups = plan.splits / kRecordFan;
    plan.workspace = 8 + 8 * l.rows * (plan.splits > 1 ? plan.splits + groups + groups / kRecordFan : 0);
  } else if (plan.family == Family::Columns) {
    const int64_t blocks = ceil_div(plan.splits, kFan);
    const int64_t values = plan.splits > 1 ? (plan.splits + blocks) * total + blocks * carry : 0;
    if (n > kTile) plan.workspace = 8 + l.rows * values;
  } else if (plan.family != Family::Rows && plan.family != Family::Walk) {
    plan.workspace = 8 + l.rows * (plan.splits * total + ceil_div(plan.splits, kFan) * 2 * carry);
  }
  check_launch(plan.blocks, shared_bytes(plan), device.shared);
  return plan;
}

}  // namespace torchreduce
