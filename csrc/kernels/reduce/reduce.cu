// parts: TR_FOR_EACH_REDUCTION
// Launches of the reductions: this file is compiled once for each op, with TR_PART its struct.
#include "column_slices.cuh"
#include "columns.cuh"
#include "few_rows.cuh"
#include "kernels/common/gpu.h"
#include "narrow_columns.cuh"
#include "packed_rows.cuh"
#include "plan/reduce_plan.h"
#include "rows.cuh"
#include "short_columns.cuh"
#include "strided.cuh"
#include "transposed_rows.cuh"
#include "wide_columns.cuh"

namespace torchreduce::gpu {

// Each family has its launch(call, shape, partials, tickets, stream) for an op and a load. Ops with two results have no
// kernels that serve any call: where no other one does, their halves are launched (call.h).
template <class Op, class Load>
void launch(const ReduceCall& call, const StridedShape& shape, typename Op::Acc* partials, uint32_t* tickets,
            gpuStream_t stream) {
  if constexpr (kHasGranules<Load> && !kTwoResults<Op>) {
    enqueue(reduce_strided<Op, Load>, shape.blocks, shape.threads, shape.shared, Queue{stream}, call, shape, partials,
            tickets);
  } else if constexpr (!kTwoResults<Op>) {
    using G = General<Op>;
    enqueue(reduce_strided<typename G::Op, typename G::Load>, shape.blocks, shape.threads, shape.shared, Queue{stream},
            call, shape, reinterpret_cast<typename G::Op::Acc*>(partials), tickets);
  }
}
template <class Op, class Load>
void launch(const ReduceCall& call, const ColumnsShape& shape, typename Op::Acc* partials, uint32_t* tickets,
            gpuStream_t stream) {
  if constexpr (!kTwoResults<Op>) {
    using G = General<Op>;
    enqueue(reduce_columns<typename G::Op, typename G::Load>, shape.blocks, shape.threads, shape.shared, Queue{stream},
            call, shape, reinterpret_cast<typename G::Op::Acc*>(partials), tickets);
  }
}

// Families of columns serve what their kernels are compiled for (column_call.h).
template <class Kernel>
void launch_columns(Kernel kernel, const ReduceCall& call, const ColumnShape& shape, void* partials, uint32_t* tickets,
                    gpuStream_t stream) {
  ColumnCall q = shape.q;
  q.in = call.in.data;
  int64_t elements = 1;
  for (int d = 0; d < call.layout.kept + call.layout.reduced; ++d)
    elements += (call.layout.size[d] - 1) * call.layout.in[d];
  q.end = static_cast<const char*>(call.in.data) + elements * size_of(call.in.dtype);
  q.ragged = !plans::aligned(q.in) || !plans::aligned(q.end);
  q.out = call.out;
  q.options = call.options;
  q.partials = partials;
  q.tickets = tickets;
  enqueue(kernel, shape.blocks, shape.threads, shape.shared, Queue{stream}, q);
}
#define TR_SMALL_COLUMNS(Shape, kernel)                                                                               \
  template <class Op, class Load>                                                                                     \
  void launch(const ReduceCall& call, const Shape& shape, typename Op::Acc* partials, uint32_t* tickets,              \
              gpuStream_t stream) {                                                                                   \
    if constexpr (kWideReductions && kIsTyped<Load> && has_small_columns<Op>(DtypeOf<typename Load::Element>::value)) \
      launch_columns(kernel<Op, Load>, call, shape, partials, tickets, stream);                                       \
  }
TR_SMALL_COLUMNS(ShortColumnsShape, reduce_short_columns)
TR_SMALL_COLUMNS(ColumnSlicesShape, reduce_column_slices)
#undef TR_SMALL_COLUMNS
template <class Op, class Load>
void launch(const ReduceCall& call, const NarrowColumnsShape& shape, typename Op::Acc* partials, uint32_t* tickets,
            gpuStream_t stream) {
  constexpr Dtype d = DtypeOf<typename Load::Element>::value;
  if constexpr (kWideReductions && kIsTyped<Load> && has_columns<Op>(d)) {
    // Of float32, rows in one run have a kernel of their own (H200, sums of 2 to 100 columns: 1.04 to 1.1 times as
    // fast).
    constexpr bool kApart = d == Dtype::F32;
    launch_columns(
        kApart && !shape.q.jump ? reduce_narrow_columns<Op, Load, kApart> : reduce_narrow_columns<Op, Load, false>,
        call, shape, partials, tickets, stream);
  }
}
template <class Op, class Load>
void launch(const ReduceCall& call, const WideColumnsShape& shape, typename Op::Acc* partials, uint32_t* tickets,
            gpuStream_t stream) {
  constexpr Dtype d = DtypeOf<typename Load::Element>::value;
  if constexpr (kWideReductions && kIsTyped<Load> && has_columns<Op>(d)) {
    constexpr bool small = has_small_columns<Op>(d);
    auto kernel = reduce_wide_columns<Op, Load, false, true>;
    if constexpr (small)
      if (!shape.q.jump)
        kernel = shape.q.tile == column_tile(size_of(d)) ? reduce_wide_columns<Op, Load, true, false>
                                                         : reduce_wide_columns<Op, Load, false, false>;
    launch_columns(kernel, call, shape, partials, tickets, stream);
  }
}

template <class Op, class Load>
void launch(const ReduceCall& call, const PackedRowsShape& shape, typename Op::Acc*, uint32_t*, gpuStream_t stream) {
  if constexpr (kWideReductions && kIsTyped<Load>)
    enqueue(reduce_packed_rows<Op>, shape.blocks, shape.threads, shape.shared, Queue{stream}, plain_rows(call), shape);
}
template <class Op, class Load>
void launch(const ReduceCall& call, const RowsShape& shape, typename Op::Acc* partials, uint32_t* tickets,
            gpuStream_t stream) {
  if constexpr (kWideReductions && kIsTyped<Load>)
    enqueue(reduce_rows<Op>, shape.blocks, shape.threads, shape.shared, Queue{stream}, plain_rows(call), shape,
            partials, tickets);
}

template <class Op, class Load>
void launch(const ReduceCall& call, const FewRowsShape& shape, typename Op::Acc* partials, uint32_t* tickets,
            gpuStream_t stream) {
  if constexpr (kWideReductions && kIsTyped<Load> && !kMultipliesFloats<Op>)
    enqueue(reduce_few_rows<Op>, shape.blocks, shape.threads, shape.shared, Queue{stream, false, shape.cluster},
            few_rows::few_rows(call), shape, reinterpret_cast<typename FewRows<Op>::Value*>(partials), tickets);
}

template <class Op, class Load>
void launch(const ReduceCall& call, const TransposedRowsShape& shape, typename Op::Acc* partials, uint32_t* tickets,
            gpuStream_t stream) {
  using E = typename Load::Element;
  if constexpr (kWideReductions && kIsTyped<Load> && has_transposed_rows<Op>(DtypeOf<E>::value)) {
    enqueue(shape.tiles ? reduce_transposed_tiles<Op, Load> : reduce_transposed_rows<Op, Load>, shape.blocks,
            shape.threads, shape.shared, Queue{stream}, call, shape, partials);
    if (shape.workspace > 0)
      enqueue(fold_leaves<std::conditional_t<Op::kIndexed, Op, typename General<Op>::Op>>,
              call.layout.rows * shape.splits, kThreads, 0, Queue{stream}, call, shape, partials, tickets);
  }
}

template <class Op, class Load>
static const char* launch(const PlannedReduction& call, void* workspace, gpuStream_t stream) {
  const ReduceLaunch& planned = call.plan.launch();
  uint32_t* tickets = nullptr;
  if (planned.tickets)
    if (const char* error = zeroed_tickets(
            planned.tickets, static_cast<char*>(workspace) + (planned.workspace + 7) / 8 * 8, stream, &tickets))
      return error;
  std::visit(
      [&](const auto& shape) {
        if constexpr (!std::is_same_v<decltype(shape), const CpuShape&>)
          launch<Op, Load>(call, shape, static_cast<typename Op::Acc*>(workspace), tickets, stream);
      },
      call.plan.shape);
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

// The type whose kernels serve elements of type E; those of bools serve positions alone (by_width).
template <class E> using KernelType = std::conditional_t<std::is_same<E, uint8_t>::value, int8_t, E>;
template <class E> constexpr bool kIsBool = std::is_same<E, Bool>::value;

template <template <class> class Op> const char* launch_reduce(const PlannedReduction& call, void* workspace,
                                                               void* stream) {
  const auto s = static_cast<gpuStream_t>(stream);
  if constexpr (Op<float>::kConverts) {
    if (!is_static(call.in) || !Op<float>::reads(call.in.dtype)) {  // as is_static(call)
      if (call.in.accumulator == Dtype::F64) return launch<Op<double>, ConvertedLoad<double>>(call, workspace, s);
      if (call.in.accumulator == Dtype::F32) return launch<Op<float>, ConvertedLoad<float>>(call, workspace, s);
      if constexpr (Op<float>::kIntegers) return launch<Op<int64_t>, ConvertedLoad<int64_t>>(call, workspace, s);
    }
  }
#define TR_CASE(T)                                                                     \
  case DtypeOf<T>::value:                                                              \
    if constexpr (Op<T>::reads(DtypeOf<T>::value) && (Op<T>::kIndexed || !kIsBool<T>)) \
      return launch<Op<KernelType<T>>, TypedLoad<KernelType<T>>>(call, workspace, s);  \
    break;
  switch (call.in.dtype) {
    TR_FOR_EACH_COMPILED_TYPE(TR_CASE)
#if defined(TR_FEW_TYPES)  // what counts read, and what others read by width
    case Dtype::I32:
      if constexpr (std::is_same<Op<int32_t>, Count<int32_t>>::value)
        return launch<Op<int32_t>, TypedLoad<int32_t>>(call, workspace, s);
      break;
      TR_CASE(uint8_t)
#endif
    default: break;
  }
#undef TR_CASE
  return "unknown dtype";
}

template const char* launch_reduce<TR_PART>(const PlannedReduction&, void*, void*);

}  // namespace torchreduce::gpu
