// parts: TR_FOR_EACH_SCAN
// Launches of the scans: this file is compiled once for each op, with TR_PART its struct.
#include "gpu.h"
#include "scan_chain.cuh"
#include "scan_column_tiles.cuh"
#include "scan_extreme_columns.cuh"
#include "scan_extreme_pipeline.cuh"
#include "scan_extremes.cuh"
#include "scan_held_rows.cuh"
#include "scan_linear_pipeline.cuh"
#include "scan_narrow_pipeline.cuh"
#include "scan_pipeline.cuh"
#include "scan_ragged_columns.cuh"
#include "scan_short_columns.cuh"
#include "scan_short_rows.cuh"
#include "scan_strip_pipeline.cuh"
#include "scan_team_walk.cuh"
#include "scan_walk.cuh"

namespace torchreduce::gpu {

template <class S> constexpr bool kWalked = sizeof(typename S::Acc) <= kWalkedAcc;

template <class S, class Load, class Store>
static const char* launch(const ScanCall& call, void* workspace, gpuStream_t stream) {
  using E = typename Load::Element;
  const Plan& plan = call.plan;
  Queue queue{stream};
  if (plan.workspace > 0)
    if (const char* error = zero_workspace(workspace, plan.workspace, queue)) return error;
  auto run = [&](auto kernel, auto... more) {
    enqueue(kernel, plan.blocks, plan.threads, plan.shared, queue, call, more...);
  };
  switch (plan.family) {
    case Family::Rows:
      if constexpr (S::kIndexed) {
        constexpr int kSize = sizeof(element_of<Load>), kMost = extreme_chunks(kSize);
        const int rows = extreme_rows(call.layout.length, kSize);
        rows == 1   ? run(scan_extreme_rows<S, Load, Store, 1>)
        : rows == 2 ? run(scan_extreme_rows<S, Load, Store, 2>)
                    : run(scan_extreme_rows<S, Load, Store, kMost>);
        break;
      }
      if constexpr (kCompact<S, Load, Store>) {
        constexpr int K = kHeldTiles<S>;
        const int64_t n = call.layout.length;
        if constexpr (kInPlace<S, Load, Store>)
          if (plan.whole && plan.vector > 1) {
            auto packed = [&](auto length) {
              if constexpr (length() * sizeof(E) <= kPackedBytes) run(scan_packed_rows<S, Load, Store, length()>);
            };
            switch (n) {
              case 1: packed(std::integral_constant<int, 1>()); break;
              case 2: packed(std::integral_constant<int, 2>()); break;
              case 3: packed(std::integral_constant<int, 3>()); break;
              case 4: packed(std::integral_constant<int, 4>()); break;
              case 5: packed(std::integral_constant<int, 5>()); break;
              case 6: packed(std::integral_constant<int, 6>()); break;
              case 7: packed(std::integral_constant<int, 7>()); break;
            }
            break;
          }
#ifdef TR_BULK_COPIES  // older AMD GPUs have too few registers for it
        if constexpr (K * kWarps == kFan)
          if (plan.whole && n > kBlockTile) {
            run(scan_tiled_rows<S, Load, Store, true, K, 2>);
            break;
          }
#endif
        if (plan.whole && plan.vector_loads) {
          n <= kTile       ? run(scan_short_rows<S, Load, Store, true>)
          : n <= 2 * kTile ? run(scan_tiled_rows<S, Load, Store, true, 2>)
                           : run(scan_tiled_rows<S, Load, Store, true, K>);
          break;
        }
        if (plan.whole) {
          n <= kTile       ? run(scan_short_rows<S, Load, Store, false>)
          : n <= 2 * kTile ? run(scan_tiled_rows<S, Load, Store, false, 2>)
                           : run(scan_tiled_rows<S, Load, Store, false, K>);
          break;
        }
      }
      if constexpr (kHeld<S, Load, Store>)
        if (plan.whole) {
          constexpr int kSize = sizeof(element_of<Load>), kMost = most_held_groups(kSize);
          const int groups = held_groups(call.layout, kSize, plan.warps);
          auto held = [&](auto staged) {
            constexpr bool kStaged = staged();
            if (call.layout.length <= kTile)
              groups == 1 ? run(scan_held_rows<S, Load, Store, 1, false, kStaged>)
                          : run(scan_held_rows<S, Load, Store, held_groups_wanted(kSize), false, kStaged>);
            else
              groups == 1   ? run(scan_held_rows<S, Load, Store, 1, true, kStaged>)
              : groups == 2 ? run(scan_held_rows<S, Load, Store, 2, true, kStaged>)
                            : run(scan_held_rows<S, Load, Store, kMost, true, kStaged>);
          };
          if constexpr (kSize <= 4)  // of larger elements there are too few registers
            if (held_runs(call.layout, plan.vector_loads)) {
              held(std::true_type());
              break;
            }
          held(std::false_type());
          break;
        }
      if constexpr (kWalked<S> && !S::kIndexed) run(scan_rows<S, Load, Store>);
      break;
    case Family::Chain:
      if constexpr (S::kIndexed) run(scan_extreme_chain<S, Load, Store>, workspace);
      else if constexpr (S::kInputs <= 2) run(scan_chain<S, Load, Store>, workspace);
      break;
    case Family::Columns:
      if constexpr (kExtremeColumns<S, Load>)
        if (plan.tiled && call.layout.length <= kNearRows) {
          constexpr int V = walk_vector(sizeof(element_of<Load>));
          plan.vector == V ? run(scan_extreme_columns<typename S::Near, Load, V>, workspace)
                           : run(scan_extreme_columns<typename S::Near, Load, 1>, workspace);
          break;
        }
#ifdef TR_BULK_COPIES
      if constexpr (kStripPipelined<S, Load, Store>)
        if (plan.strip_bytes) {
          if (const char* error = launch_strips<S, Load, Store>(call, workspace, queue)) return error;
          break;
        }
#endif
      if (plan.tiled) {
        if constexpr (kStagedTiles<S, Load, Store>) {
          constexpr int V = walk_vector(sizeof(element_of<Load>));
          if (V > 1 && plan.vector == V) {
            run(scan_column_tiles<S, Load, Store, V>, workspace);
            break;
          }
        }
        run(scan_column_tiles<S, Load, Store, 1>, workspace);
        break;
      }
      if constexpr (kRaggedColumns<S, Load, Store>)
        if (plan.ragged) {
          if constexpr (sizeof(E) == 4)
            if (ragged_sides(plan.strip) == 2) {
              run(scan_ragged_columns<S, Load, Store, 2>, workspace);
              break;
            }
          run(scan_ragged_columns<S, Load, Store, 1>, workspace);
          break;
        }
      if constexpr (kColumnVectors<S, Load, Store>) {
        constexpr int V = column_vector(sizeof(E), sizeof(typename S::Acc));
        if (plan.vector == V) {
          run(scan_short_columns<S, Load, Store, V>);
          break;
        }
      }
      run(scan_short_columns<S, Load, Store, 1>);
      break;
    case Family::Pipeline:
#ifdef TR_BULK_COPIES
      if constexpr (kNarrowPipelined<S, Load, Store>)
        if (plan.vector > 1) {
          auto narrow = [&](auto columns) {
            constexpr int W = columns();
            enqueue(scan_narrow_pipeline<S, Load, Store, W>, plan.blocks, plan.threads,
                    NarrowShape<sizeof(E), W>::kShared, queue, call, workspace);
          };
          switch (plan.vector) {
            case 2: narrow(std::integral_constant<int, 2>()); break;
            case 3: narrow(std::integral_constant<int, 3>()); break;
            case 4: narrow(std::integral_constant<int, 4>()); break;
            case 5: narrow(std::integral_constant<int, 5>()); break;
            case 6: narrow(std::integral_constant<int, 6>()); break;
            case 7: narrow(std::integral_constant<int, 7>()); break;
          }
          break;
        }
      if constexpr (kPipelined<S, Load, Store>)
        enqueue(scan_pipeline<S, Load, Store>, plan.blocks, plan.threads,
                PipelineShape<sizeof(E), sizeof(typename S::Acc)>::kShared, queue, call, workspace);
      else if constexpr (kExtremePipelined<S, Load>)
        enqueue(scan_extreme_pipeline<S, Load, Store>, plan.blocks, plan.threads, ExtremeRing<sizeof(E)>::kShared,
                queue, call, workspace);
      else if constexpr (kLinearPipelined<S, Load, Store>)
        enqueue(scan_linear_pipeline<S, Load, Store>, plan.blocks, plan.threads,
                LinearPipeline<S, Load>::Shape::kShared, queue, call, workspace);
      else return "there is no pipeline for these types";
      break;
#else
      return "there are no bulk copies";
#endif
    case Family::Walk:
      if constexpr (kTeamWalks<S, Load, Store>)
        if (plan.lanes > 1) {
          run(scan_team_walk<S, Load, Store>);
          break;
        }
      if constexpr (kLaneWalks<S, Load, Store>) {
        if constexpr (S::kIndexed) run(scan_walk<typename S::Near, Load, Store>);
        else run(scan_walk<S, Load, Store>);
      }
      break;
  }
  const gpuError_t error = gpuGetLastError();
  return error == gpuSuccess ? nullptr : gpuGetErrorString(error);
}

// Elements of any type, by way of A, to results of any dtype.
template <class S, class A> static const char* launch_any(const ScanCall& call, void* workspace, gpuStream_t stream) {
  if constexpr (S::kIndexed) return launch<S, AnyLoad<A>, AnyIndexedStore>(call, workspace, stream);
  else return launch<S, AnyLoad<A>, AnyStore>(call, workspace, stream);
}
// Elements of type T to results of the dtype that torch gives by default.
template <template <class> class Op, class T>
static const char* launch_typed(const ScanCall& call, void* workspace, gpuStream_t stream) {
  if constexpr (Op<float>::kIndexed) {
    return launch<Op<T>, TypedLoad<T>, IndexedStore<T>>(call, workspace, stream);
  } else if constexpr (Op<float>::kInputs == 2) {
    return launch<Op<accumulator_t<T>>, PairLoad<T>, TypedStore<T>>(call, workspace, stream);
  } else if constexpr (Op<float>::kInputs == 3) {
    return launch<Op<T>, TripleLoad<T>, TypedStore<T>>(call, workspace, stream);
  } else {
    using Store = TypedStore<std::conditional_t<is_float_type<T>, T, int64_t>>;
    return launch<Op<accumulator_t<T>>, TypedLoad<T>, Store>(call, workspace, stream);
  }
}

// Whether elements of type T have a kernel of their own; those with three inputs come as accumulators.
template <template <class> class Op, class T>
constexpr bool has_kernel = Op<float>::kInputs == 3 ? std::is_same<T, float>::value || std::is_same<T, double>::value
                                                    : is_float_type<T> || Op<float>::kIntegerKernels;

template <template <class> class Op> const char* launch_scan(const ScanCall& call, void* workspace, void* stream) {
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

template const char* launch_scan<TR_PART>(const ScanCall&, void*, void*);

}  // namespace torchreduce::gpu
