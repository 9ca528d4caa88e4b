// Runs GPU kernels on the CPU, to judge them: a block's threads are fibers, resident blocks take turns. The kernels'
// own vocabulary (threadIdx, __shfl, ...) stands in hip/hip_runtime.h, in terms of what is declared here.
//
// A run is a function of Options: which thread runs next, and which block, is drawn from the seed. Modelled:
//   warps of 32 lanes, one or two to a wave (Options::wave), running their lanes in any order between two collectives;
//   a collective (shuffle, ballot) needs all lanes of a warp, at the same place in the program; the other warp of the
//     wave need not take part, and a ballot may or may not see its lanes;
//   a barrier needs all threads of the block, at the same place;
//   a warp's barrier is a collective that orders no memory, as a wave's barrier on AMD: what a lane released by a fence
//     before it, others of its warp acquire by one after it;
//   a lane that backs off holds its wave until it stops waiting: lanes of a wave have no progress of their own on AMD,
//     so that what a lane waits for has to come from another wave;
//   Options::resident blocks at once, some much slower than others: a block that waits for one that has not started
//     waits for ever;
//   shared memory that holds garbage when a block starts, and of which there is no more than Options::bulk_copies says;
//   copies that a thread starts, of which none has to be done before the thread waits for it;
//   clusters of blocks, all resident, which write to each other's shared memory: such a write comes at some time before
//   it counts as done, and fails where its block has not started or has ended; of memory, a cluster's barrier orders
//   what came before barriers_made alone;
//   bulk copies, each of which reads and writes at some time before it counts as done, whatever its thread does
//     meanwhile; barriers in shared memory whose phases count arrivals and bytes; a wait for one does not keep the rest
//     of the warp from running, as on the GPUs that have them.
// What breaks these rules ends the process with kFailed and a message: the rule, kernel, block, and where each thread
// was. With the sanitizers, whose reports are followed by kernel, block and thread, also: accesses out of bounds (of
// static shared memory by index only), misaligned ones, signed overflow, and races, where collectives order nothing.
// A bulk copy is an access by a thread of its own: a load follows what its thread had seen, a store what was fenced.
//
// Not modelled: registers and their limits, uninitialized registers, weak memory beyond what is a race, the order in
// which a wave takes the two sides of a branch.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// Of the thread that is running. Grids and blocks have one dimension.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace simt {

constexpr int kWarp = 32;               // lanes that take part in a collective together
constexpr int kFailed = 77;             // exit status
constexpr int kMostShared = 227 << 10;  // bytes of shared memory a block, with bulk copies

struct Options {
  uint32_t seed = 0;
  int wave = 32;             // lanes: 32 or 64
  int resident = 3;          // blocks at once; as many as a cluster has at least
  int cluster = 1;           // blocks of a cluster
  bool reverse = false;      // the order in which blocks start
  bool bulk_copies = false;  // then a block may have more shared memory than every GPU has
  std::string title;         // for messages
};
extern Options options;

// Runs body() for every thread of the grid, and returns when all have ended. `kernel` is the function that body calls;
// `shared` are bytes of dynamic shared memory a block.
void launch(const void* kernel, unsigned blocks, unsigned threads, unsigned shared, const std::function<void()>& body);

// What a running thread may ask for.
uint64_t shuffle(uint64_t value, int source);  // the value of lane `source` of the warp
uint64_t ballot(bool predicate);               // bit i: lane i of the wave
void barrier();
void back_off();      // between two looks at what another wave will write
void published();     // this thread writes something that another may wait for
void warp_barrier();  // orders what a warp's lanes do, but not their memory: that is for fences before and after it
char* dynamic_shared(int alignment);

// What a lane did before its release fence is seen by what others of its warp do after an acquire fence, where a
// barrier of the warp lies between.
void fence_release();
void fence_acquire();
[[noreturn]] void broken(const char* rule);  // a kernel breaks a rule of the devices
template <int kOrder> void fence(const char* scope) {
  static_assert(kOrder == __ATOMIC_RELEASE || kOrder == __ATOMIC_ACQUIRE, "no other order is modelled");
  if (std::string_view(scope) != "wavefront") broken("a fence of a scope that is not modelled");
  kOrder == __ATOMIC_RELEASE ? fence_release() : fence_acquire();
}

// Copies by one thread for itself, in batches.
void start_copy(void* to, const void* from, void (*copy)(void*, const void*));
void end_copies();
void wait_copies(int pending);
template <int kBytes> void copy_async(void* to, const void* from) {
  struct alignas(kBytes) Bytes { char item[kBytes]; };
  start_copy(to, from, [](void* to, const void* from) { *static_cast<Bytes*>(to) = *static_cast<const Bytes*>(from); });
}

// csrc/kernels/gpu.cuh says what these are. What a barrier holds is kept by the emulator.
struct Barrier { uint64_t opaque; };
void barrier_init(Barrier* b, int arrivals);
void barriers_made();
void barrier_arrive(Barrier* b);
void barrier_expect(Barrier* b, uint32_t bytes);
void barrier_wait(Barrier* b, uint32_t parity);
void bulk_load(void* shared, const void* from, uint32_t bytes, Barrier* b);
void bulk_store(void* to, const void* shared, uint32_t bytes);
void bulk_fence();
void bulk_stores_read();

// csrc/kernels/common/cluster.cuh says what these are.
int cluster_rank();
void cluster_arrive();
void cluster_wait();
void put(const void* slot, const Barrier* b, const void* value, uint32_t bytes, int rank);

}  // namespace simt
