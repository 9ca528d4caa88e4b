// Scans of columns on GPUs with bulk copies, in one pass: one block a multiprocessor stays for the whole call, and its
// warps have roles that only barriers in shared memory join.
//
// A tile is plan.positions positions (tiles of 256, a power of two of them, at most a block tile) of a strip of
// plan.lanes neighbouring columns. It comes as one run of memory where the strip is all there is, else as a box of a
// larger array. The rows of boxes begin at multiples of 16 bytes: where those of the array do not, plan.leaves of them
// count as one row, and as many boxes bring the tile, one for every plan.leaves-th row, each with what lies in the same
// 16 bytes.
//
//   loader   takes a ticket for each stage of a ring that is free, and starts the bulk load of that tile
//   groups   each thread forms the totals of some groups
//   totals   scans them along each tile of 256, and publishes the total of each column
//   blocks   publishes the totals of block tiles, from those of their tiles
//   carries  fold both into what precedes the tile
//   results  take the place of the elements
//   store    starts the bulk store; where there can be none, some warps store the elements
//
// A total, of a tile or of a block tile, never waits for a carry: it would make a chain of them.
#pragma once
#include "column_tiles.h"
#include "scan_pipeline.cuh"

namespace torchreduce::gpu {

// What the kernel is compiled for: sums of 16- and 32-bit floats.
template <class S, class Load, class Store> constexpr bool kColumnsPipelined = [] {
  if constexpr (kPipelined<S, Load, Store>) return std::is_same<typename S::Acc, float>::value;
  else return false;
}();

#ifdef TR_BULK_COPIES

// A number that is its own flag: the complement of its bits, where zeroed memory, "not there yet", is a NaN that no
// number is published as.
struct PublishedFloat {
  uint32_t word;
  __device__ void publish(float v) { store_relaxed(&word, ~(v != v ? 0x7fc00000u : bit_cast<uint32_t>(v))); }
  __device__ uint32_t look() const { return load_relaxed(&word); }
  __device__ static float value(uint32_t word) { return bit_cast<float>(~word); }
};

// The workspace, all zero before the launch: a ticket; for each strip, and each of its tiles and of its block tiles,
// the totals of its columns.
struct TileSpace {
  uint64_t* ticket;
  PublishedFloat *tiles, *blocks;
  int tile_count, block_count;  // of a strip
  int columns;

  __device__ void set(void* workspace, int64_t strips, const Plan& plan) {
    const int tiles_a_block = kBlockTile / plan.positions;
    tile_count = int(plan.splits);
    columns = plan.lanes;
    block_count = (tile_count + tiles_a_block - 1) / tiles_a_block;
    ticket = static_cast<uint64_t*>(workspace);
    tiles = reinterpret_cast<PublishedFloat*>(ticket + 1);
    blocks = tiles_a_block == 1 ? tiles : tiles + strips * tile_count * columns;
  }
  __device__ PublishedFloat* tile(int64_t strip, int t) const { return tiles + (strip * tile_count + t) * columns; }
  __device__ PublishedFloat* block(int64_t strip, int b) const { return blocks + (strip * block_count + b) * columns; }
};

// A tile on its way.
struct ColumnTile {
  int batch;           // -1: there is none, and no other comes
  int tile;            // along the columns
  int strip;           // across them
  int count, results;  // positions read and written: plan.positions, fewer at the end
  uintptr_t in, out;   // one run of memory: its lowest elements
};

// The input and the output as boxes: columns, positions in memory order, batches.
struct ColumnMaps { TensorMap in, out; };

// The items of a tile, a group of some words each, taken in turn by `threads` threads.
struct ItemWalk {
  int word, group;
  int words, word_step, group_step;

  __device__ ItemWalk(int thread, int threads, int words) : words(words) {
    group = thread / words;
    word = thread - group * words;
    group_step = threads / words;
    word_step = threads - group_step * words;
  }
  __device__ void next() {
    word += word_step;
    group += group_step;
    if (word >= words) {
      word -= words;
      ++group;
    }
  }
};

// Which row of its group a lane takes first: neighbouring groups begin in the same bank of shared memory, or in a few
// ones, if rows are short.
struct RowTurns {
  int shift = 0, mask = 0;

  RowTurns() = default;
  // For rows of `words` accesses of some bytes.
  __device__ RowTurns(int words, int bytes) {
    while ((words * bytes << shift) % 16 != 0) ++shift;  // 2^shift groups begin in different banks
    while (mask < kGroup - 1 && (words << shift) * (mask + 1) < kLanes) mask = 2 * mask + 1;
  }
  __device__ int of(int group) const { return group >> shift & mask; }
};

// w[i ^ turn] at i, and back.
template <class W> __device__ __forceinline__ void take_turns(W (&w)[kGroup], int turn) {
#pragma unroll
  for (int bit = 1; bit < kGroup; bit <<= 1) {
    const bool swap = turn & bit;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (i & bit) continue;
      const W low = w[i], high = w[i | bit];
      w[i] = swap ? high : low;
      w[i | bit] = swap ? low : high;
    }
  }
}
// Where the rows of a group are, in words from its first one's, and the group after it.
struct EvenRows {
  int pitch, step;
  RowTurns turns;

  template <class W> __device__ void load(const W* p, int group, W (&w)[kGroup]) const {
    if (turns.mask) {
      const int turn = turns.of(group);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) w[i] = p[(i ^ turn) * pitch];
      take_turns(w, turn);
    } else {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) w[i] = p[i * pitch];
    }
  }
  template <class W> __device__ void store(W* p, int group, W (&w)[kGroup]) const {
    if (turns.mask) {
      const int turn = turns.of(group);
      take_turns(w, turn);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) p[(i ^ turn) * pitch] = w[i];
    } else {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) p[i * pitch] = w[i];
    }
  }
};
struct SpannedRows {
  int at[kGroup], step;

  template <class W> __device__ void load(const W* p, int, W (&w)[kGroup]) const {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) w[i] = p[at[i]];
  }
  template <class W> __device__ void store(W* p, int, W (&w)[kGroup]) const {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) p[at[i]] = w[i];
  }
};

// The pairwise tree, which is Sklansky's exclusive prefix at slot n where the slots from n on are absent.
template <class S, class V, int N> __device__ __forceinline__ V pairwise(V (&v)[N]) {
#pragma unroll
  for (int d = 1; d < N; d <<= 1) {
#pragma unroll
    for (int i = 0; i < N; i += 2 * d) v[i] = S::combine(v[i], v[i + d]);
  }
  return v[0];
}

template <class S, class Load, class Store> struct ColumnsPipeline {
  using Acc = typename S::Acc;
  using Wide = typename S::Wide;
  using E = typename Load::Element;
  using Short = std::conditional_t<sizeof(E) == 2, uint16_t, uint32_t>;  // an element's bits
  static constexpr int kFewSlots = 4;                                    // block tiles a lane, for several superblocks
  static constexpr int kBatch = 16;                                      // totals looked for at a time

  // Warps.
  static constexpr int kResults = 9, kGroups = 4, kTotals = 2, kCarries = 4, kStores = 3;
  static_assert((kResults + kGroups + kTotals + kCarries + kStores + 2) * kLanes == kPipelineThreads,
                "a warp for each role");

  Barrier taken[kColumnTiles], loaded[kColumnTiles], grouped[kColumnTiles], totaled[kColumnTiles], ready[kColumnTiles],
      done[kColumnTiles], empty[kColumnTiles], last_rows;
  ColumnTile job[kColumnTiles];
  int reached[kColumnSums / kLanes][kCarries];  // the superblocks that the carries warps have come to

  // The turn of a role: its stage, and the parity of its phases.
  struct Turn {
    int stage = 0;
    uint32_t parity = 0;
    __device__ void next(int stages, int steps = 1) {
      stage += steps;
      if (stage >= stages) {
        stage -= stages;
        parity ^= 1;
      }
    }
  };

  // What all roles know. In shared memory: there are no registers for it.
  struct Shape {
    int rows, columns, tiles;  // a tile: positions, columns, tiles of 256
    int tiles_a_block, stages;
    int unit;                          // elements of a granule
    int spanned, spanned_log2, pitch;  // rows of elements in one of a box; elements of a row in shared memory
    int skew, origin;                  // where rows begin among 16 bytes: each by so much further, from that one on
    bool mirror, boxes;
    int strips;  // a batch
    int64_t batches;
    ColumnStage stage;
    char* shared;
    TileSpace space;

    __device__ void set(const ScanCall& call, char* dynamic, void* workspace) {
      const Layout& l = call.layout;
      const int64_t width = l.size[l.kept - 1];
      rows = call.plan.positions;
      columns = call.plan.lanes;
      tiles = rows / kTile;
      tiles_a_block = kBlockTile / rows;
      stages = call.plan.warps;
      unit = kGranule / int(sizeof(E));
      mirror = l.in[l.kept] < 0;
      boxes = call.plan.vector_loads;
      strips = int((width + columns - 1) / columns);
      batches = l.rows / width;
      spanned = call.plan.leaves;
      for (spanned_log2 = 0; 1 << spanned_log2 < spanned;) ++spanned_log2;
      pitch = columns + (spanned > 1 ? spanned : 0);
      skew = int((mirror ? -l.in[l.kept] : l.in[l.kept]) % spanned);
      origin = mirror ? int(l.length % spanned) : 0;
      stage = column_stage(rows, columns, pitch, int(sizeof(E)), boxes);
      shared = dynamic;
      space.set(workspace, batches * strips, call.plan);
    }
    // What precedes the superblocks that the carries warps have come to, of each column.
    __device__ Wide* sums() const { return reinterpret_cast<Wide*>(shared + stages * stage.bytes); }
    __device__ int64_t strip_of(const ColumnTile& t) const { return int64_t(t.batch) * strips + t.strip; }
    __device__ char* elements(int s) const { return shared + s * stage.bytes + stage.lead; }
    __device__ Acc* groups(int s) const { return reinterpret_cast<Acc*>(shared + s * stage.bytes + stage.groups); }
    __device__ Acc* within(int s) const { return reinterpret_cast<Acc*>(shared + s * stage.bytes + stage.within); }
    __device__ Wide* carry(int s) const { return reinterpret_cast<Wide*>(shared + s * stage.bytes + stage.carry); }
    // The elements of row r of a box, in memory order.
    __device__ E* box_row(int s, int r) const {
      const int part = r & (spanned - 1);
      return reinterpret_cast<E*>(elements(s)) + (part * (rows >> spanned_log2) + (r >> spanned_log2)) * pitch +
             shift_of(part);
    }
    __device__ int shift_of(int part) const { return (origin + part) * skew & (spanned - 1); }
    // The elements of the first position.
    __device__ E* first_row(int s, const ColumnTile& t) const {
      if (!boxes)
        return reinterpret_cast<E*>(elements(s) + int(t.in % kGranule)) + (mirror ? (t.count - 1) * columns : 0);
      return reinterpret_cast<E*>(elements(s)) + (mirror ? (rows / spanned - 1) * pitch : 0);
    }
    template <class Word> __device__ void describe(EvenRows& even) const {
      const int words = columns * int(sizeof(E)) / int(sizeof(Word));
      even.pitch = mirror ? -words : words;
      even.step = kGroup * even.pitch;
      even.turns = RowTurns(words, int(sizeof(Word)));
    }
    template <class Word> __device__ void describe(SpannedRows& rows_of) const {
      const int sign = mirror ? -1 : 1;
      rows_of.step = sign * (kGroup / spanned) * pitch;
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const int part = mirror ? spanned - 1 - i % spanned : i % spanned;
        rows_of.at[i] = (part * (rows / spanned) + sign * (i / spanned)) * pitch + shift_of(part);
      }
    }
  };

  Shape shape;

  // By one thread.
  __device__ void make_barriers() {
    for (int s = 0; s < shape.stages; ++s) {
      barrier_init(&taken[s], 1);
      barrier_init(&loaded[s], 1);
      barrier_init(&grouped[s], kGroups);
      barrier_init(&totaled[s], 1);
      barrier_init(&ready[s], kCarries);
      barrier_init(&done[s], kResults);
      barrier_init(&empty[s], kStores + 1);  // blocks: the others come before
    }
    barrier_init(&last_rows, 1);
    barriers_made();
  }
  // By a whole warp.
  __device__ static void arrive(Barrier* b) {
    warp_barrier();
    if (lane_id() == 0) barrier_arrive(b);
  }
  __device__ const ColumnTile& next(const Turn& turn) {
    barrier_wait(&taken[turn.stage], turn.parity);
    return job[turn.stage];
  }
  __device__ const ColumnTile& next_loaded(const Turn& turn) {
    const ColumnTile& t = next(turn);
    if (t.batch >= 0) barrier_wait(&loaded[turn.stage], turn.parity);
    return t;
  }

  // ---- roles ----

  __device__ void load(const ScanCall& call, const ColumnMaps& maps) {
    const Layout& l = call.layout;
    const int64_t tiles = call.plan.splits, jobs = shape.batches * tiles * shape.strips;
    const int shift = call.exclusive ? 1 : 0, lane = lane_id();
    int more = kTotals;  // ends to post: those warps look at every other stage
    bool first_round = true;
    uint32_t last_rows_parity = 0;
    for (Turn turn; more; turn.next(shape.stages)) {
      const int s = turn.stage;
      first_round = first_round && turn.parity == 0;
      if (!first_round) barrier_wait(&empty[s], turn.parity ^ 1);
      const int64_t ticket =
          shuffle(lane == 0 && more == kTotals ? int64_t(take_ticket(shape.space.ticket)) : INT64_MAX, 0);
      if (ticket >= jobs) {
        if (lane == 0) {
          job[s].batch = -1;
          barrier_arrive(&taken[s]);
        }
        --more;
        continue;
      }
      ColumnTile t;  // in memory order: neighbouring strips are read together
      const int64_t row_of_tiles = ticket / shape.strips;
      t.strip = int(ticket - row_of_tiles * shape.strips);
      t.batch = int(row_of_tiles / tiles);
      t.tile = int(row_of_tiles - t.batch * tiles);
      const int64_t first = int64_t(t.tile) * shape.rows, left = l.length - first;
      t.count = int(left < shape.rows ? left : shape.rows);
      t.results = int(left - shift < shape.rows ? left - shift : shape.rows);
      const RowStart start = row_start(l, t.batch * l.size[l.kept - 1] + t.strip * shape.columns);
      const E* const in = static_cast<const E*>(call.in.data) + start.in;
      const int64_t lowest = shape.mirror ? first + t.count - 1 : first;
      const int64_t lowest_out = shift + (shape.mirror ? first + t.results - 1 : first);
      t.in = reinterpret_cast<uintptr_t>(in + lowest * l.in[l.kept]);
      t.out = reinterpret_cast<uintptr_t>(static_cast<E*>(call.out.values) + start.out + lowest_out * l.out[l.kept]);
      if (lane == 0) {
        job[s] = t;
        barrier_arrive(&taken[s]);
        if (!shape.boxes) load_run(t, s, left <= shape.rows);
      }
      if (!shape.boxes) continue;
      // The rows at the end of memory that make no row of boxes are copied by this warp, when the boxes are there.
      const int row = row_in_memory(call, t), end = int(l.length), rest = end - end % shape.spanned;
      const bool has_rest = row + shape.rows > rest && rest < end && row < end;
      Barrier* const b = has_rest ? &last_rows : &loaded[s];
      if (lane == 0) {
        barrier_expect(b, uint32_t(shape.rows * shape.pitch * int(sizeof(E))));
        for (int part = 0; part < shape.spanned; ++part) {
          const int y = row + part, origin = shape.origin + part, before = origin % shape.spanned;
          const int64_t along = shape.mirror ? -l.in[l.kept] : l.in[l.kept];
          const int x = int((before * along + t.strip * shape.columns) / shape.unit * shape.unit);
          E* const to = reinterpret_cast<E*>(shape.elements(s)) + part * (shape.rows / shape.spanned) * shape.pitch;
          box_load(to, &maps.in, x, (y - before) / shape.spanned, t.batch, b);
        }
      }
      if (!has_rest) continue;
      barrier_wait(&last_rows, last_rows_parity);
      last_rows_parity ^= 1;
      const int64_t width = l.size[l.kept - 1] - int64_t(t.strip) * shape.columns;
      for (int y = rest > row ? rest : row; y < end; ++y) {
        const E* const from = in + (shape.mirror ? end - 1 - y : y) * l.in[l.kept];
        E* const to = shape.box_row(s, y - row);
        for (int column = lane; column < shape.columns && column < width; column += kLanes)
          to[column] = global(from)[column];
      }
      arrive(&loaded[s]);
    }
  }
  // By one thread. Whole granules: up to 15 bytes before and after the run are read, never used, and never in another
  // page. But memory may end with the columns: their last elements are copied one by one.
  __device__ void load_run(const ColumnTile& t, int s, bool last) {
    char* const to = shape.elements(s);
    const uintptr_t from = t.in & ~uintptr_t(kGranule - 1), end = t.in + t.count * shape.columns * sizeof(E);
    const bool closes = shape.mirror ? t.tile == 0 : last;
    const uintptr_t until = (closes ? end : end + kGranule - 1) & ~uintptr_t(kGranule - 1);
    if (closes && until < end) {
      for (uintptr_t p = until > t.in ? until : t.in; p < end; p += sizeof(E))
        *reinterpret_cast<E*>(to + (p - from)) = *global(reinterpret_cast<const E*>(p));
      bulk_fence();
    }
    barrier_expect(&loaded[s], uint32_t(until - from));
    if (until > from) bulk_load(to, reinterpret_cast<const void*>(from), uint32_t(until - from), &loaded[s]);
  }
  // The lowest row of a tile's box; there may be fewer rows than the box has, below or above.
  __device__ int row_in_memory(const ScanCall& call, const ColumnTile& t) const {
    return shape.mirror ? int(call.layout.length) - (t.tile + 1) * shape.rows : t.tile * shape.rows;
  }

  template <class Word>
  __device__ static void items_of(const S& op, const Word (&w)[kGroup], int64_t position,
                                  typename S::Item (&items)[sizeof(Word) / sizeof(E)][kGroup]) {
#pragma unroll
    for (int v = 0; v < int(sizeof(Word) / sizeof(E)); ++v)
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        items[v][i] = op.load(bit_cast<E>(Short(w[i] >> (v * 8 * int(sizeof(E)) % 32))), position + i);
  }

  // Positions past the end have items, too: no result depends on them.
  template <class Word, class Rows> __device__ void groups(const S& op, int warp) {
    constexpr int V = sizeof(Word) / sizeof(E);
    const int words = shape.columns / V;
    Rows rows;
    shape.template describe<Word>(rows);
    for (Turn turn;; turn.next(shape.stages)) {
      const ColumnTile& t = next_loaded(turn);
      if (t.batch < 0) return;
      const Word* const first = reinterpret_cast<const Word*>(shape.first_row(turn.stage, t));
      Acc* const to = shape.groups(turn.stage);
      const int count = (t.count + kGroup - 1) / kGroup;
#pragma unroll 2
      for (ItemWalk at(warp * kLanes + lane_id(), kGroups * kLanes, words); at.group < count; at.next()) {
        Word w[kGroup];
        rows.load(first + at.group * rows.step + at.word, at.group, w);
        typename S::Item items[V][kGroup];
        items_of(op, w, int64_t(t.tile) * shape.rows + at.group * kGroup, items);
        Packed<Acc, V> total;
#pragma unroll
        for (int v = 0; v < V; ++v) total.item[v] = S::group(items[v]);
        *reinterpret_cast<Packed<Acc, V>*>(to + group_place(at.group) + at.word * V) = total;
      }
      arrive(&grouped[turn.stage]);
    }
  }
  // Where the totals of a group are: 32 of each tile, and then the tile's.
  __device__ int group_place(int group) const { return (group + group / kFan) * shape.columns; }

  // The tree over the first `slots` of at most 32 slots, a power of two; get(slot) is absent where a slot is.
  template <class V, class Get> __device__ __forceinline__ static V slot_tree(int slots, V absent, Get get) {
    V half[2] = {absent, absent};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (h * kBatch >= slots) continue;
      V v[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) v[i] = h * kBatch + i < slots ? get(h * kBatch + i) : absent;
      half[h] = pairwise<S>(v);
    }
    return S::combine(half[0], half[1]);
  }
  // The same over published totals, `stride` apart, of which lanes use the first `count`; they are waited for. Every
  // lane of a warp calls it, with the same `slots`. At slot `own`, if any, is `value`.
  template <class V>
  __device__ __forceinline__ static V published_tree(const PublishedFloat* totals, int64_t stride, int slots, int count,
                                                     V absent, int own = -1, V value = V()) {
    V half[2] = {absent, absent};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (h * kBatch >= slots) continue;
      uint32_t word[kBatch];
      bool there;
      do {
        const PublishedFloat* p = anew(totals + h * kBatch * stride);
#pragma unroll
        for (int i = 0; i < kBatch; ++i, p += stride) {
          word[i] = 1;
          if (h * kBatch + i < count) word[i] = p->look();
        }
        there = true;
#pragma unroll
        for (int i = 0; i < kBatch; ++i) there = there & (word[i] != 0);
      } while (ballot(!there));
      V v[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        v[i] = h * kBatch + i < count ? V(PublishedFloat::value(word[i])) : absent;
        if (h * kBatch + i == own) v[i] = value;
      }
      half[h] = pairwise<S>(v);
    }
    return S::combine(half[0], half[1]);
  }

  __device__ void totals(int warp) {
    const int lane = lane_id(), columns = shape.columns, pairs = shape.tiles * columns;
    Turn turn;
    turn.next(shape.stages, warp);
    for (;; turn.next(shape.stages, kTotals)) {
      const ColumnTile& t = next(turn);
      if (t.batch < 0) return;
      barrier_wait(&grouped[turn.stage], turn.parity);
      Acc* const groups = shape.groups(turn.stage);
      PublishedFloat* const publish = shape.space.tile(shape.strip_of(t), t.tile);
      for (int pair = lane; pair < pairs; pair += kLanes) {
        const int tile = pair / columns, column = pair - tile * columns;
        Acc* const g = groups + group_place(tile * kFan) + column;
        Acc upto[kFan];
#pragma unroll
        for (int i = 0; i < kFan; ++i) upto[i] = g[i * columns];
#pragma unroll
        for (int d = 1; d < kFan; d <<= 1) {
#pragma unroll
          for (int i = 0; i < kFan; ++i)
            if (i & d) upto[i] = S::combine(upto[(i & ~(2 * d - 1)) + d - 1], upto[i]);
        }
        if (shape.tiles == 1) publish[column].publish(upto[kFan - 1]);
        g[kFan * columns] = upto[kFan - 1];
#pragma unroll
        for (int i = kFan - 1; i > 0; --i) g[i * columns] = upto[i - 1];
        g[0] = S::absent();
      }
      warp_barrier();
      auto total = [&](int tile, int column) { return groups[group_place(tile * kFan + kFan) - columns + column]; };
      if (shape.tiles > 1)
        for (int column = lane; column < columns; column += kLanes)
          publish[column].publish(slot_tree(shape.tiles, S::absent(), [&](int tile) { return total(tile, column); }));
      Acc* const within = shape.within(turn.stage);
      for (int pair = lane; pair < pairs; pair += kLanes) {
        const int tile = pair / columns, column = pair - tile * columns;
        within[pair] = slot_tree(shape.tiles, S::absent(),
                                 [&](int before) { return before < tile ? total(before, column) : S::absent(); });
      }
      arrive(&totaled[turn.stage]);
    }
  }

  __device__ void blocks() {
    const int columns = shape.columns, slots = shape.tiles_a_block;
    for (Turn turn;; turn.next(shape.stages)) {
      const ColumnTile& t = next(turn);
      if (t.batch < 0) return;
      const int64_t strip = shape.strip_of(t);
      const int tile = t.tile;
      arrive(&empty[turn.stage]);
      if (slots == 1 || tile % slots != slots - 1) continue;
      for (int first = 0; first < columns; first += kLanes) {
        const int column = first + lane_id();
        const bool has = column < columns;
        const Acc total = published_tree(shape.space.tile(strip, tile - (slots - 1)) + (has ? column : 0), columns,
                                         slots, has ? slots : 0, S::absent());
        if (has) shape.space.block(strip, tile / slots)[column].publish(total);
      }
    }
  }

  // What precedes a tile of 256 in its block tile, for `pair` of tile and column.
  __device__ void fold_tiles(const ColumnTile& t, int stage, int pair) {
    const int columns = shape.columns, own = t.tile % shape.tiles_a_block;
    Acc* const within = shape.within(stage);
    const bool has = pair < shape.tiles * columns;
    const int tile = pair / columns, column = has ? pair - tile * columns : 0;
    const Acc value = published_tree(shape.space.tile(shape.strip_of(t), t.tile - own) + column, columns, own + 1,
                                     has ? own : 0, S::absent(), own, has ? within[pair] : S::absent());
    if (has) within[pair] = value;
  }

  // What a carries warp does for some columns: `share` of `slots` block tiles of each superblock is this lane's.
  struct Columns {
    const PublishedFloat* totals;  // of the column's first block tile
    int64_t stride;                // to the next one's
    int across, share, slots;
    bool has;
  };

  // The totals of kAtOnce superblocks from x on, up to the one that `block` is in: that one's only before `block`.
  template <int kAtOnce>
  __device__ static void superblock_totals(const Columns& columns, int x, int block, Wide (&value)[kAtOnce]) {
    auto count_of = [&](int k) {
      const int count = block - (x + k) * kFan;
      return count < 0 ? 0 : count < kFan ? count : kFan;
    };
    auto mine_of = [&](int k) {
      const int mine = columns.has ? count_of(k) - columns.share * columns.slots : 0;
      return mine < 0 ? 0 : mine < columns.slots ? mine : columns.slots;
    };
    const PublishedFloat* const first =
        columns.totals + int64_t(x * kFan + columns.share * columns.slots) * columns.stride;
    if constexpr (kAtOnce == 1) {
      const int count = count_of(0);
      value[0] = published_tree(first, columns.stride, columns.slots < count ? columns.slots : count, mine_of(0),
                                S::wide_absent());
    } else {
      uint32_t word[kAtOnce][kFewSlots];
      bool there;
      do {
        const PublishedFloat* p = anew(first);
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k, p += kFan * columns.stride)
#pragma unroll
          for (int i = 0; i < kFewSlots; ++i) {
            word[k][i] = 1;
            if (i < mine_of(k)) word[k][i] = p[i * columns.stride].look();
          }
        there = true;
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k)
#pragma unroll
          for (int i = 0; i < kFewSlots; ++i) there = there & (word[k][i] != 0);
      } while (ballot(!there));
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        Wide v[kFewSlots];
#pragma unroll
        for (int i = 0; i < kFewSlots; ++i)
          v[i] = i < mine_of(k) ? S::widen(PublishedFloat::value(word[k][i])) : S::wide_absent();
        value[k] = pairwise<S>(v);
      }
    }
    for (int d = columns.across; d < kLanes; d <<= 1) {
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const Wide other = shuffle(value[k], lane_id() ^ d);
        value[k] = lane_id() & d ? S::combine(other, value[k]) : S::combine(value[k], other);
      }
    }
  }
  // The carry into `block`. `before` is what precedes superblock x, and then the one that `block` is in.
  template <int kAtOnce>
  __device__ static Wide walk_superblocks(const Columns& columns, int x, int block, Wide& before) {
    const int last = block / kFan;
    Wide here = S::wide_absent();
    for (; x <= last; x += kAtOnce) {
      Wide value[kAtOnce];
      superblock_totals(columns, x, block, value);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (x + k < last) before = x + k ? S::combine(before, value[k]) : value[k];
        if (x + k == last) here = value[k];
      }
    }
    return last ? S::combine(before, here) : here;
  }

  __device__ void carries(int warp) {
    const bool sums = shape.space.block_count > kFan;  // there is more than one superblock
    int spread = 1;                                    // lanes that share a column
    while (spread * 2 * shape.columns <= kLanes) spread *= 2;
    const int across = kLanes / spread;
    int batch = -1;
    for (Turn turn;; turn.next(shape.stages)) {
      const ColumnTile& t = next(turn);
      if (t.batch < 0) return;
      const int s = turn.stage, block = t.tile / shape.tiles_a_block;
      if (sums && t.batch != batch) {
        batch = t.batch;
        for (int i = lane_id(); i < kColumnSums / kLanes; i += kLanes) reached[i][warp] = 0;
        warp_barrier();
      }
      int task = 0;  // of columns, then of tiles: the warps take turns
      for (int first = 0; first < shape.columns; first += across) {
        if (task++ % kCarries != warp) continue;
        const int column = first + lane_id() % across;
        const bool has = column < shape.columns;
        const Columns columns{shape.space.block(shape.strip_of(t), 0) + (has ? column : 0),
                              shape.columns,
                              across,
                              lane_id() / across,
                              kFan / spread,
                              has};
        Wide* const sum = shape.sums() + t.strip * shape.columns + (has ? column : 0);
        const int x = sums ? reached[t.strip][warp] : 0;  // to where this block's last tile of the strip has come
        Wide before = x > 0 ? *sum : S::wide_absent();
        warp_barrier();
        const Wide carry = columns.slots <= kFewSlots ? walk_superblocks<4>(columns, x, block, before)
                                                      : walk_superblocks<1>(columns, x, block, before);
        if (has && columns.share == 0) {
          shape.carry(s)[column] = carry;
          if (sums) *sum = before;
        }
      }
      warp_barrier();
      if (sums && lane_id() == 0) reached[t.strip][warp] = block / kFan;
      barrier_wait(&totaled[s], turn.parity);
      for (int first = 0; first < shape.tiles * shape.columns; first += kLanes)
        if (task++ % kCarries == warp) fold_tiles(t, s, first + lane_id());
      arrive(&ready[s]);
    }
  }

  template <class Word, class Rows> __device__ void results(const S& op, int warp) {
    constexpr int V = sizeof(Word) / sizeof(E);
    const int words = shape.columns / V;
    Rows rows;
    shape.template describe<Word>(rows);
    for (Turn turn;; turn.next(shape.stages)) {
      const int s = turn.stage;
      const ColumnTile& t = next_loaded(turn);
      if (t.batch < 0) return;
      barrier_wait(&totaled[s], turn.parity);
      barrier_wait(&ready[s], turn.parity);
      Word* const first = reinterpret_cast<Word*>(shape.first_row(s, t));
      const Acc* const groups = shape.groups(s);
      const Acc* const within = shape.within(s);
      const Wide* const carry = shape.carry(s);
      const int count = (t.count + kGroup - 1) / kGroup;
#pragma unroll 1
      for (ItemWalk at(warp * kLanes + lane_id(), kResults * kLanes, words); at.group < count; at.next()) {
        Word* const p = first + at.group * rows.step + at.word;
        Word w[kGroup];
        rows.load(p, at.group, w);
        const int column = at.word * V;
        const auto g = *reinterpret_cast<const Packed<Acc, V>*>(groups + group_place(at.group) + column);
        const auto upper = *reinterpret_cast<const Packed<Acc, V>*>(within + at.group / kFan * shape.columns + column);
        const auto c = *reinterpret_cast<const Packed<Wide, V>*>(carry + column);
        typename S::Item items[V][kGroup];
        items_of(op, w, int64_t(t.tile) * shape.rows + at.group * kGroup, items);
        uint32_t rounded[V][kGroupWords<E>];
#pragma unroll
        for (int v = 0; v < V; ++v) {
          typename S::Result r[kGroup];
          S::group(items[v]);
          op.results(S::prefix(c.item[v], S::combine(upper.item[v], g.item[v])), items[v], r);
          round_group<E, S>(r, rounded[v]);
        }
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
          constexpr int kPer = 4 / int(sizeof(E));
          const int shift = i % kPer * 8 * int(sizeof(E));
          if constexpr (V == 1) w[i] = Word(rounded[0][i / kPer] >> shift);
          else
            w[i] = shift ? rounded[0][i / kPer] >> 16 | (rounded[V - 1][i / kPer] & 0xffff0000u)
                         : (rounded[0][i / kPer] & 0xffffu) | rounded[V - 1][i / kPer] << 16;
        }
        rows.store(p, at.group, w);
      }
      bulk_fence();
      arrive(&done[s]);
    }
  }

  __device__ void store(const ScanCall& call, const ColumnMaps& maps, int warp) {
    const int lane = lane_id(), shift = call.exclusive ? 1 : 0;
    const Layout& l = call.layout;
    for (Turn turn;; turn.next(shape.stages)) {
      const ColumnTile& t = next(turn);
      if (t.batch < 0) return;
      const int s = turn.stage;
      const int64_t width = l.size[l.kept - 1] - int64_t(t.strip) * shape.columns;
      const int columns = int(width < shape.columns ? width : shape.columns);
      E* const out = reinterpret_cast<E*>(t.out);
      if (shift && t.tile == 0 && warp == 0) {
        E* const start = out - (shape.mirror ? t.results : 1) * l.out[l.kept];
        for (int column = lane; column < columns; column += kLanes) global(start)[column] = round_to<E>(S::start());
      }
      barrier_wait(&done[s], turn.parity);
      if (!shape.boxes) {
        // Rows without a result are left out: the last one, and that is the lowest one of a mirrored tile.
        const int skip = shape.mirror ? t.count - t.results : 0;
        const E* const from =
            reinterpret_cast<const E*>(shape.elements(s) + int(t.in % kGranule)) + skip * shape.columns;
        store_run(out, from, t.results * shape.columns, warp);
      } else if (shape.spanned == 1) {
        if (warp == 0 && lane == 0)
          box_store(&maps.out, t.strip * shape.columns, row_in_memory(call, t) + (shape.mirror ? -shift : shift),
                    t.batch, shape.elements(s));
      } else {
        // Rows of the box that have results: from its lowest one on, or up to its highest one.
        const int skip = shape.mirror ? shape.rows - t.results : 0;
        const int64_t along = shape.mirror ? -l.out[l.kept] : l.out[l.kept];
#pragma unroll 4
        for (int row = warp; row < t.results; row += kStores) {
          const E* const from = shape.box_row(s, skip + row);
          E* const to = out + row * along;
          for (int column = lane; column < columns; column += kLanes) global(to)[column] = from[column];
        }
      }
      if (lane == 0) bulk_stores_read();
      arrive(&empty[s]);
    }
  }
  // Neighbours, to `to`: in bulk, if both begin at the same place among 16 bytes.
  __device__ static void store_run(E* to, const E* from, int count, int warp) {
    const int lane = lane_id();
    if ((reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % kGranule) {
#pragma unroll 4
      for (int i = warp * kLanes + lane; i < count; i += kStores * kLanes) global(to)[i] = from[i];
      return;
    }
    if (warp) return;
    // Whole granules; those that neighbours write to, too, element by element.
    const int out = int(reinterpret_cast<uintptr_t>(to) % kGranule), bytes = count * int(sizeof(E));
    char* const base = reinterpret_cast<char*>(to) - out;
    const char* const at = reinterpret_cast<const char*>(from) - out;
    const int begin = out ? kGranule : 0, end = (out + bytes) & ~(kGranule - 1);
    if (lane == 0 && end > begin) bulk_store(base + begin, at + begin, uint32_t(end - begin));
    constexpr int kItems = kGranule / int(sizeof(E));
    const int offset = lane % kItems * int(sizeof(E)), place = lane < kItems ? offset : end + offset;
    const bool edge = lane < kItems ? out && place >= out && place < out + bytes
                                    : lane < 2 * kItems && end >= begin && place < out + bytes;
    if (edge) *reinterpret_cast<E*>(base + place) = *reinterpret_cast<const E*>(at + place);
  }
};

template <class S, class Load, class Store>
__global__ void __launch_bounds__(kPipelineThreads, 1)
    scan_columns_pipeline(TR_GRID_CONSTANT ScanCall call, TR_GRID_CONSTANT ColumnMaps maps, void* workspace) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using P = ColumnsPipeline<S, Load, Store>;
  TR_DYNAMIC_SHARED(ring, 128);
  __shared__ P pipeline;
  const S op{call.options};
  if (threadIdx.x == 0) {
    pipeline.shape.set(call, ring, workspace);
    pipeline.make_barriers();
  }
  __syncthreads();
  // Two neighbouring columns of 16 bits at once, where they lie in one word.
  bool pairs = sizeof(typename P::E) == 2 && pipeline.shape.columns % 2 == 0;
  if (!pipeline.shape.boxes) {
    pairs = pairs && reinterpret_cast<uintptr_t>(call.in.data) % 4 == 0;
    for (int d = 0; d < call.layout.kept - 1; ++d) pairs = pairs && call.layout.in[d] % 2 == 0;
  }
  using Short = typename P::Short;
  const bool spanned = pipeline.shape.spanned > 1;
  int warp = int(threadIdx.x) / kLanes;
  if (warp < P::kResults) {
    if (spanned) pipeline.template results<Short, SpannedRows>(op, warp);
    else if (pairs) pipeline.template results<uint32_t, EvenRows>(op, warp);
    else pipeline.template results<Short, EvenRows>(op, warp);
  } else if ((warp -= P::kResults) < P::kGroups) {
    if (spanned) pipeline.template groups<Short, SpannedRows>(op, warp);
    else if (pairs) pipeline.template groups<uint32_t, EvenRows>(op, warp);
    else pipeline.template groups<Short, EvenRows>(op, warp);
  } else if ((warp -= P::kGroups) < P::kTotals) {
    pipeline.totals(warp);
  } else if ((warp -= P::kTotals) < P::kCarries) {
    pipeline.carries(warp);
  } else if ((warp -= P::kCarries) < P::kStores) {
    pipeline.store(call, maps, warp);
  } else if (warp == P::kStores) {
    pipeline.blocks();
  } else {
    pipeline.load(call, maps);
  }
#endif
}

// The input of a call that takes boxes, and the output if it does. Returns an error's message, or nullptr.
template <class E> const char* map_columns(const ScanCall& call, ColumnMaps& maps) {
  const Layout& l = call.layout;
  const int64_t spanned = call.plan.leaves, width = l.size[l.kept - 1], size = sizeof(E);
  auto map = [&](TensorMap& map, const void* data, const int64_t* stride) {
    const int64_t reverse = stride[l.kept] < 0 ? (l.length - 1) * stride[l.kept] : 0;
    const int64_t along = stride[l.kept] < 0 ? -stride[l.kept] : stride[l.kept];
    const int64_t sizes[3] = {(spanned - 1) * along + width, l.length / spanned, l.rows / width};
    const int64_t bytes[2] = {spanned * along * size,
                              (l.kept > 1 ? stride[0] : (along * l.length + 15) / 16 * 16) * size};
    const int unit = 16 / int(size),
              box[3] = {call.plan.lanes + (spanned > 1 ? unit : 0), int(call.plan.positions / spanned), 1};
    return map_tensor<int(size)>(map, static_cast<const char*>(data) + reverse * size, sizes, bytes, box);
  };
  const char* error = map(maps.in, call.in.data, l.in);
  return error || spanned > 1 ? error : map(maps.out, call.out.values, l.out);
}

#endif

}  // namespace torchreduce::gpu
