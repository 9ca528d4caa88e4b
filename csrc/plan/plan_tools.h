// What planners of every kind use.
#pragma once
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "shape.h"

namespace torchreduce::plans {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t power_of_two(int64_t n) {  // the least one that is >= n
  int64_t p = 1;
  while (p < n) p *= 2;
  return p;
}
inline int64_t magnitude(int64_t stride) { return stride < 0 ? -stride : stride; }

// Lanes go where the smallest stride is.
inline bool lanes_across_rows(const Layout& l) {
  return l.kept > 0 && l.reduced > 0 && magnitude(row_stride(l)) < magnitude(position_stride(l));
}

inline bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// A field that is forced; -1: it is not.
inline void take(int forced, int& field, int most, const char* name) {
  if (forced < 0) return;
  if (forced < 1 || forced > most || (forced & (forced - 1)) != 0)
    throw std::invalid_argument(std::string("force_plan: ") + name + " must be a power of two from 1 to " +
                                std::to_string(most) + ", got " + std::to_string(forced));
  field = forced;
}

// After the choice, whatever was chosen and how. `shared`: bytes of a block; `most`: what the device has.
inline void check_launch(int64_t blocks, int shared, int most) {
  if (blocks > INT32_MAX) throw std::invalid_argument("the launch needs more than 2^31 - 1 blocks");
  if (shared > most)
    throw std::invalid_argument("the launch needs " + std::to_string(shared) +
                                " bytes of shared memory a block, the device has " + std::to_string(most));
}

}  // namespace torchreduce::plans
