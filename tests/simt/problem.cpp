#include "problem.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "cpu/cpu.h"
#include "emulator.h"
#include "kernels/common/gpu.h"
#include "kernels/reduce/listed_rows.h"
#include "plan/reduce_plan.h"
#include "plan/scan_plan.h"
#include "reference.h"

using namespace torchreduce;

namespace torchreduce::cpu::baseline {
bool reduce(const ReduceCall& call, bool across, int64_t threads, ParallelFor parallel_for);
bool scan(const ScanCall& call, bool across, int64_t threads, ParallelFor parallel_for);
}  // namespace torchreduce::cpu::baseline

namespace {

struct Row {
  const char* name;
  Reduction reduction;
  bool pair;
  OpOptions options;
};
constexpr Row kRows[] = {
#define TR_ROW(name, signature, reduction, ...) \
  {#name, Reduction::reduction, std::string_view(#signature) == "WithIndex", {__VA_ARGS__}},
    TR_FOR_EACH_REDUCTION_OP(TR_ROW)
#undef TR_ROW
};
const Row& row_of(const std::string& op) {
  for (const Row& row : kRows)
    if (op == row.name) return row;
  fprintf(stderr, "unknown op %s\n", op.c_str());
  exit(1);
}

struct ScanRow {
  const char* name;
  Scan scan;
  bool min;
};
constexpr ScanRow kScans[] = {
#define TR_ROW(name, signature, scan, min) {#name, Scan::scan, min},
    TR_FOR_EACH_SCAN_OP(TR_ROW)
#undef TR_ROW
        {"decayed_sum", Scan::Decay, false},  // of one array as all three inputs
    {"linear_scan", Scan::LinearScan, false},
};
const ScanRow* scan_of(const std::string& op) {
  for (const ScanRow& row : kScans)
    if (op == row.name) return &row;
  return nullptr;
}

void serial(int64_t tasks, void (*body)(void*, int64_t, int64_t), void* context) { body(context, 0, tasks); }

// ---- calls, as binding/ops.cpp makes them -----------------------------------------------------------------------------

struct Result {
  std::unique_ptr<Array> values, indices;  // null where the op has none; a second result is where indices would be

  Result(const Problem& p, Memory memory) {
    const bool indexed = p.scan() ? facts(scan_of(p.op)->scan).indexed : facts(row_of(p.op).reduction, p.in).indexed;
    const bool two = !p.scan() && facts(row_of(p.op).reduction, p.in).two;
    if (!indexed || p.scan() || row_of(p.op).pair) values = std::make_unique<Array>(p.out, p.result_sizes(), memory);
    if (indexed || two)
      indices = std::make_unique<Array>(p.op == "aminmax" ? p.out : Dtype::I64, p.result_sizes(), memory);
  }
  std::vector<char> read() const {
    std::vector<char> all;
    for (const auto* part : {values.get(), indices.get()})
      if (part) {
        if (!part->gaps_are_untouched()) {
          fprintf(stderr, "FAILED: memory between the elements of the result was written\n");
          exit(1);
        }
        const std::vector<char> bytes = part->read();
        all.insert(all.end(), bytes.begin(), bytes.end());
      }
    return all;
  }
};

PlannedReduction reduce_call(const Problem& p, const Array& x, const Result& result) {
  const Row& row = row_of(p.op);
  PlannedReduction call{};
  call.op = row.reduction;
  const bool converts = facts(row.reduction, p.in).converts;
  call.in = Source{x.data(), p.in, converts ? accumulator_of(p.in, p.out) : natural_accumulator(p.in),
                   p.out == Dtype::Bool && converts};
  const Array& out = result.values ? *result.values : *result.indices;
  std::vector<int64_t> strides = out.strides();
  for (size_t d = 0; d < strides.size(); ++d)
    if (p.along >> d & 1u) strides[d] = 0;
  call.layout = fold(x.facts(), p.along, strides.data());
  call.options = row.options;
  call.options.count = call.layout.length;
  if (call.op == Reduction::Count) count_bits(call);
  call.out = Output{result.values ? result.values->data() : nullptr,
                    result.indices ? reinterpret_cast<int64_t*>(result.indices->data()) : nullptr,
                    result.values ? p.out : Dtype::I64};
  return call;
}

// The inputs of a problem.
struct Inputs {
  std::unique_ptr<Array> x, a, initial;  // null where the op has none

  Inputs(const Problem& p, const std::vector<char>& elements, Memory memory, Memory a_memory) {
    size_t used = 0;
    auto take = [&](const std::vector<int64_t>& sizes, Memory where) {
      auto array = std::make_unique<Array>(p.in, sizes, where);
      int64_t bytes = size_of(p.in);
      for (int64_t size : sizes) bytes *= size;
      const auto first = elements.begin() + long(used);
      array->write({first, first + bytes});
      used += size_t(bytes);
      return array;
    };
    if (p.linear()) a = take(p.a_sizes(), a_memory);
    x = take(p.sizes, memory);
    if (p.initial) initial = take(p.initial_sizes(), Memory::Contiguous);
  }
};

PlannedScan linear_call(const Problem& p, const Inputs& inputs, const Array& out) {
  PlannedScan call{};
  call.op = Scan::LinearScan;
  call.options.initial = p.initial;
  call.in = Source{inputs.x->data(), p.in, natural_accumulator(p.in), false, {}};
  call.out = Output{out.data(), nullptr, p.out};
  call.reverse = p.reverse;
  call.shifted = p.shifted;
  std::vector<Dim> kept, reduced;
  int64_t a_step = 0, in_step = 0, out_step = 0, last = 0;
  for (size_t d = 0; d < p.sizes.size(); ++d) {
    const bool along = p.along >> d & 1u;
    Dim dim{p.sizes[d], inputs.x->strides()[d], out.strides()[d], {p.spread >> d & 1u ? 0 : inputs.a->strides()[d], 0}};
    if (p.initial && !along) dim.more[1] = inputs.initial->strides()[d];
    if (along) a_step = dim.more[0], in_step = dim.in, out_step = dim.out, last = dim.size - 1;
    if (p.reverse && along) dim.in = -dim.in, dim.out = -dim.out, dim.more[0] = -dim.more[0];
    (along ? reduced : kept).push_back(dim);
  }
  call.layout = fold(std::move(kept), reduced, &call.more_strides);
  const int64_t size = size_of(p.in), a_first = p.reverse ? last * a_step : 0;
  call.in.more[0] = inputs.a->data() + (a_first - (p.shifted ? p.reverse ? -a_step : a_step : 0)) * size;
  if (p.initial) call.in.more[1] = inputs.initial->data();
  if (p.reverse) {
    call.in.data = inputs.x->data() + last * in_step * size;
    call.out.values = out.data() + last * out_step * size_of(p.out);
  }
  return call;
}

PlannedScan scan_call(const Problem& p, const Inputs& inputs, const Array& out, const Array* indices) {
  if (p.linear()) return linear_call(p, inputs, out);
  const Array& x = *inputs.x;
  PlannedScan call{};
  call.op = scan_of(p.op)->scan;
  call.options.min = scan_of(p.op)->min;
  call.in = Source{x.data(), p.in, accumulator_of(p.in, p.out), false};
  if (call.op == Scan::Decay) call.in.more[0] = call.in.more[1] = x.data();
  call.out = Output{out.data(), indices ? reinterpret_cast<int64_t*>(indices->data()) : nullptr, p.out};
  call.exclusive = p.exclusive;
  call.reverse = p.reverse;
  call.layout = fold(x.facts(), p.along, out.strides().data());
  Layout& l = call.layout;
  if (p.reverse && l.reduced) {
    int64_t &in = l.in[l.kept], &to = l.out[l.kept];
    call.in.data = x.data() + (l.length - 1) * in * size_of(p.in);
    if (call.op == Scan::Decay) call.in.more[0] = call.in.more[1] = call.in.data;
    call.out.values = out.data() + (l.length - 1) * to * size_of(p.out);
    if (indices) call.out.indices += (l.length - 1) * to;
    in = -in;
    to = -to;
  }
  return call;
}

template <class Plan> std::string text_of(const Plan& p) {
  std::string text = p.family;
  std::visit(
      [&](const auto& s) {
        s.each([&](const char* name, int64_t value) { text += std::string(" ") + name + " " + std::to_string(value); });
      },
      p.shape);
  return text + " threads " + std::to_string(p.launch().threads) + " blocks " + std::to_string(p.launch().blocks);
}

template <class Call> void run_emulated(Call& call, const DeviceFacts& device,
                                        const char* (*entry)(const Call&, void*, void*)) {
  call.plan = plan(call, device);
  const int64_t bytes = workspace_bytes(call.plan);
  const std::unique_ptr<char[]> workspace(new char[size_t(bytes)]);
  memset(workspace.get(), kGap, size_t(bytes));
  if (const char* error = entry(call, workspace.get(), nullptr)) {
    fprintf(stderr, "FAILED: %s\n", error);
    exit(1);
  }
}

DeviceFacts emulated(int multiprocessors) {
  const bool bulk_copies = simt::options.bulk_copies;
  const int shared = bulk_copies ? simt::kMostShared : kPortableShared;
  return {true, multiprocessors, bulk_copies, shared, bulk_copies, true, bulk_copies};
}
template <class Call> void emulate(Call& call, int multiprocessors, const char* (*entry)(const Call&, void*, void*),
                                   std::string& plan_text) {
  run_emulated(call, emulated(multiprocessors), entry);
  plan_text = text_of(call.plan);
}

// ---- the plain loops ------------------------------------------------------------------------------------------------

template <class Acc> Acc load(const ReduceCall& call, int64_t offset) {
  return load_as<Acc>(call.in.dtype, call.in.data, offset, call.in.truth);
}

template <class Op, class Load> void reduce_rows(const ReduceCall& call, Load load) {
  const Op op{call.options};
  const Layout& l = call.layout;
  for (int64_t row = 0; row < l.rows; ++row) {
    const RowStart start = row_start(l, row);
    if constexpr (Op::kHasEmpty) {
      if (l.length == 0) {
        op.finish(op.empty(), call.out, start.out);
        continue;
      }
    }
    auto at = [&](int64_t i) { return start.in + position_offset(l, i); };
    const auto acc = reference::reduce(op, l.length, [&](int64_t i) { return load(at(i)); });
    if constexpr (Op::kIndexed) op.finish(acc, call.out, start.out, load(at(acc.index)));
    else op.finish(acc, call.out, start.out);
  }
}

template <template <class> class Op> void reduce_by_reference(const ReduceCall& call) {
  if constexpr (Op<float>::kConverts) {
    auto as = [&](auto zero) {
      reduce_rows<Op<decltype(zero)>>(call, [&](int64_t i) { return load<decltype(zero)>(call, i); });
    };
    if (call.in.accumulator == Dtype::F64) return as(double());
    if (call.in.accumulator == Dtype::F32) return as(float());
    if constexpr (Op<float>::kIntegers) return as(int64_t());
  } else {
#define TR_CASE(T)                                                                                        \
  case DtypeOf<T>::value:                                                                                 \
    if constexpr (Op<T>::reads(DtypeOf<T>::value))                                                        \
      return reduce_rows<Op<T>>(call, [&](int64_t i) { return static_cast<const T*>(call.in.data)[i]; }); \
    break;
    switch (call.in.dtype) { TR_FOR_EACH_TYPE(TR_CASE) }
#undef TR_CASE
  }
}

void reduce_by_reference(const ReduceCall& call) {
#define TR_CASE(name)                      \
  if constexpr (!kTwoResults<name<float>>) \
    if (call.op == Reduction::name) reduce_by_reference<name>(call);
  TR_FOR_EACH_REDUCTION(TR_CASE)
#undef TR_CASE
}

template <class S> typename S::Wide precedes(const ScanCall& call, int64_t row) {
  if constexpr (S::kInputs == 2)
    if (call.in.more[1])
      return S::initial(load_as<typename S::Result>(call.in.dtype, call.in.more[1],
                                                    row_offset(call.layout, call.more_strides[1], row), false));
  return S::wide_absent();
}

// E is what an element enters the scan as: its own type, or an accumulator to which it is converted.
template <class S, class E> void scan_rows(const ScanCall& call) {
  const S op{call.options};
  const Layout& l = call.layout;
  const int64_t n = l.length, in = l.reduced ? l.in[l.kept] : 0, out = l.reduced ? l.out[l.kept] : 0;
  for (int64_t row = 0; row < l.rows; ++row) {
    const RowStart start = row_start(l, row);
    auto result = reference::scan(
        op, n,
        [&](int64_t i) {
          const int64_t offset = start.in + i * in;
          if constexpr (S::kInputs == 2) {
            const int64_t a =
                row_offset(l, call.more_strides[0], row) + (l.reduced ? i * call.more_strides[0][l.kept] : 0);
            return op.load(Pair<E>{i || !call.shifted ? load_as<E>(call.in.dtype, call.in.more[0], a, false) : E(),
                                   load_as<E>(call.in.dtype, call.in.data, offset, false)},
                           i);
          } else if constexpr (std::is_same_v<E, F16> || std::is_same_v<E, BF16>)
            return op.load(static_cast<const E*>(call.in.data)[offset], i);
          else if constexpr (S::kInputs == 3) {
            const E v = static_cast<const E*>(call.in.data)[offset];
            return op.load({v, v, v}, i);
          } else return op.load(load_as<E>(call.in.dtype, call.in.data, offset, false), i);
        },
        precedes<S>(call, row));
    if constexpr (kHasStart<S>)
      if (call.exclusive) {
        result.insert(result.begin(), S::start());
        result.pop_back();
      }
    for (int64_t i = 0; i < n; ++i) {
      const int64_t offset = start.out + i * out;
      if constexpr (S::kIndexed) {
        const auto& found = result[size_t(i)];
        if constexpr (std::is_same_v<E, F16> || std::is_same_v<E, BF16>)
          static_cast<E*>(call.out.values)[offset] = found.value;
        else store_as(call.out.dtype, call.out.values, offset, found.value);
        call.out.indices[offset] = call.index_of(found.index);
      } else {
        store_as(call.out.dtype, call.out.values, offset, result[size_t(i)]);
      }
    }
  }
}

template <template <class> class Op> void scan_by_reference(const ScanCall& call) {
  if constexpr (Op<float>::kIndexed) {
    if (call.in.dtype == Dtype::F16) return scan_rows<Op<F16>, F16>(call);
    if (call.in.dtype == Dtype::BF16) return scan_rows<Op<BF16>, BF16>(call);
  }
  if constexpr (Op<float>::kIntegers)
    if (call.in.accumulator == Dtype::I64) return scan_rows<Op<int64_t>, int64_t>(call);
  if (call.in.accumulator == Dtype::F64) return scan_rows<Op<double>, double>(call);
  scan_rows<Op<float>, float>(call);
}

}  // namespace

bool Problem::scan() const { return scan_of(op) != nullptr; }
bool Problem::few() const {
  if (!scan() && (row_of(op).reduction == Reduction::Count || row_of(op).reduction == Reduction::CountedSum))
    return size_of(in) == 4;  // counts, also where they are a half
  if (in == Dtype::BF16 || in == Dtype::F32 || in == Dtype::F64) return true;
  if (scan()) return !is_static({nullptr, in, accumulator_of(in, out)}, out, facts(scan_of(op)->scan).integer_kernels);
  if (in == Dtype::U8) return true;  // by kernels for int8
  const bool converts = facts(row_of(op).reduction, in).converts;
  return !is_static(
      {nullptr, in, converts ? accumulator_of(in, out) : natural_accumulator(in), converts && out == Dtype::Bool});
}
int64_t Problem::numel() const { return std::accumulate(sizes.begin(), sizes.end(), int64_t(1), std::multiplies<>()); }

std::vector<int64_t> Problem::a_sizes() const {
  std::vector<int64_t> result = sizes;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (spread >> d & 1u) result[d] = 1;
  return result;
}
std::vector<int64_t> Problem::initial_sizes() const {
  std::vector<int64_t> result = sizes;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (along >> d & 1u) result[d] = 1;
  return result;
}
static int64_t count(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t(1), std::multiplies<>());
}
int64_t Problem::initials() const { return initial ? count(initial_sizes()) : 0; }
int64_t Problem::elements() const { return numel() + (linear() ? count(a_sizes()) : 0) + initials(); }

std::vector<int64_t> Problem::result_sizes() const {
  std::vector<int64_t> result = sizes;
  for (size_t d = 0; d < sizes.size() && !scan(); ++d)
    if (along >> d & 1u) result[d] = 1;
  return result;
}

// ---- solutions ------------------------------------------------------------------------------------------------------

std::vector<char> solve_by_cpu(const Problem& p, const std::vector<char>& elements) {
  const Inputs inputs(p, elements, Memory::Contiguous, Memory::Contiguous);
  const Result result(p, Memory::Contiguous);
  bool done;
  if (p.scan()) {
    const ScanCall call = scan_call(p, inputs, *result.values, result.indices.get());
    done = cpu::baseline::scan(call, plans::lanes_across_rows(call), 1, serial);
  } else {
    const ReduceCall call = reduce_call(p, *inputs.x, result);
    done = cpu::baseline::reduce(call, plans::lanes_across_rows(call.layout), 1, serial);
  }
  if (!done) exit(1);
  return result.read();
}

std::vector<char> solve_by_reference(const Problem& p, const std::vector<char>& elements) {
  const Inputs inputs(p, elements, Memory::Contiguous, Memory::Contiguous);
  const Result result(p, Memory::Contiguous);
  if (p.scan()) {
    const PlannedScan call = scan_call(p, inputs, *result.values, result.indices.get());
#define TR_CASE(name) \
  if (call.op == Scan::name) scan_by_reference<name>(call);
    TR_FOR_EACH_SCAN(TR_CASE)
#undef TR_CASE
  } else {
    const ReduceCall call = reduce_call(p, *inputs.x, result);
    if (facts(call.op, p.in).two) {
      for (const ReduceCall& half : halves(call)) reduce_by_reference(half);
    } else {
      reduce_by_reference(call);
    }
  }
  return result.read();
}

std::vector<char> solve_by_emulation(const Problem& p, const std::vector<char>& elements, Memory in, Memory a,
                                     Memory out, bool in_place, int multiprocessors, std::string& plan_text) {
  const Inputs inputs(p, elements, in, a);
  const Array& x = *inputs.x;
  const Result result(p, out);
  if (!p.scan()) {
    PlannedReduction call = reduce_call(p, *inputs.x, result);
    order_by_memory(call);
    if (facts(call.op, p.in).two && !looks_once(call, emulated(multiprocessors))) {
      for (const ReduceCall& half : halves(call)) {
        PlannedReduction alone{half, {}};
        emulate<PlannedReduction>(alone, multiprocessors, gpu::reduce, plan_text);
      }
    } else {
      by_width(call);
      emulate<PlannedReduction>(call, multiprocessors, gpu::reduce, plan_text);
    }
    return result.read();
  }
  PlannedScan call = scan_call(p, inputs, in_place ? x : *result.values, result.indices.get());
  emulate<PlannedScan>(call, multiprocessors, gpu::scan, plan_text);
  return in_place ? x.read() : result.read();
}

std::vector<std::vector<char>> solve_list_by_emulation(const std::vector<Problem>& problems,
                                                       const std::vector<std::vector<char>>& elements, Memory in,
                                                       int multiprocessors) {
  std::vector<std::unique_ptr<Inputs>> inputs;
  std::vector<std::unique_ptr<Result>> results;
  ListedReduction list;
  for (size_t i = 0; i < problems.size(); ++i) {
    inputs.push_back(std::make_unique<Inputs>(problems[i], elements[i], in, in));
    results.push_back(std::make_unique<Result>(problems[i], Memory::Contiguous));
    list.calls.push_back(reduce_call(problems[i], *inputs.back()->x, *results.back()));
    if (!listed_rows::serves(list.calls.back(), DeviceFacts{true, multiprocessors})) {
      printf("FAILED: %s: not a row of a list\n", problems[i].op.c_str());
      exit(1);
    }
  }
  run_emulated(list, DeviceFacts{true, multiprocessors}, gpu::reduce_listed);
  std::vector<std::vector<char>> read;
  for (const auto& result : results) read.push_back(result->read());
  return read;
}
