// Scans with lanes across rows: the smallest stride belongs to a kept dim, so neighbouring lanes read neighbouring
// elements of different rows ("columns").
//
// A unit is a tile of some neighbouring columns, or where those are many half a tile, so that more of them lie side by
// side in a block; or all positions if they are fewer. plan.lanes threads a column have a group of V columns each. A
// block stays and goes from unit to unit: while the elements of the next two are on their way, it totals one and forms
// the results of one before, plan.behind jobs ago. What precedes a unit is the business of warps that do nothing else,
// a lane for each column or a few. If there are strips enough for all blocks, a block walks down its strips
// (plan.walks), and those warps keep count. Else tiles are taken in memory order by tickets, and those warps look at
// what other blocks publish: what a job ends is closed at once, so that no total waits for what precedes another job,
// and what precedes a job is looked for as late as its results allow.
//
// Columns too few for strips are one run of memory (plan.flat): a job is plan.warps tiles of all of them, and goes
// through shared memory as it is. A thread's columns are then any of [tile of the job][column].
#pragma once
#include "column_carry.cuh"

namespace torchreduce::gpu {

// Whether the kernel is also compiled for several neighbouring columns a thread.
template <class S, class Load, class Store> constexpr bool kColumnVectors = [] {
  if constexpr (kInPlace<S, Load, Store>)
    return walked_vector(sizeof(typename Load::Element), sizeof(typename S::Acc)) * int(sizeof(typename S::Acc)) <=
           kColumnAccs;
  else return false;
}();

// Whether that kernel also takes columns that are one run of memory.
template <class S, class Load, class Store, int V> constexpr bool kFlatColumns = [] {
  if constexpr (kColumnVectors<S, Load, Store>)
    return flat_columns(sizeof(typename Load::Element), sizeof(typename S::Acc)) &&
           V == shared_vector(sizeof(typename Load::Element), sizeof(typename S::Acc));
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

// Units on their way, plan.warps of them from `unit` on: of the rows (columns of memory) from `row` on, `width` of them
// side by side.
struct ColumnJob {
  int64_t row, unit, in, out;  // in, out: where that row has its first position of that unit
  int64_t a;                   // the same in the second of two inputs
  int64_t batch, first;        // of all rows that lie side by side, and the row among them
  void *slots, *before;        // where blocks share strips, of that row: totals from the first tile of the unit's block
                               // tile on, Published, and what precedes that one; null: nothing
  int width;                   // 0: there is none, and no other comes; flat: of all units together
  int left;                    // positions from there on; more than the units have is all the same
  int slot;                    // of the unit in its block tile
};

// Results of scan S in some neighbouring columns, which together are whole words, rounded once each, as words: position
// by position.
template <class T, class S, int N, int W, class Result>
__device__ __forceinline__ void round_columns(const Result (&r)[N][kGroup], Packed<uint32_t, W> (&words)[kGroup],
                                              int word) {
  if constexpr (kLooksForNan<T, Result>) {
    bool nan = false;
#pragma unroll
    for (int v = 0; v < N; ++v) nan = nan || has_nan<S>(r[v]);
    if (!nan) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        words[i].item[word] = sizeof(T) == 4 ? bit_cast<uint32_t>(r[0][i]) : round_pair<T>(r[0][i], r[N - 1][i]);
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    T side[N];
#pragma unroll
    for (int v = 0; v < N; ++v) side[v] = round_to<T>(r[v][i]);
    memcpy(&words[i].item[word], side, sizeof side);
  }
}

// Threads of a block that work.
template <class S, class Load, int V>
constexpr int kColumnThreads = column_threads(V, sizeof(typename Load::Element), sizeof(typename S::Acc));
// All of them, at most.
template <class S, class Load, int V> constexpr int kColumnBlock = [] {
  constexpr int kWork = kColumnThreads<S, Load, V>, kAccs = V * sizeof(typename S::Acc);
#if defined(TR_LARGE_BLOCKS)
  return kWork + other_threads(kAccs, kWork);
#else
  return (kWork < kSmallBlock ? kWork : kSmallBlock) + other_threads(kAccs, kWork);
#endif
}();

template <class S, class Load, class Store, int V>
__global__ void TR_BLOCKS_BOUND((kColumnBlock<S, Load, V>),
                                column_blocks(kColumnThreads<S, Load, V>, sizeof(typename S::Acc)))
    scan_columns(TR_GRID_CONSTANT ScanCall call, void* workspace) {
  using Acc = typename S::Acc;
  using Wide = typename S::Wide;
  using E = typename Load::Element;
  using P = Packed<E, V>;
  constexpr int kThreads = kColumnThreads<S, Load, V>, kCarryThreads = carry_threads(kThreads);
  constexpr int kAhead = 2;  // jobs whose elements are on their way
  constexpr int kC = V > 1 && V * sizeof(Acc) > 16 ? 16 / int(sizeof(Acc)) : V,
                kParts = V / kC;  // of a thread's totals
  struct alignas(kC * sizeof(Acc) % 16 == 0 ? 16 : kC * sizeof(Acc) % 8 == 0 ? 8 : 4) Totals { Acc item[kC]; };
  constexpr int kSize = sizeof(E) / S::kInputs, kPart = V * kSize;  // of an input's element, or V neighbours
  constexpr int kPartWords = kPart < 4 ? 1 : kPart / 4;
  using Words = Packed<uint32_t, kPartWords>;  // V neighbours
  constexpr int kGranule = 16;                 // bytes
  using Granule = Packed<uint32_t, kGranule / 4>;
  // Whether blocks may share strips, or walk down them.
  constexpr bool kShares = V == 1 || V == shared_vector(sizeof(E), sizeof(Acc));
  constexpr bool kWalks = V == 1 || V == walked_vector(sizeof(E), sizeof(Acc));
  constexpr bool kFlat = kFlatColumns<S, Load, Store, V>;
  constexpr bool kAsync = Load::kWidth > 1 && (kPart == 4 || kPart == 8 || kPart == 16);
  const S op{call.options};
  const Layout& layout = call.layout;
  const ScanStride stride = scan_stride(layout);
  const int64_t a_stride = is_pair<Load> && layout.reduced ? call.more_strides[0][layout.kept] : 0;
  const int64_t n = layout.length, units = call.plan.splits;
  const bool split = !kWalks || units > 1;
  const bool walks = kWalks && (!kShares || call.plan.walks), flat = kFlat && call.plan.flat;
  // Jobs from a job's totals to its results; jobs whose elements have a place in shared memory.
#if defined(TR_LARGE_BLOCKS)
  const int behind = !kShares ? 1 : !kWalks ? kMostBehind : call.plan.behind;
#else
  const int behind = kShares ? call.plan.behind : 1;
#endif
  const int stages = kAhead + behind;
  // Units of a job; those that have threads of their own.
  const int U = call.plan.warps, K = flat ? 1 : U;
  // Whether a warp of its own puts jobs: then registers are fewest.
  constexpr bool kApart = put_lane(V * sizeof(Acc), kThreads) > 0;
  const int X = kApart ? recomputed(call.plan.strip) : call.plan.strip, Y = kWalks ? call.plan.lanes : kFan;
  const int threads = X * Y * K;
  const int unit_length = Y * kGroup;
  const bool halves = split && Y < kFan;                       // units are halves of tiles
  const int pitch = X + 1, part = Y * pitch, size = K * part;  // of the totals
#if defined(TR_LARGE_BLOCKS)
  constexpr int kPitch = kThreads;  // of positions in shared memory
#else
  const int kPitch = threads;  // where there is less of it
#endif
  // This thread's unit, and its columns and group in memory; the columns and group whose total it takes, along a
  // column.
  const int k = int(threadIdx.x) / (X * Y), x = int(threadIdx.x) % X, y = int(threadIdx.x) / X % Y;
  const int column = int(threadIdx.x) / Y % X;
  const int lead = k * unit_length + y * kGroup;  // positions before this group
  const bool beside = layout.kept > 0;            // columns lie side by side
  // From a job's first element to this thread's.
  auto offset = [&](int64_t along, const int64_t (&strides)[kMaxDims]) {
    return recomputed(lead) * along + (beside ? int64_t(recomputed(x)) * V * strides[layout.kept - 1] : 0);
  };
  // Columns that are taken together in a job: one, or where they make whole words those of a word.
  constexpr int kCell = V > 1 && sizeof(E) < 4 ? 4 / int(sizeof(E)) : 1, kCells = V / kCell;
  constexpr int kCellWords = kPartWords / kCells;
  // Column v of the thread at x, among those of the job.
  auto column_of = [&](int x, int v) { return flat ? (v / kCell * X + x) * kCell + v % kCell : x * V + v; };

  // Of [unit][column] of a job, for each of kColumnCarries jobs: what precedes the unit's tile and, in a second half,
  // the half before it; its total where blocks walk.
  const int chains = split ? K * X * V : 0;
  // Aligned to sectors of memory: where they are not, each is copied in two halves, and read twice for that.
  TR_DYNAMIC_SHARED(shared, 128);
  P* const elements = reinterpret_cast<P*>(shared);  // [stage][position of the group][thread]: each thread's own
  Wide* const carries = reinterpret_cast<Wide*>(elements + stages * kGroup * kPitch);
  Acc* const before_tiles = reinterpret_cast<Acc*>(carries + kColumnCarries * chains);
  Acc* const before_halves = before_tiles + kColumnCarries * chains;
  Acc* const sums = before_halves + kColumnCarries * chains;
  // [job modulo behind, or where registers are fewest behind + 1][part][group][x]
  Totals* const totals = reinterpret_cast<Totals*>(sums + (kColumnCarries * chains + 3) / 4 * 4);
  __shared__ ColumnJob job[kColumnJobs];
  __shared__ int64_t width, strips, runs;        // columns side by side; jobs across and along
  __shared__ int64_t jobs, turn, down;           // tickets, or strips, in all; the next; jobs further down in this one
  __shared__ double strip_share, run_share;      // 1 / strips, 1 / runs
  [[maybe_unused]] __shared__ float tile_share;  // 1 / width
  // A job is known; its totals are there; its carries are. The threads that work.
  __shared__ Barrier put[kColumnJobs], published[kColumnCarries], carried[kColumnCarries], team;
  static_assert(sizeof job + sizeof put + sizeof published + sizeof carried + 72 <= kColumnShared,
                "the plan counts on no more");

  auto space = [&] { return ColumnSpace<S>(workspace, layout.rows, recomputed(width), recomputed(units)); };
  // Puts a block's next job: down its strips, which are every gridDim.x-th one; else by tickets, so that whatever a
  // tile waits for is on its way.
  auto put_job = [&](int it, int64_t ticket) {
    ColumnJob j{};
    if (walks && down > 0) {
      const int length = recomputed(U) * unit_length;
      const ColumnJob& above = job[(it + kColumnJobs - 1) % kColumnJobs];
      j.row = above.row;
      j.width = above.width;
      j.unit = above.unit + U;
      j.in = above.in + length * stride.in;
      j.out = above.out + length * stride.out;
      if constexpr (is_pair<Load>) j.a = above.a + length * a_stride;
    } else {
      if (!walks) turn = ticket;
      if (turn < jobs) {
        const int64_t rest = strips == 1 ? turn : quotient(turn, strips, strip_share);
        j.first = flat ? 0 : (turn - rest * strips) * X * V;
        const bool one = kShares && layout.rows == width;
        j.batch = one ? 0 : walks ? rest : quotient(rest, runs, run_share);
        j.row = j.batch * width + j.first;
        j.unit = walks ? 0 : (rest - j.batch * runs) * U;
        if (!walks) {
          const int64_t block = j.unit / kFan;
          j.slot = int(j.unit % kFan);
          j.slots = space().tile(j.batch, j.unit - j.slot, j.first);
          j.before = block ? space().carry(j.batch, block - 1, j.first) : nullptr;
        }
        const int64_t across = flat ? width * (units - j.unit < U ? units - j.unit : U) : width - j.first;
        j.width = int(across < X * V ? across : X * V);
        const int64_t position = j.unit * recomputed(unit_length);
        const RowStart start = one ? RowStart{0, 0} : row_start(layout, j.batch, layout.kept - 1);
        j.in = start.in + position * stride.in + (beside ? j.first * layout.in[layout.kept - 1] : 0);
        j.out = start.out + position * stride.out + (beside ? j.first * layout.out[layout.kept - 1] : 0);
        if constexpr (is_pair<Load>) j.a = row_offset(layout, call.more_strides[0], j.row) + position * a_stride;
      }
    }
    const int64_t left = n - j.unit * unit_length, most = int64_t(recomputed(U) + 1) * unit_length;
    j.left = int(left < most ? left : most);
    if (walks && ++down == recomputed(runs)) {
      down = 0;
      turn += gridDim.x;
    }
    if (!j.width) down = 0;
    job[it % kColumnJobs] = j;
    if (split) barrier_arrive(&put[it % kColumnJobs]);
  };
  auto next_ticket = [&] { return walks ? 0 : int64_t(take_ticket(static_cast<uint64_t*>(workspace))); };
  auto job_of = [&](int it) -> const ColumnJob& { return job[it % kColumnJobs]; };
  auto parity_of = [](int it) { return uint32_t(recomputed(it) / kColumnCarries & 1); };
  int meetings = 0;
  auto meet = [&] {  // the threads that work
    if (!split) __syncthreads();
    else team_barrier(&team, threads, meetings++);
  };
  // Of an unknown number of stages a division would take too long: there are 3 or 4.
  auto stage_of = [&](int it) {
    const int turn = recomputed(it);
    return elements + (!(kShares && kWalks) ? turn % stages : behind == 1 ? turn % 3 : turn % 4) * (kGroup * kPitch);
  };
  auto totals_of = [&](int it) {
    const int turn = recomputed(it);
    const int place = kApart ? turn % (behind + 1) : !kWalks ? turn % behind : behind == 1 ? 0 : turn % 2;
    return totals + place * (kParts * size);
  };
  // Positions of this thread's group that are there.
  auto count_of = [&](const ColumnJob& j) {
    const int left = j.left - lead;
    return x * V >= j.width || left <= 0 ? 0 : left < kGroup ? left : kGroup;
  };

  // ---- flat ----
  const int row_step = int(stride.in);  // elements
  // The tile of the job that the thread's column v belongs to, and where it has its group, in elements. Rows that go
  // down in memory count from the job's last.
  auto flat_tile = [&](int v) {
    const int c = column_of(recomputed(x), v), tile = int((float(c) + 0.5f) * tile_share);
    return tile < U ? tile : 0;
  };
  auto place_of = [&](int v) {
    const int tile = flat_tile(v), w = row_step < 0 ? -row_step : row_step;
    return (tile * kTile + recomputed(y) * kGroup) * row_step + column_of(recomputed(x), v) - tile * w;
  };
  // Rows of a job; its elements, from the one that lies lowest in memory on; where its first row is among them.
  auto flat_rows = [&](const ColumnJob& j) { return j.left < U * kTile ? j.left : U * kTile; };
  auto flat_top = [&](int rows) { return row_step < 0 ? (rows - 1) * -row_step : 0; };
  auto flat_first = [&](const ColumnJob& j, int v) { return (j.unit + flat_tile(v)) * kTile + y * kGroup; };
  auto flat_count = [&](const ColumnJob& j, int v) {
    const int all = column_of(recomputed(x), v) < j.width ? kGroup : 0;
    if (j.left >= U * kTile) return all;
    const int left = j.left - flat_tile(v) * kTile - y * kGroup;
    return left < all ? left < 0 ? 0 : left : all;
  };
  // move(byte) for each granule of so many bytes, one(element) for what is left: by the same thread in every job, so
  // that what it copies to a place comes after what it has read there.
  auto each_granule = [&](int bytes, auto move, auto one) {
    for (int at = int(threadIdx.x) * kGranule; at < bytes; at += threads * kGranule) {
      if (at + kGranule <= bytes) move(at);
      else
        for (int e = at / kSize; e < bytes / kSize; ++e) one(e);
    }
  };
  auto flat_load = [&](const ColumnJob& j, char* to) {
    const int rows = flat_rows(j), bytes = rows * (row_step < 0 ? -row_step : row_step) * kSize;
    const char* const from = static_cast<const char*>(call.in.data) + (j.in - flat_top(rows)) * kSize;
    each_granule(
        bytes, [&](int at) { copy_async<kGranule>(to + at, from + at); },
        [&](int e) { reinterpret_cast<E*>(to)[e] = global(reinterpret_cast<const E*>(from))[e]; });
  };
  auto flat_store = [&](const ColumnJob& j, const char* from) {
    const int w = row_step < 0 ? -row_step : row_step, rows = flat_rows(j);
    const bool shift = call.exclusive, drops = shift && j.left <= U * kTile;  // the last row of all
    E* const out = static_cast<E*>(call.out.values);
    E* const to = out + j.out + (shift ? stride.out : 0) - flat_top(rows);
    const int row = w * kSize, bytes = rows * row, dropped = !drops ? bytes : row_step < 0 ? 0 : bytes - row;
    auto stays = [&](int at) { return at < dropped || at >= dropped + row; };
    each_granule(
        bytes,
        [&](int at) {
          if (stays(at))
            store_granule(reinterpret_cast<Granule*>(reinterpret_cast<char*>(to) + at),
                          *reinterpret_cast<const Granule*>(from + at));
        },
        [&](int e) {
          if (stays(e * kSize)) global(to)[e] = reinterpret_cast<const E*>(from)[e];
        });
    if constexpr (kFlat)
      if (shift && j.unit == 0)
        for (int c = int(threadIdx.x); c < w; c += threads) global(out)[j.out + c] = round_to<E>(start_of<S>());
  };

  // ---- elements ----
  [[maybe_unused]] E held[kGroup];  // where elements are too small to be copied: those of the last job on its way
  auto load = [&](int it) {
    if (split) barrier_wait(&put[it % kColumnJobs], uint32_t(it / kColumnJobs & 1));
    const ColumnJob& j = job_of(it);
    if constexpr (kFlat)
      if (flat) {
        if (j.width) flat_load(j, reinterpret_cast<char*>(stage_of(it)));
        end_copies();
        return;
      }
    P* const own = stage_of(it) + threadIdx.x;
    const int count = count_of(j);
    const int64_t first = j.unit * unit_length + lead;
    if constexpr (kAsync) {
      static_assert(kPart == sizeof(P) || V == 1, "vectors are of one input");
#pragma unroll
      for (int input = 0; input < S::kInputs; ++input) {
        const bool a = is_pair<Load> && input == 1;
        const int member = is_pair<Load> ? 1 - input : input;
        const int64_t start = a ? j.a + offset(a_stride, call.more_strides[0]) : j.in + offset(stride.in, layout.in);
        int64_t step = (a ? a_stride : stride.in) * kSize;
        const char* from = static_cast<const char*>(input ? call.in.more[input - 1] : call.in.data) + start * kSize;
        char* const to = reinterpret_cast<char*>(own) + member * kSize;
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
            copy_async<kPart>(to + i * kPitch * int(sizeof(P)), from);
            from += step = recomputed(step);
          }
        } else {
#pragma unroll 1
          for (; i < count; ++i) copy_async<kPart>(to + i * kPitch * int(sizeof(P)), from + i * step);
        }
      }
    } else if constexpr (Load::kWidth > 1) {
      static_assert(V == 1, "vectors are copied");
      P* const before = stage_of(it + stages - 1) + threadIdx.x;
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
      for (int i = 0; i < kGroup; ++i) own[i * kPitch].item[0] = items[i];
    }
    end_copies();
  };
  // The items of a group of which `count` are there, or all, and its total.
  auto form = [&](auto whole, const E(&in)[kGroup], int64_t first, int count, typename S::Item(&items)[kGroup]) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) items[i] = whole || i < count ? op.load(in[i], first + i) : S::absent_item();
    return S::group(items);
  };
  // This thread's elements of a job: as they are, or as words, some neighbouring columns at a time.
  using Staged = std::conditional_t<(V > 1), Words, E>;
  auto read = [&](int it, Staged(&staged)[kGroup]) {
    const auto* const from = reinterpret_cast<const Staged*>(stage_of(it) + threadIdx.x);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) staged[i] = from[i * kPitch];
  };
  auto unpack_cell = [&](const Staged(&staged)[kGroup], int cell, E(&in)[kCell][kGroup]) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if constexpr (V > 1) {
        uint32_t words[kCellWords];
#pragma unroll
        for (int w = 0; w < kCellWords; ++w) words[w] = staged[i].item[cell * kCellWords + w];
        E side[kCell];
        unpack(words, side);
#pragma unroll
        for (int v = 0; v < kCell; ++v) in[v][i] = side[v];
      } else {
        in[0][i] = staged[i];
      }
    }
  };
  // The same of N columns from `at` on, where they are one run of memory. Those of a word are neighbours there if
  // columns are of an even number.
  [[maybe_unused]] const bool words = kCell == 1 || row_step % 2 == 0;
  auto read_flat = [&](const ColumnJob& j, int it, int at, int count, auto& in) {
    constexpr int N = int(sizeof in / sizeof in[0]);
    const E* const from = reinterpret_cast<const E*>(stage_of(it)) + flat_top(flat_rows(j)) + place_of(at);
    auto read_row = [&](int i) {
      E side[N];
      if constexpr (N * sizeof(E) == 4) {
        const uint32_t word = *reinterpret_cast<const uint32_t*>(from + i * row_step);
        memcpy(side, &word, sizeof side);
      } else {
        side[0] = from[i * row_step];
      }
#pragma unroll
      for (int v = 0; v < N; ++v) in[v][i] = side[v];
    };
    if (count == kGroup) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) read_row(i);
    } else {
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        if (i < count) read_row(i);
    }
  };
  // Calls with(N, at) for all columns of a thread, N neighbours at a time.
  auto flat_columns = [&](auto with) {
    if (kCell > 1 && words) {
#pragma unroll
      for (int at = 0; at < V; at += kCell) with(std::integral_constant<int, kCell>(), at);
    } else {
#pragma unroll
      for (int at = 0; at < V; ++at) with(std::integral_constant<int, 1>(), at);
    }
  };

  if (threadIdx.x == 0) {
    width = beside ? layout.size[layout.kept - 1] : 1;
    strips = flat ? 1 : (width + X * V - 1) / (X * V);
    runs = (units + U - 1) / U;
    jobs = layout.rows / width * strips * (walks ? 1 : runs);
    strip_share = 1 / double(strips);
    run_share = 1 / double(runs);
    if (kFlat) tile_share = 1 / float(width);
    turn = blockIdx.x;
    down = 0;
  }
  if (threadIdx.x == 0 && split) {
    for (int i = 0; i < kColumnJobs; ++i) barrier_init(&put[i], 1);
    for (int i = 0; i < kColumnCarries; ++i) {
      barrier_init(&published[i], threads);
      barrier_init(&carried[i], int(blockDim.x) - threads);
    }
    barrier_init(&team, threads);
    barriers_made();
  }
  __syncthreads();
  if (threadIdx.x == 0)
#pragma unroll 1
    for (int it = 0; it <= kAhead; ++it) put_job(it, next_ticket());
  __syncthreads();

  int end = INT32_MAX;                // the first turn without a job, once it is met
  if (int(threadIdx.x) >= threads) {  // the carries, job by job, whatever the others do
    const int lane = int(threadIdx.x) - threads;
    // A job's chains are those of its units, one after the other.
    const int side = flat ? int(width) : X * V;
    constexpr int kPuts = put_lane(V * sizeof(Acc), kThreads);  // the lane that puts jobs
    // In turn it, closes the block tile that job `it` ends, settles what comes after one, that one or, where there are
    // more jobs on their way, the one that the job before ends; and finds what precedes job it - behind + 1.
    auto each_job = [&](auto ends, auto close, auto settle, auto precede) {
      // On its way for a turn before it is needed. A block loads its tickets in order, so that none waits for ever.
      int64_t ticket = lane == kPuts ? next_ticket() : 0;
      auto put = [&](int it) {
        if (lane != kPuts || it >= end) return;
        put_job(it + kAhead + 1, ticket);
        ticket = next_ticket();
      };
      for (int it = 0;; ++it) {
        barrier_wait(&published[it % kColumnCarries], parity_of(it));
        if (it < end && !job_of(it).width) end = it;
        const int due = it - (behind - 1), late = kWalks ? 0 : (behind - 1) / 2;
        if (due >= end) return;
        if (kPuts) put(it);
        auto settle_one = [&](int earlier) {
          if (earlier >= 0 && earlier < end && ends(job_of(earlier))) settle(job_of(earlier));
        };
        // First, as the block tile to be closed waits for tickets after that one: their blocks may have earlier jobs
        // that wait for what is settled here.
        if (late > 0) settle_one(it - late);
        if (it < end && ends(job_of(it))) close(job_of(it));
        if (late == 0) settle_one(it);
        if (due >= 0) precede(due, job_of(due));
        barrier_arrive(&carried[it % kColumnCarries]);
        if (!kPuts) put(it);
        // A lane that waits in the next job may hold those of its wavefront that have yet to publish in this one.
        const int done = recomputed(it);
        barrier_wait(&carried[done % kColumnCarries], parity_of(done));
      }
    };
    auto hand_on = [&](int it, int chain, Acc tiles, Acc half, const Wide& carry) {
      const int to = recomputed(it) % kColumnCarries * chains + chain;
      carries[to] = carry;
      before_tiles[to] = tiles;
      if (kWalks) before_halves[to] = half;
    };
    if (walks) {
      if constexpr (kWalks) {
        constexpr int kRounds = (kThreads / kLeastLanes * V + kCarryThreads - 1) / kCarryThreads;
        ScanCarry<S> walked[kRounds];
        Acc half[kRounds], tiles[kRounds];
        const auto none = [](const ColumnJob&) {};
        each_job([](const ColumnJob&) { return false; }, none, none,
                 [&](int it, const ColumnJob& j) {
#pragma unroll
                   for (int round = 0; round < kRounds; ++round) {
                     const int c = recomputed(lane) + round * kCarryThreads;
                     if (c >= j.width) continue;
                     ScanCarry<S>& carry = walked[round];
                     if (j.unit == 0) carry = ScanCarry<S>(row_carry<S, Load>(call, j.row + c));
                     TR_ROLLED
                     for (int k = 0; k < K && j.unit + k < units; ++k) {
                       const Acc total = sums[it % kColumnCarries * chains + k * side + c];
                       const bool second = halves && (j.unit + k) % 2;
                       if (!second) {
                         half[round] = S::absent();
                         tiles[round] = carry.within();
                       }
                       hand_on(it, k * side + c, tiles[round], half[round], carry.carry());
                       half[round] = second ? S::combine(half[round], total) : total;
                       if (second || !halves) carry.push(half[round]);
                     }
                   }
                 });
      }
    } else if constexpr (kShares) {
      constexpr int kLanesEach = carry_lanes(kThreads / kFan * V, kCarryThreads), kAtOnce = kCarryThreads / kLanesEach;
      // Whether a job has the last tile of a block tile.
      auto ends = [&](const ColumnJob& j) { return j.slot + U == kFan && (U - 1) * unit_length < j.left; };
      // Calls with(block, c, active) for the columns of such a job, in step.
      auto each_column = [&](const ColumnJob& j, auto with) {
        const int64_t block = j.unit / kFan;
        TR_ROLLED
        for (int first = 0; first < side; first += kAtOnce) {
          const int c = first + recomputed(lane) / kLanesEach;
          const bool active = c < side && j.first + c < width;
          with(block, active ? c : 0, active);
        }
      };
      auto close = [&](const ColumnJob& j) {
        each_column(j, [&](int64_t block, int c, bool active) {
          close_block<S, kLanesEach>(space(), j.batch, j.first + c, block, active);
        });
      };
      auto settle = [&](const ColumnJob& j) {
        each_column(j, [&](int64_t block, int c, bool active) {
          settle_block<S, kLanesEach>(space(), j.batch, j.first + c, block, active,
                                      row_carry<S, Load>(call, j.row + c));
        });
      };
      static_assert(kThreads / kFan * V <= kAtOnce, "lanes for all chains of a job");
      const int chain = lane / kLanesEach, k = chain / side, c = chain - k * side;
      auto precede = [&](int it, const ColumnJob& j) {
        const bool active = chain < chains && (flat ? chain < j.width : c < j.width && k * unit_length < j.left);
        const auto* before = static_cast<const Published<Wide>*>(j.before);
        Acc within;
        Wide carry;
        column_carry<S, kLanesEach>(static_cast<const Published<Acc>*>(j.slots) + c, recomputed(width),
                                    active ? j.slot + k : 0, active && before ? before + c : nullptr,
                                    row_carry<S, Load>(call, active ? j.row + c : 0), within, carry);
        if (active && lane % kLanesEach == 0) hand_on(it, chain, within, S::absent(), carry);
      };
      each_job(ends, close, settle, precede);
    }
    return;
  }

  for (int it = 0; it < kAhead; ++it) load(it);
  for (int it = 0;; ++it) {
    const bool begun = it >= behind;
    if (behind > 1 && it < end && !job_of(it).width) end = it;
    if (begun && (behind > 1 ? it - behind >= end : !job_of(it - 1).width)) return;
    const bool going = behind > 1 ? it < end : job_of(it).width != 0;
    const ColumnJob &now = job_of(it), &before = job_of(begun ? it - behind : 0);
    Totals* const of_job = totals_of(it);
    auto own_of = [&](Totals* job) { return job + recomputed(k) * part + recomputed(y) * pitch + recomputed(x); };
    Totals* const own = own_of(of_job);
    // What precedes this thread's group of that job before in its unit, where the job's own totals take its place.
    [[maybe_unused]] Totals last[kParts];
    if (!kApart)
#pragma unroll
      for (int p = 0; p < kParts; ++p) last[p] = own[p * size];
    wait_copies<kAhead - 1>();
    if (flat) meet();  // others' copies
    if (going) {
      Totals t[kParts];
      if (flat) {
        if constexpr (kFlat) {
          flat_columns([&](auto neighbours, int at) {
            constexpr int N = decltype(neighbours)::value;
            const int count = flat_count(now, at);  // of neighbours the same
            E in[N][kGroup];
            read_flat(now, it, at, count, in);
#pragma unroll
            for (int v = 0; v < N; ++v) {
              typename S::Item items[kGroup];
              const int c = at + v;
              t[c / kC].item[c % kC] = form(std::false_type(), in[v], flat_first(now, c), count, items);
            }
          });
        }
      } else {
        const int count = count_of(now);
        Staged staged[kGroup];
        read(it, staged);
        auto form_all = [&](auto whole) {
#pragma unroll
          for (int cell = 0; cell < kCells; ++cell) {
            E in[kCell][kGroup];
            unpack_cell(staged, cell, in);
#pragma unroll
            for (int v = 0; v < kCell; ++v) {
              const int c = cell * kCell + v;
              typename S::Item items[kGroup];
              t[c / kC].item[c % kC] = form(whole, in[v], now.unit * unit_length + lead, count, items);
            }
          }
        };
        if (count == kGroup) form_all(std::true_type());
        else form_all(std::false_type());
      }
#pragma unroll
      for (int p = 0; p < kParts; ++p) own[p * size] = t[p];
    }
    meet();

    if (!split && threadIdx.x == 0 && going) put_job(it + kAhead + 1, next_ticket());
    if (going) {
      const int thread = recomputed(int(threadIdx.x));  // what follows from it is not worth registers
      const int group = thread & (Y - 1), lane = thread % kLanes;
      Totals* mine = of_job + recomputed(k) * part + group * pitch + recomputed(column);
#pragma unroll
      for (int p = 0; p < kParts; ++p, mine += size) {
        Totals upto = *mine;
        sklansky<S>(upto.item, lane, Y);
        if (split && group == Y - 1 && recomputed(k) * unit_length < now.left) {
          auto column_at = [&](int v) { return column_of(recomputed(column), p * kC + v); };
          if (walks) {
#pragma unroll
            for (int v = 0; v < kC; ++v)
              sums[it % kColumnCarries * chains + recomputed(k) * X * V + column_at(v)] = upto.item[v];
          } else {
            auto* const slots = static_cast<Published<Acc>*>(now.slots) + (now.slot + recomputed(k)) * width;
#pragma unroll
            for (int v = 0; v < kC; ++v)
              if (const int c = column_at(v); c < now.width) slots[c].publish(upto.item[v]);
          }
        }
        Totals exclusive;
#pragma unroll
        for (int v = 0; v < kC; ++v) {
          const Acc lower = shuffle(upto.item[v], group ? lane - 1 : lane);
          exclusive.item[v] = group ? lower : S::absent();
        }
        *mine = exclusive;
      }
    }
    if (split) barrier_arrive(&published[it % kColumnCarries]);
    if (behind == 1) meet();  // else the next one comes before any of this is read

    if (split && it > 0) barrier_wait(&carried[(it - 1) % kColumnCarries], parity_of(it - 1));

    // What precedes this thread's group in column v, which is column c of the job.
    auto prefix = [&](int v, int c) {
      Acc within = (!kApart ? last[v / kC] : own_of(totals_of(it - behind))[v / kC * size]).item[v % kC],
          tiles = S::absent();
      Wide carry;
      if (split) {
        const int chain = recomputed(it - behind) % kColumnCarries * chains + c;
        // Absent in a first half. Of two inputs, what is absent is no identity.
        if constexpr (!kWalks) {
        } else if constexpr (S::kInputs == 2) {
          const Acc half = before_halves[chain];
          const bool second = halves && (before.unit + recomputed(k)) % 2;
          if (second) within = recomputed(y) ? join_loosely<S>(half, within) : half;
        } else {
          within = join_loosely<S>(before_halves[chain], within);
        }
        tiles = before_tiles[chain];
        carry = carries[chain];
      } else {
        carry = row_carry<S, Load>(call, before.row + c);
      }
      return S::prefix(carry, join_loosely<S>(tiles, within));
    };
    if (begun && flat) {
      if constexpr (kFlat) {
        flat_columns([&](auto neighbours, int at) {
          constexpr int N = decltype(neighbours)::value;
          const int count = flat_count(before, at);
          E in[N][kGroup];
          read_flat(before, it - behind, at, count, in);
          typename S::Result r[N][kGroup];
#pragma unroll
          for (int v = 0; v < N; ++v) {
            typename S::Item items[kGroup];
            form(std::false_type(), in[v], flat_first(before, at + v), count, items);
            op.results(prefix(at + v, column_of(recomputed(x), at + v)), items, r[v]);
          }
          E* const to = reinterpret_cast<E*>(stage_of(it - behind)) + flat_top(flat_rows(before)) + place_of(at);
          if constexpr (N * sizeof(E) == 4) {
            Packed<uint32_t, 1> rounded[kGroup];
            round_columns<E, S>(r, rounded, 0);
#pragma unroll
            for (int i = 0; i < kGroup; ++i)
              if (i < count) *reinterpret_cast<uint32_t*>(to + i * row_step) = rounded[i].item[0];
          } else {
#pragma unroll
            for (int i = 0; i < kGroup; ++i)
              if (i < count) to[i * row_step] = round_to<E>(r[0][i]);
          }
        });
        meet();
        flat_store(before, reinterpret_cast<const char*>(stage_of(it - behind)));
      }
    } else if (const int count = begun ? count_of(before) : 0) {
      const int64_t first = before.unit * unit_length + lead;
      const int shift = call.exclusive ? 1 : 0, last_one = before.left - lead - shift;
      const int stored = count < last_one ? count : last_one;
      const bool begins = shift && first == 0;  // with what an exclusive scan starts from
      const int64_t to = before.out + offset(stride.out, layout.out) + shift * stride.out;
      auto results = [&](auto whole) {
        Staged staged[kGroup];
        read(it - behind, staged);
#pragma unroll
        for (int cell = 0; cell < kCells; ++cell) {
          E in[kCell][kGroup];
          unpack_cell(staged, cell, in);
          typename S::Result r[kCell][kGroup];
#pragma unroll
          for (int v = 0; v < kCell; ++v) {
            const int c = cell * kCell + v;
            typename S::Item items[kGroup];
            form(whole, in[v], first, count, items);
            op.results(prefix(c, (recomputed(k) * X + recomputed(x)) * V + c), items, r[v]);
          }
          if constexpr (V > 1) {
            round_columns<E, S>(r, staged, cell * kCellWords);
          } else {
            if (begins) Store::one(call, to - stride.out, start_of<S>());
#pragma unroll
            for (int i = 0; i < kGroup; ++i)
              if (whole || i < stored) Store::one(call, to + i * stride.out, r[0][i]);
          }
        }
        if constexpr (V > 1) {
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
            if (whole || i < stored) store_granule(reinterpret_cast<Words*>(p), staged[i]);
            p += step = recomputed(step);
          }
        }
      };
      if (stored == kGroup) results(std::true_type());
      else results(std::false_type());
    }
    if (going) load(it + kAhead);
  }
}

}  // namespace torchreduce::gpu
