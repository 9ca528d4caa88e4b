// The CPU kernels of reductions: which kernel serves a call, and its tasks. Compiled once per instruction set.
#include "cpu/cpu.h"
#include "cpu/reduce_columns.h"
#include "cpu/reduce_products.h"

namespace torchreduce::cpu::TR_ISA {
namespace {

constexpr int64_t kSerialElements = 32768;  // a smaller call is not worth a second thread
constexpr int64_t kLeastRun = 16;           // leaves of a run at least, when a row is cut
constexpr int64_t kUnitsPerThread = 4;      // rows are cut until there are as many units, to even the threads' work
// Rows so long at most are multiplied side by side, wherever they lie (AVX2, 26 int64: 16 ns a row, along it 37).
constexpr int64_t kShortProducts = 32;
constexpr int64_t kTurn = 32768;       // elements that ops take in turns, so that a cache still has them
constexpr int64_t kTurnColumns = 128;  // neighbouring columns of a turn, where there are many rows

using Body = void (*)(void*, int64_t, int64_t);

// Starts the tasks of a call. Of two ops that take the same elements in turns (halves) the first one starts nothing but
// the second one, and that both.
struct Starter {
  int64_t threads;
  ParallelFor parallel_for;
  Starter* first = nullptr;            // of the second op
  const ReduceCall* second = nullptr;  // of the first op
  bool across = false;
  bool failed = false;
  Body body = nullptr;
  void* context = nullptr;

  bool turns() const { return first || second; }
  // `elements`: of a task.
  void start(bool parallel, int64_t tasks, int64_t elements, Body what, void* of) {
    body = what;
    context = of;
    if (second) {
      Starter other{threads, parallel_for, this};
      failed = !reduce_half(*second, across, other);
      return;
    }
    struct Turns {
      const Starter *first, *second;
      int64_t step;
    } both{first, this, elements < kTurn ? kTurn / elements : 1};
    if (first) {
      what = [](void* turns, int64_t begin, int64_t end) {
        const auto& [one, other, step] = *static_cast<const Turns*>(turns);
        for (int64_t task = begin; task < end; task += step)
          for (const Starter* s : {one, other}) s->body(s->context, task, least(end, task + step));
      };
      of = &both;
    }
    if (parallel) parallel_for(tasks, what, of);
    else what(of, 0, tasks);
  }
  static bool reduce_half(const ReduceCall& call, bool across, Starter& starter);
};

// Cuts rows into runs of leaves, `units` of which there are before, and of `most` at most. For `threads` of them.
template <class Op, class Units> void cut_rows(Job<Op>& job, int64_t threads, int64_t most, Units units) {
  job.leaves = ceil_div(job.call.layout.length, kLeaf);
  job.run = 1;
  while (job.run < job.leaves && job.run < most) job.run *= 2;
  if (threads > 1)
    while (job.run > kLeastRun && units() * ceil_div(job.leaves, job.run) < threads * kUnitsPerThread) job.run /= 2;
  job.runs = ceil_div(job.leaves, job.run);
}

// Runs the tasks, each one of `units` of so many rows or one of their runs; false where memory is out.
template <class Op> bool run_tasks(Job<Op>& job, int64_t units, int64_t rows, int64_t threads, Starter& starter,
                                   Body body, void* context) {
  using Acc = typename Op::Acc;
  const Layout& layout = job.call.layout;
  Scratch partials(job.runs > 1 ? layout.rows * job.runs * int64_t(sizeof(Acc)) : 64);
  if (!partials.data) return false;
  job.partials = reinterpret_cast<Acc*>(partials.data);
  const int64_t tasks = units * job.runs;
  starter.start(threads > 1 && tasks > 1, tasks, rows * least(layout.length, job.run * kLeaf), body, context);
  if (job.out_of_memory || starter.failed) return false;

  if (job.runs > 1)
    for (int64_t row = 0; row < layout.rows; ++row) {
      TreeStack<Acc, 32> stack;
      for (int64_t r = 0; r < job.runs; ++r)
        stack.push(job.partials[row * job.runs + r], [](Acc a, Acc b) { return Op::combine(a, b); });
      job.finish(row_start(layout, row), stack.total(Op::absent(), [](Acc a, Acc b) { return Op::combine(a, b); }));
    }
  return true;
}

template <class Op> bool run(Job<Op>& job, bool across, Starter& starter) {
  const Layout& layout = job.call.layout;
  const int64_t threads = layout.rows * layout.length < kSerialElements ? 1 : starter.threads;
  const int64_t most = !starter.turns() ? INT64_MAX : across ? 1 : kTurn / kLeaf;
  if constexpr (kIsProduct<Op>) {
    if (!across && (layout.length > kShortProducts || layout.rows < Products<Op>::W)) {
      cut_rows(job, threads, most, [&] { return layout.rows; });
      return run_tasks(job, layout.rows, 1, threads, starter, &Products<Op>::body, &job);
    }
    typename Products<Op>::Across task{job, ColumnChunks(layout, Products<Op>::kColumns, threads)};
    const auto units = [&] { return task.chunks.count(); };
    cut_rows(job, threads, most, units);
    return run_tasks(job, units(), task.chunks.width, threads, starter, &Products<Op>::body_across, &task);
  } else if (!across) {
    cut_rows(job, threads, most, [&] { return layout.rows; });
    return run_tasks(job, layout.rows, 1, threads, starter, &Rows<Op>::body, &job);
  } else {
    using Across = Columns<Op>;
    const bool narrow = starter.turns() && layout.length > kTurn / kTurnColumns;
    typename Across::Task task{&job, Across::cut(layout, narrow ? kTurnColumns : kColumns)};
    const auto units = [&] { return task.chunks.outer * task.chunks.chunks; };
    cut_rows(job, threads, most, units);
    while (units() * job.runs < threads && task.chunks.width >= 128)  // then narrower chunks
      task.chunks = Across::cut(layout, ceil_div(task.chunks.width / 2, 64) * 64);
    return run_tasks(job, units(), task.chunks.width, threads, starter, &Across::body, &task);
  }
}

template <class Op> bool reduce_with(const ReduceCall& call, bool across, Starter& starter) {
  Job<Op> job{call, Op{call.options}, 0, 0, 0, nullptr};
  if (call.layout.length > 0) return run(job, across, starter);
  if constexpr (Op::kHasEmpty)
    for (int64_t row = 0; row < call.layout.rows; ++row)
      job.op.finish(Op::empty(), call.out, row_start(call.layout, row).out);
  return true;
}

// Elements are read as they are, or converted to the accumulator before.
template <class Op> constexpr bool kHasKernels = [] {
  using E = typename Op::Element;
  constexpr Dtype d = DtypeOf<E>::value;
  if constexpr (!Op::kConverts) return Op::reads(d);
  else
    return (Op::reads(d) && !kIsProduct<Op>) ||
           (std::is_same<E, accumulator_t<E>>::value && (is_float_type<E> || Op::kIntegers));
}();

// The kernel for call.in's own type, or where the op converts, for its accumulator.
template <template <class> class Op> bool reduce_as(const ReduceCall& call, bool across, Starter& starter) {
  const bool converts = Op<float>::kConverts && (kIsProduct<Op<float>> || !is_static(call));
  switch (converts ? call.in.accumulator : call.in.dtype) {
#define TR_CASE(T)                                                                      \
  case DtypeOf<T>::value:                                                               \
    if constexpr (kHasKernels<Op<T>>) return reduce_with<Op<T>>(call, across, starter); \
    break;
    TR_FOR_EACH_TYPE(TR_CASE)
#undef TR_CASE
  }
  return true;
}

bool Starter::reduce_half(const ReduceCall& call, bool across, Starter& starter) {
#define TR_CASE(name)                                                                       \
  case Reduction::name:                                                                     \
    if constexpr (!kTwoResults<name<float>>) return reduce_as<name>(call, across, starter); \
    break;
  switch (call.op) { TR_FOR_EACH_REDUCTION(TR_CASE) }
#undef TR_CASE
  return true;
}

}  // namespace

// `across`: lanes across rows, else along each; `threads`: those that there are for it.
bool reduce(const ReduceCall& call, bool across, int64_t threads, ParallelFor parallel_for) {
  if (call.layout.rows == 0) return true;
  Starter starter{threads, parallel_for};
  if (!facts(call.op, call.in.dtype).two) return Starter::reduce_half(call, across, starter);
  const auto [first, second] = halves(call);
  if (call.layout.length == 0)
    return Starter::reduce_half(first, across, starter) && Starter::reduce_half(second, across, starter);
  starter.second = &second;
  starter.across = across;
  return Starter::reduce_half(first, across, starter);
}

}  // namespace torchreduce::cpu::TR_ISA
