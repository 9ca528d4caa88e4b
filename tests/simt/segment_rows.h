#pragma once
#include <cstdint>

// Scans, and row-wise ops, by segments of all lengths, by the emulated kernels against the CPU's. Exit with a message
// where bits differ. Return the number of cases, of which they take one in `every`, but not less than one in five.
long check_scan_segments(uint32_t seed, long every, bool few);
long check_rowwise_segments(uint32_t seed, long every, bool few);
