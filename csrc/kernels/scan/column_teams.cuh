// Scans of two inputs along columns that are many: a block has a strip of neighbouring columns, or pairs of them, and
// walks down it half a tile at a time. kTeam lanes share a column: each has two groups, of which it forms the totals
// while those of the next half tile are on their way to shared memory; what precedes the half tile comes from threads
// that do nothing else. One barrier a half tile, and nothing is handed from block to block.
#pragma once
#include "column_teams.h"
#include "column_walk.cuh"

namespace torchreduce::gpu {

// Whether the kernel is compiled for these. No plan has it where blocks have no more shared memory than everywhere.
#ifdef TR_BULK_COPIES
template <class S, class Load, class Store> constexpr bool kTeamWalks = [] {
  if constexpr (kLaneWalks<S, Load, Store> && S::kInputs == 2) return sizeof(typename Store::Element) <= 4;
  else return false;
}();
#else
template <class S, class Load, class Store> constexpr bool kTeamWalks = false;
#endif

// What the threads of a block tell each other of a half tile; that of the next has a place of its own.
template <class S> struct TeamNotes {
  typename S::Wide carry[2][kTeamColumns];        // before its block tile
  typename S::Acc tiles[2][kTeamColumns];         // before its tile in its block tile
  typename S::Acc half[2][kTeamColumns];          // of the first half of its tile, if it is the second
  typename S::Acc total[2][kTeam][kTeamColumns];  // of the lanes that share a column
  ScanCarry<S> whole[kTeamColumns];               // tiles so far: not in registers, which all threads would lack
};

// Joins of values without choices, and whether all of them allow it, as far as they are given: a left one that is not
// finite might be dropped where combine does not.
template <class S> struct FastJoins {
  using Acc = typename S::Acc;
  bool fast = true, reset = false;

  __device__ __forceinline__ Acc of(const Acc& value) {
    fast &= S::allows_fast(value);
    reset |= S::is_reset(value);
    return value;
  }
  __device__ __forceinline__ Acc join(const Acc& left, const Acc& right) {
    fast &= S::is_settled(left, true);
    return S::fast_join(left, right);
  }
};
template <class S> struct CarefulJoins {
  using Acc = typename S::Acc;
  __device__ __forceinline__ static Acc of(const Acc& value) { return value; }
  __device__ __forceinline__ static Acc join(const Acc& left, const Acc& right) { return S::combine(left, right); }
};

// The pairwise tree over N values.
template <class S, int N> __device__ __forceinline__ typename S::Acc joined(const typename S::Acc (&values)[N]) {
  auto tree = [&](auto& joins) {
    typename S::Acc run[N];
#pragma unroll
    for (int i = 0; i < N; ++i) run[i] = joins.of(values[i]);
#pragma unroll
    for (int d = 1; d < N; d *= 2)
#pragma unroll
      for (int i = 0; i < N; i += 2 * d) run[i] = joins.join(run[i], run[i + d]);
    return run[0];
  };
  FastJoins<S> joins;
  const typename S::Acc total = tree(joins);
  if (joins.fast & S::is_settled(total, joins.reset)) return total;
  TR_RARE_PATH;
  CarefulJoins<S> careful;
  return tree(careful);
}

template <class Store> constexpr int kTeamThreads = team_threads(sizeof(typename Store::Element));
template <class Store> constexpr int kTeamBlocks = team_blocks(sizeof(typename Store::Element));

// What precedes each half tile of a column, step by step: by a thread that does nothing else. meet(step): all threads.
template <class S, class Load, class Meet>
__device__ __forceinline__ void carry_team_column(const ScanCall& call, TeamNotes<S>& notes, int chain, int steps,
                                                  Meet meet) {
  using Acc = typename S::Acc;
  const int64_t row = int64_t(blockIdx.x) * kTeamColumns + chain;
  ScanCarry<S>& carry = notes.whole[chain];
  carry = ScanCarry<S>(row < call.layout.rows ? row_carry<S, Load>(call, row) : S::wide_absent());
  Acc half = S::absent();
  TR_ROLLED
  for (int step = 0; step < steps; ++step) {
    const int now = step % 2;
    if (step > 0) {
      Acc parts[kTeam];
#pragma unroll
      for (int p = 0; p < kTeam; ++p) parts[p] = notes.total[1 - now][p][chain];
      const Acc total = joined<S>(parts);
      if (now == 1) half = total;
      else carry.push(S::combine(half, total));
    }
    notes.half[now][chain] = half;
    notes.tiles[now][chain] = carry.within();
    notes.carry[now][chain] = carry.carry();
    meet(step);
  }
}

// A lane of a team: the columns of a word, of which it has kGroups groups of each half tile.
template <class S, class Load, class Store> struct TeamLane {
  using E = typename Store::Element;
  using Acc = typename S::Acc;
  static constexpr int kSize = sizeof(E), V = word_columns(kSize), N = S::kInputs;
  static_assert(V * kSize == 4 && N == 2, "a word a lane");
  static constexpr int kAcross = kTeamColumns / V, kWork = kTeam * kAcross;
  static constexpr int kGroups = kTeamRows / kTeam / kGroup, kRows = kGroups * kGroup;
  static_assert(kGroups == 2 && kTeam == 8, "three levels of the tree, and one");
  // Of a group. (Spelled out as a parameter of a lambda that has auto ones, too, the arrays crash nvcc 13.0.)
  using Words = uint32_t[kGroup][N];
  using Items = typename S::Item[kGroup];

  const ScanCall& call;
  const S op;
  const int lane, part;
  uint32_t* const own;  // its places in shared memory
  const char* from[N];  // where its group to be copied next begins
  char* to;
  int64_t rest;  // positions from its next ones on

  __device__ __forceinline__ TeamLane(const ScanCall& call, uint32_t* words)
      : call(call),
        op{call.options},
        lane(int(threadIdx.x) % kAcross),
        part(int(threadIdx.x) / kAcross),
        own(words + threadIdx.x) {
    const Layout& layout = call.layout;
    const int64_t row = (int64_t(blockIdx.x) * kAcross + lane) * V;
    const bool active = row < layout.rows;
    const int64_t first_row = active ? row : 0;
    const RowStart start = row_start(layout, first_row);
    from[0] = static_cast<const char*>(call.in.data) + start.in * kSize + part * kRows * step_of(layout.in);
    from[1] = static_cast<const char*>(call.in.more[0]) + row_offset(layout, call.more_strides[0], first_row) * kSize +
              part * kRows * step_of(call.more_strides[0]);
    to = static_cast<char*>(call.out.values) + start.out * kSize + part * kRows * step_of(layout.out);
    rest = active ? layout.length - part * kRows : 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) load(g, part + g, rest - g * kGroup);
  }
  // Bytes from position to position, read again wherever they are needed, for want of registers.
  __device__ __forceinline__ int64_t step_of(const int64_t (&strides)[kMaxDims]) const {
    return strides[recomputed(call.layout.kept)] * kSize;
  }
  // Starts to copy group g that begins at position `first`, as far as that is 0 or not, and of which `left` positions
  // are there, or more.
  __device__ __forceinline__ void load(int g, int first, int64_t left) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      int64_t step = step_of(k == 1 ? call.more_strides[0] : call.layout.in);
      uint32_t* const place = own + (g * N + k) * kGroup * kWork;
      const bool has_first = k == 0 || Load::has_a(call, first);
      if (left >= kGroup && has_first) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
          copy_async<4>(place + i * kWork, from[k]);
          from[k] += step = recomputed(step);
        }
      } else {
        TR_ROLLED
        for (int i = 0; i < kGroup; ++i) {
          if (i < left && (i > 0 || has_first)) copy_async<4>(place + i * kWork, from[k]);
          from[k] += step;
        }
      }
      if (g == kGroups - 1) from[k] += (kTeamRows - kRows) * step;
    }
    end_copies();
  }
  // The words of the next half tile, of which those of the one after it take the place. Returns how many positions of
  // them are there; others are absent elements.
  __device__ __forceinline__ int take(Words (&w)[kGroups]) {
    const int left = rest < 0 ? 0 : rest > kRows ? kRows : int(rest);
    rest -= kTeamRows;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      wait_copies<kGroups - 1>();
#pragma unroll
      for (int k = 0; k < N; ++k)
#pragma unroll
        for (int i = 0; i < kGroup; ++i) w[g][i][k] = own[((g * N + k) * kGroup + i) * kWork];
      load(g, 1, rest - g * kGroup);
    }
    if (left < kRows) {
      TR_RARE_PATH;
      const typename S::Item absent = S::absent_item();
      const E sides[N] = {round_to<E>(absent.b), round_to<E>(absent.a)};
#pragma unroll
      for (int k = 0; k < N; ++k) {
        E side[V];
#pragma unroll
        for (int v = 0; v < V; ++v) side[v] = sides[k];
        uint32_t word;
        memcpy(&word, side, sizeof word);
#pragma unroll
        for (int g = 0; g < kGroups; ++g)
#pragma unroll
          for (int i = 0; i < kGroup; ++i)
            if (g * kGroup + i >= left) w[g][i][k] = word;
      }
    }
    return left;
  }
  // The items of such a group in column v; first: 0 at position 0, and nowhere else.
  __device__ __forceinline__ void form(const Words& w, int v, int first, Items& items) const {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      E side[N][V];
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const uint32_t word[1] = {recomputed(w[i][k])};  // no item is kept, for want of registers
        unpack(word, side[k]);
      }
      items[i] = op.load(Pair<E>{side[1][v], side[0][v]}, i > 0 ? i : first);
    }
  }
  // To `run` of each of some groups of column `chain`, of which the first has anything in the lane where `has`, and the
  // others do: before it the runs of 2^k lanes before this one, the first half of the tile, and the tiles before.
  template <class Joins, int K>
  __device__ __forceinline__ void precede(const TeamNotes<S>& notes, int now, int chain, Joins& joins, Acc (&run)[K],
                                          bool has) const {
    auto put = [&](const Acc& left) {
      run[0] = has ? joins.join(left, run[0]) : left;
      if constexpr (K > 1) run[1] = joins.join(left, run[1]);
      has = true;
    };
    auto at = [&](int lane) { return joins.of(notes.total[now][lane][chain]); };
    if (part & 1) put(at(part - 1));
    if (part & 2) put(joins.join(at(part & 4), at((part & 4) + 1)));
    if (part & 4) {
      const Acc low = joins.join(at(0), at(1));
      put(joins.join(low, joins.join(at(2), at(3))));
    }
    if (now) put(joins.of(notes.half[now][chain]));
    has = true;
    put(joins.of(notes.tiles[now][chain]));
  }
  // What precedes each of the lane's groups in column `chain` within its block tile; own: the first one's total.
  __device__ __forceinline__ void look_back(const TeamNotes<S>& notes, int now, int chain, const Acc& own,
                                            Acc (&all)[kGroups]) const {
    all[0] = S::absent();
    all[1] = own;
    FastJoins<S> joins;
    precede(notes, now, chain, joins, all, false);
    bool fast = joins.fast & S::allows_fast(own);
    fast &= S::is_settled(all[0], joins.reset) & S::is_settled(all[1], joins.reset | S::is_reset(own));
    if (fast) return;
    TR_RARE_PATH;
    TR_ROLLED
    for (int g = 0; g < kGroups; ++g) {  // one by one, for want of registers
      CarefulJoins<S> careful;
      Acc run[1] = {chosen(g > 0, own, S::absent())};
      precede(notes, now, chain, careful, run, g > 0);
      all[0] = chosen(g == 0, run[0], all[0]);
      all[1] = chosen(g == 1, run[0], all[1]);
    }
  }
  // Forms and stores the results of a half tile's words, of which `left` positions are there.
  __device__ __forceinline__ void store(const Words (&w)[kGroups], const typename S::Prefix (&before)[kGroups][V],
                                        int begun, int left) {
    int64_t step = step_of(call.layout.out);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      typename S::Result r[V][kGroup];
#pragma unroll
      for (int v = 0; v < V; ++v) {
        Items items;
        form(w[g], v, begun + g, items);
        S::group(items);
        op.results(before[g][v], items, r[v]);
      }
      Packed<uint32_t, 1> rounded[kGroup];
      round_columns<E, S>(r, rounded, 0);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        if (g * kGroup + i < left) store_granule(reinterpret_cast<Packed<uint32_t, 1>*>(to), rounded[i]);
        to += step = recomputed(step);
      }
    }
    to += (kTeamRows - kRows) * step;
  }
};

// Columns as word_columns says, of any length.
template <class S, class Load, class Store>
__global__ void TR_BLOCKS_BOUND(kTeamThreads<Store>, kTeamBlocks<Store>)
    scan_column_teams(TR_GRID_CONSTANT ScanCall call) {
  using Lane = TeamLane<S, Load, Store>;
  using Notes = TeamNotes<S>;
  using Acc = typename S::Acc;
  constexpr int V = Lane::V, kGroups = Lane::kGroups;
  static_assert(sizeof(Notes) + Lane::N * Lane::kRows * Lane::kWork * 4 ==
                team_shared(Lane::kSize, sizeof(Acc), sizeof(typename S::Wide)));
  TR_DYNAMIC_SHARED(shared, 128);  // what threads tell each other; then words [group][input][position][thread]
  Notes& notes = *reinterpret_cast<Notes*>(shared);
  __shared__ Barrier meeting;
  if (threadIdx.x == 0) {
    barrier_init(&meeting, int(blockDim.x));
    barriers_made();
  }
  __syncthreads();
  auto meet = [&](int step) { team_barrier(&meeting, kTeamThreads<Store>, step); };
  const int steps = int((call.layout.length + kTeamRows - 1) / kTeamRows);
  if (int(threadIdx.x) >= Lane::kWork)
    return carry_team_column<S, Load>(call, notes, int(threadIdx.x) - Lane::kWork, steps, meet);

  Lane at(call, reinterpret_cast<uint32_t*>(shared + sizeof(Notes)));
  TR_ROLLED
  for (int step = 0; step < steps; ++step) {
    const int now = step % 2, begun = step + at.part;  // begun: 0 at position 0
    typename Lane::Words w[kGroups];
    const int left = at.take(w);
    Acc totals[kGroups][V];
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
#pragma unroll
      for (int v = 0; v < V; ++v) {
        typename Lane::Items items;
        at.form(w[g], v, begun + g, items);
        totals[g][v] = S::group(items);
      }
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const Acc both[2] = {totals[0][v], totals[1][v]};
      notes.total[now][at.part][at.lane * V + v] = joined<S>(both);
    }
    meet(step);
    if (left == 0) continue;

    typename S::Prefix before[kGroups][V];
    const bool begins = step < kBlockTile / kTeamRows && !call.in.more[1];  // nothing precedes the block tile
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const int chain = at.lane * V + v;
      Acc all[kGroups];
      at.look_back(notes, now, chain, totals[0][v], all);
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
        before[g][v] = begins ? S::prefix(all[g]) : S::prefix(notes.carry[now][chain], all[g]);
    }
    at.store(w, before, begun, left);
  }
}

}  // namespace torchreduce::gpu
