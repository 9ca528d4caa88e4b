// Norms over channels on the emulator: bitwise identical to the CPU kernels.
#pragma once
#include <cstdint>

// About each `every`-th case, of few types if `few`; returns how many were run. Exits at the first difference.
long check_channels(uint32_t seed, long every, bool few);
