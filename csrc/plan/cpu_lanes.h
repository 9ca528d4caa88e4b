// Where the lanes of a CPU go, of ops with an element of the result for each of the input.
#pragma once
#include <initializer_list>

#include "plan_tools.h"

namespace torchreduce::plans {

// Whether they go across rows: where at least half of the operands have their smallest strides there. Elements that lie
// apart cost most where they are stored (AVX-512, softmax of (2, 21, 64, 64) over channels, channels last, into
// contiguous memory: 857 us along rows, 194 across).
inline bool mostly_across(const Layout& l, std::initializer_list<const int64_t*> strides) {
  if (l.kept == 0 || l.reduced == 0) return false;
  int across = 0;
  for (const int64_t* s : strides) across += magnitude(s[l.kept - 1]) < magnitude(s[l.kept + l.reduced - 1]) ? 1 : -1;
  return across >= 0;
}

}  // namespace torchreduce::plans
