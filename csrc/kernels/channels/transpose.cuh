// A copy of x that has channels last where x has not, or the other way: of each sample the transposed matrix.
//
// Serves: elements of 2 and 4 bytes, whole granules of both channels and positions. A block has a square tile of
// kSide * V rows of as many neighbours; a warp loads a granule of each of kLanes / kSide rows and kSide places, and
// stores so the columns. Shared memory: tile[row][column], rows a word longer than they are.
#pragma once
#include "channels.h"
#include "kernels/reduce/granule.cuh"

namespace torchreduce::gpu {

template <class E>
__global__ void __launch_bounds__(channels_of::kThreads) transposing_map_lines(TR_GRID_CONSTANT ChannelCall call) {
  constexpr int V = kPerGranule<E>, kSide = channels_of::kSide, kRows = kSide * V, kPitch = kRows + 4 / sizeof(E);
  constexpr int kTurns = kRows * kSide / channels_of::kThreads;
  __shared__ uint32_t words[kRows * kPitch * sizeof(E) / 4];
  const E* const tile = reinterpret_cast<const E*>(words);
  const bool from_last = call.x.channel == 1 && call.channels > 1;  // rows are positions
  const int64_t rows = from_last ? call.length : call.channels, columns = from_last ? call.channels : call.length;
  const int64_t across = (columns + kRows - 1) / kRows, down = (rows + kRows - 1) / kRows;
  const int64_t above = quotient(blockIdx.x, across), sample = quotient(above, down);
  const int64_t row = (above - sample * down) * kRows, column = (blockIdx.x - above * across) * kRows;
  const E* const from = static_cast<const E*>(call.x.data) + sample * rows * columns;
  E* const to = static_cast<E*>(const_cast<void*>(call.out.data)) + sample * rows * columns;
  const int place = int(threadIdx.x) % kSide * V, line = int(threadIdx.x) / kSide;
  constexpr int kLines = channels_of::kThreads / kSide;

  Granule granules[kTurns];
#pragma unroll
  for (int k = 0; k < kTurns; ++k) {
    const int64_t r = row + line + k * kLines;
    const bool wanted = r < rows && column + place < columns;
    granules[k] = Granule{};
    load_if(wanted, reinterpret_cast<const Granule*>(from + (wanted ? r * columns + column + place : 0)), granules[k]);
  }
#pragma unroll
  for (int k = 0; k < kTurns; ++k)
#pragma unroll
    for (int w = 0; w < 4; ++w)
      words[((line + k * kLines) * kPitch + place) * int(sizeof(E)) / 4 + w] = granules[k].item[w];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kTurns; ++k) {
    const int own = line + k * kLines;
    const int64_t c = column + own;
    if (c >= columns || row + place >= rows) continue;
    E y[V];
#pragma unroll
    for (int j = 0; j < V; ++j) y[j] = tile[(place + j) * kPitch + own];
    store_item(reinterpret_cast<Granule*>(to + c * rows + row + place), bit_cast_words<Granule>(y));
  }
}

}  // namespace torchreduce::gpu
