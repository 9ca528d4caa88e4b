// Scans of strips of columns that blocks share, on GPUs with bulk copies: one block a multiprocessor stays for the
// whole call, and its warps have roles that only barriers in shared memory join. A job is 256 positions of a strip of
// 128 bytes a row, or as many tiles of a narrower matrix as make 128 bytes; its elements have a stage of shared memory,
// what is known of it a slot.
//
//   jobs     takes a ticket for each slot as it gets free, and works out the job
//   loader   starts the bulk copies of a job, row by row or, of a matrix that is as wide as the strip, tile by tile
//   totals   each warp sums one job as soon as it has landed, and publishes the totals of its columns
//   look     teams of warps look at the totals of the tiles before a job in its block tile; where it ends that one, they
//            publish its total, as a node of the tree over the block tiles of its superblock
//   carry    a column a lane, finds what precedes the block tile: a few nodes, and the superblocks before
//   results  teams of warps take a job's elements to registers, which frees the stage, and store its results from there
//
// Who looks at totals never waits for a carry, so that no node of a block tile waits for what precedes it; and a ticket
// is not taken before there is a slot for its job, as others wait for it from then on.
#pragma once
#include "scan_columns.cuh"
#include "scan_pipeline.cuh"

namespace torchreduce::gpu {

// What the kernel is compiled for.
template <class S, class Load, class Store> constexpr bool kStripPipelined =
    kPipelined<S, Load, Store> && sizeof(typename S::Acc) <= kStripAcc;

#ifdef TR_BULK_COPIES

// A job. `in` and `out` are the addresses of its first position and column.
struct StripJob {
  uintptr_t in, out;
  void* totals;   // Published, of the first tile of its block tile, first column
  void* nodes;    // the same of the first block tile of its superblock
  void* carries;  // what precedes the superblock after its own; a row of columns before that, what precedes its own
  int64_t position;
  int width;  // columns; 0: there is no job, and no other comes
  int left;   // positions from there on; more than the job has is all the same
  int slot;   // of its first tile in the block tile
  int block;  // of the block tile in its superblock
  bool first_superblock;
};

// The workspace, all zero before the launch: 16 bytes with the ticket, so that two neighbours are aligned to 16 bytes;
// for each batch, and in it for each tile, block tile or superblock, the values of all rows (columns of memory).
template <class S> struct StripSpace {
  int64_t width, tiles, blocks, superblocks;  // rows of a batch; tiles, block tiles and superblocks of a row
  Published<typename S::Acc>* totals;         // of tiles
  // Of block tile b: the total of as many block tiles up to it as the lowest bit of b + 1 says, in its superblock.
  Published<typename S::Wide>* nodes;
  Published<typename S::Wide>* carries;  // what precedes the superblock after this one

  __device__ StripSpace(void* workspace, int64_t rows, int64_t width, int64_t tiles)
      : width(width),
        tiles(tiles),
        blocks((tiles + kFan - 1) / kFan),
        superblocks((blocks + kFan - 1) / kFan),
        totals(reinterpret_cast<Published<typename S::Acc>*>(static_cast<uint64_t*>(workspace) + 2)),
        nodes(reinterpret_cast<Published<typename S::Wide>*>(totals + rows * tiles)),
        carries(nodes + rows * blocks) {}
};

template <class S, class Load, class Store> struct StripPipeline {
  using Acc = typename S::Acc;
  using Wide = typename S::Wide;
  using Item = typename S::Item;
  using E = typename Load::Element;
  static constexpr int kSize = sizeof(E), kColumns = kStripRow / kSize;  // of a job: those of all its tiles
  static constexpr int kV = 4, kWords = kV * kSize / 4;                    // neighbouring columns of a lane
  static constexpr int kAcross = kColumns / kV, kDown = kLanes / kAcross;  // lanes of a row; groups of a warp at once
  static constexpr int kStages = kStripStages, kSlots = kStripSlots;
  static constexpr int kTotalWarps = 4, kLookTeams = 2, kLookWarps = 2, kCarryLanes = 64;
  static constexpr int kCarryTeams = kCarryLanes / kColumns, kCarryWarps = kColumns / kLanes;
  static constexpr int kResultTeams = 2, kResultWarps = 8;
  static constexpr int kRounds = kFan / (kResultWarps * kDown);  // groups of a lane
  static constexpr int kEnds = kTotalWarps;                      // jobs that end all roles
  // The first warp of each role.
  static constexpr int kTotalWarp = kResultTeams * kResultWarps, kLookWarp = kTotalWarp + kTotalWarps,
                       kCarryWarp = kLookWarp + kLookTeams * kLookWarps, kLoadWarp = kCarryWarp + kCarryLanes / kLanes,
                       kJobWarp = kLoadWarp + 1;
  static_assert((kJobWarp + 1) * kLanes == kStripThreads, "a warp for each role");
  static_assert(kSlots % kTotalWarps == 0 && kSlots % kResultTeams == 0 && kStages % kResultTeams == 0,
                "a role's warps meet at each barrier in turn");
  static_assert(kFan / 4 == kResultWarps, "each result warp has half a quarter of a tile");

  // Parts of a tile that precede a result warp's four groups, in the order in which they are joined on the left: the
  // four before them in their quarter; the quarter before it; the first half.
  static constexpr int kQuarters = 4, kHalf = 6, kParts = 7;  // the first of each

  Barrier put[kSlots], loaded[kSlots], ready[kSlots], released[kSlots], empty[kStages];
  StripJob job[kSlots];
  alignas(16) Acc parts[kSlots][kParts][kColumns];
  alignas(16) Acc within[kSlots][kColumns];  // what precedes the tile in its block tile
  alignas(16) Wide carry[kSlots][kColumns];
  static constexpr int kShared =
      kStages * kStripStage + kSlots * (kColumns * ((kParts + 1) * int(sizeof(Acc)) + int(sizeof(Wide))) + 128);
  static_assert(kShared + 1024 <= kPipelineShared, "the plan counts on no more");

  __device__ void make_barriers() {
    for (int s = 0; s < kSlots; ++s) {
      barrier_init(&put[s], 1);
      barrier_init(&loaded[s], 1);
      barrier_init(&ready[s], 1 + kLookWarps + kCarryWarps);
      barrier_init(&released[s], 1 + kLookWarps + kCarryWarps + kResultWarps);  // with the loader
    }
    for (int s = 0; s < kStages; ++s) barrier_init(&empty[s], 1 + kResultWarps);
    barriers_made();
  }
  // For all lanes of a warp.
  __device__ static void warp_arrive(Barrier* b) {
    warp_barrier();
    if (lane_id() == 0) barrier_arrive(b);
  }
  __device__ const StripJob& next(int it) {
    barrier_wait(&put[it % kSlots], it / kSlots & 1);
    return job[it % kSlots];
  }
  // Its elements are there.
  __device__ void wait_loaded(int it) { barrier_wait(&loaded[it % kSlots], it / kSlots & 1); }

  // How a job's elements lie: `row` bytes of a tile side by side, tile behind tile; each a row further on, so that the
  // lanes of a row meet in no bank. Where they are one run of memory they lie as there, else by position.
  struct Form {
    int row, tiles, columns;  // bytes; of a job; of a tile
    bool run, mirror;         // the rows are a run of memory; which goes down

    __device__ explicit Form(const ScanCall& call)
        : row(call.plan.strip_bytes), tiles(kStripRow / row), columns(row / kSize) {
      const Layout& l = call.layout;
      const int64_t stride = l.in[l.kept];
      run = l.size[l.kept - 1] == columns && (stride == columns || stride == -columns);
      mirror = run && stride < 0;
    }
    __device__ int place(int tile) const { return tile * ((kTile + 1) * row); }
    // The tile of a job that column c belongs to, and where it stands there.
    __device__ int tile_of(int c) const { return c / columns; }
    __device__ int within(int c) const { return c & (columns - 1); }
  };

  // ---- roles ----

  __device__ void jobs(const ScanCall& call, const Form& form, void* workspace) {
    const Layout& l = call.layout;
    const int64_t width = l.size[l.kept - 1], strips = (width + form.columns - 1) / form.columns;
    const int64_t tiles = call.plan.splits, runs = (tiles + form.tiles - 1) / form.tiles;
    const int64_t all = l.rows / width * runs * strips;
    const double strip_share = 1 / double(strips), run_share = 1 / double(runs);
    const int64_t in_step = l.in[l.kept] * kSize, out_step = l.out[l.kept] * kSize;
    const StripSpace<S> space(workspace, l.rows, width, tiles);
    int ends = 0;
    for (int it = 0; ends < kEnds; ++it) {
      const int s = it % kSlots;
      if (it >= kSlots) barrier_wait(&released[s], (it / kSlots - 1) & 1);
      const int64_t ticket = ends ? all : int64_t(take_ticket(static_cast<uint64_t*>(workspace)));
      StripJob j{};
      if (ticket < all) {
        const int64_t rest = strips == 1 ? ticket : quotient(ticket, strips, strip_share);
        const int64_t first = (ticket - rest * strips) * form.columns;
        const int64_t batch = l.rows == width ? 0 : quotient(rest, runs, run_share);
        const int64_t tile = (rest - batch * runs) * form.tiles, block = tile / kFan, superblock = block / kFan;
        const RowStart start = l.rows == width ? RowStart{0, 0} : row_start(l, batch, l.kept - 1);
        j.position = tile * kTile;
        j.in = reinterpret_cast<uintptr_t>(call.in.data) + (start.in + first) * kSize + j.position * in_step;
        j.out = reinterpret_cast<uintptr_t>(call.out.values) + (start.out + first) * kSize +
                (j.position + (call.exclusive ? 1 : 0)) * out_step;
        j.totals = space.totals + ((batch * tiles + block * kFan) * width + first);
        j.nodes = space.nodes + ((batch * space.blocks + superblock * kFan) * width + first);
        j.carries = space.carries + ((batch * space.superblocks + superblock) * width + first);
        const int64_t across = width - first, left = l.length - j.position;
        j.width = int(across < form.columns ? across : form.columns);
        j.left = int(left < kColumns * kTile + 1 ? left : kColumns * kTile + 1);
        j.slot = int(tile % kFan);
        j.block = int(block % kFan);
        j.first_superblock = superblock == 0;
      } else {
        ++ends;
      }
      job[s] = j;
      barrier_arrive(&put[s]);
    }
  }

  __device__ void load(const ScanCall& call, const Form& form, char* stages) {
    const int lane = lane_id();
    const int64_t step = call.layout.in[call.layout.kept] * kSize;
    for (int it = 0;; ++it) {
      const StripJob j = next(it);
      if (!j.width) return;
      const int slot = it % kSlots, s = it % kStages, most = form.tiles * kTile, rows = j.left < most ? j.left : most;
      const uint32_t bytes = uint32_t(j.width * kSize);
      warp_arrive(&released[slot]);
      char* const stage = stages + s * kStripStage;
      if (it >= kStages) barrier_wait(&empty[s], (it / kStages - 1) & 1);
      if (lane == 0) barrier_expect(&loaded[slot], uint32_t(rows) * bytes);
      warp_barrier();
      if (form.run) {
        const int first = lane * kTile, count = rows - first < kTile ? rows - first : kTile;
        if (lane < form.tiles && count > 0) {
          const uintptr_t lowest = j.in + (first + (form.mirror ? count - 1 : 0)) * step;
          bulk_load(stage + form.place(lane) + (form.mirror ? (kTile - count) * form.row : 0),
                    reinterpret_cast<const void*>(lowest), uint32_t(count) * bytes, &loaded[slot]);
        }
      } else {
#pragma unroll 1
        for (int row = lane; row < rows; row += kLanes)
          bulk_load(stage + form.place(row / kTile) + row % kTile * form.row,
                    reinterpret_cast<const void*>(j.in + row * step), bytes, &loaded[slot]);
      }
    }
  }

  // A lane's columns: `c` is the first among those of the job.
  struct Place {
    int c, tile, column;     // its tile of the job; the column there
    const char* first;       // position 0 in a stage, less the stage
    int step;                // bytes from position to position
    bool there, whole;       // the column is; all positions are
    int left;                // positions of the tile from its first on

    __device__ Place(const Form& form, const StripJob& j, const char* stage, int across)
        : c(across * kV), tile(form.tile_of(c)), column(form.within(c)) {
      step = form.mirror ? -form.row : form.row;
      first = stage + form.place(tile) + (form.mirror ? (kTile - 1) * form.row : 0) + column * kSize;
      left = j.left - tile * kTile;
      there = column < j.width;
      whole = j.left >= form.tiles * kTile;
    }
    // The elements of group g; positions that are not there have the identity's.
    __device__ void read(int g, uint32_t (&w)[kGroup][kWords]) const {
      const char* p = first + g * kGroup * step;
#pragma unroll
      for (int i = 0; i < kGroup; ++i, p += step) {
        const auto words = *reinterpret_cast<const Packed<uint32_t, kWords>*>(p);
#pragma unroll
        for (int k = 0; k < kWords; ++k) w[i][k] = words.item[k];
      }
      if (whole) return;
      E absent[4 / kSize];
      uint32_t filler;
#pragma unroll
      for (int k = 0; k < 4 / kSize; ++k) absent[k] = round_to<E>(S::absent_item());
      memcpy(&filler, absent, 4);
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
#pragma unroll
        for (int k = 0; k < kWords; ++k) w[i][k] = g * kGroup + i < left ? w[i][k] : filler;
    }
  };
  // Their items, column by column, and the totals of those.
  __device__ __forceinline__ static void group_items(const S& op, const uint32_t (&w)[kGroup][kWords], int64_t position,
                                                     Item (&items)[kV][kGroup], Acc (&total)[kV]) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      E x[kV];
      unpack<E, kV>(w[i], x);
#pragma unroll
      for (int v = 0; v < kV; ++v) items[v][i] = op.load(x[v], position + i);
    }
#pragma unroll
    for (int v = 0; v < kV; ++v) total[v] = S::group(items[v]);
  }
  __device__ __forceinline__ static void join(const Acc (&left)[kV], Acc (&right)[kV]) {
#pragma unroll
    for (int v = 0; v < kV; ++v) right[v] = S::combine(left[v], right[v]);
  }
  // The same of a row of shared memory.
  __device__ __forceinline__ static void join(const Acc* row, int c, Acc (&right)[kV]) {
    Acc left[kV];
    copy(row + c, left);
    join(left, right);
  }
  template <class V> __device__ __forceinline__ static void copy(const V* from, V (&to)[kV]) {
    struct alignas(16) Granules { V item[kV]; };
    const Granules g = *reinterpret_cast<const Granules*>(from);
#pragma unroll
    for (int v = 0; v < kV; ++v) to[v] = g.item[v];
  }
  // Of a lane's values and those of the lane `distance` from it, a power of two: both, the lower one on the left.
  __device__ __forceinline__ static void both(const Acc (&own)[kV], int distance, Acc (&joined)[kV]) {
    const int lane = lane_id();
    const bool upper = lane & distance;
#pragma unroll
    for (int v = 0; v < kV; ++v) {
      const Acc other = shuffle(own[v], lane ^ distance);
      joined[v] = upper ? S::combine(other, own[v]) : S::combine(own[v], other);
    }
  }

  __device__ void totals(const S& op, const Form& form, const char* stages, int64_t width, int warp) {
    constexpr int kRun = kFan / kDown;  // groups of a lane, neighbours: a quarter or a half of a tile
    const int lane = lane_id(), across = lane % kAcross, down = lane / kAcross;
    for (int it = warp;; it += kTotalWarps) {
      const StripJob& j = next(it);
      if (!j.width) return;
      const int slot = it % kSlots, s = it % kStages;
      wait_loaded(it);
      const Place place(form, j, stages + s * kStripStage, across);
      Acc tree[5][kV];  // of the groups so far, one of each size
#pragma unroll 1
      for (int quarter = 0; quarter < kRun / 8; ++quarter) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const int g = down * kRun + quarter * 8 + i;
          uint32_t w[kGroup][kWords];
          Item items[kV][kGroup];
          Acc total[kV];
          place.read(g, w);
          group_items(op, w, j.position + (place.tile * kTile + g * kGroup), items, total);
          int level = 0;
#pragma unroll
          for (int rest = i; rest % 2; rest /= 2, ++level) join(tree[level], total);
#pragma unroll
          for (int v = 0; v < kV; ++v) tree[level][v] = total[v];
          if (i == 3) keep(slot, (down * kRun + quarter * 8) / 8, place.c, total);
        }
        if (kRun > 8) {
          if (quarter == 0) {
#pragma unroll
            for (int v = 0; v < kV; ++v) tree[4][v] = tree[3][v];
            keep(slot, kQuarters + down, place.c, tree[3]);
          } else {
            join(tree[4], tree[3]);
          }
        }
      }
      Acc total[kV];
      if (kRun == 8) {
        if (down % 2 == 0) keep(slot, kQuarters + down / 2, place.c, tree[3]);
        both(tree[3], kAcross, tree[4]);
        if (down == 0) keep(slot, kHalf, place.c, tree[4]);
        both(tree[4], 2 * kAcross, total);
      } else {
        if (down == 0) keep(slot, kHalf, place.c, tree[3]);
        both(tree[3], kAcross, total);
      }
      // Each of the lanes of a column publishes a part of what they all have.
      auto* const to = static_cast<Published<Acc>*>(j.totals) + (j.slot + place.tile) * width + place.column;
#pragma unroll
      for (int v = 0; v < kV; ++v)
        if (v / (kV / kDown) == down && place.there && place.left > 0) to[v].publish(total[v]);
      warp_arrive(&empty[s]);
      warp_arrive(&ready[slot]);
    }
  }
  __device__ __forceinline__ void keep(int slot, int part, int c, const Acc (&total)[kV]) {
    struct alignas(16) Granules { Acc item[kV]; } g;
#pragma unroll
    for (int v = 0; v < kV; ++v) g.item[v] = total[v];
    *reinterpret_cast<Granules*>(&parts[slot][part][c]) = g;
  }

  // The pairwise tree over the first `count` of kFan totals of two neighbouring columns, of which a lane has those from
  // `first` on and its kEach neighbours the others; each of them gets it.
  template <int kHeld, int kEach>
  __device__ __forceinline__ static void tree(const Acc (&value)[kHeld][2], int first, int count, Acc (&whole)[2]) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      Acc stack[kFanLog2 + 1];
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        Acc v = first + i < count ? value[i][c] : S::absent();
        int level = 0;
#pragma unroll
        for (int rest = i; rest % 2; rest /= 2, ++level) v = S::combine(stack[level], v);
        stack[level] = v;
      }
      whole[c] = stack[log2_of(kHeld)];
#pragma unroll
      for (int d = 1; d < kEach; d *= 2) {
        const Acc other = shuffle(whole[c], lane_id() ^ d);
        whole[c] = lane_id() & d ? S::combine(other, whole[c]) : S::combine(whole[c], other);
      }
    }
  }

  // Waits are by whole warps, so that none holds another of its wavefront.
  __device__ void look(const Form& form, int64_t width, int warp) {
    constexpr int kEach = kLookWarps * kLanes / (kColumns / 2), kHeld = kFan / kEach, kAtOnce = 8;
    const int lane = warp % kLookWarps * kLanes + lane_id(), part = lane % kEach, first = part * kHeld;
    const int c = lane / kEach * 2, tile = form.tile_of(c), column = form.within(c);
    for (int it = warp / kLookWarps;; it += kLookTeams) {
      const StripJob& j = next(it);
      if (!j.width) return;
      const int slot = it % kSlots, number = j.slot + tile;
      const bool ends = j.slot + form.tiles == kFan && j.left >= form.tiles * kTile;  // the block tile
      const bool there = column < j.width && tile * kTile < j.left;
      const bool closes = ends && tile == form.tiles - 1 && there;
      const int count = there ? number : 0, wanted = count + closes;
      Acc value[kHeld][2];
#pragma unroll
      for (int from = 0; from < kHeld; from += kAtOnce) {
        uint64_t word[kAtOnce][2];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
          word[i][0] = word[i][1] = first + from + i < wanted ? 0 : uint64_t(1) << 32;
        const auto* const totals = static_cast<const Published<Acc>*>(j.totals) + ((first + from) * width + column);
        for (bool all = false; !all;) {
          const Published<Acc>* p = totals;
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i, p += width)
            load_relaxed_pair_if((word[i][0] & word[i][1]) >> 32 == 0, p->word, word[i]);
          bool mine = true;
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) mine = mine && (word[i][0] & word[i][1]) >> 32 != 0;
          all = !ballot(!mine);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
          for (int k = 0; k < 2; ++k) value[from + i][k] = bit_cast<Acc>(uint32_t(word[i][k]));
      }
      Acc before[2];
      tree<kHeld, kEach>(value, first, count, before);
      if (part == 0) {
        within[slot][c] = before[0];
        within[slot][c + 1] = before[1];
      }
      warp_arrive(&ready[slot]);
      if (ends) {
        Acc total[2];
        tree<kHeld, kEach>(value, first, wanted, total);
        publish_node(static_cast<Published<Wide>*>(j.nodes) + (column + part), width, j.block,
                     S::widen(part ? total[1] : total[0]), closes && part < 2);
      }
      warp_arrive(&released[slot]);
    }
  }
  // Of a block tile's total: joined with the nodes before it that end where its own begins.
  __device__ static void publish_node(Published<Wide>* nodes, int64_t width, int block, Wide node, bool active) {
#pragma unroll 1
    for (int size = 1; block & size; size *= 2) {
      Wide left = S::wide_absent();
      bool there = !active;
      while (ballot(!there))
        if (!there) there = nodes[(block - size) * width].look(left);
      node = S::combine(left, node);
    }
    if (active) nodes[block * width].publish(node);
  }

  __device__ void carries(const Form& form, int64_t width, int warp) {
    constexpr int kWide = Published<Wide>::kWords;
    static_assert(kWide == 2, "words that are looked at together");
    const int c = warp % kCarryWarps * kLanes + lane_id(), column = form.within(c);
    for (int it = warp / kCarryWarps;; it += kCarryTeams) {
      const StripJob& j = next(it);
      if (!j.width) return;
      const int slot = it % kSlots;
      const bool there = column < j.width;
      auto* const nodes = static_cast<Published<Wide>*>(j.nodes) + column;
      auto* const carries = static_cast<Published<Wide>*>(j.carries) + column;
      uint64_t word[kFanLog2 + 1][kWide];  // of the nodes before the block tile, from right to left; what precedes them
      auto from = [&](int i, int rest) { return i < kFanLog2 ? nodes + (rest - 1) * width : carries - width; };
      auto wanted = [&](int i, int rest) { return there && (i < kFanLog2 ? rest > 0 : !j.first_superblock); };
      int rest = j.block;
#pragma unroll
      for (int i = 0; i <= kFanLog2; ++i, rest &= rest - 1)
        word[i][0] = word[i][1] = wanted(i, rest) ? 0 : uint64_t(1) << 32;
      for (bool all = false; !all;) {
        bool mine = true;
        rest = j.block;
#pragma unroll
        for (int i = 0; i <= kFanLog2; ++i, rest &= rest - 1)
          load_relaxed_pair_if((word[i][0] & word[i][1]) >> 32 == 0, from(i, rest)->word, word[i]);
#pragma unroll
        for (int i = 0; i <= kFanLog2; ++i) mine = mine && (word[i][0] & word[i][1]) >> 32 != 0;
        all = !ballot(!mine);
      }
      auto value = [&](int i) {
        const uint32_t part[2] = {uint32_t(word[i][0]), uint32_t(word[i][1])};
        Wide v;
        memcpy(&v, part, sizeof v);
        return v;
      };
      Wide upto = S::wide_absent();
      rest = j.block;
#pragma unroll
      for (int i = 0; i < kFanLog2; ++i, rest &= rest - 1)
        if (rest) upto = S::combine(value(i), upto);
      const Wide before = j.first_superblock ? S::wide_absent() : value(kFanLog2);
      carry[slot][c] = S::combine(before, upto);
      warp_arrive(&ready[slot]);
      if (j.block == kFan - 1 && j.slot + form.tiles == kFan && j.left >= form.tiles * kTile) {  // ends a superblock
        const bool active = there && form.tile_of(c) == form.tiles - 1;
        Wide total = S::wide_absent();
        bool seen = !active;
        while (ballot(!seen))
          if (!seen) seen = nodes[j.block * width].look(total);
        if (active) carries->publish(S::combine(before, total));
      }
      warp_arrive(&released[slot]);
    }
  }

  __device__ void results(const S& op, const ScanCall& call, const Form& form, const char* stages, int warp) {
    using Words = Packed<uint32_t, kWords>;
    const int64_t step = call.layout.out[call.layout.kept] * kSize;
    const int lane = lane_id(), across = lane % kAcross, down = lane / kAcross;
    const int number = warp % kResultWarps, quarter = number / 2;
    for (int it = warp / kResultWarps;; it += kResultTeams) {
      const StripJob& j = next(it);
      if (!j.width) return;
      const int slot = it % kSlots, s = it % kStages;
      const int results = j.left - (call.exclusive ? 1 : 0);
      const int64_t position = j.position;
      const Place place(form, j, stages + s * kStripStage, across);
      const int c = place.c;
      char* out = nullptr;  // the lane's first result; null: it has no columns
      if (place.there)
        out = reinterpret_cast<char*>(j.out) + place.column * kSize +
              int64_t(place.tile * kTile + (number * 4 + down) * kGroup) * step;
      if (call.exclusive && out && position == 0 && place.tile == 0 && number * 4 + down == 0) {
        E start[kV];
#pragma unroll
        for (int v = 0; v < kV; ++v) start[v] = round_to<E>(S::start());
        Words words;
        memcpy(&words, start, sizeof words);
        store_granule(reinterpret_cast<Words*>(out - step), words);
      }
      wait_loaded(it);
      uint32_t w[kRounds][kGroup][kWords];
#pragma unroll
      for (int k = 0; k < kRounds; ++k) place.read(number * 4 + k * kDown + down, w[k]);
      warp_arrive(&empty[s]);
      barrier_wait(&ready[slot], it / kSlots & 1);
      Acc earlier[kV];  // of the rounds before
#pragma unroll
      for (int k = 0; k < kRounds; ++k) {
        const int lead = place.tile * kTile + (number * 4 + k * kDown + down) * kGroup;
        Item items[kV][kGroup];
        Acc run[kV], before[kV];
        group_items(op, w[k], position + lead, items, run);
        // What precedes the group in the tile: of the warp's own groups, then of the parts before those.
#pragma unroll
        for (int v = 0; v < kV; ++v) before[v] = S::absent();
#pragma unroll
        for (int d = 1; d < kDown; d *= 2) {
#pragma unroll
          for (int v = 0; v < kV; ++v) {
            const Acc other = shuffle(run[v], lane ^ (d * kAcross));
            const bool upper = down & d;
            before[v] = upper ? S::combine(other, before[v]) : before[v];
            run[v] = upper ? S::combine(other, run[v]) : S::combine(run[v], other);
          }
        }
        if (k > 0) join(earlier, before);
        if (k + 1 < kRounds) {
#pragma unroll
          for (int v = 0; v < kV; ++v) earlier[v] = run[v];
        }
        if (number % 2) join(parts[slot][quarter], c, before);
        if (quarter % 2) join(parts[slot][kQuarters + quarter / 2], c, before);
        if (quarter / 2) join(parts[slot][kHalf], c, before);
        join(within[slot], c, before);
        Wide into[kV];
        copy(&carry[slot][c], into);
        Words words[kGroup];
        constexpr int kPer = 4 / kSize;
#pragma unroll
        for (int word = 0; word < kWords; ++word) {
          typename S::Result r[kPer][kGroup];
#pragma unroll
          for (int v = 0; v < kPer; ++v) {
            const int at = word * kPer + v;
            op.results(S::prefix(into[at], before[at]), items[at], r[v]);
          }
          round_columns<E, S>(r, words, word);
        }
        if (k + 1 == kRounds) warp_arrive(&released[slot]);
        const int count = out ? results - lead : 0;
        if (count >= kGroup) {
#pragma unroll
          for (int i = 0; i < kGroup; ++i) store_granule(reinterpret_cast<Words*>(out + i * step), words[i]);
        } else {
#pragma unroll
          for (int i = 0; i < kGroup; ++i)
            if (i < count) store_granule(reinterpret_cast<Words*>(out + i * step), words[i]);
        }
        if (k + 1 < kRounds && out) out += kDown * kGroup * step;
      }
    }
  }
};

template <class S, class Load, class Store>
__global__ void __launch_bounds__(kStripThreads, 1)
    scan_strip_pipeline(TR_GRID_CONSTANT ScanCall call, void* workspace) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using P = StripPipeline<S, Load, Store>;
  TR_DYNAMIC_SHARED(stages, 128);
  __shared__ P pipeline;
  const int warp = int(threadIdx.x) / kLanes;
  const int64_t width = call.layout.size[call.layout.kept - 1];
  const typename P::Form form(call);
  const S op{call.options};
  if (threadIdx.x == 0) pipeline.make_barriers();
  __syncthreads();
  if (warp < P::kTotalWarp) pipeline.results(op, call, form, stages, warp);
  else if (warp < P::kLookWarp) pipeline.totals(op, form, stages, width, warp - P::kTotalWarp);
  else if (warp < P::kCarryWarp) pipeline.look(form, width, warp - P::kLookWarp);
  else if (warp < P::kLoadWarp) pipeline.carries(form, width, warp - P::kCarryWarp);
  else if (warp < P::kJobWarp) pipeline.load(call, form, stages);
  else if (lane_id() == 0) pipeline.jobs(call, form, workspace);
#endif
}

#endif

}  // namespace torchreduce::gpu
