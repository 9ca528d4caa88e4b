#include "emulator.h"

#include <link.h>
#include <pthread.h>
#include <sanitizer/common_interface_defs.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "fiber.h"

#if defined(SIMT_tsan)
extern "C" void AnnotateIgnoreWritesBegin(const char* file, int line);  // and reads
extern "C" void AnnotateIgnoreWritesEnd(const char* file, int line);
#endif

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace simt {

Options options;

namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxResident = 8;
constexpr int kIdleRounds = 10000;  // that lanes wait in, of all resident blocks together: then they wait for ever
constexpr int kLongestSleep = 64;   // turns that others have before a block has its next
constexpr size_t kWorkerStack = 1 << 20;  // of an OS thread, with its shared memory
constexpr int kGarbage = 0x7f;            // in every byte of fresh shared memory: large as any type of number

enum class State { Ready, Waiting, Shuffle, Ballot, Barrier, Exited };
constexpr const char* kStateNames[] = {"ready", "backing off", "in a shuffle", "in a ballot", "at a barrier", "exited"};

struct Thread {
  Fiber fiber;
  State state;
  const void* site;        // in the program: where it asked for what it waits for
  uint64_t value, result;  // of a shuffle or ballot
  int source;
};

struct Warp { int lanes, arrived, exited; };

// Where blocks run, one after another: an OS thread, so that each has its own shared memory, and the stacks.
struct Slot {
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  std::vector<int> holder;  // of each wave: the thread that backs off, or -1
  std::vector<int> ready, round;
  dim3 block;
  int thread = -1;  // that runs
  int at_barrier, exited;
  bool ran, waited, progress, published;  // what some thread did in this round
  char token[4];                          // of the thread sanitizer: start, end, and barriers in turn
  int barriers;

  int thread_count() const { return int(blockDim.x); }
  Thread& running() { return *threads[thread]; }
};

// One launch at a time.
struct Launch {
  const void* kernel;
  const std::function<void()>* body;
  unsigned next = 0;
  int idle_rounds = 0;
  std::mt19937 random;
  int resident;
  int64_t turns = 0;
  int64_t wakes[kMaxResident] = {};  // the turn from which on a slot can be drawn
  bool ended[kMaxResident] = {};     // slots
  std::atomic<int> turn = 0;  // the slot that runs; everything else here and in the slots is only touched in one's turn
};

Launch* launched = nullptr;
Slot* slot = nullptr;                      // whose turn it is
std::vector<std::unique_ptr<Slot>> slots;  // kept from launch to launch

// ---- what the thread sanitizer is told: what orders threads, and not to look at the scheduler -----------------------

#if defined(SIMT_tsan)
void release(char* token) { __tsan_release(token); }
void acquire(char* token) { __tsan_acquire(token); }
void ignore_begin() { AnnotateIgnoreWritesBegin(__FILE__, __LINE__); }
void ignore_end() { AnnotateIgnoreWritesEnd(__FILE__, __LINE__); }
#else
void release(char*) {}
void acquire(char*) {}
void ignore_begin() {}
void ignore_end() {}
#endif

// ---- messages -------------------------------------------------------------------------------------------------------

// The function and what it was inlined into, innermost first, of a return address.
std::string describe(const void* address, const char* format) {
  char text[2000] = {};
  __sanitizer_symbolize_pc(const_cast<void*>(address), format, text, sizeof text - 2);
  std::string all;
  for (const char* frame = text; *frame; frame += strlen(frame) + 1)
    all += (all.empty() ? "" : " < ") + std::string(frame);
  return all;
}

std::string kernel_name(const void* kernel) { return describe(static_cast<const char*>(kernel) + 1, "%f"); }

void print_place() {
  if (!launched || !slot) return;
  if (!options.title.empty()) fprintf(stderr, "simt: %s\n", options.title.c_str());
  const std::string thread = slot->thread < 0 ? "" : ", thread " + std::to_string(slot->thread);
  fprintf(stderr, "simt: in %s\nsimt: block %u of %u%s, waves of %d lanes, seed %u\n",
          kernel_name(launched->kernel).c_str(), slot->block.x, gridDim.x, thread.c_str(), options.wave, options.seed);
}

// One line for the threads in the same state at the same place.
void print_threads() {
  std::map<std::pair<State, const void*>, std::vector<int>> groups;
  for (int i = 0; i < slot->thread_count(); ++i) groups[{slot->threads[i]->state, slot->threads[i]->site}].push_back(i);
  for (const auto& [where, threads] : groups) {
    std::string list;
    for (size_t i = 0; i < threads.size() && i < 8; ++i) list += " " + std::to_string(threads[i]);
    if (threads.size() > 8) list += " ... " + std::to_string(threads.back());
    fprintf(stderr, "simt:   %zu threads %s:%s\n", threads.size(), kStateNames[int(where.first)], list.c_str());
    if (where.second) fprintf(stderr, "simt:     %s\n", describe(where.second, "%f %S").c_str());
  }
}

// By the scheduler.
[[noreturn]] void fail(const char* rule) {
  fprintf(stderr, "simt: %s\n", rule);
  print_place();
  print_threads();
  fflush(stderr);
  ignore_end();
  _exit(kFailed);
}

// ---- threads --------------------------------------------------------------------------------------------------------

void thread_body() {
  Slot* mine = slot;
  acquire(&mine->token[0]);
  (*launched->body)();
  release(&mine->token[1]);
  mine->running().state = State::Exited;
  mine->running().site = nullptr;
}

void wait_as(State state, const void* site) {
  Thread& t = slot->running();
  t.state = state;
  t.site = site;
  t.fiber.suspend();
}

void make_ready(int thread) {
  slot->threads[thread]->state = State::Ready;
  slot->ready.push_back(thread);
}

// ---- collectives ----------------------------------------------------------------------------------------------------

// The bits of the wave that warp w belongs to. Lanes of its other warp count if they wait at the same place.
uint64_t wave_bits(int w, const void* site) {
  const int first = w * kWarp / options.wave * options.wave, end = std::min(first + options.wave, slot->thread_count());
  uint64_t bits = 0;
  for (int i = first; i < end; ++i) {
    const Thread& t = *slot->threads[i];
    if (t.state == State::Ballot && t.site == site && t.value) bits |= uint64_t(1) << (i - first);
  }
  return bits;
}

// When all lanes of warp w wait for a collective: serves it.
void finish_collective(int w) {
  Warp& warp = slot->warps[w];
  if (warp.arrived == 0 || warp.arrived + warp.exited < warp.lanes) return;
  if (warp.exited > 0) fail("lanes have exited before a collective that others of their warp wait in");
  const int first = w * kWarp;
  const State kind = slot->threads[first]->state;
  const void* const site = slot->threads[first]->site;
  const uint64_t bits = kind == State::Ballot ? wave_bits(w, site) : 0;
  for (int i = first; i < first + warp.lanes; ++i) {
    Thread& t = *slot->threads[i];
    if (t.state != kind || t.site != site) fail("the lanes of a warp wait in different collectives");
    if (t.source >= warp.lanes) fail("a shuffle reads from a lane that the block does not have");
    t.result = kind == State::Ballot ? bits : slot->threads[first + t.source]->value;
  }
  for (int i = first; i < first + warp.lanes; ++i) make_ready(i);
  warp.arrived = 0;
}

// When no thread of the block can run: either they are all at one barrier, or all at their end (false).
bool finish_barrier() {
  const int count = slot->thread_count();
  if (slot->exited == count) return false;
  if (slot->at_barrier + slot->exited < count) fail("threads wait for others of their block that never come");
  if (slot->exited > 0) fail("threads have exited before a barrier that others wait at");
  for (int i = 1; i < count; ++i)
    if (slot->threads[i]->site != slot->threads[0]->site) fail("the threads of a block wait at different barriers");
  slot->at_barrier = 0;
  ++slot->barriers;
  for (int i = 0; i < count; ++i) make_ready(i);
  return true;
}

// ---- scheduling -----------------------------------------------------------------------------------------------------

// Gives the turn to another slot, drawn at random of those that are awake. The thread sanitizer sees nothing of this:
// to it the blocks run at the same time.
void pass_turn(int mine) {
  Launch& l = *launched;
  ++l.turns;
  int64_t earliest = INT64_MAX;
  for (int i = 0; i < l.resident; ++i)
    if (i != mine && !l.ended[i]) earliest = std::min(earliest, l.wakes[i]);
  int awake[kMaxResident], count = 0;
  for (int i = 0; i < l.resident; ++i)
    if (i != mine && !l.ended[i] && l.wakes[i] <= std::max(earliest, l.turns)) awake[count++] = i;
  if (count == 0) return;
  l.turn.store(awake[l.random() % unsigned(count)]);
  l.turn.notify_all();
}
void await_turn(int mine) {
  for (int now = launched->turn.load(); now != mine; now = launched->turn.load()) launched->turn.wait(now);
  slot = slots[mine].get();
  blockIdx = slot->block;
}

void run_thread(int i) {
  Slot& s = *slot;
  Thread& t = *s.threads[i];
  int& holder = s.holder[i / options.wave];
  if (holder >= 0 && holder != i) {
    s.ready.push_back(i);
    return;
  }
  holder = -1;
  s.thread = i;
  threadIdx = dim3(unsigned(i), 0, 0);
  t.fiber.resume();
  s.thread = -1;
  Warp& warp = s.warps[i / kWarp];
  switch (t.state) {
    case State::Waiting:
      holder = i;
      s.waited = true;
      s.ready.push_back(i);
      return;
    case State::Barrier:
      s.progress = true;
      ++s.at_barrier;
      break;
    case State::Exited:
      s.progress = true;
      ++s.exited;
      ++warp.exited;
      finish_collective(i / kWarp);
      break;
    default: ++warp.arrived; finish_collective(i / kWarp);
  }
  s.ran = true;
}

// Fills this OS thread's shared memory: all thread-local variables of the program.
void fill_shared_memory() {
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void*) {  // the first one is the program
        for (int i = 0; i < info->dlpi_phnum; ++i)
          if (info->dlpi_phdr[i].p_type == PT_TLS) memset(info->dlpi_tls_data, kGarbage, info->dlpi_phdr[i].p_memsz);
        return 1;
      },
      nullptr);
}

void run_block(unsigned index, int mine) {
  Slot& s = *slot;
  const int count = s.thread_count();
  s.block = blockIdx = dim3(index, 0, 0);
  s.at_barrier = s.exited = s.barriers = 0;
  s.warps.assign((count + kWarp - 1) / kWarp, Warp{kWarp, 0, 0});
  if (count % kWarp) s.warps.back().lanes = count % kWarp;
  s.holder.assign((count + options.wave - 1) / options.wave, -1);
  while (int(s.threads.size()) < count) s.threads.push_back(std::make_unique<Thread>());
  fill_shared_memory();
  release(&s.token[0]);
  s.ready.clear();
  for (int i = 0; i < count; ++i) {
    s.threads[i]->fiber.start(thread_body);
    s.threads[i]->site = nullptr;
    make_ready(i);
  }

  Launch& l = *launched;
  while (!s.ready.empty() || finish_barrier()) {
    s.round.swap(s.ready);
    s.ready.clear();
    std::shuffle(s.round.begin(), s.round.end(), l.random);
    s.ran = s.waited = s.progress = s.published = false;
    for (int i : s.round) run_thread(i);
    // Those who wait may vote on it, so that a collective is no progress.
    if (s.progress) l.idle_rounds = 0;
    else if (s.waited && ++l.idle_rounds > kIdleRounds) fail("no forward progress: every resident block waits");
    // Some blocks are much slower than others, and above all between two things that they publish.
    if (!s.ran || s.published || l.random() % 8 == 0) {
      if (s.ran && l.random() % 2 == 0) l.wakes[mine] = l.turns + l.random() % kLongestSleep;
      pass_turn(mine);
      await_turn(mine);
    }
  }
  acquire(&s.token[1]);
}

void run_slot(int mine) {
  ignore_begin();
  Launch& l = *launched;
  await_turn(mine);
  while (l.next < gridDim.x) {
    const unsigned k = l.next++;
    run_block(options.reverse ? gridDim.x - 1 - k : k, mine);
    pass_turn(mine);  // so that the next block to start is not ordered after this one
    await_turn(mine);
  }
  l.ended[mine] = true;
  pass_turn(mine);
  ignore_end();
}

// Once for the process.
bool prepare() {
  __sanitizer_set_death_callback(print_place);
#if defined(SIMT_asan)  // it clears what it knows of the stack for every new thread
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kWorkerStack);
  pthread_setattr_default_np(&attributes);
#endif
  return true;
}

}  // namespace

extern "C" void __ubsan_on_report() { print_place(); }

void launch(const void* kernel, unsigned blocks, unsigned threads, const std::function<void()>& body) {
  static const bool once = prepare();
  (void)once;
  if (blocks == 0 || threads == 0 || threads > kMaxThreads) {
    fprintf(stderr, "simt: launch of %u blocks of %u threads: %s\n", blocks, threads, kernel_name(kernel).c_str());
    _exit(kFailed);
  }
  Launch l;
  l.kernel = kernel;
  l.body = &body;
  l.random.seed(options.seed);
  launched = &l;
  gridDim = dim3(blocks);
  blockDim = dim3(threads);
  l.resident = int(std::min<unsigned>({unsigned(options.resident), kMaxResident, blocks}));
  while (int(slots.size()) < l.resident) slots.push_back(std::make_unique<Slot>());
  std::vector<std::thread> workers;
  for (int i = 0; i < l.resident; ++i) workers.emplace_back(run_slot, i);
  for (std::thread& worker : workers) worker.join();
  slot = nullptr;
  launched = nullptr;
}

// Their return address is where the kernel asked.
__attribute__((noinline)) uint64_t shuffle(uint64_t value, int source) {
  Thread& t = slot->running();
  t.value = value;
  t.source = source;
  wait_as(State::Shuffle, __builtin_return_address(0));
  return t.result;
}
__attribute__((noinline)) uint64_t ballot(bool predicate) {
  Thread& t = slot->running();
  t.value = predicate;
  t.source = 0;
  wait_as(State::Ballot, __builtin_return_address(0));
  return t.result;
}
__attribute__((noinline)) void barrier() {
  char* token = &slot->token[2 + slot->barriers % 2];
  release(token);
  wait_as(State::Barrier, __builtin_return_address(0));
  acquire(token);
}
void published() { slot->published = true; }
__attribute__((noinline)) void back_off() { wait_as(State::Waiting, __builtin_return_address(0)); }

}  // namespace simt
