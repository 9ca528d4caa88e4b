// Scans with lanes across rows whose elements lie side by side, but start anywhere: at a multiple of an element's size
// only, and at another one from row to row (scan_columns.cuh needs vectors of columns to be aligned in every row).
//
// A job is a tile of a strip of columns, at most 128 bytes of a row. All granules of 16 bytes that have elements of it
// are copied to shared memory, where a row begins at the place in a sector that it has in memory; what they have of
// other strips nobody looks at. A lane has a word of a row, which is one column or two neighbours, of rows that its own
// warp has copied; where those are no word of memory, it puts them together from two. Results go to memory from
// registers, a word a lane; in a row of results that begins in the middle of a word, each lane stores its second column
// with the first one of the next lane.
//
// Blocks share strips by tickets, and hand on their totals, as in scan_columns.cuh.
#pragma once
#include "scan_columns.cuh"

namespace torchreduce::gpu {

template <class S, class Load, class Store> constexpr bool kRaggedColumns = [] {
  if constexpr (kInPlace<S, Load, Store>)
    return ragged_columns(sizeof(typename Load::Element), sizeof(typename S::Acc));
  else return false;
}();

// A tile of a strip.
struct RaggedJob {
  int64_t row, batch, first, tile;  // the strip's first row (column of memory), of all; the batch, and the row in it
  int64_t in, out;                  // bytes to its first position in that row
  void *slots, *before;             // as of a ColumnJob
  int width;                        // columns; 0: there is no job, and no other comes
  int left;                         // positions from there on; more than a tile has is all the same
  int slot;                         // of the tile in its block tile
  bool inside;                      // all granules that have elements of it lie in the tensor
};

template <class S, class Load, class Store>
__global__ void TR_BLOCKS_BOUND(ragged_block(sizeof(typename Load::Element)), 1)
    scan_ragged_columns(TR_GRID_CONSTANT ScanCall call, void* workspace) {
#if defined(TR_LARGE_BLOCKS) || defined(TR_EMULATED)  // no plan has it where blocks are not large
  using Acc = typename S::Acc;
  using Wide = typename S::Wide;
  using E = typename Load::Element;
  constexpr int kSize = sizeof(E), kCell = 4 / kSize;                     // columns of a word
  constexpr int kWarps = kRaggedThreads / kLanes, kRuns = kFan / kWarps;  // groups of a thread
  constexpr int kSide = kLanes * kCell, kAcross = kSide / kWarps;         // columns of a job; of them a warp's
  constexpr int kCarryThreads = carry_threads(kRaggedThreads), kPuts = ragged_put_lane(kSize);
  constexpr int kAhead = 2;                                             // jobs whose elements are on their way
  constexpr int kGranule = 16, kSector = 32;                            // bytes
  constexpr int kRowGranules = kRaggedBytes / kGranule;                 // that a whole row has at least
  constexpr int kStage = kTile * kRaggedPitch, kRun = kWarps * kGroup;  // bytes of a job; rows between a thread's
  constexpr int kPitch = kSide + 1;                                     // of the totals
  constexpr int kWays = kCell;       // rows so many apart start at the same place in a word
  using Totals = Acc[kFan][kPitch];  // column c of a lane's word is number c * kLanes and the lane
  static_assert(kRaggedBytes == 4 * kLanes && kRaggedPitch % kSector == 0 && kRaggedPitch >= kRaggedBytes + kSector,
                "a word a lane, wherever in a sector a row begins");
  const S op{call.options};
  const Layout& layout = call.layout;
  const int64_t n = layout.length, tiles = call.plan.splits;
  const int64_t in_step = layout.in[layout.kept] * kSize, out_step = layout.out[layout.kept] * kSize;
  const int behind = call.plan.behind, stages = kAhead + behind;
  const int lane = lane_id(), warp = int(threadIdx.x) / kLanes;

  TR_DYNAMIC_SHARED(shared, 128);
  char* const elements = shared;  // [stage]
  // Of each column of a job, for kColumnCarries jobs: what precedes the tile's block tile; and the tile in it.
  auto* const carries = reinterpret_cast<Wide(*)[kSide]>(elements + stages * kStage);
  auto* const before_tiles = reinterpret_cast<Acc(*)[kSide]>(carries + kColumnCarries);
  auto* const totals = reinterpret_cast<Totals*>(before_tiles + kColumnCarries);  // [job modulo behind]
  __shared__ RaggedJob job[kColumnJobs];
  __shared__ int64_t width, strips, jobs;     // columns side by side; jobs across, and in all
  __shared__ double strip_share, tile_share;  // 1 / strips, 1 / tiles
  __shared__ uintptr_t low, high;             // the tensor's first byte, and the one behind its last
  // A job is known; its totals are there; its carries are. The threads that work.
  __shared__ Barrier put[kColumnJobs], published[kColumnCarries], carried[kColumnCarries], team;
  static_assert(sizeof job + sizeof put + sizeof published + sizeof carried + 72 <= kColumnShared,
                "the plan counts on no more");

  auto space = [&] { return ColumnSpace<S>(workspace, layout.rows, recomputed(width), recomputed(tiles)); };
  auto next_ticket = [&] { return int64_t(take_ticket(static_cast<uint64_t*>(workspace))); };
  auto job_of = [&](int it) -> const RaggedJob& { return job[uint32_t(it) % kColumnJobs]; };
  auto parity_of = [](int it) { return uint32_t(recomputed(it)) / kColumnCarries & 1; };
  auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  // By tickets, so that whatever a tile waits for is on its way.
  const char* const in = static_cast<const char*>(call.in.data);
  auto put_job = [&](int it, int64_t ticket) {
    RaggedJob j{};
    if (ticket < jobs) {
      const int X = call.plan.strip * kCell;
      const int64_t rest = strips == 1 ? ticket : quotient(ticket, strips, strip_share);
      j.first = (ticket - rest * strips) * X;
      j.batch = layout.rows == width ? 0 : quotient(rest, tiles, tile_share);
      j.tile = rest - j.batch * tiles;
      j.row = j.batch * width + j.first;
      j.slot = int(j.tile % kFan);
      const int64_t block = j.tile / kFan, position = j.tile * kTile, left = n - position;
      j.slots = space().tile(j.batch, j.tile - j.slot, j.first);
      j.before = block ? space().carry(j.batch, block - 1, j.first) : nullptr;
      j.width = int(width - j.first < X ? width - j.first : X);
      j.left = int(left < kTile + 1 ? left : kTile + 1);
      const RowStart start = row_start(layout, j.batch, layout.kept - 1);
      j.in = (start.in + j.first) * kSize + position * in_step;
      j.out = (start.out + j.first) * kSize + position * out_step;
      const int64_t down = ((j.left < kTile ? j.left : kTile) - 1) * in_step;
      const uintptr_t from = address(in + j.in) + uintptr_t(down < 0 ? down : 0),
                      to = address(in + j.in) + uintptr_t(down > 0 ? down : 0);
      j.inside =
          from / kGranule * kGranule >= low && (to + j.width * kSize + kGranule - 1) / kGranule * kGranule <= high;
    }
    job[it % kColumnJobs] = j;
    barrier_arrive(&put[it % kColumnJobs]);
  };
  int meetings = 0;
  auto meet = [&] { team_barrier(&team, kRaggedThreads, meetings++); };  // the threads that work

  if (threadIdx.x == 0) {
    width = layout.size[layout.kept - 1];
    strips = (width + call.plan.strip * kCell - 1) / (call.plan.strip * kCell);
    jobs = layout.rows / width * strips * tiles;
    strip_share = 1 / double(strips);
    tile_share = 1 / double(tiles);
    int64_t down = 0, up = kSize;
    TR_ROLLED
    for (int d = 0; d <= layout.kept; ++d) {
      const int64_t reach = ((d < layout.kept ? layout.size[d] : n) - 1) * layout.in[d] * kSize;
      (reach < 0 ? down : up) += reach;
    }
    low = address(call.in.data) + uintptr_t(down);
    high = address(call.in.data) + uintptr_t(up);
    for (int i = 0; i < kColumnJobs; ++i) barrier_init(&put[i], 1);
    for (int i = 0; i < kColumnCarries; ++i) {
      barrier_init(&published[i], kRaggedThreads);
      barrier_init(&carried[i], int(blockDim.x) - kRaggedThreads);
    }
    barrier_init(&team, kRaggedThreads);
    barriers_made();
  }
  __syncthreads();
  if (threadIdx.x == 0)
#pragma unroll 1
    for (int it = 0; it <= kAhead; ++it) put_job(it, next_ticket());
  __syncthreads();

  int end = INT32_MAX;                       // the first turn without a job, once it is met
  if (int(threadIdx.x) >= kRaggedThreads) {  // the carries, job by job, whatever the others do
    const int other = int(threadIdx.x) - kRaggedThreads;
    constexpr int kLanesEach = carry_lanes(kSide, kCarryThreads);
    static_assert(kSide * kLanesEach <= kCarryThreads, "lanes for all columns of a job");
    const int c = other / kLanesEach;
    auto ends = [](const RaggedJob& j) { return j.slot == kFan - 1; };  // a block tile
    // On its way for a turn before it is needed. A block loads its tickets in order, so that none waits for ever.
    int64_t ticket = other == kPuts ? next_ticket() : 0;
    auto put = [&](int it) {
      if (other != kPuts || it >= end) return;
      put_job(it + kAhead + 1, ticket);
      ticket = next_ticket();
    };
    // In turn it, settles what comes after the block tile that the job before ends, closes the one that job `it` ends,
    // and finds what precedes job it - behind + 1.
    for (int it = 0;; ++it) {
      barrier_wait(&published[uint32_t(it) % kColumnCarries], parity_of(it));
      if (it < end && !job_of(it).width) end = it;
      const int due = it - (behind - 1), earlier = it - 1;
      if (due >= end) return;
      if (kPuts) put(it);
      // First, as the block tile to be closed waits for tickets after that one: their blocks may have earlier jobs that
      // wait for what is settled here.
      if (earlier >= 0 && earlier < end && ends(job_of(earlier))) {
        const RaggedJob& j = job_of(earlier);
        const bool active = c < j.width;
        settle_block<S, kLanesEach>(space(), j.batch, j.first + (active ? c : 0), j.tile / kFan, active,
                                    row_carry<S, Load>(call, j.row));
      }
      if (it < end && ends(job_of(it))) {
        const RaggedJob& j = job_of(it);
        const bool active = c < j.width;
        close_block<S, kLanesEach>(space(), j.batch, j.first + (active ? c : 0), j.tile / kFan, active);
      }
      if (due >= 0) {
        const RaggedJob& j = job_of(due);
        const bool active = c < j.width;
        const auto* before = static_cast<const Published<Wide>*>(j.before);
        Acc within;
        Wide carry;
        column_carry<S, kLanesEach>(static_cast<const Published<Acc>*>(j.slots) + (active ? c : 0), recomputed(width),
                                    active ? j.slot : 0, active && before ? before + c : nullptr,
                                    row_carry<S, Load>(call, j.row), within, carry);
        if (active && other % kLanesEach == 0) {
          carries[due % kColumnCarries][c] = carry;
          before_tiles[due % kColumnCarries][c] = within;
        }
      }
      barrier_arrive(&carried[it % kColumnCarries]);
      if (!kPuts) put(it);
      // A lane that waits in the next job may hold those of its wavefront that have yet to publish in this one.
      const int done = recomputed(it);
      barrier_wait(&carried[done % kColumnCarries], parity_of(done));
    }
  }

  // ---- elements ----
  // Starts to copy the rows of a job that this warp reads: of each group, 8 granules of four rows at once, and then the
  // last granule of all rows.
  auto load = [&](int it, int stage) {
    barrier_wait(&put[uint32_t(it) % kColumnJobs], uint32_t(it) / kColumnJobs & 1);
    const RaggedJob& j = job_of(it);
    auto copy = [&](auto whole) {
      const int bytes = j.width * kSize, rows = j.left;
      // The granule that is `at` bytes behind the one where a row starts. What is `at` bytes behind that start is at p.
      auto take = [&](int row, const char* p, int at) {
        const int phase = int(address(p) % kGranule),
                  most = phase + bytes;  // bytes of the row, from its first granule on
        if (at >= most || !(whole || row < rows)) return;
        const char* const from = reinterpret_cast<const char*>(address(p) & ~uintptr_t(kGranule - 1));
        char* const to = elements + (stage + row * kRaggedPitch + at + int((address(p) ^ uint32_t(at)) & kGranule));
        if (whole || j.inside || (address(from) >= low && address(from) + kGranule <= high)) {
          copy_async<kGranule>(to, from);
        } else {  // at an end of the tensor: what there is of the row
          TR_ROLLED
          for (int b = 0; b < kGranule; b += kSize)
            if (at + b >= phase && at + b < most)
              *reinterpret_cast<E*>(to + b) = *global(reinterpret_cast<const E*>(from + b));
        }
      };
      constexpr int kAtOnce = kLanes / kRowGranules;
      const int at = lane % kRowGranules * kGranule;
      int row = warp * kGroup + lane / kRowGranules;
      const char* p = in + (j.in + row * in_step + at);
#pragma unroll
      for (int run = 0; run < kRuns; ++run, row += kRun, p += kRun * in_step) {
#pragma unroll
        for (int i = 0; i < kGroup; i += kAtOnce) take(row + i, p + i * in_step, at);
      }
      if (lane < kRuns * kGroup) {
        row = lane / kGroup * kRun + warp * kGroup + lane % kGroup;
        take(row, in + (j.in + row * in_step + kRaggedBytes), kRaggedBytes);
      }
    };
    if (j.inside && j.left >= kTile) copy(std::true_type());
    else copy(std::false_type());
    end_copies();
  };
  // Where this lane has its words of the rows of its first group in shared memory, and what of the word there is not
  // its first column's, in bits. The other groups are whole sectors of memory further on.
  struct Places {
    int row[kGroup];
    uint32_t bits[kWays];
  };
  auto places_of = [&](const RaggedJob& j, int stage) {
    Places places;
    const int own = recomputed(stage + warp * (kGroup * kRaggedPitch) + lane * 4);
    const auto step = uint32_t(in_step);
    uint32_t at = uint32_t(address(in)) + uint32_t(j.in) + uint32_t(warp * kGroup) * step;
#pragma unroll
    for (int i = 0; i < kGroup; ++i, at += step) {
      places.row[i] = own + i * kRaggedPitch + int(at & (kSector - 4));
      if (i < kWays) places.bits[i] = at << 3 & 16;
    }
    return places;
  };
  auto read = [&](const Places& places, int run, uint32_t (&words)[kGroup]) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const auto* const word =
          reinterpret_cast<const uint32_t*>(elements + places.row[i] + run * (kRun * kRaggedPitch));
      words[i] = word[0];
      if constexpr (kWays > 1) words[i] = funnel_right(words[i], word[1], int(places.bits[i % kWays]));
    }
  };
  // The items of column v of those words, of which `count` rows are there, or all, and their total.
  auto form = [&](auto whole, const uint32_t (&words)[kGroup], int v, int64_t first, int count,
                  typename S::Item(&items)[kGroup]) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const uint32_t word[1] = {words[i]};
      E side[kCell];
      unpack(word, side);
      items[i] = whole || i < count ? op.load(side[v], first + i) : S::absent_item();
    }
    return S::group(items);
  };
  // Stores the first `count` of 8 rows of words, or all, where there are `mine` columns from this lane's first one on.
  auto store = [&](char* to, const Packed<uint32_t, 1>(&words)[kGroup], int mine, auto whole, int count) {
    const bool last = lane == kLanes - 1 || mine <= kCell;
#pragma unroll
    for (int way = 0; way < kWays; ++way, to += out_step) {
      char* p = to;
      int64_t step = kWays * out_step;
      auto each_row = [&](auto store_row) {
#pragma unroll
        for (int i = way; i < kGroup; i += kWays, p += step = recomputed(step))
          store_row(words[i].item[0], whole || i < count);
      };
      auto store_word = [&](int at, uint32_t w) { *global(reinterpret_cast<uint32_t*>(p + at)) = w; };
      auto store_half = [&](int at, uint32_t w) { *global(reinterpret_cast<uint16_t*>(p + at)) = uint16_t(w); };
      if (kWays == 1 || address(p) % 4 == 0) {  // of all warps alike, as groups are whole words apart
        each_row([&](uint32_t word, bool wanted) {
          if (wanted && mine >= kCell) store_word(0, word);
          if (kCell > 1 && wanted && mine == 1) store_half(0, word);
        });
      } else {
        each_row([&](uint32_t word, bool wanted) {
          const uint32_t across = funnel_right(word, shuffle_word(word, (lane + 1) % kLanes), 16);
          if (wanted && !last) store_word(2, across);
          if (wanted && lane == 0) store_half(0, word);
          if (wanted && last && mine >= kCell) store_half(2, across);
        });
      }
    }
  };

  int stage = 0;  // of job `it`
  auto after = [&](int stage, int jobs) {
    stage += jobs * kStage;
    return stage < stages * kStage ? stage : stage - stages * kStage;
  };
  Totals* of_job = totals;
  for (int it = 0; it < kAhead; ++it) load(it, after(stage, it));
  for (int it = 0;; ++it) {
    const bool begun = it >= behind;
    if (it < end && !job_of(it).width) end = it;
    if (begun && it - behind >= end) return;
    const bool going = it < end;
    const RaggedJob &now = job_of(it), &before = job_of(begun ? it - behind : 0);
    auto own = [&](int run, int v) -> Acc& { return (*of_job)[run * kWarps + warp][v * kLanes + lane]; };
    // What precedes this thread's groups of that job before in its tile, where the job's own totals take its place.
    Acc last[kRuns][kCell];
#pragma unroll
    for (int run = 0; run < kRuns; ++run)
#pragma unroll
      for (int v = 0; v < kCell; ++v) last[run][v] = own(run, v);
    wait_copies<kAhead - 1>();
    warp_barrier();  // other lanes' copies
    if (going) {
      const Places places = places_of(now, stage);
      const int lead = recomputed(warp) * kGroup;
      auto form_all = [&](auto whole) {
#pragma unroll
        for (int run = 0; run < kRuns; ++run) {
          uint32_t words[kGroup];
          read(places, run, words);
#pragma unroll
          for (int v = 0; v < kCell; ++v) {
            typename S::Item items[kGroup];
            const int before = lead + run * kRun;  // positions of the tile
            own(run, v) = form(whole, words, v, now.tile * kTile + before, now.left - before, items);
          }
        }
      };
      if (now.left >= kTile) form_all(std::true_type());
      else form_all(std::false_type());
    }
    meet();

    if (going) {  // by columns, lanes along them
      Acc upto[kAcross];
#pragma unroll
      for (int k = 0; k < kAcross; ++k) upto[k] = (*of_job)[lane][k * kWarps + warp];
      sklansky<S>(upto, lane, kLanes);
      auto* const slots = static_cast<Published<Acc>*>(now.slots) + now.slot * recomputed(width);
#pragma unroll
      for (int k = 0; k < kAcross; ++k) {
        const int place = k * kWarps + warp, c = warp * kCell + (k * kWarps % kLanes * kCell + k * kWarps / kLanes);
        if (lane == kLanes - 1 && c < now.width) slots[c].publish(upto[k]);
        const Acc lower = shuffle(upto[k], lane ? lane - 1 : lane);
        (*of_job)[lane][place] = lane ? lower : S::absent();
      }
    }
    barrier_arrive(&published[uint32_t(it) % kColumnCarries]);
    if (it > 0) barrier_wait(&carried[uint32_t(it - 1) % kColumnCarries], parity_of(it - 1));

    const int next = after(stage, kAhead);  // of job it + kAhead; of job it - behind before
    if (begun) {
      const int shift = call.exclusive ? 1 : 0;
      const int mine = before.width - lane * kCell;  // columns from this lane's first one on
      const int chain = int(uint32_t(it - behind) % kColumnCarries);
      const int lead = recomputed(warp) * kGroup;
      char* to = static_cast<char*>(call.out.values) + (before.out + (lead + shift) * out_step + lane * 4);
      if (shift && lead == 0 && before.tile == 0)
#pragma unroll
        for (int v = 0; v < kCell; ++v)
          if (v < mine) global(reinterpret_cast<E*>(to - out_step))[v] = round_to<E>(start_of<S>());
      Wide carry[kCell];
      Acc tiles[kCell];
#pragma unroll
      for (int v = 0; v < kCell; ++v) {
        carry[v] = carries[chain][lane * kCell + v];
        tiles[v] = before_tiles[chain][lane * kCell + v];
      }
      auto results = [&](auto whole) {
        const Places places = places_of(before, next);
#pragma unroll
        for (int run = 0; run < kRuns; ++run, to += kRun * out_step) {
          const int left = before.left - lead - run * kRun, stored = left - shift;
          uint32_t words[kGroup];
          read(places, run, words);
          typename S::Result r[kCell][kGroup];
#pragma unroll
          for (int v = 0; v < kCell; ++v) {
            typename S::Item items[kGroup];
            form(whole, words, v, before.tile * kTile + lead + run * kRun, left, items);
            op.results(S::prefix(carry[v], S::combine(tiles[v], last[run][v])), items, r[v]);
          }
          Packed<uint32_t, 1> rounded[kGroup];
          round_columns<E, S>(r, rounded, 0);
          store(to, rounded, mine, whole, stored);
        }
      };
      if (before.left - shift >= kTile) results(std::true_type());
      else results(std::false_type());
    }
    warp_barrier();  // before what others of this warp have read is copied over
    if (going) load(it + kAhead, next);
    stage = after(stage, 1);
    of_job = of_job + 1 < totals + behind ? of_job + 1 : totals;
  }
#endif
}

}  // namespace torchreduce::gpu
