// Scans with lanes across rows: the smallest stride belongs to a kept dim, so neighbouring lanes read neighbouring
// elements of different rows ("columns").
//
// A tile is 256 positions, or all if they are fewer, of some neighbouring columns: plan.lanes threads a column, each
// with a group of V columns. Longer columns are chains of tiles, in memory order by tickets. A block stays and goes
// from tile to tile: while the elements of the next two are on their way, it publishes the totals of one and forms the
// results of the one before. Carries are the business of warps that do nothing else, a few lanes a column: from the
// totals of the tiles of the block tile, and from what the last tile of the block tile before published: what that tree
// of block tiles gives, after the superblocks before.
#pragma once
#include "scan_chain.cuh"

namespace torchreduce::gpu {

// Whether the kernel is also compiled for several neighbouring columns a thread.
template <class S, class Load, class Store> constexpr bool kColumnVectors = [] {
  if constexpr (kInPlace<S, Load, Store>)
    return column_vector(sizeof(typename Load::Element), sizeof(typename S::Acc)) * int(sizeof(typename S::Acc)) <=
           kColumnAccs;
  else return false;
}();

// The workspace, all zero before the launch: a ticket; for each tile or block tile the values of all rows (columns of
// memory), which are looked at side by side.
template <class S> struct ColumnSpace {
  uint64_t* ticket;
  int64_t rows;
  Published<typename S::Acc>*tiles, *blocks;  // totals
  Published<typename S::Wide>* after_blocks;  // what precedes the block tile after this one

  __device__ ColumnSpace(void* workspace, int64_t rows, int64_t tiles_a_row) : rows(rows) {
    const int64_t block_count = (tiles_a_row + kFan - 1) / kFan;
    ticket = static_cast<uint64_t*>(workspace);
    tiles = reinterpret_cast<Published<typename S::Acc>*>(ticket + 1);
    blocks = tiles + rows * tiles_a_row;
    after_blocks = reinterpret_cast<Published<typename S::Wide>*>(blocks + rows * block_count);
  }
};

// kFan published values `pitch` apart, of which the first `count` are there or will be; kCarryLanes neighbouring lanes
// take equal runs of them.
template <class S, class T, int kCarryLanes> struct PublishedSlots {
  static constexpr int kSlots = kFan / kCarryLanes;
  T value[kSlots];
  int first;

  __device__ __forceinline__ PublishedSlots(const Published<T>* slots, int64_t pitch, int count)
      : first(lane_id() % kCarryLanes * kSlots) {
    constexpr int kWords = Published<T>::kWords, kAtOnce = kWords == 1 && kSlots >= 8 ? 8 : 4;
#pragma unroll
    for (int from = 0; from < kSlots; from += kAtOnce) {
      uint64_t word[kAtOnce][kWords];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
        for (int k = 0; k < kWords; ++k) word[i][k] = first + from + i < count ? 0 : uint64_t(1) << 32;
      for (;; back_off()) {  // what is missing is looked at together, and again until it is there
        const int here = recomputed(first + from);
        bool all = true;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
          for (int k = 0; k < kWords; ++k) {
            uint64_t& w = word[i][k];
            w = load_relaxed_if(w >> 32 == 0, &slots[(here + i) * pitch].word[k], w);
          }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
          for (int k = 0; k < kWords; ++k) all = all && word[i][k] >> 32 != 0;
        if (all) break;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        uint32_t part[kWords];
#pragma unroll
        for (int k = 0; k < kWords; ++k) part[k] = uint32_t(word[i][k]);
        memcpy(&value[from + i], part, sizeof(T));
      }
    }
  }
  __device__ __forceinline__ void set(int slot, const T& v) {
#pragma unroll
    for (int i = 0; i < kSlots; ++i)
      if (first + i == slot) value[i] = v;
  }
  // The pairwise tree over the first `count` of them; each of the lanes gets it. By whole warps.
  template <class V, class Widen> __device__ __forceinline__ V tree(int count, V absent, Widen widen) const {
    V v[kSlots];
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      v[i] = absent;
      if (first + i < count) v[i] = widen(value[i]);
    }
#pragma unroll
    for (int d = 1; d < kSlots; d <<= 1)
#pragma unroll
      for (int i = 0; i < kSlots; i += 2 * d) v[i] = S::combine(v[i], v[i + d]);
#pragma unroll
    for (int d = 1; d < kCarryLanes; d <<= 1) {
      const V other = shuffle(v[0], lane_id() ^ d);
      v[0] = lane_id() & d ? S::combine(other, v[0]) : S::combine(v[0], other);
    }
    return v[0];
  }
};

// What precedes tile `tile` of row `row` in its block tile, and what precedes that, where `initial` precedes the row.
// The last tile of a block tile publishes that one's total and what precedes the next. By whole warps, kCarryLanes
// neighbouring lanes for each tile and row; those that are not `active` have none. What a lane waits for comes from an
// earlier step of an earlier tile, be it of its own warp.
template <class S, int kCarryLanes>
__device__ __forceinline__ void column_carry(const ColumnSpace<S>& space, int64_t row, int64_t tile, bool active,
                                             typename S::Wide initial, typename S::Acc& within,
                                             typename S::Wide& carry) {
  using Acc = typename S::Acc;
  using Wide = typename S::Wide;
  const int64_t rows = space.rows, block = tile / kFan, superblock = block / kFan * kFan;  // its first block tile
  const int slot = int(tile % kFan), block_slot = int(block - superblock);
  const bool closes = active && slot == kFan - 1, waits = active && lane_id() % kCarryLanes == 0;
  auto* const after = space.after_blocks + row;
  carry = initial;
  const bool known = !waits || block == 0 || after[(block - 1) * rows].look(carry);

  const PublishedSlots<S, Acc, kCarryLanes> tiles(space.tiles + block * kFan * rows + row, rows,
                                                  !active  ? 0
                                                  : closes ? kFan
                                                           : slot);
  auto same = [](Acc a) { return a; };
  within = tiles.tree(slot, S::absent(), same);
  if (ballot(closes)) {
    const Acc total = tiles.tree(kFan, S::absent(), same);
    if (waits && closes) space.blocks[block * rows + row].publish(total);
    PublishedSlots<S, Acc, kCarryLanes> blocks(space.blocks + superblock * rows + row, rows, closes ? block_slot : 0);
    blocks.set(block_slot, total);
    const Wide upto = blocks.tree(block_slot + 1, S::wide_absent(), [](Acc a) { return S::widen(a); });
    if (waits && closes) {
      const Wide before = superblock ? after[(superblock - 1) * rows].wait() : initial;
      after[block * rows].publish(S::combine(before, upto));
    }
  }
  if (!known) carry = after[(block - 1) * rows].wait();
}

// a / b for 0 <= a < 2^52, given about 1 / b: a division of 64-bit integers takes a microsecond.
__device__ __forceinline__ int64_t quotient(int64_t a, int64_t b, double share) {
  int64_t q = int64_t(double(a) * share);
  const int64_t rest = a - q * b;
  if (rest < 0) --q;
  if (rest >= b) ++q;
  return q;
}

// Tiles on their way, plan.warps of them from `tile` on: of the rows (columns of memory) from `row` on, `width` of them
// side by side.
struct ColumnJob {
  int64_t row, tile, in, out;  // in, out: where that row has its first position of that tile
  int width;                   // 0: there is none, and no other comes
  int left;                    // positions from there on; more than the tiles have is all the same
};

// Of a block: those that work, and those that form carries.
template <class S, class Load, int V> constexpr int kColumnThreads = [] {
  constexpr int kAcc = sizeof(typename S::Acc), kWork = column_threads(V, sizeof(typename Load::Element), kAcc);
  return kWork + carry_threads(kWork / kFan * V, V, kAcc);
}();

template <class S, class Load, class Store, int V>
__global__ void __launch_bounds__((kColumnThreads<S, Load, V>), sizeof(typename S::Acc) > 8 ? 1 : 2)
    scan_columns(TR_GRID_CONSTANT ScanCall call, void* workspace) {
  using Acc = typename S::Acc;
  using Wide = typename S::Wide;
  using E = typename Load::Element;
  using P = Packed<E, V>;
  constexpr int kCarryLanes = carry_lanes(V, sizeof(Acc));
  constexpr int kAhead = kColumnStages - 1;  // jobs whose elements are on their way
  struct alignas(V * sizeof(Acc) % 16 == 0 ? 16 : V * sizeof(Acc) % 8 == 0 ? 8 : 4) Totals { Acc item[V]; };
  struct alignas(V * sizeof(Wide) % 16 == 0 ? 16 : alignof(Wide)) Carries { Wide item[V]; };
  constexpr bool kAsync = sizeof(P) >= 4 && sizeof(P) <= 16 && Load::kWidth > 1 && S::kInputs == 1;
  const S op{call.options};
  const Layout& layout = call.layout;
  const ScanStride stride = scan_stride(layout);
  const int64_t n = layout.length, tiles = call.plan.splits;
  const int X = call.plan.strip, Y = call.plan.lanes, K = call.plan.warps, threads = X * Y * K;
  const int pitch = X + 1, part = Y * pitch;  // of the totals
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr int kPitch = column_threads(V, sizeof(E), sizeof(Acc));  // of positions in shared memory
#else
  const int kPitch = threads;  // where there is less of it
#endif
  // This thread's tile, and its columns and group in memory; the columns and group whose total it takes, along a
  // column.
  const int k = int(threadIdx.x) / (X * Y), x = int(threadIdx.x) % X, y = int(threadIdx.x) / X % Y;
  const int column = int(threadIdx.x) / Y % X, group = int(threadIdx.x) % Y;
  const int lead = k * kTile + y * kGroup;  // positions before this group
  const bool beside = layout.kept > 0;      // columns lie side by side
  // From a job's first element to this thread's.
  auto offset = [&](int64_t along, const int64_t (&strides)[kMaxDims]) {
    return recomputed(lead) * along + (beside ? recomputed(x * V) * strides[layout.kept - 1] : 0);
  };

  TR_DYNAMIC_SHARED(shared, 16);
  P* const elements = reinterpret_cast<P*>(shared);  // [stage][position of the group][thread]: each thread's own
  Totals* const totals = reinterpret_cast<Totals*>(elements + kColumnStages * kGroup * kPitch);
  const int size = (K * part + 1) / 2 * 2, chains = K * X * V;  // of [tile][group][column], twice
  Totals* const withins = totals + 2 * size;                    // [tile][column], for each of kColumnCarries jobs
  Carries* const carries = reinterpret_cast<Carries*>(withins + kColumnCarries * K * X);
  __shared__ ColumnJob job[kColumnJobs];
  __shared__ int64_t width, strips, runs, jobs;  // columns side by side; jobs across, along and in all
  __shared__ double strip_share, run_share;      // 1 / strips, 1 / runs
  // A job is known; its totals are published; its carries are there. The threads that work.
  __shared__ Barrier put[kColumnJobs], published[kColumnCarries], carried[kColumnCarries], team;
  static_assert(sizeof job + sizeof put + sizeof published + sizeof carried + 64 <= kColumnShared,
                "the plan counts on no more");

  ColumnSpace<S> space(workspace, layout.rows, tiles);
  // By tickets, so that whatever a tile waits for is on its way; without chains, in any order.
  auto number_of = [&](int it) {
    return tiles > 1 ? int64_t(take_ticket(space.ticket)) : int64_t(blockIdx.x) + it * int64_t(gridDim.x);
  };
  auto put_job = [&](int it, int64_t number) {
    ColumnJob j{0, 0, 0, 0, 0, 0};
    if (number < jobs) {
      const int64_t rest = quotient(number, strips, strip_share), first = (number - rest * strips) * X * V;
      const int64_t batch = quotient(rest, runs, run_share);
      j.tile = (rest - batch * runs) * K;
      j.row = batch * width + first;
      j.width = int(width - first < X * V ? width - first : X * V);
      const int64_t position = j.tile * kTile, most = (K + 1) * kTile;
      j.left = int(n - position < most ? n - position : most);
      const RowStart start = row_start(layout, batch, layout.kept - 1);
      j.in = start.in + position * stride.in + (beside ? first * layout.in[layout.kept - 1] : 0);
      j.out = start.out + position * stride.out + (beside ? first * layout.out[layout.kept - 1] : 0);
    }
    job[it % kColumnJobs] = j;
    if (tiles > 1) barrier_arrive(&put[it % kColumnJobs]);
  };
  auto job_of = [&](int it) -> const ColumnJob& { return job[it % kColumnJobs]; };
  auto parity_of = [](int it) { return uint32_t(it / kColumnCarries & 1); };
  int meetings = 0;
  auto meet = [&] {  // the threads that work
    if (tiles == 1) __syncthreads();
    else team_barrier(&team, threads, meetings++);
  };
  auto stage_of = [&](int it) { return elements + it % kColumnStages * (kGroup * kPitch) + threadIdx.x; };
  // Positions of this thread's group that are there.
  auto count_of = [&](const ColumnJob& j) {
    const int left = j.left - lead;
    return x * V >= j.width || left <= 0 ? 0 : left < kGroup ? left : kGroup;
  };
  auto load = [&](int it) {
    if (tiles > 1) barrier_wait(&put[it % kColumnJobs], uint32_t(it / kColumnJobs & 1));
    const ColumnJob& j = job_of(it);
    const int count = count_of(j);
    P* to = stage_of(it);
    if constexpr (kAsync) {
      const E* p = static_cast<const E*>(call.in.data) + (j.in + offset(stride.in, layout.in));
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        if (i < count) copy_async<sizeof(P)>(to + i * kPitch, p + i * stride.in);
    } else if (count) {
      static_assert(V == 1, "vectors are copied");
      E items[kGroup];
      if constexpr (is_pair<Load>) Load::run(call, j.row + x, j.tile * kTile + lead, count, items);
      else Load::run(call.in, j.in + offset(stride.in, layout.in), stride.in, count, items);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) to[i * kPitch].item[0] = items[i];
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

  if (threadIdx.x == 0) {
    width = beside ? layout.size[layout.kept - 1] : 1;
    strips = (width + X * V - 1) / (X * V);
    runs = (tiles + K - 1) / K;
    jobs = layout.rows / width * runs * strips;
    strip_share = 1 / double(strips);
    run_share = 1 / double(runs);
    job[kColumnJobs - 1] = {0, 0, 0, 0, 0, 0};  // before the first
  }
  if (threadIdx.x == 0 && tiles > 1) {
    for (int i = 0; i < kColumnJobs; ++i) barrier_init(&put[i], 1);
    for (int i = 0; i < kColumnCarries; ++i) {
      barrier_init(&published[i], 1);
      barrier_init(&carried[i], int(blockDim.x) - threads);
    }
    barrier_init(&team, threads);
    barriers_made();
  }
  __syncthreads();
  if (threadIdx.x == 0)
    for (int it = 0; it <= kAhead; ++it) put_job(it, number_of(it));
  __syncthreads();

  if (int(threadIdx.x) >= threads) {  // the carries, job by job, whatever the others do
    const int chain = (int(threadIdx.x) - threads) / kCarryLanes, tile = chain / (X * V), c = chain - tile * X * V;
    for (int it = 0;; ++it) {
      // Not earlier: it would only ask again and again for what is not there.
      barrier_wait(&published[it % kColumnCarries], parity_of(it));
      const ColumnJob& j = job_of(it);
      if (!j.width) return;
      if (int(threadIdx.x) == threads) put_job(it + kAhead + 1, number_of(it + kAhead + 1));
      const bool active = chain < chains && c < j.width && j.tile + tile < tiles;
      const int64_t row = j.row + (active ? c : 0), t = j.tile + (active ? tile : 0);
      Acc within;
      Wide carry;
      column_carry<S, kCarryLanes>(space, row, t, active, row_carry<S, Load>(call, row), within, carry);
      if (active && lane_id() % kCarryLanes == 0) {
        reinterpret_cast<Acc*>(withins)[it % kColumnCarries * chains + chain] = within;
        reinterpret_cast<Wide*>(carries)[it % kColumnCarries * chains + chain] = carry;
      }
      barrier_arrive(&carried[it % kColumnCarries]);
      // A lane that waits in the next job may hold those of its wavefront that have yet to publish in this one.
      const int done = recomputed(it);
      barrier_wait(&carried[done % kColumnCarries], parity_of(done));
    }
  }

  for (int it = 0; it < kAhead; ++it) load(it);
  for (int it = 0;; ++it) {
    const ColumnJob &now = job_of(it), &before = job_of(it + kColumnJobs - 1);
    if (!now.width && !before.width) {
      if (tiles > 1 && threadIdx.x == 0) barrier_arrive(&published[it % kColumnCarries]);  // that there is no more
      return;
    }
    Totals* const mine = totals + (it & 1) * size;
    Totals* const last = totals + (~it & 1) * size;
    wait_copies<kAhead - 1>();
    if (now.width) {
      const int count = count_of(now);
      const int64_t first = now.tile * kTile + lead;
      P in[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) in[i] = stage_of(it)[i * kPitch];
      Totals own;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        typename S::Item items[kGroup];
        own.item[v] = items_of(in, v, first, count, items);
      }
      mine[k * part + y * pitch + x] = own;
    }
    meet();

    if (tiles == 1 && threadIdx.x == 0) put_job(it + kAhead + 1, number_of(it + kAhead + 1));
    if (now.width) {
      Totals upto = mine[k * part + group * pitch + column];
#pragma unroll
      for (int d = 1; d < kLanes; d <<= 1) {
        if (d < Y) {
#pragma unroll
          for (int v = 0; v < V; ++v) {
            const Acc lower = shuffle(upto.item[v], (lane_id() & ~(2 * d - 1)) + d - 1);
            if (group & d) upto.item[v] = S::combine(lower, upto.item[v]);
          }
        }
      }
      Totals exclusive;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        if (tiles > 1 && lane_id() == kLanes - 1 && column * V < now.width &&
            now.tile + k < tiles)  // then plan.lanes is a warp
          space.tiles[(now.tile + k) * layout.rows + now.row + column * V + v].publish(upto.item[v]);
        const Acc lower = shuffle(upto.item[v], group ? lane_id() - 1 : lane_id());
        exclusive.item[v] = group ? lower : S::absent();
      }
      mine[k * part + group * pitch + column] = exclusive;
    }
    meet();

    if (tiles > 1 && threadIdx.x == 0) barrier_arrive(&published[it % kColumnCarries]);
    if (tiles > 1 && before.width) barrier_wait(&carried[(it - 1) % kColumnCarries], parity_of(it - 1));
    if (const int count = before.width ? count_of(before) : 0) {
      const int64_t first = before.tile * kTile + lead;
      const int shift = call.exclusive ? 1 : 0;
      const int stored = count < before.left - lead - shift ? count : before.left - lead - shift;
      const bool begins = shift && first == 0;  // with what an exclusive scan starts from
      const int64_t to = before.out + offset(stride.out, layout.out) + shift * stride.out;
      const Totals t = last[k * part + y * pitch + x];
      const int from = (it - 1) % kColumnCarries * (K * X) + k * X + x;
      Totals within;
      Carries carry;
      if (tiles > 1) {
        within = withins[from];
        carry = carries[from];
      } else {
#pragma unroll
        for (int v = 0; v < V; ++v) {
          within.item[v] = S::absent();
          carry.item[v] = row_carry<S, Load>(call, before.row + x * V + v);
        }
      }
      P in[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) in[i] = stage_of(it - 1)[i * kPitch];
#pragma unroll
      for (int v = 0; v < V; ++v) {
        typename S::Item items[kGroup];
        typename S::Result r[kGroup];
        items_of(in, v, first, count, items);
        op.results(S::prefix(carry.item[v], S::combine(within.item[v], t.item[v])), items, r);
        if constexpr (V > 1) {
          uint32_t w[kGroupWords<E>];
          E rounded[kGroup];
          round_group<E, S>(r, w);
          unpack_group(w, rounded);
#pragma unroll
          for (int i = 0; i < kGroup; ++i) in[i].item[v] = rounded[i];  // in the elements' place
        } else {
          if (begins) Store::one(call, to - stride.out, start_of<S>());
#pragma unroll
          for (int i = 0; i < kGroup; ++i)
            if (i < stored) Store::one(call, to + i * stride.out, r[i]);
        }
      }
      if constexpr (V > 1) {
        E* const p = static_cast<E*>(call.out.values) + to;
        if (begins) {
          P begin;
#pragma unroll
          for (int v = 0; v < V; ++v) begin.item[v] = round_to<E>(start_of<S>());
          store_wide(reinterpret_cast<P*>(p - stride.out), begin);
        }
#pragma unroll
        for (int i = 0; i < kGroup; ++i)
          if (i < stored) store_wide(reinterpret_cast<P*>(p + i * stride.out), in[i]);
      }
    }
    load(it + kAhead);
  }
}

}  // namespace torchreduce::gpu
