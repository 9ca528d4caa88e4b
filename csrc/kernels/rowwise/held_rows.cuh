// Rows of neighbouring elements that stay on chip between the looks: read once, written once.
//
// Serves: float32, and 16-bit floats where all inputs of a row start at the same place of a granule (held_rows.h).
// A warp has a leaf, or several rows that are short, in registers (held_leaf.cuh). The states of a row's leaves meet in
// shared memory, over a cluster of blocks where a row is longer than a block holds (held_meeting.cuh); or in device
// memory, between two launches.
// Shared memory: dynamic, of ops that keep terms the first chunks of each thread, and the states of a row's leaves.
#pragma once
#include "held_leaf.cuh"
#include "held_meeting.cuh"

namespace torchreduce::gpu {

template <class Op, class E, int kChunks, held_rows::Form kForm>
__global__ void TR_BLOCK_BOUND((kHeldThreads<Op, E, kChunks, kForm>))
    held_rows_kernel(TR_GRID_CONSTANT RowwiseKernelCall call, TR_GRID_CONSTANT HeldRowsShape shape,
                     typename Op::State* states) {
  using F = float;
  using Leaf = HeldLeaf<Op, E, kChunks, kForm>;
  using State = typename Op::State;
  using Part = held_rows::Part;
  __shared__ Barrier arrived;
  const auto meeting = [&] {
    TR_DYNAMIC_SHARED(dynamic, 16);
    return Meeting<State>(dynamic + Leaf::away_bytes(), shape.leaves, &arrived);
  };
  if constexpr (Leaf::kMeets)
    if (shape.cluster > 1) meeting().begin(shape);
  Leaf leaf(call);
  const auto at = leaf.find(shape, blockIdx.x);
  const auto given = Op::given(call.options, call.memory, at.start.value);
  leaf.load(at.start, !Op::skips(given));
  State state = Op::none();
  [[maybe_unused]] F scale = F(1);
  if constexpr (Op::kSums > 0)
    if (leaf.p.count > 0) state = leaf.template look<false>(given, scale);
  if constexpr (Op::kScales) {
    if (ballot(scale != F(1))) {
      // What is written is not loaded again: registers that come from two places move, and of the common loads one
      // waits for another (H200, layer_norm of float32, 768: 327 us instead of 264). What is not is: it would be in
      // registers for longer.
      TR_RARE_PATH;
      if constexpr (Op::kMaps) {
        state = Op::scaled_back(leaf.template look<true>(given, scale), state, scale);
      } else {
        Leaf again(call);
        again.load(again.find(shape, recomputed(uint32_t(blockIdx.x))).start, true);
        state = Op::scaled_back(again.template look<true>(given, scale), state, scale);
      }
    }
  }

  auto end = at;
  if constexpr (Leaf::kFindsAgain) end = leaf.find(shape, recomputed(uint32_t(blockIdx.x)));
  State total = state;
  if constexpr (Leaf::kMeets) {
    if (!Leaf::is_alone(shape)) {
      if (shape.part == Part::States) {
        if (lane_id() == 0 && leaf.p.count > 0) states[end.row * shape.leaves + end.number] = state;
        return;
      }
      if (shape.folded) {
        total = states[end.row];
      } else {
        auto met = meeting();
        if (shape.part == Part::Whole) met.meet(shape, end.number, state);
        else met.recall(states + end.row * shape.leaves, shape.leaves);
        total = met.template total<Op>(shape.leaves);
      }
    }
  }
  if (leaf.p.count == 0 || (!Op::kMaps && end.number > 0)) return;
  const auto read = [&](int64_t i) { return convert<F>(static_cast<const E*>(call.in[0])[end.start.in[0] + i]); };
  const auto values = Op::row(total, call.length, given, call.options, read);
  if (end.number == 0 && leaf.p.lane == 0 && end.there) Op::write(values, call.memory, end.start.value);
  if constexpr (Op::kMaps) {
    const auto& to_map = Op::at(values, state);
    if constexpr (Op::kAdds)
      if (end.there) leaf.write_sums(end.start.out + leaf.first);
    leaf.write(end.start.out + leaf.first, to_map, end.there, [&](int64_t i) {
      if constexpr (kMarks<Op>) {
        const F x[1] = {read(i)};
        return Op::map(x, F(1), F(-0.0), i, to_map);
      } else {
        return F(0);
      }
    });
  }
}

}  // namespace torchreduce::gpu
