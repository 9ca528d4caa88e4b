// torchreduce._C: what is no tensor op. Build facts, instruction sets, plans, the determinism switch.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <sstream>

#include "build_info.h"
#include "call.h"
#include "cpu/cpu.h"

namespace py = pybind11;

namespace torchreduce {
namespace {

// ---- build facts ------------------------------------------------------------------------------------------------------

py::dict build_info() {
  std::vector<std::string> archs;
  std::istringstream listed(kBuildInfo.cuda_archs);
  for (std::string arch; std::getline(listed, arch, ';');) archs.push_back(arch);

  py::dict info;
  info["version"] = kBuildInfo.version;
  info["compiler"] = kBuildInfo.compiler;
  info["cuda"] = kBuildInfo.cuda ? py::object(py::str(kBuildInfo.cuda)) : py::none();
  info["cuda_archs"] = archs;
  info["flags"] = kBuildInfo.flags;
  info["kernels"] = kBuildInfo.kernels;
  return info;
}

// ---- plans ------------------------------------------------------------------------------------------------------------

constexpr Family kFamilies[] = {Family::Rows, Family::Columns, Family::Chain, Family::ColumnsChain};

int family_code(const std::string& name) {
  for (Family family : kFamilies)
    if (name == family_name(family)) return int(family);
  throw py::value_error("force_plan: unknown family '" + name +
                        "'. Supported are 'rows', 'columns', 'chain' and 'columns_chain'");
}

// The fields that can be forced, but for the family, which has names.
const std::map<std::string, int PlanOverride::*> kForcible = {{"lanes", &PlanOverride::lanes},
                                                              {"warps", &PlanOverride::warps},
                                                              {"leaves", &PlanOverride::leaves},
                                                              {"vector_loads", &PlanOverride::vector_loads}};

// A key that is absent leaves its field to the planner. Raises ValueError for a key or family that is unknown.
void force_plan(const py::dict& fields) {
  PlanOverride forced;
  for (const auto& [key, value] : fields) {
    const auto name = py::cast<std::string>(key);
    const auto field = kForcible.find(name);
    if (name == "family")
      forced.family = family_code(py::cast<std::string>(value));
    else if (field != kForcible.end())
      forced.*(field->second) = py::cast<int>(value);
    else
      throw py::value_error("force_plan: unknown field '" + name +
                            "'. Supported are 'family', 'lanes', 'warps', 'leaves' and 'vector_loads'");
  }
  torchreduce::force_plan(forced);
}

py::dict forced_plan() {
  const PlanOverride forced = torchreduce::forced_plan();
  py::dict fields;
  if (forced.family >= 0) fields["family"] = family_name(Family(forced.family));
  for (const auto& [name, field] : kForcible)
    if (forced.*field >= 0) fields[name.c_str()] = forced.*field;
  return fields;
}

py::dict as_dict(const Plan& plan) {
  py::dict fields;
  fields["family"] = family_name(plan.family);
  fields["lanes"] = plan.lanes;
  fields["warps"] = plan.warps;
  fields["leaves"] = plan.leaves;
  fields["splits"] = plan.splits;
  fields["blocks"] = plan.blocks;
  fields["threads"] = plan.threads;
  fields["workspace"] = plan.workspace;
  fields["vector_loads"] = plan.vector_loads;
  return fields;
}

const std::map<std::string, Reduction> kReductions = {
    {"sum", Reduction::Sum},        {"mean", Reduction::Sum},          {"amax", Reduction::Extreme},
    {"amin", Reduction::Extreme},   {"max", Reduction::ArgExtreme},    {"min", Reduction::ArgExtreme},
    {"argmax", Reduction::ArgExtreme}, {"argmin", Reduction::ArgExtreme}};
const std::map<std::string, Scan> kScans = {{"cumsum", Scan::CumSum}};

// The plan of `op` on a tensor of these sizes and strides, along the dims in `dim` (none: all of them), with a contiguous
// result. `aligned`: the input's first element lies on a 16-byte boundary. Dtypes are torch's numbers.
py::dict plan(const std::string& op, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
              const std::vector<int>& dim, int dtype, int out_dtype, bool aligned, bool gpu, int multiprocessors) {
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
  if (reduction == kReductions.end() && scan == kScans.end()) throw py::value_error("plan: unknown op '" + op + "'");
  const bool scans = scan != kScans.end();

  std::vector<int64_t> out_strides(sizes.size());
  int64_t next = 1;
  for (int d = dims - 1; d >= 0; --d) {
    out_strides[d] = next;
    if (scans || !(along >> d & 1u)) next *= sizes[d];
  }
  const auto in = Dtype(dtype), out = Dtype(out_dtype);
  const auto* data = reinterpret_cast<const void*>(uintptr_t(aligned ? 16 : 1));  // looked at, not through
  const Layout layout = fold({data, in, dims, sizes.data(), strides.data()}, along, out_strides.data());
  const DeviceFacts device{gpu, multiprocessors};

  if (scans) {
    ScanCall call{};
    call.op = scan->second;
    call.in = {data, in, accumulator_of(in, out), false};
    call.out_dtype = out;
    call.layout = layout;
    return as_dict(torchreduce::plan(call, device));
  }
  const bool sums = reduction->second == Reduction::Sum;
  ReduceCall call{};
  call.op = reduction->second;
  call.in = {data, in, sums ? accumulator_of(in, out) : natural_accumulator(in), sums && out == Dtype::Bool};
  call.layout = layout;
  return as_dict(torchreduce::plan(call, device));
}

// ---- the determinism switch -------------------------------------------------------------------------------------------

// Levels as the ops take them: 0 invariant, 1 fast. A thread's innermost context manager goes before the process's level.
std::atomic<int> process_level{0};
thread_local std::vector<int> thread_levels;

int checked(int level) {
  if (level != 0 && level != 1) throw py::value_error("determinism: the level must be 0 or 1, got " + std::to_string(level));
  return level;
}
int default_level() {
  const char* named = std::getenv("TORCHREDUCE_DETERMINISM");
  const std::string name = named ? named : "invariant";
  if (name == "invariant") return 0;
  if (name == "fast") return 1;
  throw std::runtime_error("TORCHREDUCE_DETERMINISM is '" + name + "'. Supported are 'invariant' and 'fast'");
}

int get_determinism() { return thread_levels.empty() ? process_level.load() : thread_levels.back(); }
void set_determinism(int level) { process_level = checked(level); }
void push_determinism(int level) { thread_levels.push_back(checked(level)); }
void pop_determinism() {
  if (thread_levels.empty()) throw std::runtime_error("determinism: pop without a push on this thread");
  thread_levels.pop_back();
}

}  // namespace
}  // namespace torchreduce

PYBIND11_MODULE(_C, m) {
  using namespace torchreduce;
  process_level = default_level();

  m.def("build_info", &build_info);
  m.def("instruction_set", &cpu::instruction_set);
  m.def("instruction_sets", &cpu::instruction_sets);
  m.def("set_instruction_set", &cpu::set_instruction_set, py::arg("name"));

  m.def("force_plan", &torchreduce::force_plan, py::arg("fields"));
  m.def("forced_plan", &torchreduce::forced_plan);
  m.def("plan", &torchreduce::plan, py::arg("op"), py::arg("sizes"), py::arg("strides"), py::arg("dim"),
        py::arg("dtype"), py::arg("out_dtype"), py::arg("aligned"), py::arg("gpu"), py::arg("multiprocessors"));

  m.def("get_determinism", &get_determinism);
  m.def("set_determinism", &set_determinism, py::arg("level"));
  m.def("push_determinism", &push_determinism, py::arg("level"));
  m.def("pop_determinism", &pop_determinism);
}
