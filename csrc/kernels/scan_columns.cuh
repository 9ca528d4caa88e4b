// Scans with lanes across rows: the smallest stride belongs to a kept dim, so neighbouring lanes read neighbouring
// elements of different rows ("columns").
//
// A tile is 256 positions, or all if they are fewer, of some neighbouring columns: plan.lanes threads a column, each
// with a group of V columns. Longer columns are chains of tiles, in memory order by tickets. A block stays and goes
// from tile to tile; it forms and publishes the totals of one while the elements of the next are on their way, and only
// then looks for the carries of the one before. Those come from the totals of the tiles of its block tile, of the block
// tiles of its superblock, and of the superblocks, each level in order.
#pragma once
#include "scan_chain.cuh"

namespace torchreduce::gpu {

// Whether the kernel is also compiled for several neighbouring columns a thread.
template <class S, class Load, class Store> constexpr bool kColumnVectors = [] {
  if constexpr (kInPlace<S, Load, Store>)
    return column_vector(sizeof(typename Load::Element)) * int(sizeof(typename S::Acc)) <= kColumnAccs;
  else return false;
}();

// The workspace, all zero before the launch: a ticket; for each row the totals of its tiles and of its block tiles; for
// each row and superblock its total and the carry that includes it.
template <class S> struct ColumnSpace {
  uint64_t* ticket;
  Published<typename S::Acc>*tiles, *blocks;
  typename ChainSpace<S>::Superblock* superblocks;
  int64_t count, block_count, superblock_count;  // a row

  __device__ ColumnSpace(void* workspace, int64_t rows, int64_t tiles_a_row) : count(tiles_a_row) {
    block_count = (count + kFan - 1) / kFan;
    superblock_count = (block_count + kFan - 1) / kFan;
    ticket = static_cast<uint64_t*>(workspace);
    tiles = reinterpret_cast<Published<typename S::Acc>*>(ticket + 1);
    blocks = tiles + rows * count;
    superblocks = reinterpret_cast<typename ChainSpace<S>::Superblock*>(blocks + rows * block_count);
  }
  __device__ typename ChainSpace<S>::Superblock& superblock(int64_t row, int64_t s) {
    return superblocks[row * superblock_count + s];
  }
};

// The tree over the lanes of a warp; every lane gets it.
template <class S, class V> __device__ __forceinline__ V lane_tree(V value) {
  const int lane = lane_id();
#pragma unroll
  for (int d = 1; d < kLanes; d <<= 1) {
    const V other = shuffle(value, lane ^ d);
    value = lane & d ? S::combine(other, value) : S::combine(value, other);
  }
  return value;
}

// What precedes tile `tile` of the V rows from `row` on in its block tile, and the carry into that. The last tile of a
// block tile publishes that one's total, and so on. By one warp, every lane of which gets both.
template <class S, class Load, int V>
__device__ __forceinline__ void column_carries(const ScanCall& call, ColumnSpace<S>& space, int64_t row, int64_t tile,
                                               typename S::Acc (&within)[V], typename S::Wide (&carry)[V]) {
  using Acc = typename S::Acc;
  using Wide = typename S::Wide;
  const int lane = lane_id();
  const int64_t block = tile / kFan, s = block / kFan;
  const int slot = int(tile % kFan), block_slot = int(block % kFan);
  const bool closes_block = slot == kFan - 1, closes_superblock = closes_block && block_slot == kFan - 1;
  const int lanes = closes_block ? kFan : slot;

  // Everything is looked for at once; what is not there yet is waited for where it is needed.
  const auto* tiles = space.tiles + row * space.count + block * kFan + lane;
  const auto* blocks = space.blocks + row * space.block_count + s * kFan + lane;
  Acc total[V], block_total[V];
  Wide before = S::wide_absent();  // lane v: the carry into the superblock of row v
  bool total_there[V], block_there[V], before_there = s == 0 || lane >= V;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    total[v] = block_total[v] = S::absent();
    total_there[v] = lane >= lanes || tiles[v * space.count].look(total[v]);
    block_there[v] = lane >= block_slot || blocks[v * space.block_count].look(block_total[v]);
  }
  if (!before_there) before_there = space.superblock(row + lane, s - 1).inclusive.look(before);
  if (s == 0 && lane < V) before = row_carry<S, Load>(call, row + lane);

#pragma unroll
  for (int v = 0; v < V; ++v) {
    if (!total_there[v]) total[v] = tiles[v * space.count].wait();
    within[v] = lane_tree<S>(lane < slot ? total[v] : S::absent());
    if (closes_block) {
      total[v] = lane_tree<S>(total[v]);
      if (lane == 0) space.blocks[(row + v) * space.block_count + block].publish(total[v]);
    }
  }
  Wide sum = S::wide_absent();  // lane v: the superblock's total, where this tile closes it
#pragma unroll
  for (int v = 0; v < V; ++v) {
    carry[v] = S::wide_absent();
    if (block_slot == 0) continue;
    if (!block_there[v]) block_total[v] = blocks[v * space.block_count].wait();
    const Wide value = lane < block_slot ? S::widen(block_total[v]) : S::wide_absent();
    carry[v] = lane_tree<S>(value);
    if (closes_superblock) {
      const Wide all = lane_tree<S>(lane == kLanes - 1 ? S::widen(total[v]) : value);
      if (lane == v) sum = all;
    }
  }
  if (closes_superblock && lane < V) space.superblock(row + lane, s).total.publish(sum);
  if (!before_there) {  // back to the nearest carry that is there, then forward through the totals in order
    int64_t from = s - 1;
    for (;; back_off()) {
      if (space.superblock(row + lane, from).inclusive.look(before)) break;
      Wide ignored;
      if (from > 0 && space.superblock(row + lane, from).total.look(ignored)) --from;
    }
    while (++from < s) before = S::combine(before, space.superblock(row + lane, from).total.wait());
  }
  if (closes_superblock && lane < V) space.superblock(row + lane, s).inclusive.publish(S::combine(before, sum));
  if (s || S::kInputs == 2) {
#pragma unroll
    for (int v = 0; v < V; ++v) carry[v] = S::combine(shuffle(before, v), carry[v]);
  }
}

// Tiles on their way, plan.warps of them from `tile` on: of the rows (columns of memory) from `row` on, `width` of them
// side by side.
struct ColumnJob {
  int64_t row, tile;
  int width;  // 0: there is none, and no other comes
};

template <class S, class Load, class Store, int V>
__global__ void __launch_bounds__(column_threads(V, sizeof(typename S::Acc)), sizeof(typename S::Acc) > 8 ? 1 : 2)
    scan_columns(TR_GRID_CONSTANT ScanCall call, void* workspace) {
  using Acc = typename S::Acc;
  using Wide = typename S::Wide;
  using E = typename Load::Element;
  using P = Packed<E, V>;
  struct alignas(V * sizeof(Acc) % 16 == 0 ? 16 : V * sizeof(Acc) % 8 == 0 ? 8 : 4) Totals { Acc of[V]; };
  constexpr bool kAsync = sizeof(P) >= 4 && sizeof(P) <= 16 && Load::kWidth > 1 && S::kInputs == 1;
  const S op{call.options};
  const Layout& layout = call.layout;
  const ScanStride stride = scan_stride(layout);
  const int64_t n = layout.length, tiles = call.plan.splits;
  const int threads = call.plan.threads, Y = call.plan.lanes, K = call.plan.warps, X = threads / (Y * K);
  const int pitch = X + 1, part = Y * pitch;  // of the totals
  // This thread's tile, and its columns and group in memory; the columns and group whose total it takes, along a
  // column.
  const int k = int(threadIdx.x) / (X * Y), x = int(threadIdx.x) % X, y = int(threadIdx.x) / X % Y;
  const int column = int(threadIdx.x) / Y % X, group = int(threadIdx.x) % Y;
  const int64_t width = layout.kept ? layout.size[layout.kept - 1] : 1;  // columns side by side
  const int64_t strips = (width + int64_t(X) * V - 1) / (int64_t(X) * V), runs = (tiles + K - 1) / K;
  const int64_t jobs = layout.rows / width * runs * strips;

  TR_DYNAMIC_SHARED(shared, 16);
  P* const elements = reinterpret_cast<P*>(shared);  // [stage][position of the group][thread]: each thread's own
  Totals* const totals = reinterpret_cast<Totals*>(elements + kColumnStages * kGroup * threads);
  const int size = (K * part + 1) / 2 * 2;                           // of [tile][group][column], three times
  Wide* const carries = reinterpret_cast<Wide*>(totals + 3 * size);  // [tile][column], twice
  __shared__ ColumnJob job[kColumnStages + 1];
  static_assert(sizeof job <= kColumnJobs, "the plan counts on no more");

  ColumnSpace<S> space(workspace, layout.rows, tiles);
  // By tickets, so that whatever a tile waits for is on its way; without chains, in any order.
  auto number_of = [&](int it) {
    return tiles > 1 ? int64_t(take_ticket(space.ticket)) : int64_t(blockIdx.x) + it * int64_t(gridDim.x);
  };
  auto put_job = [&](int it, int64_t number) {
    ColumnJob j{0, 0, 0};
    if (number < jobs) {
      const int64_t rest = number / strips, first = (number - rest * strips) * X * V, batch = rest / runs;
      j.tile = (rest - batch * runs) * K;
      j.row = batch * width + first;
      j.width = int(width - first < X * V ? width - first : X * V);
    }
    job[it % (kColumnStages + 1)] = j;
  };
  auto job_of = [&](int it) -> const ColumnJob& { return job[it % (kColumnStages + 1)]; };
  auto stage_of = [&](int it) { return elements + it % kColumnStages * kGroup * threads + threadIdx.x; };
  // Positions of this thread's group that are there.
  auto count_of = [&](const ColumnJob& j) {
    const int64_t left = n - (j.tile + k) * kTile - y * kGroup;
    return x * V >= j.width || left <= 0 ? 0 : left < kGroup ? int(left) : kGroup;
  };
  auto load = [&](int it) {
    const ColumnJob& j = job_of(it);
    const int count = count_of(j);
    P* to = stage_of(it);
    if (count) {
      const int64_t from = row_start(layout, j.row + x * V).in + ((j.tile + k) * kTile + y * kGroup) * stride.in;
      if constexpr (kAsync) {
        const E* p = static_cast<const E*>(call.in.data) + from;
#pragma unroll
        for (int i = 0; i < kGroup; ++i)
          if (i < count) copy_async<sizeof(P)>(to + i * threads, p + i * stride.in);
      } else {
        static_assert(V == 1, "vectors are copied");
        E items[kGroup];
        if constexpr (is_pair<Load>) Load::run(call, j.row + x, (j.tile + k) * kTile + y * kGroup, count, items);
        else Load::run(call.in, from, stride.in, count, items);
#pragma unroll
        for (int i = 0; i < kGroup; ++i) to[i * threads].item[0] = items[i];
      }
    }
    end_copies();
  };
  auto items_of = [&](const P(&in)[kGroup], int v, int64_t first, int count, typename S::Item(&items)[kGroup]) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) items[i] = op.load(in[i].item[v], first + i);
    if (count < kGroup) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        if (i >= count) items[i] = S::absent_item();
    }
    return S::group(items);
  };

  if (threadIdx.x == 0)
    for (int it = 0; it < kColumnStages; ++it) put_job(it, number_of(it));
  __syncthreads();
  for (int it = 0; it < kColumnStages - 1; ++it) load(it);

  for (int it = 0;; ++it) {
    const ColumnJob now = job_of(it), before = it ? job_of(it - 1) : ColumnJob{0, 0, 0};
    if (!now.width && !before.width) return;
    Totals* const mine = totals + it % 3 * size;
    Totals* const last = totals + (it + 2) % 3 * size;
    const int64_t number = threadIdx.x == 0 ? number_of(it + kColumnStages) : 0;  // asked for long before it is needed
    wait_copies<kColumnStages - 2>();
    if (now.width) {
      const int count = count_of(now);
      const int64_t first = (now.tile + k) * kTile + y * kGroup;
      P in[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) in[i] = stage_of(it)[i * threads];
      Totals own;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        typename S::Item items[kGroup];
        own.of[v] = items_of(in, v, first, count, items);
      }
      mine[k * part + y * pitch + x] = own;
    }
    __syncthreads();

    if (now.width) {
      Totals upto = mine[k * part + group * pitch + column];
#pragma unroll
      for (int d = 1; d < kLanes; d <<= 1) {
        if (d < Y) {
#pragma unroll
          for (int v = 0; v < V; ++v) {
            const Acc lower = shuffle(upto.of[v], (lane_id() & ~(2 * d - 1)) + d - 1);
            if (group & d) upto.of[v] = S::combine(lower, upto.of[v]);
          }
        }
      }
      Totals exclusive;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        if (tiles > 1 && lane_id() == kLanes - 1 && column * V < now.width &&
            now.tile + k < tiles)  // then plan.lanes is a warp
          space.tiles[(now.row + column * V + v) * tiles + now.tile + k].publish(upto.of[v]);
        const Acc lower = shuffle(upto.of[v], group ? lane_id() - 1 : lane_id());
        exclusive.of[v] = group ? lower : S::absent();
      }
      mine[k * part + group * pitch + column] = exclusive;
    }
    if (tiles > 1 && column * V < before.width && before.tile + k < tiles) {
      Acc within[V];
      Wide carry[V];
      column_carries<S, Load, V>(call, space, before.row + column * V, before.tile + k, within, carry);
      Totals t = last[k * part + group * pitch + column];
#pragma unroll
      for (int v = 0; v < V; ++v) t.of[v] = S::combine(within[v], t.of[v]);
      last[k * part + group * pitch + column] = t;
      if (group == 0)
#pragma unroll
        for (int v = 0; v < V; ++v) carries[((~it & 1) * K + k) * X * V + column * V + v] = carry[v];
    }
    __syncthreads();

    // The slot of the ring that nobody reads any more; visible to all after the next barrier.
    if (threadIdx.x == 0) put_job(it + kColumnStages, number);
    if (const int count = before.width ? count_of(before) : 0) {
      const int64_t first = (before.tile + k) * kTile + y * kGroup;
      const int shift = call.exclusive ? 1 : 0;
      const int64_t to = row_start(layout, before.row + x * V).out;
      const Totals t = last[k * part + y * pitch + x];
      P in[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) in[i] = stage_of(it - 1)[i * threads];
#pragma unroll
      for (int v = 0; v < V; ++v) {
        typename S::Item items[kGroup];
        typename S::Result r[kGroup];
        items_of(in, v, first, count, items);
        Wide carry;
        if (tiles > 1) carry = carries[((~it & 1) * K + k) * X * V + x * V + v];
        else carry = row_carry<S, Load>(call, before.row + x * V + v);
        Acc within = t.of[v];
        if constexpr (S::kInputs == 2)  // whose absent parts are combined like any other
          if (tiles == 1) within = S::combine(S::absent(), within);
        op.results(S::prefix(carry, within), items, r);
        if constexpr (V > 1) {
          uint32_t w[kGroupWords<E>];
          E rounded[kGroup];
          round_group<E, S>(r, w);
          unpack_group(w, rounded);
#pragma unroll
          for (int i = 0; i < kGroup; ++i) in[i].item[v] = rounded[i];  // in the elements' place
        } else {
          if (shift && first == 0) Store::one(call, to, start_of<S>());
#pragma unroll
          for (int i = 0; i < kGroup; ++i)
            if (i < count && first + i + shift < n) Store::one(call, to + (first + i + shift) * stride.out, r[i]);
        }
      }
      if constexpr (V > 1) {
        E* p = static_cast<E*>(call.out.values) + to + (first + shift) * stride.out;
        if (shift && first == 0) {
          P begin;
#pragma unroll
          for (int v = 0; v < V; ++v) begin.item[v] = round_to<E>(start_of<S>());
          store_wide(reinterpret_cast<P*>(p - stride.out), begin);
        }
#pragma unroll
        for (int i = 0; i < kGroup; ++i)
          if (i < count && first + i + shift < n) store_wide(reinterpret_cast<P*>(p + i * stride.out), in[i]);
      }
    }
    load(it + kColumnStages - 1);
  }
}

}  // namespace torchreduce::gpu
