// The sort of an index, by the toolkit's library.
#pragma once
#include <cstdint>

namespace torchreduce::gpu {

// Pairs of a key and a value, 32 bits each, and room for as many.
struct SortCall {
  uint32_t* keys[2] = {};
  uint32_t* values[2] = {};
  int64_t count = 0;
  int bits = 32;  // the lowest ones of the keys, which are compared
};

// The bytes of workspace that a sort takes; -1 where this build has no sort, or not of so many pairs.
int64_t sort_bytes(int64_t count, int bits);
// Enqueues a stable sort on `stream`; then call.keys[0] and call.values[0] are those that have the result. Returns
// nullptr, or the runtime's message.
const char* sort_pairs(SortCall& call, void* workspace, int64_t bytes, void* stream);

}  // namespace torchreduce::gpu
