// Scans in one pass of tiles that lie in shared memory, a block a tile: of rows or columns, of elements or of records
// of extremes. A block takes a ticket, copies its tile and sums it, publishes that and finds what precedes the tile
// (tile/carry.cuh); then it takes the tile from shared memory once more, as there are too few registers to keep it
// meanwhile, and stores its results. Blocks are many and stay short: while some wait, others copy or compute.
#pragma once
#include "kernels/tile/carry.cuh"
#include "rows.cuh"

namespace torchreduce::gpu {

// A Tile is what a thread knows of its block's; Tile::Shared is what the threads of a block share, beside the elements.
// Which tile it is, job_of says for a ticket; tiles that a block waits for have lower ones, and a single one, which has
// no workspace, waits for none.
template <class Tile>
__global__ void TR_BLOCKS_BOUND(Tile::kThreads, Tile::kBlocks)
    scan_tiles(TR_GRID_CONSTANT ScanCall call, TR_GRID_CONSTANT typename Tile::Shape shape, void* workspace) {
  __shared__ typename Tile::Shared shared;
  if (threadIdx.x == 0) {
    const bool waits = shape.workspace > 0;
    const auto ticket = waits ? int64_t(take_ticket(static_cast<uint64_t*>(workspace))) : int64_t(blockIdx.x);
    shared.job = Tile::job_of(call, shape, workspace, ticket);
  }
  __syncthreads();
  Tile tile(call, shape, workspace, shared);
  tile.sum();
  __syncthreads();
  tile.carry();
  __syncthreads();
  tile.store();
}

}  // namespace torchreduce::gpu
