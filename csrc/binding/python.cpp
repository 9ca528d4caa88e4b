// torchreduce._C: what is no tensor op. Build facts, instruction sets, plans.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>

#include "build_info.h"
#include "cpu/cpu.h"
#include "interface.h"
#include "kernels/common/refusal.h"
#include "numerics/intrinsics.h"
#include "operand.h"
#include "plan/reduce_copy.h"
#include "plan/reduce_plan.h"
#include "plan/scan_plan.h"
#include "products.h"

namespace py = pybind11;

namespace torchreduce {

void bind_direct(py::module_& m);  // python_direct.cpp

namespace {

// ---- matrix products --------------------------------------------------------------------------------------------------

py::list tried(int device) {
  py::list all;
  for (const TriedAlgorithm& a : tried_algorithms(device))
    all.append(
        py::make_tuple(a.dtype, a.out_dtype, a.left_along_rows, a.right_along_rows, a.added, a.batched, a.keeps_order));
  return all;
}

// ---- build facts ------------------------------------------------------------------------------------------------------

py::dict build_info() {
  std::vector<std::string> archs;
  std::istringstream listed(kBuildInfo.archs);
  for (std::string arch; std::getline(listed, arch, ';');) archs.push_back(arch);

  py::dict info;
  info["version"] = kBuildInfo.version;
  info["compiler"] = kBuildInfo.compiler;
  const auto version_if = [](const std::string& toolkit) -> py::object {
    if (toolkit != kBuildInfo.toolkit) return py::none();
    return py::str(kBuildInfo.toolkit_version);
  };
  info["cuda"] = version_if("CUDA");
  info["hip"] = version_if("HIP");
  info["archs"] = archs;
  info["flags"] = kBuildInfo.flags;
  info["kernels"] = kBuildInfo.kernels;
  return info;
}

// ---- plans ------------------------------------------------------------------------------------------------------------

// The families of a table, and what each is in words.
template <class Table> py::dict words_of(const Table& families) {
  py::dict words;
  for (const auto& family : families) words[family.name] = family.summary;
  return words;
}

const char* family_named(const std::string& name) {
  std::string all;
  const char* found = nullptr;
  auto look = [&](const auto& families) {
    for (const auto& family : families) {
      if (name == family.name) found = family.name;
      all += (all.empty() ? "'" : ", '") + std::string(family.name) + "'";
    }
  };
  look(kReduceFamilies);
  all += std::string(", '") + kContiguous + "'";
  if (name == kContiguous) found = kContiguous;
  look(kScanFamilies);
  look(kRowwiseFamilies);
  if (found) return found;
  throw py::value_error("force_plan: unknown family '" + name + "'. Supported are " + all);
}

// The fields that can be forced, but for the family, which has names.
const std::map<std::string, int PlanOverride::*> kForcible = {{"lanes", &PlanOverride::lanes},
                                                              {"warps", &PlanOverride::warps},
                                                              {"leaves", &PlanOverride::leaves},
                                                              {"vector_loads", &PlanOverride::vector_loads},
                                                              {"rows", &PlanOverride::rows}};

// A key that is absent leaves its field to the planner. Raises ValueError for a key or family that is unknown.
void force_fields(const py::dict& fields) {
  PlanOverride forced;
  for (const auto& [key, value] : fields) {
    const auto name = py::cast<std::string>(key);
    const auto field = kForcible.find(name);
    if (name == "family") forced.family = family_named(py::cast<std::string>(value));
    else if (field != kForcible.end()) forced.*(field->second) = py::cast<int>(value);
    else
      throw py::value_error("force_plan: unknown field '" + name +
                            "'. Supported are 'family', 'lanes', 'warps', 'leaves', 'vector_loads' and 'rows'");
  }
  force_plan(forced);
}

py::dict forced_fields() {
  const PlanOverride forced = forced_plan();
  py::dict fields;
  if (forced.family) fields["family"] = forced.family;
  for (const auto& [name, field] : kForcible)
    if (forced.*field >= 0) fields[name.c_str()] = forced.*field;
  return fields;
}

// What all plans say.
template <class Plan> py::dict fields_of(const Plan& plan) {
  const auto& launch = plan.launch();
  py::dict fields, shape;
  std::visit([&](const auto& s) { s.each([&](const char* name, int64_t value) { shape[name] = value; }); }, plan.shape);
  fields["family"] = plan.family;
  fields["blocks"] = launch.blocks;
  fields["threads"] = launch.threads;
  fields["shared"] = launch.shared;
  fields["workspace"] = launch.workspace;
  fields["shape"] = shape;
  return fields;
}
py::dict as_dict(const ScanPlan& plan) {
  py::dict fields = fields_of(plan);
  fields["declared"] = plan.launch().declared;
  return fields;
}
py::dict as_dict(const ReducePlan& plan) {
  py::dict fields = fields_of(plan);
  fields["splits"] = plan.launch().splits;
  fields["tickets"] = plan.launch().tickets;
  return fields;
}
py::dict as_dict(const RowwisePlan& plan) {
  py::dict fields = fields_of(plan);
  fields["splits"] = plan.launch().splits;
  return fields;
}

struct ReductionOp {
  Reduction reduction;
  OpOptions options;
};
#define TR_ROW(name, signature, reduction, ...) {#name, {Reduction::reduction, {__VA_ARGS__}}},
const std::map<std::string, ReductionOp> kReductions = {TR_FOR_EACH_REDUCTION_OP(TR_ROW)};
#undef TR_ROW
const std::map<std::string, Rowwise> kRowwise = {
    {"softmax", Rowwise::Softmax},      {"log_softmax", Rowwise::LogSoftmax},    {"logsumexp", Rowwise::LogSumExp},
    {"entropy", Rowwise::Entropy},      {"moments", Rowwise::Moments},           {"rms_norm", Rowwise::RmsNorm},
    {"layer_norm", Rowwise::LayerNorm}, {"cross_entropy", Rowwise::CrossEntropy}};
#define TR_ROW(name, signature, scan, min) {#name, Scan::scan},
const std::map<std::string, Scan> kScans = {TR_FOR_EACH_SCAN_OP(TR_ROW){"linear_scan", Scan::LinearScan},
                                            {"decayed_sum", Scan::Decay}};
#undef TR_ROW

// What plan() asks about a GPU, by the names of its arguments.
py::dict facts_of(int device) {
  const DeviceFacts facts = gpu_facts(device);
  py::dict fields;
  fields["multiprocessors"] = facts.multiprocessors;
  fields["bulk_copies"] = facts.bulk_copies;
  fields["shared"] = facts.shared;
  fields["large_blocks"] = facts.large_blocks;
  fields["wide_reductions"] = facts.wide_reductions;
  fields["clusters"] = facts.clusters;
  return fields;
}

// The plan of `op` on a tensor of these sizes and strides, along the dims in `dim` (none: all of them), with a
// contiguous result; of linear_scan and decayed_sum, the other inputs lie as the first does, and norms have no weights.
// `aligned`: the first
// element, of input and result, lies on a 16-byte boundary. Dtypes are torch's numbers. `exclusive` and `reverse` are
// options of scans. Without `large_blocks` they are where there is room for them.
py::dict plan_of(const std::string& op, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                 const std::vector<int>& dim, int dtype, int out_dtype, bool aligned, bool gpu, int multiprocessors,
                 bool bulk_copies, int shared, bool exclusive, bool reverse, std::optional<bool> large_blocks,
                 bool wide_reductions, bool clusters, bool fast) {
  const int dims = int(sizes.size());
  if (dims > kMaxDims || strides.size() != sizes.size())
    throw py::value_error("plan: needs a stride for each size, and at most 64 of them");
  uint64_t along = 0;
  for (int d : dim) {
    if (d < 0 || d >= dims) throw py::index_error("plan: dim " + std::to_string(d) + " is out of range");
    along |= uint64_t(1) << d;
  }
  if (dim.empty() && dims > 0) along = ~uint64_t(0) >> (64 - dims);

  const auto reduction = kReductions.find(op);
  const auto scan = kScans.find(op);
  const auto rowwise = kRowwise.find(op);
  const bool scans = scan != kScans.end(), looks_twice = rowwise != kRowwise.end();
  if (reduction == kReductions.end() && !scans && !looks_twice) throw py::value_error("plan: unknown op '" + op + "'");
  const bool maps = scans || (looks_twice && facts(rowwise->second).maps);
  if (scans && dims > 0 && dim.size() != 1) throw py::value_error("plan: " + op + " goes along one dim");

  std::vector<int64_t> out_strides(sizes.size());
  int64_t next = 1;
  for (int d = dims - 1; d >= 0; --d) {
    if (!maps && (along >> d & 1u)) continue;
    out_strides[d] = next;
    next *= sizes[d];
  }
  const auto in = Dtype(dtype), out = Dtype(out_dtype);
  auto* data = reinterpret_cast<void*>(uintptr_t(aligned ? 16 : 1));  // looked at, not through
  auto* results = static_cast<char*>(data) + 16;
  const Layout layout = fold({data, in, dims, sizes.data(), strides.data()}, along, out_strides.data());
  const DeviceFacts device{gpu,
                           multiprocessors,
                           bulk_copies,
                           shared,
                           large_blocks.value_or(bulk_copies && shared >= scans::kRingShared),
                           wide_reductions,
                           clusters};

  if (looks_twice) {
    const Operand x{{data, in, dims, sizes.data(), strides.data()}};
    if (rowwise->second == Rowwise::RmsNorm && is_channels_last(x))
      std::copy_n(new_strides(sizes, true).begin(), dims, out_strides.begin());
    const Operand result{{results, out, dims, sizes.data(), out_strides.data()}};
    return as_dict(RowwiseRun("plan", rowwise->second, x, along, out).planned(maps ? &result : nullptr, device));
  }
  if (scans) {
    const ScanFacts known = facts(scan->second);
    ScanCall call{};
    call.op = scan->second;
    call.in = {data, in, accumulator_of(in, out), false};
    call.out = {results, known.indexed ? reinterpret_cast<int64_t*>(results) : nullptr, out};
    call.exclusive = exclusive;
    call.reverse = reverse;
    call.layout = layout;
    if (reverse && layout.reduced) {  // from the last element, as run_scan of binding/ops.cpp has it
      int64_t &from = call.layout.in[layout.kept], &to = call.layout.out[layout.kept];
      const int64_t last = layout.length - 1;
      call.in.data = static_cast<char*>(data) + last * from * size_of(in);
      call.out.values = results + last * to * size_of(out);
      if (call.out.indices) call.out.indices += last * to;
      from = -from;
      to = -to;
    }
    if (known.inputs > 1) call.in.more[0] = call.in.data;
    if (known.inputs == 3) call.in.more[1] = call.in.data;
    if (known.inputs == 2) std::copy_n(call.layout.in, layout.kept + layout.reduced, call.more_strides[0]);
    return as_dict(plan(call, device));
  }
  const ReductionFacts known = facts(reduction->second.reduction, in);
  const Dtype values = known.indexed ? known.result : out;
  ReduceCall call{};
  call.op = reduction->second.reduction;
  call.in = {data, in, known.converts ? accumulator_of(in, values) : natural_accumulator(in),
             known.converts && values == Dtype::Bool};
  call.out = {known.indexed ? nullptr : results,
              known.indexed || known.two ? reinterpret_cast<int64_t*>(results) : nullptr, values};
  call.options = reduction->second.options;
  call.options.count = layout.length;
  call.layout = layout;
  if (call.op == Reduction::Count) count_bits(call);
  order_by_memory(call, fast);
  const std::optional<PlannedCopy> copy = copy_first(call, device);
  if (copy) call = of_copy(call, reinterpret_cast<void*>(uintptr_t(16)));
  if (known.two && device.gpu && !looks_once(call, device)) call = halves(call)[0];
  if (device.gpu) by_width(call);
  py::dict fields = as_dict(plan(call, device));
  fields["copied"] = copy ? copy->elements() * copy->size : 0;
  return fields;
}

}  // namespace
}  // namespace torchreduce

PYBIND11_MODULE(_C, m) {
  using namespace torchreduce;
  bind_direct(m);
  m.def("build_info", &build_info);
  m.def("instruction_set", &cpu::instruction_set);
  m.def("instruction_sets", &cpu::instruction_sets);
  m.def("set_instruction_set", &cpu::set_instruction_set, py::arg("name"));

  m.def("force_plan", &force_fields, py::arg("fields"));
  m.def("forced_plan", &forced_fields);
  m.def("intrinsics", &intrinsics);
  m.def(
      "run_intrinsic",
      [](const std::string& name, uintptr_t in, uintptr_t out, int64_t count, bool gpu) {
        run_intrinsic(name, reinterpret_cast<const uint32_t*>(in), reinterpret_cast<uint32_t*>(out), count, gpu);
      },
      py::arg("name"), py::arg("inputs"), py::arg("results"), py::arg("count"), py::arg("gpu"));
  m.def("refusal", &refusal, py::arg("name"), py::arg("major"), py::arg("minor"));
  m.def("reduce_families", [] { return words_of(kReduceFamilies); });
  m.def("scan_families", [] { return words_of(kScanFamilies); });
  m.def("rowwise_families", [] { return words_of(kRowwiseFamilies); });
  m.def("tried_algorithms", &tried, py::arg("device"));
  m.def("gpu_facts", &facts_of, py::arg("device"));
  m.def("plan", &plan_of, py::arg("op"), py::arg("sizes"), py::arg("strides"), py::arg("dim"), py::arg("dtype"),
        py::arg("out_dtype"), py::arg("aligned"), py::arg("gpu"), py::arg("multiprocessors"),
        py::arg("bulk_copies") = false, py::arg("shared") = 227 << 10, py::arg("exclusive") = false,
        py::arg("reverse") = false, py::arg("large_blocks") = py::none(), py::arg("wide_reductions") = true,
        py::arg("clusters") = false, py::arg("fast") = false);
}
