// Scans with lanes across rows: the smallest stride belongs to a kept dim, so neighbouring lanes read neighbouring
// elements of different rows ("columns").
//
// A tile is 256 positions, or all if they are fewer, of some neighbouring columns: plan.lanes threads a column, each
// with a group of V columns. Longer columns are chains of tiles, in memory order by tickets. A block stays and goes
// from tile to tile: while the elements of the next two are on their way, it publishes the totals of one and forms the
// results of the one before, or of the one before that (plan.behind). Carries are the business of warps that do nothing
// else, a few lanes a column: from the totals of the tiles of the block tile, and from what the last tile of the block
// tile before published: what that tree of block tiles gives, after the superblocks before.
#pragma once
#include "column_carry.cuh"

namespace torchreduce::gpu {

// Whether the kernel is also compiled for several neighbouring columns a thread.
template <class S, class Load, class Store> constexpr bool kColumnVectors = [] {
  if constexpr (kInPlace<S, Load, Store>)
    return column_vector(sizeof(typename Load::Element), sizeof(typename S::Acc)) * int(sizeof(typename S::Acc)) <=
           kColumnAccs;
  else return false;
}();

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
  int64_t a;                   // the same in the second of two inputs
  int width;                   // 0: there is none, and no other comes
  int left;                    // positions from there on; more than the tiles have is all the same
};

// Results of scan S in V neighbouring columns, rounded once each, as words: position by position.
template <class T, class S, int V, class Result>
__device__ __forceinline__ void round_columns(const Result (&r)[V][kGroup],
                                              Packed<uint32_t, V* int(sizeof(T)) / 4> (&words)[kGroup]) {
  if constexpr (kLooksForNan<T, Result>) {
    bool nan = false;
#pragma unroll
    for (int v = 0; v < V; ++v) nan = nan || has_nan<S>(r[v]);
    if (!nan) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
#pragma unroll
        for (int v = 0; v < V; v += 4 / int(sizeof(T)))
          words[i].item[v * int(sizeof(T)) / 4] =
              sizeof(T) == 4 ? bit_cast<uint32_t>(r[v][i]) : round_pair<T>(r[v][i], r[v + 4 / int(sizeof(T)) - 1][i]);
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    T side[V];
#pragma unroll
    for (int v = 0; v < V; ++v) side[v] = round_to<T>(r[v][i]);
    memcpy(words[i].item, side, sizeof side);
  }
}

// Of a block: those that work, and those that form carries.
template <class S, class Load, int V> constexpr int kColumnThreads = [] {
  constexpr int kAcc = sizeof(typename S::Acc), kWork = column_threads(V, sizeof(typename Load::Element), kAcc);
  return kWork + carry_threads(kWork / kFan * V, V, kAcc);
}();

// Whether it is also compiled for results two jobs behind.
template <class Load, int V> constexpr bool kFarBehind = far_behind(V, sizeof(typename Load::Element));

template <class S, class Load, class Store, int V, int kBehind>
__global__ void __launch_bounds__((kColumnThreads<S, Load, V>), sizeof(typename S::Acc) > 8 ? 1 : 2)
    scan_columns(TR_GRID_CONSTANT ScanCall call, void* workspace) {
  using Acc = typename S::Acc;
  using Wide = typename S::Wide;
  using E = typename Load::Element;
  using P = Packed<E, V>;
  constexpr int kCarryLanes = carry_lanes(V, sizeof(Acc));
  constexpr int kAhead = 2;                  // jobs whose elements are on their way
  constexpr int kStages = kBehind + kAhead;  // jobs whose elements have a place in shared memory
  struct alignas(V * sizeof(Acc) % 16 == 0 ? 16 : V * sizeof(Acc) % 8 == 0 ? 8 : 4) Totals { Acc item[V]; };
  struct alignas(V * sizeof(Wide) % 16 == 0 ? 16 : alignof(Wide)) Carries { Wide item[V]; };
  constexpr int kSize = sizeof(E) / S::kInputs, kPart = V * kSize;  // of an input's element, or V neighbours
  constexpr int kPartWords = kPart < 4 ? 1 : kPart / 4;
  using Words = Packed<uint32_t, kPartWords>;  // V neighbours
  constexpr bool kAsync = Load::kWidth > 1 && (kPart == 4 || kPart == 8 || kPart == 16);
  const S op{call.options};
  const Layout& layout = call.layout;
  const ScanStride stride = scan_stride(layout);
  const int64_t a_stride = is_pair<Load> && layout.reduced ? call.more_strides[0][layout.kept] : 0;
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
  Totals* const totals = reinterpret_cast<Totals*>(elements + kStages * kGroup * kPitch);
  const int size = (K * part + 1) / 2 * 2, chains = K * X * V;  // of [tile][group][column], a job
  Totals* const withins = totals + (kBehind + 1) * size;        // [tile][column], for each of kColumnCarries jobs
  Carries* const carries = reinterpret_cast<Carries*>(withins + kColumnCarries * K * X);
  __shared__ ColumnJob job[kColumnJobs];
  __shared__ int64_t width, strips, runs, jobs;  // columns side by side; jobs across, along and in all
  __shared__ double strip_share, run_share;      // 1 / strips, 1 / runs
  // A job is known; its totals are published; its carries are there. The threads that work.
  __shared__ Barrier put[kColumnJobs], published[kColumnCarries], carried[kColumnCarries], team;
  static_assert(sizeof job + sizeof put + sizeof published + sizeof carried + 64 <= kColumnShared,
                "the plan counts on no more");

  auto space = [&] { return ColumnSpace<S>(workspace, layout.rows, recomputed(tiles)); };
  // The number of a block's next job: by tickets, so that whatever a tile waits for is on its way; without chains, in
  // any order.
  auto ticket = [&] { return int64_t(take_ticket(space().ticket)); };
  auto turn = [&](int it) { return int64_t(blockIdx.x) + it * int64_t(gridDim.x); };
  auto put_job = [&](int it, int64_t number) {
    ColumnJob j{};
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
      if constexpr (is_pair<Load>) j.a = row_offset(layout, call.more_strides[0], j.row) + position * a_stride;
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
  auto stage_of = [&](int it) { return elements + it % kStages * (kGroup * kPitch) + threadIdx.x; };
  // Positions of this thread's group that are there.
  auto count_of = [&](const ColumnJob& j) {
    const int left = j.left - lead;
    return x * V >= j.width || left <= 0 ? 0 : left < kGroup ? left : kGroup;
  };
  [[maybe_unused]] E held[kGroup];  // where elements are too small to be copied: those of the last job on its way
  auto load = [&](int it) {
    if (tiles > 1) barrier_wait(&put[it % kColumnJobs], uint32_t(it / kColumnJobs & 1));
    const ColumnJob& j = job_of(it);
    const int count = count_of(j);
    const int64_t first = j.tile * kTile + lead;
    if constexpr (kAsync) {
      static_assert(kPart == sizeof(P) || V == 1, "vectors are of one input");
#pragma unroll
      for (int input = 0; input < S::kInputs; ++input) {
        const bool a = is_pair<Load> && input == 1;
        const int member = is_pair<Load> ? 1 - input : input;
        const int64_t start = a ? j.a + offset(a_stride, call.more_strides[0]) : j.in + offset(stride.in, layout.in);
        int64_t step = (a ? a_stride : stride.in) * kSize;
        const char* from = static_cast<const char*>(input ? call.in.more[input - 1] : call.in.data) + start * kSize;
        char* const place = reinterpret_cast<char*>(stage_of(it)) + member * kSize;
        bool all = count == kGroup;
        int i = 0;
        if constexpr (is_pair<Load>)
          if (a && !Load::has_a(call, first)) {
            all = false;
            i = 1;
          }
        if (all) {
#pragma unroll
          for (int i = 0; i < kGroup; ++i) {
            copy_async<kPart>(place + i * kPitch * int(sizeof(P)), from);
            from += step = recomputed(step);
          }
        } else {
#pragma unroll 1
          for (; i < count; ++i) copy_async<kPart>(place + i * kPitch * int(sizeof(P)), from + i * step);
        }
      }
    } else if constexpr (Load::kWidth > 1) {
      static_assert(V == 1, "vectors are copied");
      P* const before = stage_of(it + kStages - 1);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) before[i * kPitch].item[0] = held[i];
      const int64_t start = j.in + offset(stride.in, layout.in);
      if constexpr (is_pair<Load>)
        Load::run(call, start, j.a + offset(a_stride, call.more_strides[0]), first, count, held);
      else Load::run(call.in, start, stride.in, count, held);
    } else if (count) {  // elements of any type
      E items[kGroup];
      Load::run(call.in, j.in + offset(stride.in, layout.in), stride.in, count, items);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) stage_of(it)[i * kPitch].item[0] = items[i];
    }
    end_copies();
  };
  // This thread's elements of a job, column by column.
  auto read = [&](int it, E(&items)[V][kGroup]) {
    const P* const from = stage_of(it);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if constexpr (V == 1) {
        items[0][i] = from[i * kPitch].item[0];
      } else {
        const Words words = reinterpret_cast<const Words*>(from)[i * kPitch];
        E side[V];
        unpack(words.item, side);
#pragma unroll
        for (int v = 0; v < V; ++v) items[v][i] = side[v];
      }
    }
  };
  // The items of a group of which `count` are there, or all, and its total.
  auto form = [&](auto whole, const E(&in)[kGroup], int64_t first, int count, typename S::Item(&items)[kGroup]) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) items[i] = whole || i < count ? op.load(in[i], first + i) : S::absent_item();
    return S::group(items);
  };

  if (threadIdx.x == 0) {
    width = beside ? layout.size[layout.kept - 1] : 1;
    strips = (width + X * V - 1) / (X * V);
    runs = (tiles + K - 1) / K;
    jobs = layout.rows / width * runs * strips;
    strip_share = 1 / double(strips);
    run_share = 1 / double(runs);
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
#pragma unroll 1
    for (int it = 0; it <= kAhead; ++it) put_job(it, tiles > 1 ? ticket() : turn(it));
  __syncthreads();

  if (int(threadIdx.x) >= threads) {  // the carries, job by job, whatever the others do
    const int chain = (int(threadIdx.x) - threads) / kCarryLanes, tile = chain / (X * V), c = chain - tile * X * V;
    for (int it = 0;; ++it) {
      // Not earlier: it would only ask again and again for what is not there.
      barrier_wait(&published[it % kColumnCarries], parity_of(it));
      const ColumnJob& j = job_of(it);
      if (!j.width) return;
      if (int(threadIdx.x) == threads) put_job(it + kAhead + 1, ticket());
      const int64_t t = j.tile + recomputed(tile);
      const bool active = chain < chains && c < j.width && t < tiles;
      const int64_t row = j.row + (active ? recomputed(c) : 0);
      Acc within;
      Wide carry;
      column_carry<S, kCarryLanes>(space(), row, active ? t : j.tile, active, row_carry<S, Load>(call, row), within,
                                   carry);
      if (active && lane_id() % kCarryLanes == 0) {
        const int place = recomputed(it) % kColumnCarries * chains + chain;
        reinterpret_cast<Acc*>(withins)[place] = within;
        reinterpret_cast<Wide*>(carries)[place] = carry;
      }
      barrier_arrive(&carried[it % kColumnCarries]);
      // A lane that waits in the next job may hold those of its wavefront that have yet to publish in this one.
      const int done = recomputed(it);
      barrier_wait(&carried[done % kColumnCarries], parity_of(done));
    }
  }

  for (int it = 0; it < kAhead; ++it) load(it);
  for (int it = 0;; ++it) {
    const bool begun = it >= kBehind;
    const ColumnJob &now = job_of(it), &before = job_of(begun ? it - kBehind : 0);
    if (!before.width) {
      if (tiles > 1 && threadIdx.x == 0) barrier_arrive(&published[it % kColumnCarries]);  // that there is no more
      return;
    }
    Totals* const mine = totals + it % (kBehind + 1) * size;
    Totals* const last = totals + (it + 1) % (kBehind + 1) * size;
    wait_copies<kAhead - 1>();
    if (now.width) {
      const int count = count_of(now);
      E in[V][kGroup];
      read(it, in);
      Totals own;
      auto form_all = [&](auto whole) {
#pragma unroll
        for (int v = 0; v < V; ++v) {
          typename S::Item items[kGroup];
          own.item[v] = form(whole, in[v], now.tile * kTile + lead, count, items);
        }
      };
      if (count == kGroup) form_all(std::true_type());
      else form_all(std::false_type());
      mine[k * part + y * pitch + x] = own;
    }
    meet();

    if (tiles == 1 && threadIdx.x == 0) put_job(it + kAhead + 1, turn(it + kAhead + 1));
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
      if (tiles > 1 && lane_id() == kLanes - 1 && column * V < now.width && now.tile + k < tiles) {
        auto* const slots =
            space().tiles + ((now.tile + k) * layout.rows + now.row + column * V);  // plan.lanes: a warp
#pragma unroll
        for (int v = 0; v < V; ++v) slots[v].publish(upto.item[v]);
      }
      Totals exclusive;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const Acc lower = shuffle(upto.item[v], group ? lane_id() - 1 : lane_id());
        exclusive.item[v] = group ? lower : S::absent();
      }
      mine[k * part + group * pitch + column] = exclusive;
    }
    meet();

    if (tiles > 1 && threadIdx.x == 0) barrier_arrive(&published[it % kColumnCarries]);
    if (tiles > 1 && begun) barrier_wait(&carried[(it - kBehind) % kColumnCarries], parity_of(it - kBehind));
    if (const int count = begun ? count_of(before) : 0) {
      const int64_t first = before.tile * kTile + lead;
      const int shift = call.exclusive ? 1 : 0, last_one = before.left - lead - shift;
      const int stored = count < last_one ? count : last_one;
      const bool begins = shift && first == 0;  // with what an exclusive scan starts from
      const int64_t to = before.out + offset(stride.out, layout.out) + shift * stride.out;
      const Totals t = last[k * part + y * pitch + x];
      const int from = (it - kBehind) % kColumnCarries * (K * X) + k * X + x;
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
      auto results = [&](auto whole) {
        E in[V][kGroup];
        read(it - kBehind, in);
        typename S::Result r[V][kGroup];
#pragma unroll
        for (int v = 0; v < V; ++v) {
          typename S::Item items[kGroup];
          form(whole, in[v], first, count, items);
          op.results(S::prefix(carry.item[v], S::combine(within.item[v], t.item[v])), items, r[v]);
        }
        if constexpr (V > 1) {
          Words words[kGroup];
          round_columns<E, S>(r, words);
          char* p = reinterpret_cast<char*>(static_cast<E*>(call.out.values) + to);
          int64_t step = stride.out * kSize;
          if (begins) {
            P begin;
#pragma unroll
            for (int v = 0; v < V; ++v) begin.item[v] = round_to<E>(start_of<S>());
            store_wide(reinterpret_cast<P*>(p - step), begin);
          }
#pragma unroll
          for (int i = 0; i < kGroup; ++i) {
            if (whole || i < stored) store_granule(reinterpret_cast<Words*>(p), words[i]);
            p += step = recomputed(step);
          }
        } else {
          if (begins) Store::one(call, to - stride.out, start_of<S>());
#pragma unroll
          for (int i = 0; i < kGroup; ++i)
            if (whole || i < stored) Store::one(call, to + i * stride.out, r[0][i]);
        }
      };
      if (stored == kGroup) results(std::true_type());
      else results(std::false_type());
    }
    if (now.width) load(it + kAhead);
  }
}

}  // namespace torchreduce::gpu
