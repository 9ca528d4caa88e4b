// Scans of strips of columns that blocks share, on GPUs with bulk copies: one block a multiprocessor stays for the
// whole call, and its warps have roles that only barriers in shared memory join. A job is 256 positions of a strip of
// 128 bytes a row, or as many tiles of a narrower matrix as make 128 bytes; its elements have a stage of shared memory.
//
//   jobs     takes a ticket for each stage when its results are there, and works out the job
//   copies   starts the bulk copies of a job's elements and of its results: of a tile of the matrix, or of a run of
//            memory where it is as wide as a strip
//   totals   each warp sums one job as soon as it has landed, and publishes the totals of its columns
//   look     teams of warps look at the totals of the tiles before a job in its block tile; of one that ends it, they
//            publish the block tile's total, as a node of the tree over those of its superblock
//   carry    a column a lane, finds what precedes the block tile: a few nodes, and the superblocks before
//   results  teams of warps turn a job into its results, which take the places of its elements
//
// Who looks at totals never waits for a carry, so that no node of a block tile waits for what precedes it. A ticket is
// not taken before there is nearly a stage for its job, as others wait for it from then on. What looks at memory is
// alone on its way there: elements and results go by bulk copies (loads and stores of their own kept looks waiting for
// 5 us, where a job has 2: 0.6 to 0.8 of a copy's speed).
#pragma once
#include "column_jobs.cuh"
#include "column_strips.h"
#include "kernels/common/tile_map.cuh"
#include "ring.cuh"

namespace torchreduce::gpu {

// What the kernel is compiled for.
template <class S, class Load, class Store> constexpr bool kColumnStrips =
    kRing<S, Load, Store> && sizeof(typename S::Acc) <= kStripAcc;

#ifdef TR_BULK_COPIES

// A job.
struct StripJob {
  int64_t first, batch;  // its first column, and the batch that it counts from
  int64_t position;      // its first
  void* totals;          // Published, of the first tile of its block tile, first column
  void* nodes;           // the same of the first block tile of its superblock
  void* carries;  // what precedes the superblock after its own; a row of columns before that, what precedes its own
  int width;      // columns; 0: there is no job, and no other comes
  int left;       // positions from there on; more than the job has is all the same
  int slot;       // of its first tile in the block tile
  int block;      // of the block tile in its superblock
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

template <class S, class Load, class Store> struct ColumnStrips {
  using Acc = typename S::Acc;
  using Wide = typename S::Wide;
  using Item = typename S::Item;
  using E = typename Load::Element;
  static constexpr int kSize = sizeof(E), kColumns = kStripRow / kSize;    // of a job: those of all its tiles
  static constexpr int kV = 8 / kSize;                                     // neighbouring columns of a lane: two words
  static constexpr int kAcross = kColumns / kV, kDown = kLanes / kAcross;  // lanes of a row; groups of a warp at once
  static constexpr int kStages = kStripStages;
  static constexpr int kTotalWarps = 2, kCarryLanes = 128;
  static constexpr int kLookWarps = kColumns / 16, kLookTeams = 8 / kLookWarps;
  static constexpr int kCarryTeams = kCarryLanes / kColumns, kCarryWarps = kColumns / kLanes;
  static constexpr int kResultTeams = 2, kResultWarps = 8;
  static constexpr int kRounds = kFan / (kResultWarps * kDown);  // groups of a lane
  static constexpr int kEnds = 4;                                // jobs that end all roles
  // The first warp of each role.
  static constexpr int kTotalWarp = kResultTeams * kResultWarps, kLookWarp = kTotalWarp + kTotalWarps,
                       kCarryWarp = kLookWarp + kLookTeams * kLookWarps, kCopyWarp = kCarryWarp + kCarryLanes / kLanes,
                       kJobWarp = kCopyWarp + 1;
  static_assert((kJobWarp + 1) * kLanes == kStripThreads, "a warp for each role");
  static_assert(kEnds >= kTotalWarps && kEnds >= kLookTeams && kEnds >= kCarryTeams && kEnds >= kResultTeams,
                "one for each team of a role");
  static_assert(kAcross == 16 && kDown == 2 && kRounds == 2,
                "a lane has half a tile, or two groups of its warp's four");
  static constexpr int kPairWords = 2 * kSize / 4;  // of two columns

  // Parts of a tile that precede a result warp's four groups, in the order in which they are joined on the left: the
  // four before them in their quarter; the quarter before it; the first half.
  static constexpr int kQuarters = 4, kHalf = 6, kParts = 7;  // the first of each

  // What precedes a job.
  struct Before {
    alignas(16) Acc parts[kParts][kColumns];
    alignas(16) Acc within[kColumns];  // the tile, in its block tile
    alignas(16) Wide carry[kColumns];  // that one
  };
  StageBarriers<kStages> put, loaded, summed, ready, done, released;
  StripJob job[kStages];
  Before known[kStages];

  __device__ void make_barriers() {
    for (int s = 0; s < kStages; ++s) {
      barrier_init(put[s], 1);
      barrier_init(loaded[s], 1);
      barrier_init(summed[s], kLanes);
      barrier_init(ready[s], (1 + kLookWarps + kCarryWarps) * kLanes);  // with the totals
      barrier_init(done[s], kResultWarps * kLanes);
      barrier_init(released[s], (kLookWarps + kCarryWarps + kResultWarps) * kLanes + 1);  // with the copies
    }
    barriers_made();
  }
  __device__ const StripJob& next(int it) {
    put.wait(it);
    return job[it % kStages];
  }
  // How a job's elements lie in a stage, and how they are copied: `row` bytes of a tile side by side, tile behind tile,
  // each a row further on, so that the lanes of a row meet in no bank.
  struct Form {
    int row, tiles, columns;  // bytes; of a job; of a tile
    bool mirror;              // a tile's last position comes first

    __device__ Form(const ScanCall& call, const ColumnStripsShape& shape)
        : row(recomputed(shape.bytes)),
          tiles(recomputed(shape.down)),
          columns(row / kSize),
          mirror(call.layout.in[call.layout.kept] < 0) {}
    __device__ int place(int tile) const { return tile * ((kTile + 1) * row); }
    // The tile of a job that column c belongs to, and where it stands there.
    __device__ int tile_of(int c) const { return c / columns; }
    __device__ int within(int c) const { return c & (columns - 1); }
    // The row of memory, of n, where the tile from `position` on begins, or its results, `shift` positions further on.
    __device__ int64_t row_of(int64_t n, int64_t position, int shift) const {
      return mirror ? n - position - kTile - shift : position + shift;
    }
  };

  // ---- roles ----

  __device__ void jobs(const ScanCall& call, const ColumnStripsShape& shape, const Form& form, void* workspace) {
    const Layout& l = call.layout;
    const int64_t width = l.size[l.kept - 1], strips = (width + form.columns - 1) / form.columns;
    const int64_t tiles = shape.tiles, runs = (tiles + form.tiles - 1) / form.tiles;
    const int64_t all = l.rows / width * runs * strips;
    const double strip_share = 1 / double(strips), run_share = 1 / double(runs);
    const StripSpace<S> space(workspace, l.rows, width, tiles);
    int ends = 0;
    for (int it = 0; ends < kEnds; ++it) {
      const int s = it % kStages;
      released.wait_before(it);
      const int64_t ticket = ends ? all : int64_t(take_ticket(static_cast<uint64_t*>(workspace)));
      StripJob j{};
      if (ticket < all) {
        const int64_t rest = strips == 1 ? ticket : quotient(ticket, strips, strip_share);
        const int64_t first = (ticket - rest * strips) * form.columns;
        const int64_t batch = l.rows == width ? 0 : quotient(rest, runs, run_share);
        const int64_t tile = (rest - batch * runs) * form.tiles, block = tile / kFan, superblock = block / kFan;
        j.first = first;
        j.batch = batch;
        j.position = tile * kTile;
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
      barrier_arrive(put[s]);
    }
  }

  // Tiles of a job that are one run of memory each, of `count` positions: calls copy(place, bytes to the lowest in
  // memory from the tensor's first element on, bytes).
  template <class Copy>
  __device__ static void for_runs(const ScanCall& call, const Form& form, const StripJob& j,
                                  const int64_t (&strides)[kMaxDims], int64_t start, int shift, Copy copy) {
    const int64_t step = strides[call.layout.kept] * kSize;
    for (int tile = 0; tile < form.tiles; ++tile) {
      const int first = tile * kTile, left = j.left - shift - first, count = left < kTile ? left : kTile;
      if (count <= 0) return;
      copy(form.place(tile) + (form.mirror ? (kTile - count) * form.row : 0),
           start * kSize + (j.position + shift + first + (form.mirror ? count - 1 : 0)) * step, count * form.row);
    }
  }

  // By one lane. A stage is loaded again as soon as its results are on their way.
  __device__ void copies(const ScanCall& call, const Form& form, const TileMap& in, const TileMap& out, char* stages) {
    int it = 0;
    for (;; ++it) {
      if (it >= kStages) store(call, form, out, stages, it - kStages);
      if (!next(it).width) break;
      load(call, form, in, stages, it);
    }
    for (int last = it - kStages < 0 ? 0 : it - kStages + 1; last < it; ++last) store(call, form, out, stages, last);
  }
  __device__ void load(const ScanCall& call, const Form& form, const TileMap& in, char* stages, int it) {
    const int s = it % kStages;
    const StripJob& j = job[s];
    char* const stage = stages + s * kStripStage;
    if (form.tiles > 1) {
      const int most = form.tiles * kTile;
      barrier_expect(loaded[s], uint32_t((j.left < most ? j.left : most) * form.row));
      const char* const data = static_cast<const char*>(call.in.data);
      for_runs(call, form, j, call.layout.in, row_start(call.layout, j.batch, call.layout.kept - 1).in, 0,
               [&](int place, int64_t offset, int bytes) {
                 bulk_load(stage + place, data + offset, uint32_t(bytes), loaded[s]);
               });
    } else {
      tile_load(stage, in, int(j.first), int(form.row_of(call.layout.length, j.position, 0)), int(j.batch), loaded[s],
                kTile * kStripRow);
    }
  }
  __device__ void store(const ScanCall& call, const Form& form, const TileMap& out, const char* stages, int it) {
    const int s = it % kStages, shift = call.exclusive ? 1 : 0;
    const StripJob& j = job[s];
    done.wait(it);
    const char* const stage = stages + s * kStripStage;
    if (form.tiles > 1) {
      char* const data = static_cast<char*>(call.out.values);
      for_runs(
          call, form, j, call.layout.out, row_start(call.layout, j.batch, call.layout.kept - 1).out, shift,
          [&](int place, int64_t offset, int bytes) { bulk_store(data + offset, stage + place, uint32_t(bytes)); });
    } else if (const int64_t row = form.row_of(call.layout.length, j.position, shift); row >= 0) {
      tile_store(out, int(j.first), int(row), int(j.batch), stage);
    } else {  // the last tile of a column that goes down in memory: a copy of a tile may not begin before its matrix
      const Layout& l = call.layout;
      const int64_t start = row_start(l, j.batch, l.kept - 1).out + (l.length - 1) * l.out[l.kept] + j.first;
      for (int i = int(-row); i < kTile; ++i)
        bulk_store(static_cast<E*>(call.out.values) + (start - (row + i) * l.out[l.kept]), stage + i * kStripRow,
                   uint32_t(j.width * kSize));
    }
    barrier_arrive(released[s]);
    bulk_stores_read();
  }

  // A lane's columns: `c` is the first among those of the job. What a stage has in the place of positions that are not
  // there comes after all that are, and is part of no result or total that anyone uses.
  struct Place {
    int c, tile, column;  // its tile of the job; the column there
    int first, step;      // of position 0 in a stage; bytes from position to position

    __device__ Place(const Form& form, int across) : c(across * kV), tile(form.tile_of(c)), column(form.within(c)) {
      step = form.mirror ? -form.row : form.row;
      first = form.place(tile) + (form.mirror ? (kTile - 1) * form.row : 0) + column * kSize;
    }
    // The elements of group g in some columns from the lane's column `from` on; results in their places.
    template <int W> __device__ void read(const char* stage, int g, int from, Packed<uint32_t, W> (&w)[kGroup]) const {
      const char* p = stage + first + from * kSize + g * kGroup * step;
#pragma unroll
      for (int i = 0; i < kGroup; ++i, p += step) w[i] = *reinterpret_cast<const Packed<uint32_t, W>*>(p);
    }
    template <int W>
    __device__ void write(char* stage, int g, int from, const Packed<uint32_t, W> (&w)[kGroup]) const {
      char* p = stage + first + from * kSize + g * kGroup * step;
#pragma unroll
      for (int i = 0; i < kGroup; ++i, p += step) *reinterpret_cast<Packed<uint32_t, W>*>(p) = w[i];
    }
  };
  // The items of two of the columns in `w`, from the `first` on, and their totals.
  template <int W>
  __device__ __forceinline__ static void group_items(const S& op, const Packed<uint32_t, W> (&w)[kGroup], int first,
                                                     int64_t position, Item (&items)[2][kGroup], Acc (&total)[2]) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      uint32_t part[kPairWords];
      E x[2];
#pragma unroll
      for (int k = 0; k < kPairWords; ++k) part[k] = w[i].item[first / 2 * kPairWords + k];
      unpack<E, 2>(part, x);
#pragma unroll
      for (int v = 0; v < 2; ++v) items[v][i] = op.load(x[v], position + i);
    }
#pragma unroll
    for (int v = 0; v < 2; ++v) total[v] = S::group(items[v]);
  }
  template <int N> __device__ __forceinline__ static void join(const Acc (&left)[N], Acc (&right)[N]) {
#pragma unroll
    for (int v = 0; v < N; ++v) right[v] = S::combine(left[v], right[v]);
  }
  // The same of neighbours in shared memory.
  template <int N> __device__ __forceinline__ static void join(const Acc* shared, Acc (&right)[N]) {
    Acc left[N];
    copy(shared, left);
    join(left, right);
  }
  template <class V, int N> __device__ __forceinline__ static void copy(const V* from, V (&to)[N]) {
    const auto all = *reinterpret_cast<const Packed<V, N>*>(from);
#pragma unroll
    for (int v = 0; v < N; ++v) to[v] = all.item[v];
  }
  // A lane has half a tile.
  __device__ void totals(const S& op, const Form& form, const char* stages, int64_t width, int warp) {
    constexpr int kHalfGroups = kFan / 2;
    const int down = lane_id() / kAcross;
    const Place place(form, lane_id() % kAcross);
    for (int it = warp;; it += kTotalWarps) {
      const StripJob& j = next(it);
      if (!j.width) return;
      const int s = it % kStages;
      loaded.wait(it);
      auto keep = [&](int part, const Acc(&total)[kV]) {
        Packed<Acc, kV> all;
#pragma unroll
        for (int v = 0; v < kV; ++v) all.item[v] = total[v];
        *reinterpret_cast<Packed<Acc, kV>*>(&known[s].parts[part][place.c]) = all;
      };
      Acc four[kV], eight[kV], half[kV];  // of groups; the last ones that are not joined yet
#pragma unroll 1                          // all at once would be more instructions than the nearest cache holds
      for (int fours = 0; fours < kHalfGroups / 4; ++fours) {
        Acc two[kV], total[kV];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int g = down * kHalfGroups + fours * 4 + i;
          Packed<uint32_t, 2> w[kGroup];
          Acc one[kV];
          place.read(stages + s * kStripStage, g, 0, w);
#pragma unroll
          for (int first = 0; first < kV; first += 2) {
            Item items[2][kGroup];
            Acc pair[2];
            group_items(op, w, first, j.position + (place.tile * kTile + g * kGroup), items, pair);
            one[first] = pair[0];
            one[first + 1] = pair[1];
          }
          if (i % 2) join(total, one);
#pragma unroll
          for (int v = 0; v < kV; ++v) {
            if (i == 1) two[v] = one[v];
            total[v] = one[v];
          }
        }
        join(two, total);
        if (fours % 2 == 0) {
          keep(down * 2 + fours / 2, total);
#pragma unroll
          for (int v = 0; v < kV; ++v) four[v] = total[v];
        } else {
          join(four, total);
          if (fours == 1) keep(kQuarters + down, total);
#pragma unroll
          for (int v = 0; v < kV; ++v) {
            half[v] = fours == 1 ? total[v] : S::combine(eight[v], total[v]);
            eight[v] = total[v];
          }
        }
      }
      if (down == 0) keep(kHalf, half);
      auto* const to = static_cast<Published<Acc>*>(j.totals) + (j.slot + place.tile) * width + place.column;
      const bool there = place.column < j.width && place.tile * kTile < j.left;
#pragma unroll
      for (int v = 0; v < kV; ++v) {
        const Acc own = half[v], other = shuffle(own, lane_id() ^ kAcross);
        const Acc total = down ? S::combine(other, own) : S::combine(own, other);
        if (v / (kV / 2) == down && there) to[v].publish(total);  // each of the lanes of a column a part
      }
      barrier_arrive(summed[s]);
      barrier_arrive(ready[s]);
    }
  }

  // The pairwise tree over N totals, a power of two, of each of two neighbouring columns, of which those from `count`
  // on count as absent.
  template <int N>
  __device__ __forceinline__ static void tree(const uint64_t (&word)[N][2], int count, Acc (&whole)[2]) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      Acc stack[log2_of(N) + 1];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        Acc v = i < count ? bit_cast<Acc>(uint32_t(word[i][c])) : S::absent();
        int level = 0;
#pragma unroll
        for (int rest = i; rest % 2; rest /= 2, ++level) v = S::combine(stack[level], v);
        stack[level] = v;
      }
      whole[c] = stack[log2_of(N)];
    }
  }
  // Of `width` neighbouring lanes' values; each of them gets it.
  __device__ __forceinline__ static void tree(int width, Acc (&value)[2]) {
#pragma unroll
    for (int c = 0; c < 2; ++c)
#pragma unroll
      for (int d = 1; d < width; d *= 2) {
        const Acc other = shuffle(value[c], lane_id() ^ d);
        value[c] = lane_id() & d ? S::combine(other, value[c]) : S::combine(value[c], other);
      }
  }

  // N published values that a lane looks at together until all that it wants are there, as whole warps do.
  template <int N> struct Wanted {
    static_assert(Published<Wide>::kWords == 2, "words that are looked at together");
    uint64_t word[N][2];

    // wanted(i), from(i): whether and where there is or will be number i.
    template <class IsWanted, class From> __device__ __forceinline__ void wait(IsWanted wanted, From from) {
#pragma unroll
      for (int i = 0; i < N; ++i) word[i][0] = word[i][1] = wanted(i) ? 0 : uint64_t(1) << 32;
      while (ballot(!look<0>(from))) {}
    }
    // Whether those from number i on are all there. Written out, as not every compiler unrolls a loop in a loop.
    template <int i, class From> __device__ __forceinline__ bool look(From from) {
      load_relaxed_pair_if((word[i][0] & word[i][1]) >> 32 == 0, from(i)->word, word[i]);
      bool rest = true;
      if constexpr (i + 1 < N) rest = look<i + 1>(from);
      return (word[i][0] & word[i][1]) >> 32 != 0 && rest;
    }
    __device__ __forceinline__ Wide value(int i) const {
      const uint32_t part[2] = {uint32_t(word[i][0]), uint32_t(word[i][1])};
      Wide v;
      memcpy(&v, part, sizeof v);
      return v;
    }
  };

  // Waits are by whole warps, so that none holds another of its wavefront.
  __device__ void look(const Form& form, int64_t width, int warp) {
    constexpr int kEach = kLookWarps * kLanes / (kColumns / 2), kHeld = kFan / kEach;
    // A lane has kHeld totals, from `first` on, of two columns, from column c of the job on. Worked out again where it
    // is needed: the words that a lane waits for take half of its registers.
    struct Part {
      int part, first, c, tile, column, count;  // count: of the totals that precede the tile
      bool ends, closes;                        // the job its block tile; the lane's tile that

      __device__ Part(const Form& form, const StripJob& j, int warp) {
        const int lane = recomputed(warp) % kLookWarps * kLanes + lane_id();
        part = lane % kEach;
        first = part * kHeld;
        c = lane / kEach * 2;
        tile = form.tile_of(c);
        column = form.within(c);
        const bool there = column < j.width && tile * kTile < j.left;
        count = there ? j.slot + tile : 0;
        ends = j.slot + form.tiles == kFan && j.left >= form.tiles * kTile;
        closes = ends && tile == form.tiles - 1 && there;
      }
    };
    for (int it = warp / kLookWarps;; it += kLookTeams) {
      if (!next(it).width) return;
      const int s = it % kStages;
      // Those of other blocks are there by then, or nearly; to look all the time would be more than there is to copy.
      summed.wait(it);
      Wanted<kHeld> totals;
      {
        const Part of(form, job[s], warp);
        const auto* const from = static_cast<const Published<Acc>*>(job[s].totals) + (of.first * width + of.column);
        totals.wait([&](int i) { return of.first + i < of.count + of.closes; },
                    [&](int i) { return from + i * width; });
      }
      const int turn = recomputed(it) % kStages;
      const StripJob& j = job[turn];
      const Part of(form, j, warp);
      Acc before[2], total[2];  // over the first `count`, and with the tile's own where it closes the block tile
      tree(totals.word, of.count - of.first, before);
      tree(totals.word, of.count + of.closes - of.first, total);
      tree(kEach, before);
      if (of.part == 0) {
        known[turn].within[of.c] = before[0];
        known[turn].within[of.c + 1] = before[1];
      }
      barrier_arrive(ready[turn]);
      if (of.ends) {
        tree(kEach, total);
        publish_node(static_cast<Published<Wide>*>(j.nodes) + (of.column + of.part), width, j.block,
                     S::widen(of.part ? total[1] : total[0]), of.closes && of.part < 2);
      }
      barrier_arrive(released[turn]);
    }
  }
  // Of a block tile's total: joined with the nodes before it that end where its own begins.
  __device__ static void publish_node(Published<Wide>* nodes, int64_t width, int block, Wide node, bool active) {
    const int levels = __ffs(~block) - 1;
    Wanted<kFanLog2> left;
    left.wait([&](int i) { return active && i < levels; }, [&](int i) { return nodes + (block - (1 << i)) * width; });
#pragma unroll
    for (int i = 0; i < kFanLog2; ++i)
      if (i < levels) node = S::combine(left.value(i), node);
    if (active) nodes[block * width].publish(node);
  }

  __device__ void carries(const Form& form, int64_t width, int warp) {
    const int c = warp % kCarryWarps * kLanes + lane_id(), column = form.within(c);
    for (int it = warp / kCarryWarps;; it += kCarryTeams) {
      const StripJob& j = next(it);
      if (!j.width) return;
      const int s = it % kStages;
      const bool there = column < j.width;
      auto* const nodes = static_cast<Published<Wide>*>(j.nodes) + column;
      auto* const carries = static_cast<Published<Wide>*>(j.carries) + column;
      // The nodes before the block tile, from right to left; and what precedes them.
      int number[kFanLog2];
#pragma unroll
      for (int i = 0, rest = j.block; i < kFanLog2; ++i, rest &= rest - 1) number[i] = rest;
      Wanted<kFanLog2 + 1> values;
      values.wait([&](int i) { return there && (i < kFanLog2 ? number[i] > 0 : !j.first_superblock); },
                  [&](int i) { return i < kFanLog2 ? nodes + (number[i] - 1) * width : carries - width; });
      Wide upto = S::wide_absent();
#pragma unroll
      for (int i = 0; i < kFanLog2; ++i)
        if (number[i]) upto = S::combine(values.value(i), upto);
      const Wide before = j.first_superblock ? S::wide_absent() : values.value(kFanLog2);
      known[s].carry[c] = S::combine(before, upto);
      barrier_arrive(ready[s]);
      if (j.block == kFan - 1 && j.slot + form.tiles == kFan && j.left >= form.tiles * kTile) {  // ends a superblock
        const bool active = there && form.tile_of(c) == form.tiles - 1;
        Wide total = S::wide_absent();
        bool seen = !active;
        while (ballot(!seen))
          if (!seen) seen = nodes[j.block * width].look(total);
        if (active) carries->publish(S::combine(before, total));
      }
      barrier_arrive(released[s]);
    }
  }

  __device__ void results(const S& op, const ScanCall& call, const ColumnStripsShape& shape, char* stages, int warp) {
    for (int it = warp / kResultWarps;; it += kResultTeams) {
      const StripJob& j = next(it);
      if (!j.width) return;
      const int lane = recomputed(lane_id()), down = lane / kAcross;
      // Not by `warp`, for which there is no register from turn to turn.
      const int number = recomputed(int(threadIdx.x)) / kLanes % kResultWarps, quarter = number / 2;
      const Place place(Form(call, shape), lane % kAcross);
      const int s = it % kStages;
      char* const stage = stages + s * kStripStage;
      const int64_t position = j.position + place.tile * kTile;
      if (call.exclusive && number == 0 && down == 0 && position == 0 && place.column < j.width) {
        E start[kV];
#pragma unroll
        for (int v = 0; v < kV; ++v) start[v] = round_to<E>(S::start());
        Packed<uint32_t, 2> words;
        memcpy(&words, start, sizeof words);
        const int64_t row = row_start(call.layout, j.batch, call.layout.kept - 1).out + j.first + place.column;
        *reinterpret_cast<Packed<uint32_t, 2>*>(static_cast<E*>(call.out.values) + row) = words;
      }
      loaded.wait(it);
      ready.wait(it);
      const Before& of = known[s];
      // Two columns at a time: of more the items would take too many registers.
#pragma unroll 1
      for (int first = 0; first < kV; first += 2) {
        Acc earlier[2] = {S::absent(), S::absent()};  // of the warp's groups in the rounds before
#pragma unroll
        for (int k = 0; k < kRounds; ++k) {
          const int g = number * 4 + k * kDown + down;
          Packed<uint32_t, kPairWords> w[kGroup];
          Item items[2][kGroup];
          Acc run[2], before[2];
          place.read(stage, g, first, w);
          group_items(op, w, 0, position + g * kGroup, items, run);
          // What precedes the group in the tile: of the warp's own groups, then of the parts before those.
#pragma unroll
          for (int v = 0; v < 2; ++v) {
            const Acc other = shuffle(run[v], lane ^ kAcross);
            before[v] = S::combine(earlier[v], down ? other : S::absent());
            earlier[v] = down ? S::combine(other, run[v]) : S::combine(run[v], other);
          }
          const int c = place.c + first;
          if (number % 2) join(&of.parts[quarter][c], before);
          if (quarter % 2) join(&of.parts[kQuarters + quarter / 2][c], before);
          if (quarter / 2) join(&of.parts[kHalf][c], before);
          join(&of.within[c], before);
          Wide into[2];
          copy(&of.carry[c], into);
          constexpr int kPer = 4 / kSize;  // columns of a word
#pragma unroll
          for (int v = 0; v < 2; v += kPer) {
            typename S::Result r[kPer][kGroup];
#pragma unroll
            for (int i = 0; i < kPer; ++i) op.results(S::prefix(into[v + i], before[v + i]), items[v + i], r[i]);
            round_columns<E, S>(r, w, v / kPer);
          }
          place.write(stage, g, first, w);
        }
      }
      bulk_fence();
      barrier_arrive(released[s]);
      barrier_arrive(done[s]);
    }
  }
};

template <class S, class Load, class Store>
__global__ void __launch_bounds__(kStripThreads, 1)
    scan_column_strips(TR_GRID_CONSTANT ScanCall call, TR_GRID_CONSTANT ColumnStripsShape shape,
                       TR_GRID_CONSTANT TileMap in, TR_GRID_CONSTANT TileMap out, void* workspace) {
#if !defined(__CUDA_ARCH__) || defined(TR_LARGE_BLOCKS)  // others have no room for its stages
  using P = ColumnStrips<S, Load, Store>;
  TR_DYNAMIC_SHARED(stages, 128);
  __shared__ P ring;
  const int warp = int(threadIdx.x) / kLanes;
  const int64_t width = call.layout.size[call.layout.kept - 1];
  const typename P::Form form(call, shape);
  const S op{call.options};
  if (threadIdx.x == 0) ring.make_barriers();
  __syncthreads();
  if (warp < P::kTotalWarp) ring.results(op, call, shape, stages, warp);
  else if (warp < P::kLookWarp) ring.totals(op, form, stages, width, warp - P::kTotalWarp);
  else if (warp < P::kCarryWarp) ring.look(form, width, warp - P::kLookWarp);
  else if (warp < P::kCopyWarp) ring.carries(form, width, warp - P::kCarryWarp);
  else if (lane_id() > 0) return;
  else if (warp == P::kCopyWarp) ring.copies(call, form, in, out, stages);
  else if (warp == P::kJobWarp) ring.jobs(call, shape, form, workspace);
#endif
}

// Null, or what went wrong.
template <class S, class Load, class Store>
const char* launch_strips(const ScanCall& call, const ColumnStripsShape& shape, void* workspace, Queue queue) {
  using E = typename Load::Element;
  const Layout& l = call.layout;
  const int64_t width = l.size[l.kept - 1], n = l.length;
  auto make = [&](TileMap& map, const void* data, const int64_t (&strides)[kMaxDims]) {
    const int64_t step = strides[l.kept];
    auto* const lowest = static_cast<E*>(const_cast<void*>(data)) + (step < 0 ? (n - 1) * step : 0);
    const int64_t size = sizeof(E), row = (step < 0 ? -step : step) * size;
    return make_tile_map(map, {lowest, int(size), width, n, l.rows / width, row, l.kept > 1 ? strides[0] * size : row,
                               kStripRow / int(size), kTile});
  };
  TileMap in{}, out{};
  if (shape.bytes == kStripRow) {
    if (const char* error = make(in, call.in.data, l.in)) return error;
    if (const char* error = make(out, call.out.values, l.out)) return error;
  }
  enqueue(scan_column_strips<S, Load, Store>, shape.blocks, shape.threads, kStripStages * kStripStage, queue, call,
          shape, in, out, workspace);
  return nullptr;
}

#endif

}  // namespace torchreduce::gpu
