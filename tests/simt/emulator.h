// Runs GPU kernels on the CPU, to judge them: a block's threads are fibers, resident blocks take turns. The kernels'
// own vocabulary (threadIdx, __shfl, ...) stands in hip/hip_runtime.h, in terms of what is declared here.
//
// A run is a function of Options: which thread runs next, and which block, is drawn from the seed. Modelled:
//   warps of 32 lanes, one or two to a wave (Options::wave), running their lanes in any order between two collectives;
//   a collective (shuffle, ballot) needs all lanes of a warp, at the same place in the program; the other warp of the
//     wave need not take part, and a ballot may or may not see its lanes;
//   a barrier needs all threads of the block, at the same place;
//   a lane that backs off holds its wave until it stops waiting: lanes of a wave have no progress of their own on AMD,
//     so that what a lane waits for has to come from another wave;
//   Options::resident blocks at once, some much slower than others: a block that waits for one that has not started
//     waits for ever;
//   shared memory that holds garbage when a block starts.
// What breaks these rules ends the process with kFailed and a message: the rule, kernel, block, and where each thread
// was. With the sanitizers, whose reports are followed by kernel, block and thread, also: accesses out of bounds (of
// shared memory by index only), misaligned ones, signed overflow, and races, where collectives order nothing.
//
// Not modelled: registers and their limits, uninitialized registers, weak memory beyond what is a race, the order in
// which a wave takes the two sides of a branch. Nor bulk copies and mbarriers, which no kernel uses yet. Their place:
// an mbarrier counts arrivals and bytes, waiting on one is one more State of emulator.cpp, and a bulk copy is an entry
// in a queue of its Slot, served in a round that is drawn, so that nothing may rely on it before.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// Of the thread that is running. Grids and blocks have one dimension.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace simt {

constexpr int kWarp = 32;    // lanes that take part in a collective together
constexpr int kFailed = 77;  // exit status

struct Options {
  uint32_t seed = 0;
  int wave = 32;         // lanes: 32 or 64
  int resident = 3;      // blocks at once
  bool reverse = false;  // the order in which blocks start
  std::string title;     // for messages
};
extern Options options;

// Runs body() for every thread of the grid, and returns when all have ended. `kernel` is the function that body calls,
// for messages.
void launch(const void* kernel, unsigned blocks, unsigned threads, const std::function<void()>& body);

// What a running thread may ask for.
uint64_t shuffle(uint64_t value, int source);  // the value of lane `source` of the warp
uint64_t ballot(bool predicate);               // bit i: lane i of the wave
void barrier();
void back_off();   // between two looks at what another wave will write
void published();  // this thread writes something that another may wait for

}  // namespace simt
