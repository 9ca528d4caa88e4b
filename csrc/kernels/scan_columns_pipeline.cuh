// Scans of columns on GPUs with bulk copies, in one pass: one block a multiprocessor stays for the whole call, and its
// warps have roles that only barriers in shared memory join.
//
// A tile is plan.rows positions (tiles of 256, a power of two of them, at most a block tile) of a strip of plan.lanes
// neighbouring columns. In shared memory its rows lie one after another, however they came: as one run of memory where
// the strip is all there is, else as a box of a larger array.
//
//   loader   takes a ticket for each stage of a ring that is free, and starts the bulk load of that tile
//   groups   each thread forms the totals of some groups
//   totals   scans them along each tile of 256, and publishes the total of each column
//   blocks   publishes the totals of block tiles, from those of their tiles
//   carries  fold both into what precedes the tile
//   results  take the place of the elements
//   store    starts the bulk store
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
    const int tiles_a_block = kBlockTile / plan.rows;
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
  int count, results;  // positions read and written: plan.rows, fewer at the end
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
template <class W>
__device__ __forceinline__ void load_rows(const W* p, int pitch, int turn, bool turns, W (&w)[kGroup]) {
  if (turns) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) w[i] = p[(i ^ turn) * pitch];
    take_turns(w, turn);
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) w[i] = p[i * pitch];
  }
}
template <class W>
__device__ __forceinline__ void store_rows(W* p, int pitch, int turn, bool turns, W (&w)[kGroup]) {
  if (turns) {
    take_turns(w, turn);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) p[(i ^ turn) * pitch] = w[i];
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) p[i * pitch] = w[i];
  }
}

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
  static constexpr int kBatch = 16;                                      // totals looked for at a time

  // Warps.
  static constexpr int kResults = 10, kGroups = 5, kTotals = 2, kCarries = 4;
  static_assert((kResults + kGroups + kTotals + kCarries + 3) * kLanes == kPipelineThreads, "a warp for each role");

  Barrier taken[kColumnTiles], loaded[kColumnTiles], grouped[kColumnTiles], totaled[kColumnTiles], ready[kColumnTiles],
      done[kColumnTiles], empty[kColumnTiles];
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
    bool mirror, boxes;
    int strips;  // a batch
    int64_t batches;
    ColumnStage stage;
    char* shared;
    TileSpace space;

    __device__ void set(const ScanCall& call, char* dynamic, void* workspace) {
      const Layout& l = call.layout;
      const int64_t width = l.size[l.kept - 1];
      rows = call.plan.rows;
      columns = call.plan.lanes;
      tiles = rows / kTile;
      tiles_a_block = kBlockTile / rows;
      stages = call.plan.warps;
      mirror = l.in[l.kept] < 0;
      boxes = call.plan.vector_loads;
      strips = int((width + columns - 1) / columns);
      batches = l.rows / width;
      stage = column_stage(rows, columns, int(sizeof(E)), boxes);
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
    // Of the first position, in shared memory; the row after it is `pitch` words further on.
    template <class Word> __device__ Word* first_row(int s, const ColumnTile& t) const {
      const int phase = boxes ? 0 : int(t.in % kGranule), top = boxes ? rows - 1 : t.count - 1;
      return reinterpret_cast<Word*>(elements(s) + phase + (mirror ? top * columns * int(sizeof(E)) : 0));
    }
    template <class Word> __device__ int words() const { return columns * int(sizeof(E)) / int(sizeof(Word)); }
    template <class Word> __device__ int pitch() const { return mirror ? -words<Word>() : words<Word>(); }
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
      barrier_init(&empty[s], 2);  // blocks, store: the others come before
    }
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
    const int shift = call.exclusive ? 1 : 0;
    int more = kTotals;  // ends to post: those warps look at every other stage
    bool first_round = true;
    for (Turn turn; more; turn.next(shape.stages)) {
      const int s = turn.stage;
      first_round = first_round && turn.parity == 0;
      if (!first_round) barrier_wait(&empty[s], turn.parity ^ 1);
      const int64_t ticket = more == kTotals ? int64_t(take_ticket(shape.space.ticket)) : INT64_MAX;
      if (ticket >= jobs) {
        job[s].batch = -1;
        barrier_arrive(&taken[s]);
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
      char* const to = shape.elements(s);
      if (shape.boxes) {
        job[s] = t;
        barrier_arrive(&taken[s]);
        barrier_expect(&loaded[s], uint32_t(shape.rows * shape.columns * int(sizeof(E))));
        box_load(to, &maps.in, t.strip * shape.columns, row_in_memory(call, t), t.batch, &loaded[s]);
        continue;
      }
      const RowStart start = row_start(l, int64_t(t.batch) * shape.columns);
      const int64_t lowest = shape.mirror ? first + t.count - 1 : first;
      const int64_t lowest_out = shift + (shape.mirror ? first + t.results - 1 : first);
      t.in = reinterpret_cast<uintptr_t>(static_cast<const E*>(call.in.data) + start.in + lowest * l.in[l.kept]);
      t.out = reinterpret_cast<uintptr_t>(static_cast<E*>(call.out.values) + start.out + lowest_out * l.out[l.kept]);
      job[s] = t;
      barrier_arrive(&taken[s]);
      // Whole granules: up to 15 bytes before and after the run are read, never used, and never in another page. But
      // memory may end with the columns: their last elements are copied one by one.
      const uintptr_t from = t.in & ~uintptr_t(kGranule - 1), end = t.in + t.count * shape.columns * sizeof(E);
      const bool closes = shape.mirror ? t.tile == 0 : left <= shape.rows;
      const uintptr_t until = (closes ? end : end + kGranule - 1) & ~uintptr_t(kGranule - 1);
      if (closes && until < end) {
        for (uintptr_t p = until > t.in ? until : t.in; p < end; p += sizeof(E))
          *reinterpret_cast<E*>(to + (p - from)) = *global(reinterpret_cast<const E*>(p));
        bulk_fence();
      }
      barrier_expect(&loaded[s], uint32_t(until - from));
      if (until > from) bulk_load(to, reinterpret_cast<const void*>(from), uint32_t(until - from), &loaded[s]);
    }
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
  template <class Word> __device__ void groups(const S& op, int warp) {
    constexpr int V = sizeof(Word) / sizeof(E);
    const int words = shape.template words<Word>(), pitch = shape.template pitch<Word>();
    const RowTurns turns(words, int(sizeof(Word)));
    for (Turn turn;; turn.next(shape.stages)) {
      const ColumnTile& t = next_loaded(turn);
      if (t.batch < 0) return;
      const Word* rows = shape.template first_row<Word>(turn.stage, t);
      Acc* const to = shape.groups(turn.stage);
      const int count = (t.count + kGroup - 1) / kGroup;
#pragma unroll 2
      for (ItemWalk at(warp * kLanes + lane_id(), kGroups * kLanes, words); at.group < count; at.next()) {
        Word w[kGroup];
        load_rows(rows + at.group * kGroup * pitch + at.word, pitch, turns.of(at.group), turns.mask, w);
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
  __device__ int group_place(int group) const {
    return (group + group / kFan) * shape.columns;
  }

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
          publish[column].publish(
              slot_tree(shape.tiles, S::absent(), [&](int tile) { return total(tile, column); }));
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
        const Acc total = published_tree(shape.space.tile(strip, tile - (slots - 1)) + (has ? column : 0), columns, slots,
                                         has ? slots : 0, S::absent());
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

  __device__ void carries(int warp) {
    const bool sums = shape.space.block_count > kFan;  // there is more than one superblock
    int spread = 1;                                    // lanes that share a column
    while (spread * 2 * shape.columns <= kLanes) spread *= 2;
    const int across = kLanes / spread, share = lane_id() / across, slots = kFan / spread;
    int batch = -1;
    for (Turn turn;; turn.next(shape.stages)) {
      const ColumnTile& t = next(turn);
      if (t.batch < 0) return;
      const int s = turn.stage, block = t.tile / shape.tiles_a_block, superblock = block / kFan;
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
        const PublishedFloat* const totals = shape.space.block(shape.strip_of(t), 0) + (has ? column : 0);
        Wide* const sum = shape.sums() + t.strip * shape.columns + (has ? column : 0);
        int x = sums ? reached[t.strip][warp] : superblock;
        Wide before = sums && x > 0 ? *sum : S::wide_absent();
        warp_barrier();
        for (;; ++x) {  // the superblocks since this block's last tile of the strip, and this one
          const int count = x < superblock ? kFan : block % kFan, mine = has ? count - share * slots : 0;
          Wide value = published_tree(totals + int64_t(x * kFan + share * slots) * shape.columns, shape.columns,
                                      slots < count ? slots : count, mine < 0 ? 0 : mine < slots ? mine : slots,
                                      S::wide_absent());
          for (int d = across; d < kLanes; d <<= 1) {
            const Wide other = shuffle(value, lane_id() ^ d);
            value = lane_id() & d ? S::combine(other, value) : S::combine(value, other);
          }
          if (x == superblock) {
            if (has && share == 0) {
              shape.carry(s)[column] = x ? S::combine(before, value) : value;
              if (sums) *sum = before;
            }
            break;
          }
          before = x ? S::combine(before, value) : value;
        }
      }
      warp_barrier();
      if (sums && lane_id() == 0) reached[t.strip][warp] = superblock;
      barrier_wait(&totaled[s], turn.parity);
      for (int first = 0; first < shape.tiles * shape.columns; first += kLanes)
        if (task++ % kCarries == warp) fold_tiles(t, s, first + lane_id());
      arrive(&ready[s]);
    }
  }

  template <class Word> __device__ void results(const S& op, int warp) {
    constexpr int V = sizeof(Word) / sizeof(E);
    const int words = shape.template words<Word>(), pitch = shape.template pitch<Word>();
    const RowTurns turns(words, int(sizeof(Word)));
    for (Turn turn;; turn.next(shape.stages)) {
      const int s = turn.stage;
      const ColumnTile& t = next_loaded(turn);
      if (t.batch < 0) return;
      barrier_wait(&totaled[s], turn.parity);
      barrier_wait(&ready[s], turn.parity);
      Word* rows = shape.template first_row<Word>(s, t);
      const Acc* const groups = shape.groups(s);
      const Acc* const within = shape.within(s);
      const Wide* const carry = shape.carry(s);
      const int count = (t.count + kGroup - 1) / kGroup;
#pragma unroll 1
      for (ItemWalk at(warp * kLanes + lane_id(), kResults * kLanes, words); at.group < count; at.next()) {
        Word* const p = rows + at.group * kGroup * pitch + at.word;
        Word w[kGroup];
        load_rows(p, pitch, turns.of(at.group), turns.mask, w);
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
          round_group<E>(r, rounded[v]);
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
        store_rows(p, pitch, turns.of(at.group), turns.mask, w);
      }
      bulk_fence();
      arrive(&done[s]);
    }
  }

  __device__ void store(const ScanCall& call, const ColumnMaps& maps) {
    const int lane = lane_id();
    const Layout& l = call.layout;
    for (Turn turn;; turn.next(shape.stages)) {
      const ColumnTile& t = next(turn);
      if (t.batch < 0) return;
      const int s = turn.stage, shift = call.exclusive ? 1 : 0;
      if (shift && t.tile == 0) {
        const int64_t width = l.size[l.kept - 1], first = int64_t(t.strip) * shape.columns;
        const RowStart start = row_start(l, t.batch * width);
        for (int64_t column = first + lane; column < first + shape.columns && column < width; column += kLanes)
          global(static_cast<E*>(call.out.values))[start.out + column] = round_to<E>(S::start());
      }
      barrier_wait(&done[s], turn.parity);
      char* const from = shape.elements(s);
      if (shape.boxes) {
        if (lane == 0)
          box_store(&maps.out, t.strip * shape.columns, row_in_memory(call, t) + (shape.mirror ? -shift : shift), t.batch,
                    from);
      } else {
        // Rows without a result are left out: the last one, and that is the lowest one of a mirrored tile.
        const int skip = shape.mirror ? (t.count - t.results) * shape.columns * int(sizeof(E)) : 0;
        const int out = int(t.out % kGranule), bytes = t.results * shape.columns * int(sizeof(E));
        char* const to = reinterpret_cast<char*>(t.out) - out;
        const char* const at = from + int(t.in % kGranule) + skip - out;  // a multiple of 16 bytes
        // Whole granules; those that neighbours write to, too, element by element.
        const int begin = out ? kGranule : 0, end = (out + bytes) & ~(kGranule - 1);
        if (lane == 0 && end > begin) bulk_store(to + begin, at + begin, uint32_t(end - begin));
        constexpr int kItems = kGranule / int(sizeof(E));
        const int offset = lane % kItems * int(sizeof(E)), place = lane < kItems ? offset : end + offset;
        const bool edge = lane < kItems ? out && place >= out && place < out + bytes
                                        : lane < 2 * kItems && end >= begin && place < out + bytes;
        if (edge) *reinterpret_cast<E*>(to + place) = *reinterpret_cast<const E*>(at + place);
      }
      if (lane == 0) bulk_stores_read();
      arrive(&empty[s]);
    }
  }
};

template <class S, class Load, class Store>
__global__ void __launch_bounds__(kPipelineThreads, 1)
    scan_columns_pipeline(TR_GRID_CONSTANT ScanCall call, TR_GRID_CONSTANT ColumnMaps maps, void* workspace) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using P = ColumnsPipeline<S, Load, Store>;
  TR_DYNAMIC_SHARED(shared, 128);
  __shared__ P pipeline;
  const S op{call.options};
  if (threadIdx.x == 0) {
    pipeline.shape.set(call, shared, workspace);
    pipeline.make_barriers();
  }
  __syncthreads();
  // Two neighbouring columns of 16 bits at once, where they lie in one word.
  bool pairs = sizeof(typename P::E) == 2 && pipeline.shape.columns % 2 == 0;
  if (!pipeline.shape.boxes) {
    pairs = pairs && reinterpret_cast<uintptr_t>(call.in.data) % 4 == 0;
    for (int d = 0; d < call.layout.kept - 1; ++d) pairs = pairs && call.layout.in[d] % 2 == 0;
  }
  int warp = int(threadIdx.x) / kLanes;
  if (warp < P::kResults) {
    if (pairs) pipeline.template results<uint32_t>(op, warp);
    else pipeline.template results<typename P::Short>(op, warp);
  } else if ((warp -= P::kResults) < P::kGroups) {
    if (pairs) pipeline.template groups<uint32_t>(op, warp);
    else pipeline.template groups<typename P::Short>(op, warp);
  } else if ((warp -= P::kGroups) < P::kTotals) {
    pipeline.totals(warp);
  } else if ((warp -= P::kTotals) < P::kCarries) {
    pipeline.carries(warp);
  } else if ((warp -= P::kCarries) == 0) {
    pipeline.blocks();
  } else if (warp == 1) {
    pipeline.store(call, maps);
  } else if (lane_id() == 0) {
    pipeline.load(call, maps);
  }
#endif
}

// The input and the output of a call that takes boxes. Returns an error's message, or nullptr.
template <class E> const char* map_columns(const ScanCall& call, ColumnMaps& maps) {
  const Layout& l = call.layout;
  const int64_t width = l.size[l.kept - 1];
  auto map = [&](TensorMap& map, const void* data, const int64_t* stride) {
    const int64_t along = stride[l.kept];
    const char* lowest = static_cast<const char*>(data) + (along < 0 ? (l.length - 1) * along * int64_t(sizeof(E)) : 0);
    const int64_t sizes[3] = {width, l.length, l.rows / width};
    const int64_t bytes[2] = {(along < 0 ? -along : along) * int64_t(sizeof(E)),
                              (l.kept > 1 ? stride[0] : (along < 0 ? -along : along) * l.length) * int64_t(sizeof(E))};
    const int box[3] = {call.plan.lanes, call.plan.rows, 1};
    return map_tensor<int(sizeof(E))>(map, lowest, sizes, bytes, box);
  };
  const char* error = map(maps.in, call.in.data, l.in);
  return error ? error : map(maps.out, call.out.values, l.out);
}

#endif

}  // namespace torchreduce::gpu
