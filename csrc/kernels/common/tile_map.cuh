// Bulk copies of tiles of matrices (Hopper and later): one instruction moves a box of columns by rows between memory,
// where rows lie any multiple of 16 bytes apart, and shared memory, where they lie side by side.
#pragma once
#include "gpu.cuh"

#if defined(TR_BULK_COPIES)
#if defined(__CUDACC__)
#include <cuda.h>
#endif

namespace torchreduce {

// Matrices in memory, a batch of them, and the box that a copy moves. Steps are in bytes, positive multiples of 16; so
// is `data`. Of a box, what lies outside of its matrix is 0 where it is loaded, and is not stored. A box that is stored
// may not begin before its matrix (an H200 calls that an illegal instruction).
struct TileFacts {
  void* data;
  int size;  // bytes of an element, 2 or 4
  int64_t columns, rows, batches, row_step, batch_step;
  int box_columns, box_rows;  // at most 256
};

#if defined(TR_EMULATED)

using TileMap = TileFacts;
inline const char* make_tile_map(TileMap& map, const TileFacts& facts) {
  map = facts;
  return nullptr;
}

// Calls copy(place in shared memory, place in memory, bytes) for each row of a box that lies in the matrix.
template <class Copy> void for_box_rows(const TileMap& m, char* shared, int x, int y, int z, Copy copy) {
  const int64_t columns = std::min<int64_t>(m.box_columns, m.columns - x);
  for (int64_t i = std::max(0, -y); i < m.box_rows && y + i < m.rows; ++i)
    copy(shared + i * m.box_columns * m.size,
         static_cast<char*>(m.data) + x * m.size + (y + i) * m.row_step + z * m.batch_step, uint32_t(columns * m.size));
}
inline void tile_load(void* shared, const TileMap& map, int x, int y, int z, Barrier* b, uint32_t) {
  uint32_t bytes = 0;
  for_box_rows(map, static_cast<char*>(shared), x, y, z, [&](char*, const char*, uint32_t n) { bytes += n; });
  barrier_expect(b, bytes);
  for_box_rows(map, static_cast<char*>(shared), x, y, z,
               [&](char* to, const char* from, uint32_t n) { bulk_load(to, from, n, b); });
}
inline void tile_store(const TileMap& map, int x, int y, int z, const void* shared) {
  if (x < 0 || y < 0) simt::broken("a tile is stored that begins before its matrix");
  for_box_rows(map, static_cast<char*>(const_cast<void*>(shared)), x, y, z,
               [&](const char* from, char* to, uint32_t n) { bulk_store(to, from, n); });
}

#else

using TileMap = CUtensorMap;

// Null, or what went wrong.
inline const char* make_tile_map(TileMap& map, const TileFacts& facts) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {  // without a link to the driver, so that the library loads where there is none
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
#else
    cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
    return reinterpret_cast<Encode>(found);
  }();
  if (!encode) return "the driver makes no tensor maps";
  const cuuint64_t sizes[3] = {cuuint64_t(facts.columns), cuuint64_t(facts.rows), cuuint64_t(facts.batches)};
  const cuuint64_t steps[2] = {cuuint64_t(facts.row_step), cuuint64_t(facts.batch_step)};
  const cuuint32_t box[3] = {cuuint32_t(facts.box_columns), cuuint32_t(facts.box_rows), 1}, every[3] = {1, 1, 1};
  const auto type = facts.size == 4 ? CU_TENSOR_MAP_DATA_TYPE_UINT32 : CU_TENSOR_MAP_DATA_TYPE_UINT16;
  const CUresult result =
      encode(&map, type, 3, facts.data, sizes, steps, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? nullptr : "the driver refused a tensor map";
}

// The box from column x, row y, of batch z, to shared memory, aligned to 128 bytes; and an arrival at `b`, whose phase
// waits for its bytes. The map is an argument of the kernel.
__device__ __forceinline__ void tile_load(void* shared, const TileMap& map, int x, int y, int z, Barrier* b,
                                          uint32_t bytes) {
  barrier_expect(b, bytes);
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(shared_address(shared)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(b))
      : "memory");
}
// As bulk_store.
__device__ __forceinline__ void tile_store(const TileMap& map, int x, int y, int z, const void* shared) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map), "r"(x),
               "r"(y), "r"(z), "r"(shared_address(shared))
               : "memory");
}

#endif

}  // namespace torchreduce
#endif
