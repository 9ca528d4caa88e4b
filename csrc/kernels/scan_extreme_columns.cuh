// Scans with indices along columns: a tile a block, by way of shared memory, from where it is taken twice, for the
// latest record of each of its columns, and, when what precedes the tile is there, for its results. Neighbouring lanes
// take neighbouring columns of a row, or of several rows where columns are fewer than lanes: whatever a warp loads and
// stores is side by side in memory as far as it can be.
#pragma once
#include "column_carry.cuh"
#include "scan_extremes.cuh"

namespace torchreduce::gpu {

// Whether the kernel is compiled for these.
template <class S, class Load> constexpr bool kExtremeColumns = S::kIndexed && Load::kWidth > 1 &&
                                                                sizeof(element_of<Load>) <= 4;

// What a lane knows of a column so far: the latest of the greatest elements, by its bits, and its index.
template <class S> struct NearRecord {
  using Key = typename Record<S>::Key;
  Key key, bits;
  int index;

  __device__ __forceinline__ NearRecord later(const NearRecord& next) const { return next.key >= key ? next : *this; }
};

// Columns of plan.strip lanes, each of which has V neighbours; rows of at most kNearRows positions.
template <class S, class Load, int V>
__global__ void TR_BLOCKS_BOUND(kThreads, V > 1 ? 4 : 5)
    scan_extreme_columns(TR_GRID_CONSTANT ScanCall call, void* workspace) {
  using E = element_of<Load>;
  using Acc = typename S::Acc;
  using Order = typename S::Order;
  using R = NearRecord<S>;
  using Key = typename R::Key;
  constexpr int kColumns = kLanes * V, kSteps = kExtremeSteps, kAtOnce = 4, kOfWord = 4 / int(sizeof(E));
  constexpr int kCarryLanes = kThreads / kColumns;  // that look for what precedes a column
  struct Job {
    int64_t batch, first, unit, in, out;  // first: column; in, out: of its first element
    int width;
  };
  __shared__ uint32_t staged[kSteps * kThreads];  // each thread's own, V a word
  __shared__ Acc totals[kWarps][kColumns];        // of warps; then what precedes each in the tile
  __shared__ Acc before[kColumns];                // what precedes the tile
  __shared__ Job job;
  const S op{call.options};
  const Layout& layout = call.layout;
  const ScanStride stride = scan_stride(layout);
  const int lanes = call.plan.strip, down = kLanes / lanes;  // of a row; rows of a warp at a time
  const int rows = kSteps * down;                            // of a warp
  const int64_t units = call.plan.splits;
  const bool beside = layout.kept > 0;  // columns lie side by side
  const int64_t column_in = beside ? layout.in[layout.kept - 1] : 0,
                column_out = beside ? layout.out[layout.kept - 1] : 0;
  const ColumnSpace<S> space(workspace, layout.rows, beside ? layout.size[layout.kept - 1] : 1, units);
  if (threadIdx.x == 0) {  // tiles a block waits for have lower tickets
    const int64_t ticket = int64_t(take_ticket(static_cast<uint64_t*>(workspace)));
    const int64_t columns = lanes * V, strips = (space.width + columns - 1) / columns;
    const int64_t rest = ticket / strips, first = (ticket - rest * strips) * columns;
    const int64_t batch = rest / units, unit = rest - batch * units, position = unit * (rows * kWarps);
    const RowStart start = row_start(layout, batch, layout.kept - 1);
    job = {batch,
           first,
           unit,
           start.in + position * stride.in + first * column_in,
           start.out + position * stride.out + first * column_out,
           int(space.width - first < columns ? space.width - first : columns)};
  }
  __syncthreads();

  const int warp = int(threadIdx.x) / kLanes, lane = lane_id(), y = lane / lanes, x = lane - y * lanes;
  const int own_row = warp * rows + y;  // of the tile; the lane's others follow `down` from each other
  const int first = int(job.unit) * (rows * kWarps) + own_row;  // position
  auto steps_from = [&](int row) {
    const int64_t steps = (layout.length - job.unit * (rows * kWarps) - row + down - 1) / down;
    return steps < 0 ? 0 : steps < kSteps ? int(steps) : kSteps;
  };
  const int count = y < down && x * V < job.width ? steps_from(own_row) : 0;
  uint32_t* const own = staged + threadIdx.x;
  {
    const E* from = global(static_cast<const E*>(call.in.data)) + (job.in + own_row * stride.in + x * V * column_in);
    const int64_t step = down * stride.in;
    auto load = [&](int t) {
      if constexpr (V == kOfWord) copy_async<4>(own + t * kThreads, from);
      else own[t * kThreads] = bit_cast<uint16_t>(*from);
      from += step;
    };
    if (count == kSteps) {
#pragma unroll 8
      for (int t = 0; t < kSteps; ++t) load(t);
    } else {
      TR_ROLLED
      for (int t = 0; t < count; ++t) load(t);
    }
    end_copies();
    wait_copies<0>();
  }

  auto word = [&](int t) {
    Elements<Load, kOfWord> w;
    w.w.item[0] = own[t * kThreads];
    return w;
  };
  Key most[V];
  int latest[V] = {};  // that has it, of the lane's elements
#pragma unroll
  for (Key& key : most) key = Order::kLowest;
#pragma unroll 8
  for (int t = 0; t < count; ++t) {
    Key key[kOfWord];
    word(t).template get_keys<S>(op, key);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      latest[v] = key[v] >= most[v] ? t : latest[v];
      most[v] = key[v] >= most[v] ? key[v] : most[v];
    }
  }
#pragma unroll
  for (int v = 0; v < V; ++v) {
    E x0[kOfWord];
    unpack(word(latest[v]).w.item, x0);
    Acc total = S::absent();
    if (count > 0) total = op.load(x0[v], first + latest[v] * down);
    for (int d = 1; d < down; d *= 2) {  // rows lie between each other's
      const Acc other = shuffle(total, (lane + d * lanes) % kLanes);
      const bool later = other.key > total.key || (other.key == total.key && other.place > total.place);
      if (y + d < down && later) total = other;
    }
    if (y == 0) totals[warp][x * V + v] = total;
  }
  __syncthreads();

  {
    const int column = int(threadIdx.x) / kCarryLanes, slot = int(job.unit % kFan);
    const int64_t block = job.unit / kFan, row = job.first + column;
    const bool active = column < job.width, one = active && lane % kCarryLanes == 0;
    if (one) {
      Acc upto = S::absent();
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const Acc total = totals[w][column];
        totals[w][column] = upto;
        upto = S::combine(upto, total);
      }
      if (units > 1) space.tile(job.batch, job.unit, row)->publish(upto);
    }
    warp_barrier();  // before a lane that waits for this holds the one that is to publish it
    if (slot == kFan - 1) {
      close_block<S, kCarryLanes>(space, job.batch, row, block, active);
      settle_block<S, kCarryLanes>(space, job.batch, row, block, active, S::wide_absent());
    }
    Acc within, carry;
    column_carry<S, kCarryLanes>(space.tile(job.batch, job.unit - slot, row), space.width, active ? slot : 0,
                                 active && block ? space.carry(job.batch, block - 1, row) : nullptr, S::wide_absent(),
                                 within, carry);
    if (one) before[column] = S::combine(carry, within);
  }
  __syncthreads();

  R found[V];
  bool record = false;  // whether the lane's own elements have one, or a NaN
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const Acc upto = S::combine(before[x * V + v], totals[warp][x * V + v]);
    const typename S::Result r = op.result(upto);
    found[v] = {upto.key, Key(Order::bits_of(r.value)), int(call.index_of(r.index))};
    record = record || (count > 0 && most[v] >= upto.key);
  }
  E* values = global(static_cast<E*>(call.out.values)) + (job.out + own_row * stride.out + x * V * column_out);
  int64_t* indices = global(call.out.indices) + (job.out + own_row * stride.out + x * V * column_out);
  const int64_t step = down * stride.out;
  auto store = [&](bool there, const R(&found)[V]) {
    Packed<E, V> value;
    Packed<int64_t, V> index;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      value.item[v] = Record<S>::element(found[v].bits);
      index.item[v] = uint32_t(found[v].index);
    }
    if (there) {
      store_wide(reinterpret_cast<Packed<E, V>*>(values), value);
      store_wide(reinterpret_cast<Packed<int64_t, V>*>(indices), index);
    }
    values += step;
    indices += step;
  };
  if (!ballot(record)) {
#pragma unroll 8
    for (int t = 0; t < count; ++t) store(true, found);
    return;
  }
  const int steps = steps_from(warp * rows);  // of any lane
  const int index_step = call.reverse ? -down : down;
  int index = int(call.index_of(first));
#pragma unroll 1
  for (int t = 0; t < steps; t += kAtOnce) {
    R upto[kAtOnce][V];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      Key key[kOfWord], bits[kOfWord];
      const auto w = word(t + i);
      w.template get_keys<S>(op, key);
      w.template get_bits<S>(bits);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        if constexpr (Order::kFloat)
          if (key[v] == Order::kGreatest) bits[v] = Key(Order::kNaN);
        upto[i][v] = {key[v], bits[v], index};
      }
      index += index_step;
    }
    for (int d = 1; d < down; d *= 2)
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const R earlier = shuffle(upto[i][v], (lane - d * lanes) & (kLanes - 1));
          if (y >= d) upto[i][v] = earlier.later(upto[i][v]);
        }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int v = 0; v < V; ++v) found[v] = found[v].later(upto[i][v]);
      store(t + i < count, found);
      if (down > 1)
#pragma unroll
        for (int v = 0; v < V; ++v) found[v] = shuffle(found[v], (down - 1) * lanes + x);
    }
  }
}

}  // namespace torchreduce::gpu
