// Scans with indices along columns: a tile a block, by way of shared memory, from where it is taken twice, for the
// latest record of each of its columns, and, when what precedes the tile is there, for its results. Neighbouring lanes
// take neighbouring columns of a row, or of several rows where columns are fewer than lanes: whatever a warp loads and
// stores is side by side in memory as far as it can be.
//
// What precedes a tile is exact in any order: the greatest of its group's earlier tiles, of the earlier groups, and of
// all before those, which a block looks at together. So it is three reads of memory behind the last tile that it
// depends on; 16 columns take as long as their chain of these does (H200: float32 0.86 of a copy's speed; 0.82 by the
// tree of tile/carry.cuh, which is read once more, and whose lanes look at a column each instead of at neighbours).
#pragma once
#include "column_jobs.cuh"
#include "column_tiles.h"
#include "extremes.cuh"
#include "tiles.cuh"

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

// A record in one word, of which the greatest is the latest of the greatest, and none is 0, which stands for one that
// is not there yet.
template <class S> struct RecordWord {
  using Acc = typename S::Acc;
  static constexpr uint32_t kSign = 1u << 31;
  static constexpr uint64_t kNone = uint64_t(uint32_t(S::Order::kLowest) ^ kSign) << 32 | 1;

  __device__ __forceinline__ static uint64_t of(Acc a) {
    return uint64_t(uint32_t(a.key) ^ kSign) << 32 | (uint32_t(a.place) + 2);
  }
  __device__ __forceinline__ static Acc record(uint64_t w) {
    return {int32_t(uint32_t(w >> 32) ^ kSign), int32_t(uint32_t(w) - 2)};
  }
};
__device__ __forceinline__ uint64_t greater(uint64_t a, uint64_t b) { return a > b ? a : b; }

// Records are published as words: of tiles, of groups of kRecordFan of them, and of all before a group.
using RecordSpace = TileSpace<uint64_t, uint64_t, kRecordFan>;

// kRecordFan published records `pitch` apart, of which the first `count` are there or will be; kTurns threads take
// turns.
template <int kTurns> struct RecordSlots {
  static constexpr int kSlots = kRecordFan / kTurns;
  const uint64_t* at[kSlots];
  uint64_t word[kSlots];

  __device__ __forceinline__ RecordSlots(const uint64_t* first, int64_t pitch, int turn, int count, uint64_t none) {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      const int slot = turn + i * kTurns;
      at[i] = first + slot * pitch;
      word[i] = slot < count ? 0 : none;
    }
  }
  // Starts to look at those that have not been seen yet.
  __device__ __forceinline__ void look() {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) word[i] = load_relaxed_if(word[i] == 0, at[i], word[i]);
  }
  // Waits for all.
  __device__ __forceinline__ uint64_t greatest() {
    for (bool all = false;; back_off(), look()) {
      all = true;
#pragma unroll
      for (int i = 0; i < kSlots; ++i) all = all && word[i] != 0;
      if (all) break;
    }
    uint64_t most = word[0];
#pragma unroll
    for (int i = 1; i < kSlots; ++i) most = greater(most, word[i]);
    return most;
  }
};

// Shared memory of a block whose lanes have V columns each.
template <int V> struct RecordShared {
  static constexpr int kColumns = kLanes * V;
  static constexpr int kTurns = kThreads / kColumns;  // threads that look for what precedes a column

  uint32_t staged[kExtremeSteps * kThreads];  // each thread's own, V a word
  uint64_t totals[kWarps][kColumns];          // of warps; then what precedes each in the tile
  uint64_t near[kTurns][kColumns];            // what precedes the tile in its group, as each found it
  uint64_t far[kTurns][kColumns];             // what precedes the group
  uint64_t before[kColumns];                  // what precedes the tile
  ColumnJob job;
};

// By all threads, when each warp's totals are there: publishes the tile's records, and finds what precedes the tile and
// each warp in it.
template <class S, int V>
__device__ __forceinline__ void carry_records(const RecordSpace& space, RecordShared<V>& shared) {
  using W = RecordWord<S>;
  constexpr int kColumns = RecordShared<V>::kColumns, kTurns = RecordShared<V>::kTurns;
  const ColumnJob& job = shared.job;
  const int column = int(threadIdx.x) % kColumns, turn = int(threadIdx.x) / kColumns;
  const int64_t row = job.first + column, group = job.unit / kRecordFan;
  const int tile_slot = int(job.unit % kRecordFan), group_slot = int(group % kRecordFan);
  const bool active = column < job.width, one = active && turn == 0;
  uint64_t own = W::kNone;
  if (one) {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const uint64_t total = shared.totals[w][column];
      shared.totals[w][column] = own;
      own = greater(own, total);
    }
    if (space.units > 1) store_relaxed(space.tile(job.batch, job.unit, row), own);
  }
  RecordSlots<kTurns> tiles(space.tile(job.batch, job.unit - tile_slot, row), space.width, turn, active ? tile_slot : 0,
                            W::kNone);
  RecordSlots<kTurns> groups(space.block(job.batch, group - group_slot, row), space.width, turn,
                             active ? group_slot : 0, W::kNone);
  if (active && turn == kTurns - 1 && group > group_slot) {  // in the last slot, which no group that is looked at is in
    groups.at[groups.kSlots - 1] = space.carry(job.batch, group - group_slot - 1, row);
    groups.word[groups.kSlots - 1] = 0;
  }
  tiles.look();
  groups.look();
  auto of_turns = [&](const uint64_t (&found)[kTurns][kColumns]) {
    uint64_t most = found[0][column];
#pragma unroll
    for (int t = 1; t < kTurns; ++t) most = greater(most, found[t][column]);
    return most;
  };
  uint64_t in_group = W::kNone;
  shared.near[turn][column] = tiles.greatest();
  __syncthreads();
  if (one) {
    in_group = of_turns(shared.near);
    if (tile_slot == kRecordFan - 1 && group_slot < kRecordFan - 1)
      store_relaxed(space.block(job.batch, group, row), greater(in_group, own));
  }
  shared.far[turn][column] = groups.greatest();
  __syncthreads();
  if (one) {
    const uint64_t upto = greater(of_turns(shared.far), in_group);
    if (tile_slot == kRecordFan - 1 && group_slot == kRecordFan - 1)
      store_relaxed(space.carry(job.batch, group, row), greater(upto, own));
    shared.before[column] = upto;
  }
}

// A tile of columns, of shape.across lanes, each of which has V neighbours, of rows of at most kNearRows positions. A
// lane has V neighbouring columns of `count` rows, `down` apart, the first of which is own_row of the tile.
template <class S, class Load, int V> struct RecordColumns {
  using Shape = ExtremeColumnsShape;
  using Shared = RecordShared<V>;
  static constexpr int kThreads = gpu::kThreads, kBlocks = V > 1 ? 4 : 5;
  using E = element_of<Load>;
  using Order = typename S::Order;
  using R = NearRecord<S>;
  using Key = typename R::Key;
  using W = RecordWord<S>;
  static constexpr int kSteps = kExtremeSteps, kAtOnce = 4, kOfWord = 4 / int(sizeof(E));

  const ScanCall& call;
  const S op;
  Shared& shared;
  const RecordSpace space;
  const int lanes, down;  // of a row; rows of a warp at a time
  const int rows, warp, lane, y, x, own_row, first, count;
  uint32_t* const own;
  Key most[V];  // the greatest of its own elements

  __device__ __forceinline__ static ColumnJob job_of(const ScanCall& call, const ExtremeColumnsShape& shape, void*,
                                                     int64_t ticket) {
    const int rows = kSteps * (kLanes / shape.across) * kWarps;
    return column_job(call.layout, ticket, shape.tiles, rows, shape.across * V);
  }
  // The lane's rows from that one of the tile on, as far as they are there.
  __device__ __forceinline__ int steps_from(int row) const {
    const int64_t steps = (call.layout.length - shared.job.unit * (rows * kWarps) - row + down - 1) / down;
    return steps < 0 ? 0 : steps < kSteps ? int(steps) : kSteps;
  }
  __device__ __forceinline__ RecordColumns(const ScanCall& call, const ExtremeColumnsShape& shape, void* workspace,
                                           Shared& shared)
      : call(call),
        op{call.options},
        shared(shared),
        space(workspace, call.layout.rows, columns_beside(call.layout), shape.tiles),
        lanes(shape.across),
        down(kLanes / shape.across),
        rows(kSteps * down),
        warp(int(threadIdx.x) / kLanes),
        lane(lane_id()),
        y(lane / lanes),
        x(lane - y * lanes),
        own_row(warp * rows + y),
        first(int(shared.job.unit) * (rows * kWarps) + own_row),
        count(y < down && x * V < shared.job.width ? steps_from(own_row) : 0),
        own(shared.staged + threadIdx.x) {}
  // From the job's first element to the lane's.
  __device__ __forceinline__ int64_t offset(int64_t along, const int64_t (&strides)[kMaxDims]) const {
    return own_row * along + x * V * (call.layout.kept > 0 ? strides[call.layout.kept - 1] : 0);
  }

  __device__ __forceinline__ void load() const {
    const Layout& layout = call.layout;
    const int64_t stride = scan_stride(layout).in, step = down * stride;
    const E* from = global(static_cast<const E*>(call.in.data)) + (shared.job.in + offset(stride, layout.in));
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
  __device__ __forceinline__ Elements<Load, kOfWord> word(int t) const {
    Elements<Load, kOfWord> w;
    w.w.item[0] = own[t * kThreads];
    return w;
  }
  // The warp's records go to shared memory.
  __device__ __forceinline__ void sum() {
    load();
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
      uint64_t total = count > 0 ? W::of(op.load(x0[v], first + latest[v] * down)) : W::kNone;
      for (int d = 1; d < down; d *= 2) {  // rows lie between each other's
        const uint64_t other = shuffle(total, (lane + d * lanes) % kLanes);
        if (y + d < down) total = greater(total, other);
      }
      if (y == 0) shared.totals[warp][x * V + v] = total;
    }
  }
  __device__ __forceinline__ void carry() const { carry_records<S>(space, shared); }
  // The records of rows t to t + kAtOnce of the lane, of which `index` is the first one's, and of those of the lanes
  // above it among their own.
  __device__ __forceinline__ void scan(int t, int& index, R (&upto)[kAtOnce][V]) const {
    const int index_step = call.reverse ? -down : down;
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
  }
  __device__ __forceinline__ void store() const {
    R found[V];
    bool record = false;  // whether the lane's own elements have one, or a NaN
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const auto upto = W::record(greater(shared.before[x * V + v], shared.totals[warp][x * V + v]));
      const typename S::Result r = op.result(upto);
      found[v] = {upto.key, Key(Order::bits_of(r.value)), int(call.index_of(r.index))};
      record = record || (count > 0 && most[v] >= upto.key);
    }
    const Layout& layout = call.layout;
    const int64_t stride = scan_stride(layout).out, step = down * stride;
    const int64_t place = shared.job.out + offset(stride, layout.out);
    E* values = global(static_cast<E*>(call.out.values)) + place;
    int64_t* indices = global(call.out.indices) + place;
    auto put = [&](bool there, const R(&found)[V]) {
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
      for (int t = 0; t < count; ++t) put(true, found);
      return;
    }
    const int steps = steps_from(warp * rows);  // of any lane
    int index = int(call.index_of(first));
#pragma unroll 1
    for (int t = 0; t < steps; t += kAtOnce) {
      R upto[kAtOnce][V];
      scan(t, index, upto);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
        for (int v = 0; v < V; ++v) found[v] = found[v].later(upto[i][v]);
        put(t + i < count, found);
        if (down > 1)
#pragma unroll
          for (int v = 0; v < V; ++v) found[v] = shuffle(found[v], (down - 1) * lanes + x);
      }
    }
  }
};

}  // namespace torchreduce::gpu
