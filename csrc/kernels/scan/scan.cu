// parts: TR_FOR_EACH_SCAN
// Launches of the scans: this file is compiled once for each op, with TR_PART its struct.
#include "chain.cuh"
#include "column_strips.cuh"
#include "column_teams.cuh"
#include "column_tiles.cuh"
#include "column_walk.cuh"
#include "extreme_columns.cuh"
#include "extremes.cuh"
#include "kernels/common/gpu.h"
#include "plan/scan_plan.h"
#include "ragged_columns.cuh"
#include "ring.cuh"
#include "ring_columns.cuh"
#include "ring_pairs.cuh"
#include "row_pairs.cuh"
#include "short_columns.cuh"
#include "short_rows.cuh"

namespace torchreduce::gpu {

// Calls with(std::integral_constant<int, v>()) for the v of Values that is `value`.
template <int... Values, class With> void with_constant(std::integer_sequence<int, Values...>, int value, With with) {
  (void)((value == Values && (with(std::integral_constant<int, Values>()), true)) || ...);
}

// S with indices that a lane has registers for, where it has indices.
template <class S, bool kIndexed = S::kIndexed> struct NearScan { using type = S; };
template <class S> struct NearScan<S, true> { using type = typename S::Near; };

// The launches of a scan for a load and a store, one for each family's shape. Families serve no other types than what
// their kernels are compiled for.
template <class S, class Load, class Store> struct Launches {
  const ScanCall& call;
  void* workspace;
  Queue queue;
  const char* error = nullptr;

  using E = typename Load::Element;
  using Narrow = typename NarrowStore<Store>::type;
  static constexpr int kSize = sizeof(element_of<Load>);

  template <class Kernel, class Shape, class... More> void run(Kernel kernel, const Shape& shape, More... more) {
    enqueue(kernel, shape.blocks, shape.threads, shape.shared, queue, call, shape, more...);
  }
  // Of kernels that say themselves how much shared memory they have.
  template <class Kernel, class Shape> void run_ring(Kernel kernel, const Shape& shape, int shared) {
    enqueue(kernel, shape.blocks, shape.threads, shared, queue, call, shape, workspace);
  }

  // ---- rows ----
  void operator()(const scans::PackedRowsShape& shape) {
    if constexpr (kInPlace<S, Load, Store>)
      enqueue(scan_packed_rows<S, Load, Narrow>, shape.blocks, shape.threads, shape.shared, queue, call);
  }
  template <bool kGranules, class To> void short_rows(const scans::ShortRowsShape& shape) {
    constexpr int K = kHeldTiles<S>;
#ifdef TR_BULK_COPIES  // older AMD GPUs have too few registers for it
    if constexpr (K * kWarps == kFan && (kGranules || (kInPlace<S, Load, To> && kHalves<E> && S::kIntegerKernels)))
      if (call.layout.length > kBlockTile) return run(scan_tiled_rows<S, Load, To, kGranules, K, 2>, shape);
#endif
    if (call.layout.length <= kTile) run(scan_short_rows<S, Load, To, kGranules>, shape);
    else if (call.layout.length <= 2 * kTile) run(scan_tiled_rows<S, Load, To, kGranules, 2>, shape);
    else run(scan_tiled_rows<S, Load, To, kGranules, K>, shape);
  }
  template <class To> void short_rows(const scans::ShortRowsShape& shape) {
    shape.granules ? short_rows<true, To>(shape) : short_rows<false, To>(shape);
  }
  void operator()(const scans::ShortRowsShape& shape) {
    if constexpr (kCompact<S, Load, Store>) {
      if constexpr (kEither<Store>)  // there are not the registers for either
        if (call.out.dtype == Dtype::F32) return short_rows<TypedStore<float>>(shape);
      short_rows<Narrow>(shape);
    }
  }
  template <bool kStaged> void row_pairs(const scans::RowPairsShape& shape) {
    constexpr int kMost = most_held_groups(kSize);
    if (call.layout.length <= kTile)
      shape.groups == 1 ? run(scan_row_pairs<S, Load, Store, 1, false, kStaged>, shape)
                        : run(scan_row_pairs<S, Load, Store, held_groups_wanted(kSize), false, kStaged>, shape);
    else
      shape.groups < kMost ? run(scan_row_pairs<S, Load, Store, least_tiles(kSize), true, kStaged>, shape)
                           : run(scan_row_pairs<S, Load, Store, kMost, true, kStaged>, shape);
  }
  void operator()(const scans::RowPairsShape& shape) {
    if constexpr (kTwoInputs<S, Load, Store>) {
      if constexpr (kSize <= 4)
        if (shape.runs) return row_pairs<true>(shape);
      row_pairs<false>(shape);
    }
  }
  void operator()(const scans::RowsShape& shape) {
    if constexpr (sizeof(typename S::Acc) <= kWalkedAcc && !S::kIndexed) run(scan_rows<S, Load, Store>, shape);
  }
  void operator()(const scans::ChainShape& shape) {
    queue.cluster = shape.cluster;
    if constexpr (!S::kIndexed) run(scan_tiles<ChainTile<S, Load, Store>>, shape, workspace);
  }
  void operator()(const scans::ExtremeRowsShape& shape) {
    if constexpr (S::kIndexed)
      shape.rows == 1   ? run(scan_extreme_rows<S, Load, Store, 1>, shape)
      : shape.rows == 2 ? run(scan_extreme_rows<S, Load, Store, 2>, shape)
                        : run(scan_extreme_rows<S, Load, Store, extreme_chunks(kSize)>, shape);
  }
  void operator()(const scans::ExtremeChainShape& shape) {
    if constexpr (S::kIndexed) run(scan_tiles<RecordRow<S, Load, Store>>, shape, workspace);
  }
#ifdef TR_BULK_COPIES
  void operator()(const scans::RingShape& shape) {
    if constexpr (kRing<S, Load, Store>)
      run_ring(scan_ring<S, Load, Narrow>, shape, RingStages<sizeof(E), sizeof(typename S::Acc)>::kShared);
  }
  void operator()(const scans::RingPairsShape& shape) {
    if constexpr (kRingPairs<S, Load, Store>)
      run_ring(scan_ring_pairs<S, Load, Store>, shape, RingPairs<S, Load>::Shape::kShared);
  }
  void operator()(const scans::RingColumnsShape& shape) {
    if constexpr (kRingColumns<S, Load, Store>)
      with_constant(std::integer_sequence<int, 2, 3, 4, 5, 6, 7>(), shape.columns, [&](auto columns) {
        run_ring(scan_ring_columns<S, Load, Narrow, columns()>, shape, RingColumnStages<sizeof(E), columns()>::kShared);
      });
  }
  void operator()(const scans::ColumnStripsShape& shape) {
    if constexpr (kColumnStrips<S, Load, Store>) error = launch_strips<S, Load, Narrow>(call, shape, workspace, queue);
  }
#else
  void operator()(const scans::RingShape&) {}
  void operator()(const scans::RingPairsShape&) {}
  void operator()(const scans::RingColumnsShape&) {}
  void operator()(const scans::ColumnStripsShape&) {}
#endif

  // ---- columns ----
  void operator()(const scans::ShortColumnsShape& shape) {
    if constexpr (kColumnVectors<S, Load, Store>) {
      constexpr int V = column_vector(sizeof(E), sizeof(typename S::Acc));
      if (shape.columns == V) return run(scan_short_columns<S, Load, Narrow, V>, shape);
    }
    run(scan_short_columns<S, Load, Store, 1>, shape);
  }
  void operator()(const scans::ColumnTilesShape& shape) {
    constexpr int V = kStagedTiles<S, Load, Store> ? word_columns(kSize) : 1;
    if (V > 1 && shape.columns == V) return run(scan_tiles<ColumnTile<S, Load, Narrow, V>>, shape, workspace);
    run(scan_tiles<ColumnTile<S, Load, Store, 1>>, shape, workspace);
  }
  void operator()(const scans::ExtremeColumnsShape& shape) {
    if constexpr (kExtremeColumns<S, Load>) {
      constexpr int V = word_columns(kSize);
      shape.columns == V ? run(scan_tiles<RecordColumns<typename S::Near, Load, V>>, shape, workspace)
                         : run(scan_tiles<RecordColumns<typename S::Near, Load, 1>>, shape, workspace);
    }
  }
  void operator()(const scans::RaggedColumnsShape& shape) {
    if constexpr (kRaggedColumns<S, Load, Store>) {
      if constexpr (sizeof(E) == 4)
        if (ragged_sides(shape.words) == 2) return run(scan_ragged_columns<S, Load, Narrow, 2>, shape, workspace);
      run(scan_ragged_columns<S, Load, Narrow, 1>, shape, workspace);
    }
  }
  template <int V, class To> void walk(const scans::ColumnWalkShape& shape) {
    using Walked = typename NearScan<S>::type;
    enqueue(scan_column_walk<Walked, Load, To, V>, shape.blocks, shape.threads, shape.shared, queue, call);
  }
  void operator()(const scans::ColumnWalkShape& shape) {
    if constexpr (kWalksPairs<S, Load, Store>)
      if (shape.columns == 2) return walk<2, Narrow>(shape);
    if constexpr (kLaneWalks<S, Load, Store>) walk<1, Store>(shape);
  }
  void operator()(const scans::ColumnTeamsShape& shape) {
    if constexpr (kTeamWalks<S, Load, Store>)
      enqueue(scan_column_teams<S, Load, Store>, shape.blocks, shape.threads, shape.shared, queue, call);
  }
  void operator()(const scans::CpuShape&) {}
};

template <class S, class Load, class Store>
static const char* launch(const PlannedScan& call, void* workspace, gpuStream_t stream) {
  Launches<S, Load, Store> launches{call, workspace, Queue{stream}};
  const int64_t bytes = call.plan.launch().workspace;
  if (bytes > 0)
    if (const char* error = zero_workspace(workspace, bytes, launches.queue)) return error;
  std::visit(launches, call.plan.shape);
  if (launches.error) return launches.error;
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

// Elements of any type, by way of A, to results of any dtype.
template <class S, class A> static const char* launch_any(const PlannedScan& call, void* workspace,
                                                          gpuStream_t stream) {
  if constexpr (S::kIndexed) return launch<S, AnyLoad<A>, AnyIndexedStore>(call, workspace, stream);
  else return launch<S, AnyLoad<A>, AnyStore>(call, workspace, stream);
}
// Elements of type T to results of the dtype that torch gives by default.
template <template <class> class Op, class T>
static const char* launch_typed(const PlannedScan& call, void* workspace, gpuStream_t stream) {
  if constexpr (Op<float>::kIndexed) {
    return launch<Op<T>, TypedLoad<T>, IndexedStore<T>>(call, workspace, stream);
  } else if constexpr (Op<float>::kInputs == 2) {
    return launch<Op<accumulator_t<T>>, PairLoad<T>, TypedStore<T>>(call, workspace, stream);
  } else if constexpr (Op<float>::kInputs == 3) {
    return launch<Op<T>, TripleLoad<T>, TypedStore<T>>(call, workspace, stream);
  } else {
    using Load = std::conditional_t<is_float_type<T> || sizeof(T) == 8, TypedLoad<T>, SmallInts>;
    using Own = TypedStore<std::conditional_t<is_float_type<T>, T, int64_t>>;
    constexpr bool kWidened = Op<float>::kIntegerKernels && is_widened(DtypeOf<T>::value, Dtype::F32);
    using Store = std::conditional_t<kWidened, EitherStore<T>, Own>;
    return launch<Op<accumulator_t<T>>, Load, Store>(call, workspace, stream);
  }
}

// Whether elements of type T have a kernel of their own; those with three inputs come as accumulators.
template <template <class> class Op, class T>
constexpr bool has_kernel = Op<float>::kInputs == 3 ? std::is_same<T, float>::value || std::is_same<T, double>::value
                                                    : is_float_type<T> || Op<float>::kIntegerKernels;

template <template <class> class Op> const char* launch_scan(const PlannedScan& call, void* workspace, void* stream) {
  using Any = Op<float>;
  const auto s = static_cast<gpuStream_t>(stream);
  if (is_static(call.in, call.out.dtype, Any::kIntegerKernels)) {
#define TR_CASE(T)                                                                   \
  case DtypeOf<T>::value:                                                            \
    if constexpr (has_kernel<Op, T>) return launch_typed<Op, T>(call, workspace, s); \
    break;
    switch (call.in.dtype) {
      TR_FOR_EACH_COMPILED_TYPE(TR_CASE)
      default: break;
    }
#undef TR_CASE
  }
  if constexpr (Any::kIntegers)
    if (call.in.accumulator == Dtype::I64) return launch_any<Op<int64_t>, int64_t>(call, workspace, s);
  if constexpr (Any::kConverts) {
    if (call.in.accumulator == Dtype::F64) return launch_any<Op<double>, double>(call, workspace, s);
    return launch_any<Op<float>, float>(call, workspace, s);
  }
  return "there is no kernel for these dtypes";
}

template const char* launch_scan<TR_PART>(const PlannedScan&, void*, void*);

}  // namespace torchreduce::gpu
