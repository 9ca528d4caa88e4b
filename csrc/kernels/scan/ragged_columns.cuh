// Scans with lanes across rows whose elements lie side by side, but start anywhere: at a multiple of an element's size
// only, and at another one from row to row (column_strips.cuh needs them to be aligned in every row).
//
// A tile of a strip of columns is a turn of kSides jobs, one after the other: a strip of at most 32 words whole, a
// wider one half of its rows at a time. All granules of 16 bytes that have elements of a job are copied to shared
// memory, where a row begins at the place in a sector that it has in memory; what they have of other columns nobody
// looks at. A lane has kSides words of a row, 32 words apart, of which each is one column or two neighbours, of rows
// that its own warp has copied; where those are no words of memory, it puts them together from two. Results go to
// memory from registers; in a row of results that begins in the middle of a word, each lane stores its second column
// with the first one of the next lane.
//
// A part of a sector costs as much to store as a whole one. So, where a lane has two words, each sector of the results
// is stored by one block, that whose strip has the sector's first column: blocks also form the results of the next
// columns after their strip, as many as a sector may reach into, and leave those in a row that are before its first
// such sector to the strip before. What precedes the next strip's columns is found as what precedes a block's own is;
// their totals only that strip publishes.
//
// Blocks take tiles in memory order by tickets. What precedes a tile is the business of warps that do nothing else and
// look at what other blocks publish: what a turn ends is closed at once, so that no total waits for what precedes
// another turn, and what precedes a turn is looked for as late as its results allow.
#pragma once
#include "column_jobs.cuh"
#include "ragged_columns.h"

namespace torchreduce::gpu {

template <class S, class Load, class Store> constexpr bool kRaggedColumns = [] {
  if constexpr (kInPlace<S, Load, Store>)
    return ragged_columns_of(sizeof(typename Load::Element), sizeof(typename S::Acc));
  else return false;
}();

// A tile of a strip.
struct RaggedJob {
  int64_t row, batch, first, tile;  // the strip's first row (column of memory), of all; the batch, and the row in it
  int64_t in, out;                  // bytes to its first position in that row
  // Published, of that row: totals from the first tile of its block tile on, and what precedes that one; null: nothing.
  void *slots, *before;
  int width;    // columns; 0: there is no job, and no other comes
  int wide;     // with those of the next strip that it has results of
  int left;     // positions from there on; more than a tile has is all the same
  int slot;     // of the tile in its block tile
  bool inside;  // all granules that have elements of it lie in the tensor
};

// What a block's threads share. kSide: columns of a turn, at most.
struct RaggedShared {
  RaggedJob job[kColumnJobs];
  int64_t width, strips, jobs;     // columns side by side; jobs across, and in all
  double strip_share, tile_share;  // 1 / strips, 1 / tiles
  uintptr_t low, high;             // the tensor's first byte, and the one behind its last
  // A turn's job is known; its totals are there; its carries are. The threads that work.
  Barrier put[kColumnJobs], published[kColumnCarries], carried[kColumnCarries], team;
};
static_assert(sizeof(RaggedShared) <= kRaggedShared, "the plan counts on no more");

__device__ __forceinline__ uintptr_t address_of(const void* p) { return reinterpret_cast<uintptr_t>(p); }

// A block of strips of kSides words a lane: ragged_sides(the words of a strip's row).
template <class S, class Load, class Store, int kSides> struct RaggedBlock {
  using Acc = typename S::Acc;
  using Wide = typename S::Wide;
  using E = typename Load::Element;
  static constexpr int kSize = sizeof(E), kCell = 4 / kSize;                        // columns of a word
  static constexpr int kGroups = kFan / kSides, kRows = kTile / kSides;             // of a job
  static constexpr int kWarps = kRaggedThreads / kLanes, kRuns = kGroups / kWarps;  // groups of a thread
  static constexpr int kWords = kLanes * kSides, kSide = kWords * kCell;            // words and columns of a row
  static constexpr int kAcross = kWarps * kSides;  // columns whose totals are taken at once
  static constexpr int kCarryThreads = kRaggedCarryThreads, kPuts = ragged_put_lane(kSize);
  static constexpr int kAhead = 2;  // jobs whose elements are on their way
  static constexpr int kTickets =
      kAhead / (kPuts ? kSides : 1) + 1;  // turns known beforehand; more if put behind carries
  static constexpr int kBehind = kRaggedBehind, kStages = kAhead + kBehind;
  static constexpr int kLag = kBehind / kSides - 1;  // turns from a tile's totals until what precedes it is looked for
  static constexpr int kSector = 32;                 // bytes
  static constexpr int kRowBytes = kWords * 4, kRowGranules = kRowBytes / kGranule;   // that a whole row has at least
  static constexpr int kRowPitch = ragged_pitch(kSides), kStage = kRows * kRowPitch;  // bytes; of a job
  static constexpr int kRun = kWarps * kGroup;                                        // rows between a thread's
  static constexpr bool kWhole = kSides > 1;                                          // sectors are stored whole
  static constexpr int kWays = kCell;      // rows so many apart start at the same place in a word
  using Totals = Acc[kGroups][kSide + 1];  // column c of word w is number c * kWords + w
  static_assert(kSides == 1 || kCell == 1, "whole sectors have whole words");
  static_assert(kRowPitch >= kRowBytes + kSector, "wherever in a sector a row begins");

  const ScanCall& call;
  const RaggedColumnsShape& shape;
  RaggedShared& shared;
  void* const workspace;
  const S op;
  const int64_t in_step, out_step;  // bytes from row to row
  const int lane, warp;
  char* const elements;  // [stage]
  // Of each column of a turn, for kColumnCarries turns: what precedes the tile's block tile; and the tile in it.
  Wide (*const carries)[kSide];
  Acc (*const before_tiles)[kSide];
  Acc* const below;      // total of a tile's first half
  Totals* const totals;  // [job modulo kBehind]
  int end = INT32_MAX;   // the first turn without a job, once it is met
  int meetings = 0;

  __device__ __forceinline__ RaggedBlock(const ScanCall& call, const RaggedColumnsShape& shape, RaggedShared& shared,
                                         void* workspace, char* dynamic)
      : call(call),
        shape(shape),
        shared(shared),
        workspace(workspace),
        op{call.options},
        in_step(call.layout.in[call.layout.kept] * kSize),
        out_step(call.layout.out[call.layout.kept] * kSize),
        lane(lane_id()),
        warp(int(threadIdx.x) / kLanes),
        elements(dynamic),
        carries(reinterpret_cast<Wide (*)[kSide]>(elements + kStages * kStage)),
        before_tiles(reinterpret_cast<Acc (*)[kSide]>(carries + kColumnCarries)),
        below(reinterpret_cast<Acc*>(before_tiles + kColumnCarries)),
        totals(reinterpret_cast<Totals*>(below + (kSides - 1) * kSide)) {}

  __device__ __forceinline__ static int turn_of(int it) { return int(uint32_t(it) / kSides); }
  __device__ __forceinline__ static int part_of(int it) { return int(uint32_t(it) % kSides); }
  __device__ __forceinline__ const RaggedJob& job_of(int turn) const {
    return shared.job[uint32_t(turn) % kColumnJobs];
  }
  __device__ __forceinline__ static uint32_t parity_of(int turn) {
    return uint32_t(recomputed(turn)) / kColumnCarries & 1;
  }
  __device__ __forceinline__ const char* in() const { return static_cast<const char*>(call.in.data); }

  // ---- jobs ----

  __device__ __forceinline__ ColumnSpace<S> space() const {
    return ColumnSpace<S>(workspace, call.layout.rows, recomputed(shared.width), recomputed(shape.tiles));
  }
  __device__ __forceinline__ int64_t next_ticket() const {
    return int64_t(take_ticket(static_cast<uint64_t*>(workspace)));
  }
  // By one thread, before all others begin.
  __device__ __forceinline__ void set_up() {
    const Layout& layout = call.layout;
    const int64_t width = shared.width = layout.size[layout.kept - 1];
    shared.strips = (width + shape.words * kCell - 1) / (shape.words * kCell);
    shared.jobs = layout.rows / width * shared.strips * shape.tiles;
    shared.strip_share = 1 / double(shared.strips);
    shared.tile_share = 1 / double(shape.tiles);
    int64_t down = 0, up = kSize;
    TR_ROLLED
    for (int d = 0; d <= layout.kept; ++d) {
      const int64_t reach = ((d < layout.kept ? layout.size[d] : layout.length) - 1) * layout.in[d] * kSize;
      (reach < 0 ? down : up) += reach;
    }
    shared.low = address_of(in()) + uintptr_t(down);
    shared.high = address_of(in()) + uintptr_t(up);
    for (int i = 0; i < kColumnJobs; ++i) barrier_init(&shared.put[i], 1);
    for (int i = 0; i < kColumnCarries; ++i) {
      barrier_init(&shared.published[i], kRaggedThreads);
      barrier_init(&shared.carried[i], int(blockDim.x) - kRaggedThreads);
    }
    barrier_init(&shared.team, kRaggedThreads);
    barriers_made();
  }
  // By tickets, so that whatever a tile waits for is on its way.
  __device__ __forceinline__ void put_job(int turn, int64_t ticket) {
    const Layout& layout = call.layout;
    RaggedJob j{};
    if (ticket < shared.jobs) {
      const int X = shape.words * kCell;
      const int64_t tiles = shape.tiles, width = shared.width;
      const int64_t rest = shared.strips == 1 ? ticket : quotient(ticket, shared.strips, shared.strip_share);
      j.first = (ticket - rest * shared.strips) * X;
      j.batch = layout.rows == width ? 0 : quotient(rest, tiles, shared.tile_share);
      j.tile = rest - j.batch * tiles;
      j.row = j.batch * width + j.first;
      j.slot = int(j.tile % kFan);
      const int64_t block = j.tile / kFan, position = j.tile * kTile, left = layout.length - position;
      j.slots = space().tile(j.batch, j.tile - j.slot, j.first);
      j.before = block ? space().carry(j.batch, block - 1, j.first) : nullptr;
      const int64_t columns = width - j.first;
      constexpr int kNext = kWhole ? kSector / kSize - 1 : 0;
      j.width = int(columns < X ? columns : X);
      j.wide = int(columns < X + kNext ? columns : X + kNext);
      j.left = int(left < kTile + 1 ? left : kTile + 1);
      const RowStart start = row_start(layout, j.batch, layout.kept - 1);
      j.in = (start.in + j.first) * kSize + position * in_step;
      j.out = (start.out + j.first) * kSize + position * out_step;
      const int64_t down = ((j.left < kTile ? j.left : kTile) - 1) * in_step;
      const uintptr_t from = address_of(in() + j.in) + uintptr_t(down < 0 ? down : 0),
                      to = address_of(in() + j.in) + uintptr_t(down > 0 ? down : 0);
      j.inside = from / kGranule * kGranule >= shared.low &&
                 (to + j.wide * kSize + kGranule - 1) / kGranule * kGranule <= shared.high;
    }
    shared.job[turn % kColumnJobs] = j;
    barrier_arrive(&shared.put[turn % kColumnJobs]);
  }

  // ---- carries: turn by turn, whatever the others do ----

  // Settles what comes after the block tile that a turn ends, or closes it.
  template <int kLanesEach> __device__ __forceinline__ void settle(const RaggedJob& j, int c) const {
    const bool active = c < j.width;
    settle_block<S, kLanesEach>(space(), j.batch, j.first + (active ? c : 0), j.tile / kFan, active,
                                row_carry<S, Load>(call, j.row));
  }
  template <int kLanesEach> __device__ __forceinline__ void close(const RaggedJob& j, int c) const {
    const bool active = c < j.width;
    close_block<S, kLanesEach>(space(), j.batch, j.first + (active ? c : 0), j.tile / kFan, active);
  }
  // Finds what precedes turn `due`.
  template <int kLanesEach> __device__ __forceinline__ void look_back(int due, int c, bool writes) const {
    const RaggedJob& j = job_of(due);
    const bool active = c < j.wide;
    const auto* before = static_cast<const Published<Wide>*>(j.before);
    Acc within;
    Wide carry;
    column_carry<S, kLanesEach>(static_cast<const Published<Acc>*>(j.slots) + (active ? c : 0),
                                recomputed(shared.width), active ? j.slot : 0, active && before ? before + c : nullptr,
                                row_carry<S, Load>(call, j.row), within, carry);
    if (active && writes) {
      carries[due % kColumnCarries][c] = carry;
      before_tiles[due % kColumnCarries][c] = within;
    }
  }
  __device__ __forceinline__ void carry() {
    const int other = int(threadIdx.x) - kRaggedThreads;
    constexpr int kLanesEach = carry_lanes(kSide, kCarryThreads);
    static_assert(kSide * kLanesEach <= kCarryThreads, "lanes for all columns of a job");
    const int c = other / kLanesEach;
    auto ends = [](const RaggedJob& j) { return j.slot == kFan - 1; };  // a block tile
    // On its way for a turn before it is needed. A block loads its tickets in order, so that none waits for ever.
    int64_t ticket = other == kPuts ? next_ticket() : 0;
    // Each turn settles what comes after the block tile that the one before ends, closes the one that it ends itself,
    // and finds what precedes that kLag turns ago.
    auto put = [&](int turn) {
      if (other != kPuts || turn >= end) return;
      put_job(turn + kTickets, ticket);
      ticket = next_ticket();
    };
    for (int turn = 0;; ++turn) {
      barrier_wait(&shared.published[uint32_t(turn) % kColumnCarries], parity_of(turn));
      if (turn < end && !job_of(turn).width) end = turn;
      const int due = turn - kLag, earlier = turn - 1;
      if (kPuts) put(turn);
      // First, as the block tile to be closed waits for tickets after that one: their blocks may have earlier jobs that
      // wait for what is settled here.
      if (earlier >= 0 && earlier < end && ends(job_of(earlier))) settle<kLanesEach>(job_of(earlier), c);
      if (due >= end) return;
      if (turn < end && ends(job_of(turn))) close<kLanesEach>(job_of(turn), c);
      if (due >= 0) look_back<kLanesEach>(due, c, other % kLanesEach == 0);
      barrier_arrive(&shared.carried[turn % kColumnCarries]);
      if (!kPuts) put(turn);
      // A lane that waits in the next turn may hold those of its wavefront that have yet to publish in this one.
      const int done = recomputed(turn);
      barrier_wait(&shared.carried[done % kColumnCarries], parity_of(done));
    }
  }

  // ---- elements ----

  // Starts to copy the rows of a job that this warp reads: of each group, 32 granules of a few rows at once, and then
  // the last granule of all rows.
  __device__ __forceinline__ void load(int it, int stage) const {
    const int turn = turn_of(it), skipped = part_of(it) * kRows;
    barrier_wait(&shared.put[uint32_t(turn) % kColumnJobs], uint32_t(turn) / kColumnJobs & 1);
    const RaggedJob& j = job_of(turn);
    const char* const start = in() + (j.in + skipped * in_step);
    const int rows = j.left - skipped;
    auto copy = [&](auto whole) {
      const int bytes = j.wide * kSize;
      // The granule that is `at` bytes behind the one where a row starts. What is `at` bytes behind that start is at p.
      auto take = [&](int row, const char* p, int at) {
        const int phase = int(address_of(p) % kGranule),
                  most = phase + bytes;  // bytes of the row, from its first granule on
        if (at >= most || !(whole || row < rows)) return;
        const char* const from = reinterpret_cast<const char*>(address_of(p) & ~uintptr_t(kGranule - 1));
        char* const to = elements + (stage + row * kRowPitch + at + int((address_of(p) ^ uint32_t(at)) & kGranule));
        if (whole || j.inside || (address_of(from) >= shared.low && address_of(from) + kGranule <= shared.high)) {
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
      const char* p = start + (row * in_step + at);
#pragma unroll
      for (int run = 0; run < kRuns; ++run, row += kRun, p += kRun * in_step) {
#pragma unroll
        for (int i = 0; i < kGroup; i += kAtOnce) take(row + i, p + i * in_step, at);
      }
      if (lane < kRuns * kGroup) {
        row = lane / kGroup * kRun + warp * kGroup + lane % kGroup;
        take(row, start + (row * in_step + kRowBytes), kRowBytes);
      }
    };
    if (j.inside && rows >= kRows) copy(std::true_type());
    else copy(std::false_type());
    end_copies();
  }
  // Where this lane has its first words of the rows of its first group in shared memory, and what of the word there is
  // not its first column's, in bits. Other groups and parts are whole sectors of memory further on.
  struct Places {
    int row[kGroup];
    uint32_t bits[kWays];
  };
  __device__ __forceinline__ Places places_of(const RaggedJob& j, int stage) const {
    Places places;
    const int own = recomputed(stage + warp * (kGroup * kRowPitch) + lane * 4);
    const auto step = uint32_t(in_step);
    uint32_t at = uint32_t(address_of(in())) + uint32_t(j.in) + uint32_t(warp * kGroup) * step;
#pragma unroll
    for (int i = 0; i < kGroup; ++i, at += step) {
      places.row[i] = own + i * kRowPitch + int(at & (kSector - 4));
      if (i < kWays) places.bits[i] = at << 3 & 16;
    }
    return places;
  }
  __device__ __forceinline__ void read(const Places& places, int run, int side, uint32_t (&words)[kGroup]) const {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int at = places.row[i] + run * (kRun * kRowPitch) + side * (kLanes * 4);
      const auto* const word = reinterpret_cast<const uint32_t*>(elements + at);
      words[i] = word[0];
      if constexpr (kWays > 1) words[i] = funnel_right(words[i], word[1], int(places.bits[i % kWays]));
    }
  }
  // The items of column v of those words, of which `count` rows are there, or all, and their total.
  template <class Rows>
  __device__ __forceinline__ Acc form(Rows whole, const uint32_t (&words)[kGroup], int v, int64_t first, int count,
                                      typename S::Item (&items)[kGroup]) const {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const uint32_t word[1] = {words[i]};
      E side[kCell];
      unpack(word, side);
      items[i] = whole || i < count ? op.load(side[v], first + i) : S::absent_item();
    }
    return S::group(items);
  }
  // Stores what job j has to store of the first `count` of 8 rows, or of all, where row: its first column's place in
  // the first of them.
  template <class Rows>
  __device__ __forceinline__ void store(const RaggedJob& j, char* row,
                                        const Packed<uint32_t, 1> (&words)[kSides][kGroup], Rows whole,
                                        int count) const {
    const bool first = !kWhole || j.first == 0;     // which also stores what is before a row's first whole sector
    const int own = (j.width + kCell - 1) / kCell;  // words of the sectors that begin in it, where the row goes on
    auto store_word = [&](char* p, uint32_t w) { *global(reinterpret_cast<uint32_t*>(p)) = w; };
    auto store_half = [&](char* p, uint32_t w) { *global(reinterpret_cast<uint16_t*>(p)) = uint16_t(w); };
    // Rows that begin in the middle of a word, or do not.
    auto each_row = [&](int way, char* p, auto odd) {
      constexpr int kOdd = odd();
      constexpr int kFar = (kSides - 1) * kLanes * 4;  // bytes between a lane's words
      const int total = (j.wide - kOdd) / kCell;       // words of memory
      const int head = first ? total : 0;
      const bool half = (j.wide - kOdd) % kCell != 0;  // and half a one, the strip's last
      p += lane * 4 + kOdd * 2;
      int64_t step = kWays * out_step;
#pragma unroll
      for (int i = way; i < kGroup; i += kWays, p += step = recomputed(step)) {
        uint32_t word[kSides];
#pragma unroll
        for (int side = 0; side < kSides; ++side) {
          word[side] = words[side][i].item[0];
          if constexpr (kOdd) word[side] = funnel_right(word[side], shuffle_word(word[side], (lane + 1) % kLanes), 16);
        }
        if (!(whole || i < count)) continue;
        // Words before the first sector that begins in the strip. Those from there on are stored 32 at a time, so that
        // no sector is stored in two steps: of the first ones, a lane before has its last word.
        const int lead = kSides == 1 ? 0 : int((uint32_t(lane) - uint32_t(address_of(p)) / 4) % (kSector / 4));
        const int mine = own < total - lead ? own : total - lead, at = lane - lead;
        const bool wraps = at < 0;
        if ((at & (kLanes - 1)) < mine) store_word(p + (wraps ? kFar : 0), wraps ? word[kSides - 1] : word[0]);
        if (kSides > 1 && !wraps && at + kLanes < mine) store_word(p + kFar, word[kSides - 1]);
        if (kSides > 1 && wraps && lane < head) store_word(p, word[0]);
        if (kOdd && first && lane == 0) store_half(p - 2, words[0][i].item[0]);
        if (half && lane == total) store_half(p, word[0]);
      }
    };
#pragma unroll
    for (int way = 0; way < kWays; ++way, row += out_step) {
      if (kWays == 1 || address_of(row) % 4 == 0) each_row(way, row, std::integral_constant<int, 0>());
      else each_row(way, row, std::integral_constant<int, kWays - 1>());
    }
  }

  // The total of this thread's group `run` in column v of word `side`, in a job's totals; then what precedes it there.
  __device__ __forceinline__ Acc& own(Totals& of_job, int run, int side, int v) const {
    return of_job[run * kWarps + warp][v * kWords + side * kLanes + lane];
  }
  // Forms the totals of this thread's groups of part `part` of job j.
  __device__ __forceinline__ void sum(const RaggedJob& j, int part, int stage, Totals& of_job) const {
    const Places places = places_of(j, stage);
    const int lead = recomputed(warp) * kGroup + part * kRows;
    auto sum_all = [&](auto whole) {
#pragma unroll
      for (int run = 0; run < kRuns; ++run)
#pragma unroll
        for (int side = 0; side < kSides; ++side) {
          uint32_t words[kGroup];
          read(places, run, side, words);
#pragma unroll
          for (int v = 0; v < kCell; ++v) {
            typename S::Item items[kGroup];
            const int before = lead + run * kRun;  // positions of the tile
            own(of_job, run, side, v) = form(whole, words, v, j.tile * kTile + before, j.left - before, items);
          }
        }
    };
    if (j.left - part * kRows >= kRows) sum_all(std::true_type());
    else sum_all(std::false_type());
  }
  // By columns, of each warp kSides side by side, lanes along them: what precedes each group in its tile. Publishes the
  // tile's totals.
  __device__ __forceinline__ void scan(const RaggedJob& j, int part, Totals& of_job) const {
    constexpr int kEach = kSide / kAcross;
    const int group = lane % kGroups, across = lane / kGroups * kWarps + warp;
    Acc upto[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) upto[k] = of_job[group][k * kAcross + across];
    sklansky<S>(upto, lane, kGroups);
    auto* const slots = static_cast<Published<Acc>*>(j.slots) + j.slot * recomputed(shared.width);
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int place = k * kAcross + across,
                c = across * kCell + (k * kAcross % kWords * kCell + k * kAcross / kWords);
      Acc before = S::absent();  // this part
      if (part > 0) {            // the order's last level
        before = below[place];
        upto[k] = S::combine(before, upto[k]);
      }
      if (group == kGroups - 1) {
        if (part < kSides - 1) below[place] = upto[k];
        else if (c < j.width) slots[c].publish(upto[k]);
      }
      const Acc lower = shuffle(upto[k], lane ? lane - 1 : lane);
      of_job[group][place] = group ? lower : before;
    }
  }
  // Forms and stores this thread's results of part `part` of turn `due`, whose elements are in `stage`; last: what
  // precedes its groups in the tile.
  __device__ __forceinline__ void store_job(int due, int part, int stage,
                                            const Acc (&last)[kRuns][kSides][kCell]) const {
    const RaggedJob& j = job_of(due);
    const int shift = call.exclusive ? 1 : 0, chain = int(uint32_t(due) % kColumnCarries);
    const int lead = recomputed(warp) * kGroup + part * kRows;
    char* to = static_cast<char*>(call.out.values) + (j.out + (lead + shift) * out_step);
    if (shift && lead == 0 && j.tile == 0)
#pragma unroll
      for (int side = 0; side < kSides; ++side)
#pragma unroll
        for (int v = 0; v < kCell; ++v) {
          const int c = (side * kLanes + lane) * kCell + v;
          if (c < j.width) global(reinterpret_cast<E*>(to - out_step))[c] = round_to<E>(start_of<S>());
        }
    auto results = [&](auto whole) {
      const Places places = places_of(j, stage);
#pragma unroll
      for (int run = 0; run < kRuns; ++run, to += kRun * out_step) {
        const int left = j.left - lead - run * kRun, stored = left - shift;
        Packed<uint32_t, 1> rounded[kSides][kGroup];
#pragma unroll
        for (int side = 0; side < kSides; ++side) {
          uint32_t words[kGroup];
          read(places, run, side, words);
          typename S::Result r[kCell][kGroup];
#pragma unroll
          for (int v = 0; v < kCell; ++v) {
            const int c = (side * kLanes + lane) * kCell + v;
            typename S::Item items[kGroup];
            form(whole, words, v, j.tile * kTile + lead + run * kRun, left, items);
            op.results(S::prefix(carries[chain][c], S::combine(before_tiles[chain][c], last[run][side][v])), items,
                       r[v]);
          }
          round_columns<E, S>(r, rounded[side], 0);
        }
        store(j, to, rounded, whole, stored);
      }
    };
    if (j.left - shift - part * kRows >= kRows) results(std::true_type());
    else results(std::false_type());
  }
  // All jobs: each is summed as soon as its elements are there, and its results follow kBehind jobs later.
  __device__ __forceinline__ void work() {
    auto after = [](int stage, int jobs) {
      stage += jobs * kStage;
      return stage < kStages * kStage ? stage : stage - kStages * kStage;
    };
    int stage = 0;  // of job `it`
    Totals* of_job = totals;
    for (int it = 0; it < kAhead; ++it) load(it, after(stage, it));
    for (int it = 0;; ++it) {
      const bool begun = it >= kBehind;
      const int turn = turn_of(it), part = part_of(it), due = begun ? turn_of(it - kBehind) : 0;
      if (turn < end && !job_of(turn).width) end = turn;
      if (begun && due >= end) return;
      const bool going = turn < end;
      // What precedes this thread's groups of that job before in its tile, where the job's own totals take its place.
      Acc last[kRuns][kSides][kCell];
#pragma unroll
      for (int run = 0; run < kRuns; ++run)
#pragma unroll
        for (int side = 0; side < kSides; ++side)
#pragma unroll
          for (int v = 0; v < kCell; ++v) last[run][side][v] = own(*of_job, run, side, v);
      wait_copies<kAhead - 1>();
      warp_barrier();  // other lanes' copies
      if (going) sum(job_of(turn), part, stage, *of_job);
      team_barrier(&shared.team, kRaggedThreads, meetings++);  // the threads that work
      if (going) scan(job_of(turn), part, *of_job);
      if (part == kSides - 1) barrier_arrive(&shared.published[uint32_t(turn) % kColumnCarries]);
      // Of all turns, be it before there are results.
      if (const int from = it - kBehind + kLag * kSides; from >= 0)
        barrier_wait(&shared.carried[uint32_t(turn_of(from)) % kColumnCarries], parity_of(turn_of(from)));
      const int next = after(stage, kAhead);  // of job it + kAhead; of job it - kBehind before
      if (begun) store_job(due, part_of(it - kBehind), next, last);
      warp_barrier();  // before what others of this warp have read is copied over
      if (going) load(it + kAhead, next);
      stage = after(stage, 1);
      of_job = of_job + 1 < totals + kBehind ? of_job + 1 : totals;
    }
  }
};

template <class S, class Load, class Store, int kSides>
__global__ void TR_BLOCKS_BOUND(ragged_block(sizeof(typename Load::Element)), 1)
    scan_ragged_columns(TR_GRID_CONSTANT ScanCall call, TR_GRID_CONSTANT RaggedColumnsShape shape, void* workspace) {
#if defined(TR_LARGE_BLOCKS) || defined(TR_EMULATED)  // no plan has it where blocks are not large
  using Block = RaggedBlock<S, Load, Store, kSides>;
  TR_DYNAMIC_SHARED(dynamic, 128);
  __shared__ RaggedShared shared;
  Block block(call, shape, shared, workspace, dynamic);
  if (threadIdx.x == 0) block.set_up();
  __syncthreads();
  if (threadIdx.x == 0)
#pragma unroll 1
    for (int turn = 0; turn < Block::kTickets; ++turn) block.put_job(turn, block.next_ticket());
  __syncthreads();
  if (int(threadIdx.x) >= kRaggedThreads) block.carry();
  else block.work();
#endif
}

}  // namespace torchreduce::gpu
