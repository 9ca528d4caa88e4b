#pragma once
#include <cstdint>

// Reductions by segments, of each op and kind of element and of segments of all lengths, by the emulated kernels and by
// the CPU's, against the plain loops. Exits with a message where bits differ. Returns the number of cases, of which it
// takes one in `every`, but not less than one in twelve.
long check_segments(uint32_t seed, long every, bool few);
