#include "reduce_plan.h"

namespace torchreduce {

using namespace plans;

namespace {

// Bytes of one accumulator of the kernel that serves elements of `in`.
template <template <class> class Op> int64_t accumulator_bytes(const Source& in) {
  if (Op<float>::kConverts) return size_of(in.accumulator);
#define TR_CASE(T) \
  case DtypeOf<T>::value: return sizeof(typename Op<T>::Acc);
  switch (in.dtype) { TR_FOR_EACH_TYPE(TR_CASE) }
#undef TR_CASE
  return 0;
}

template <auto kServes>
std::optional<Shape> shape_of(const ReduceCall& call, const DeviceFacts& device, const PlanOverride& forced) {
  if (auto shape = kServes(call, device, forced)) return Shape(*shape);
  return {};
}

}  // namespace

int64_t accumulator_bytes(const ReduceCall& call) {
#define TR_CASE(name) \
  case Reduction::name: return accumulator_bytes<name>(call.in);
  switch (call.op) { TR_FOR_EACH_REDUCTION(TR_CASE) }
#undef TR_CASE
  return 0;
}

template <template <class> class Op> static ColumnFacts column_facts(const Source& in) {
#define TR_CASE(T)        \
  case DtypeOf<T>::value: \
    return {int(sizeof(typename Op<T>::Near)), int(sizeof(typename Op<T>::Acc)), Op<T>::kAnyOrder};
  switch (in.dtype) { TR_FOR_EACH_TYPE(TR_CASE) }
#undef TR_CASE
  return {};
}
ColumnFacts column_facts(const ReduceCall& call) {
#define TR_CASE(name) \
  case Reduction::name: return column_facts<name>(call.in);
  switch (call.op) { TR_FOR_EACH_REDUCTION(TR_CASE) }
#undef TR_CASE
  return {};
}

void order_by_memory(ReduceCall& call) {
  const Layout& l = call.layout;
  const ReductionFacts f = facts(call.op, call.in.dtype);
  if (l.reduced < 2 || f.indexed || (f.converts && call.in.accumulator != Dtype::I64)) return;
  std::vector<Dim> kept, reduced;
  for (int d = 0; d < l.kept + l.reduced; ++d) (d < l.kept ? kept : reduced).push_back({l.size[d], l.in[d], l.out[d]});
  std::stable_sort(reduced.begin(), reduced.end(), [](const Dim& a, const Dim& b) { return a.in > b.in; });
  call.layout = fold(std::move(kept), reduced);
}

const std::vector<ReduceFamily> kReduceFamilies = {
    {"packed_rows", "runs of short rows copied to shared memory", shape_of<packed_rows::serves>},
    {"rows", "lanes along rows of neighbours, 16 bytes each", shape_of<rows::serves>},
    {"short_columns", "lanes across columns of at most eight rows", shape_of<short_columns::serves>},
    {"column_slices", "small slices, whole, in shared memory", shape_of<column_slices::serves>},
    {"narrow_columns", "lanes along runs of rows, several accumulators deep", shape_of<narrow_columns::serves>},
    {"wide_columns", "lanes across columns, warps down them", shape_of<wide_columns::serves>},
    {"columns", "lanes across rows, each walking its own", shape_of<columns::serves>, true},
    {"strided", "lanes along each row, element by element", shape_of<strided::serves>, true},
};

// The CPU has two ways, which have names of families.
static ReducePlan cpu_plan(const ReduceCall& call, int threads, const PlanOverride& forced) {
  CpuShape shape;
  shape.blocks = std::max(1, threads);
  shape.across = lanes_across_rows(call.layout);
  if (forced.family) {
    const std::string name = forced.family;
    if (name != "rows" && name != "columns")
      throw std::invalid_argument("force_plan: reductions on the CPU have the families rows and columns");
    shape.across = name == "columns";
  }
  return {shape.across ? "columns" : "rows", shape};
}

ReducePlan plan(const ReduceCall& call, const DeviceFacts& facts) {
  const PlanOverride forced = forced_plan();
  DeviceFacts device = facts;
  device.multiprocessors = std::max(1, device.multiprocessors);  // families divide by it
  if (!device.gpu) return cpu_plan(call, device.multiprocessors, forced);
  bool known = false;
  for (const ReduceFamily& family : kReduceFamilies) {
    if (forced.family && std::string(forced.family) != family.name) continue;
    known = true;
    if (!family.general && !device.wide_reductions) continue;
    if (auto shape = family.serves(call, device, forced)) {
      ReducePlan plan{family.name, *shape};
      check_launch(plan.launch().blocks, plan.launch().shared, device.shared);
      return plan;
    }
  }
  if (known) throw std::invalid_argument(std::string("force_plan: ") + forced.family + " cannot serve this call");
  std::string names;
  for (const ReduceFamily& family : kReduceFamilies) names += (names.empty() ? "" : ", ") + std::string(family.name);
  throw std::invalid_argument("force_plan: reductions have the families " + names);
}

}  // namespace torchreduce
