// The canonical order, version 1 (docs/numerics.md), as far as it does not depend on how a device moves its data.
#pragma once
#include "dtype.h"

namespace torchreduce {
inline namespace TR_ISA {

// Reductions: a leaf is 2048 elements; within it, position r = i mod 256 has an accumulator that takes its elements in
// order; the 256 accumulators, and then the leaves, combine by the contiguous pairwise tree.
constexpr int kLeaf = 2048;
constexpr int kResidues = 256;

// Scans: groups of 8 in order, 32 groups a tile, 32 tiles a block tile, 32 block tiles a superblock.
constexpr int kGroup = 8;
constexpr int kFan = 32;
constexpr int kFanLog2 = 5;
constexpr int kTile = kGroup * kFan;
constexpr int kBlockTile = kTile * kFan;
constexpr int64_t kSuperblock = int64_t(kBlockTile) * kFan;

// The contiguous pairwise tree, fed from the left one subtree of equal size at a time: a binary counter whose slot l
// holds the value of 2^l neighbours. `total` is the tree over what was pushed, the rest absent; after l pushes that is
// also Sklansky's inclusive prefix at slot l - 1, and his exclusive prefix at slot l. One definition serves reductions
// and scans. Holds at most 2^kLevels - 1 pushes, or one full tree of 2^kLevels when kLevels counts that level too.
template <class Acc, int kLevels> struct TreeStack {
  Acc slot[kLevels];
  uint32_t count = 0;

  // combine(left, right)
  template <class Combine> TR_HD void push(Acc value, Combine combine) {
    bool placed = false;
    TR_UNROLLED_ON_GPU
    for (int level = 0; level < kLevels; ++level) {  // constant indices keep the slots in registers
      const bool occupied = (count >> level) & 1u;
      if (!placed && occupied) value = combine(slot[level], value);
      if (!placed && !occupied) {
        slot[level] = value;
        placed = true;
      }
#if !defined(__CUDA_ARCH__) && !defined(__HIP_DEVICE_COMPILE__)
      if (placed) break;
#endif
    }
    ++count;
  }
  template <class Combine> TR_HD Acc total(Acc absent, Combine combine) const {
    Acc value = absent;
    bool any = false;
    TR_UNROLLED_ON_GPU
    for (int level = 0; level < kLevels; ++level)
      if ((count >> level) & 1u) {
        value = any ? combine(slot[level], value) : slot[level];
        any = true;
      }
    return value;
  }
};

// The carry of a scan along one row, tile by tile: for one thread (or a warp in step) that walks the row from its
// start.
template <class Scan> struct ScanCarry {
  using Acc = typename Scan::Acc;
  using Wide = typename Scan::Wide;
  TreeStack<Acc, kFanLog2 + 1> tiles;    // totals of the tiles of this block tile so far
  TreeStack<Wide, kFanLog2 + 1> blocks;  // totals of the block tiles of this superblock so far
  Wide superblocks;
  Wide block_carry;  // the carry into this block tile

  // `initial` is what precedes the row.
  TR_HD explicit ScanCarry(Wide initial = Scan::wide_absent()) : superblocks(initial), block_carry(initial) {}

  // What lies before the next tile: within its block tile, and before that.
  TR_HD Acc within() const {
    return tiles.total(Scan::absent(), [](Acc l, Acc r) { return Scan::combine(l, r); });
  }
  TR_HD Wide carry() const { return block_carry; }

  TR_HD void push(Acc tile_total) {
    auto narrow = [](Acc l, Acc r) { return Scan::combine(l, r); };
    tiles.push(tile_total, narrow);
    if (tiles.count < uint32_t(kFan)) return;
    push_block(Scan::widen(tiles.total(Scan::absent(), narrow)));
    tiles.count = 0;
  }
  // The total of a whole block tile, when its tiles are not pushed.
  TR_HD void push_block(Wide block_total) {
    auto wide = [](Wide l, Wide r) { return Scan::combine(l, r); };
    blocks.push(block_total, wide);
    const Wide before = blocks.total(Scan::wide_absent(), wide);
    if (blocks.count == uint32_t(kFan)) {
      superblocks = Scan::combine(superblocks, before);
      blocks.count = 0;
      block_carry = superblocks;
    } else {
      block_carry = Scan::combine(superblocks, before);
    }
  }
};

}  // namespace TR_ISA
}  // namespace torchreduce
