#include "emulator.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "fiber.h"  // and the sanitizers' headers

#if defined(SIMT_asan) || defined(SIMT_tsan)
#include <sanitizer/common_interface_defs.h>
#define SIMT_SANITIZED
#endif

#if defined(SIMT_tsan)
extern "C" void AnnotateIgnoreWritesBegin(const char* file, int line);  // and reads
extern "C" void AnnotateIgnoreWritesEnd(const char* file, int line);
extern "C" void __tsan_read_range(void* p, unsigned long bytes);
extern "C" void __tsan_write_range(void* p, unsigned long bytes);
#endif

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace simt {

Options options;

namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxResident = 8;
constexpr int kIdleRounds = 10000;  // that lanes wait in, of all resident blocks together: then they wait for ever
constexpr int kLongestSleep = 64;   // turns that others have before a block has its next
constexpr int kCollectiveRounds = 4000000;    // the same, where lanes vote instead of backing off
constexpr size_t kWorkerStack = 1 << 20;      // of an OS thread, without its shared memory
constexpr int kGarbage = 0x7f;                // in every byte of fresh shared memory: large as any type of number
constexpr size_t kPortableShared = 48 << 10;  // bytes a block
constexpr int kCopyRounds = 8, kSlowCopyRounds = 200;  // that a bulk copy takes at most, or rarely

enum class State { Ready, Waiting, Shuffle, Ballot, WarpBarrier, Barrier, Phase, Stores, Cluster, Exited };
constexpr const char* kStateNames[] = {"ready",
                                       "backing off",
                                       "in a shuffle",
                                       "in a ballot",
                                       "at a warp's barrier",
                                       "at a barrier",
                                       "waiting for a phase",
                                       "waiting for bulk stores",
                                       "waiting for the cluster",
                                       "exited"};

struct ThreadCopy {
  void* to;
  const void* from;
  void (*copy)(void*, const void*);
  int batch;
};

struct Thread {
  Fiber fiber;
  State state;
  const void* site;        // in the program: where it asked for what it waits for
  uint64_t value, result;  // of a shuffle or ballot
  int source;
  std::vector<ThreadCopy> copies;  // not done yet
  int batches;                     // ended
  int stores;                      // bulk stores that have not read yet
  int meetings;                    // of the cluster, that it has arrived for
  char stores_token;
};

struct Warp {
  int lanes, arrived, exited;
  int barriers = 0;    // of the warp, that are over
  char token[2] = {};  // of fences before those of even and of odd numbers
};

// A barrier in shared memory.
struct Phases {
  int expected, missing;  // arrivals
  int64_t bytes = 0;      // still to come
  uint32_t phase = 0;
  struct Waiter {
    int thread;
    uint32_t parity;
  };
  std::vector<Waiter> waiters;
  char token[2] = {};  // of even and odd phases
};

struct BulkCopy {
  char* to;
  const char* from;
  uint32_t bytes;
  Barrier* barrier;  // of a load
  int thread, rounds;
  std::unique_ptr<uint64_t[]> value;  // of a write from another block, instead of `from`
  std::unique_ptr<char> token = std::make_unique<char>();
};

// Where blocks run, one after another: an OS thread, so that each has its own shared memory, and the stacks.
struct Slot {
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  std::vector<int> holder;  // of each wave: the thread that backs off, or -1
  std::vector<int> ready, round;
  dim3 block;
  int thread = -1;      // that runs
  bool active = false;  // its block has started, and has not ended
  char* variables;      // what static shared memory is relative to
  int at_barrier, exited;
  bool ran, waited, progress, published;  // what some thread did in this round
  char token[4];                          // of the thread sanitizer: start, end, and barriers in turn
  int barriers;
  std::map<const Barrier*, Phases> phases;
  std::vector<BulkCopy> copies;
  char fence_token;
  std::unique_ptr<char, void (*)(void*)> shared{nullptr, free};

  int thread_count() const { return int(blockDim.x); }
  Thread& running() { return *threads[thread]; }
};

// One launch at a time.
struct Launch {
  const void* kernel;
  const std::function<void()>* body;
  unsigned shared;                                   // bytes of dynamic shared memory
  std::vector<std::pair<size_t, size_t>> variables;  // of static shared memory: offset, bytes
  unsigned next = 0;
  int idle_rounds = 0, collective_rounds = 0;
  std::mt19937 random;
  int resident;
  int64_t turns = 0;
  int64_t wakes[kMaxResident] = {};  // the turn from which on a slot can be drawn
  bool ended[kMaxResident] = {};     // slots
  struct Cluster {
    int arrivals = 0;  // of its threads, at all meetings
    char token = 0;
  };
  std::map<unsigned, Cluster> clusters;  // by their first block
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
void note_read(const void* p, size_t bytes) { __tsan_read_range(const_cast<void*>(p), bytes); }
void note_write(void* p, size_t bytes) { __tsan_write_range(p, bytes); }
// Runs body() as a thread of its own.
template <class Body> void as_another(Body body) {
  void* const mine = __tsan_get_current_fiber();
  void* const other = __tsan_create_fiber(0);
  __tsan_switch_to_fiber(other, __tsan_switch_to_fiber_no_sync);
  body();
  __tsan_switch_to_fiber(mine, __tsan_switch_to_fiber_no_sync);
  __tsan_destroy_fiber(other);
}
#else
void release(char*) {}
void acquire(char*) {}
void ignore_begin() {}
void ignore_end() {}
void note_read(const void*, size_t) {}
void note_write(void*, size_t) {}
template <class Body> void as_another(Body body) { body(); }
#endif
// What the emulator itself keeps, in the kernel's threads.
struct Unnoticed {
  Unnoticed() { ignore_begin(); }
  ~Unnoticed() { ignore_end(); }
};
bool poisoned([[maybe_unused]] const void* p, [[maybe_unused]] size_t bytes) {
#if defined(SIMT_asan)
  return __asan_region_is_poisoned(const_cast<void*>(p), bytes) != nullptr;
#else
  return false;
#endif
}

// ---- messages -------------------------------------------------------------------------------------------------------

// The function and what it was inlined into, innermost first, of a return address. The sanitizers know that.
std::string describe([[maybe_unused]] const void* address, [[maybe_unused]] const char* format) {
  char text[2000] = {};
#if defined(SIMT_SANITIZED)
  __sanitizer_symbolize_pc(const_cast<void*>(address), format, text, sizeof text - 2);
#else
  snprintf(text, sizeof text, "%p", address);
#endif
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
  warp.barriers += kind == State::WarpBarrier;
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

// ---- barriers in shared memory, bulk copies -------------------------------------------------------------------------

Phases& phases_of(const Barrier* b) {  // of the block whose turn it is
  const auto found = slot->phases.find(b);
  if (found == slot->phases.end()) fail("a barrier is used that was not made");
  return found->second;
}

// Whoever did the last thing that a phase waits for calls this.
void finish_phase(Phases& p) {
  if (p.missing || p.bytes) return;
  ++p.phase;
  p.missing = p.expected;
  slot->progress = true;
  std::erase_if(p.waiters, [&](const Phases::Waiter& waiter) {
    const bool done = (p.phase & 1) != waiter.parity;
    if (done) make_ready(waiter.thread);
    return done;
  });
}

void arrive_at(Barrier* b, uint32_t bytes) {
  note_read(b, sizeof *b);
  const Unnoticed scope;
  Phases& p = phases_of(b);
  release(&p.token[p.phase & 1]);
  if (p.missing == 0) fail("more arrivals at a barrier than it was made for");
  --p.missing;
  p.bytes += bytes;
  finish_phase(p);
}

void check_bulk(const void* to, const void* from, uint32_t bytes, const void* shared) {
  for (auto value : {uint64_t(uintptr_t(to)), uint64_t(uintptr_t(from)), uint64_t(bytes)})
    if (value % 16) fail("a bulk copy of what is no multiple of 16 bytes");
  const char *at = static_cast<const char*>(shared), *all = slot->shared.get();
  if (!all || at < all || at + bytes > all + launched->shared) fail("a bulk copy leaves the shared memory");
}

// 16 aligned bytes, some of which belong to an array.
void copy_granule(char* to, const char* from) {
  using Word [[gnu::may_alias]] = uint64_t;  // by no function that a sanitizer would take for the kernel's
  if (!poisoned(from, 16)) {
    for (int i = 0; i < 2; ++i) reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
    return;
  }
  int there = 0;
  for (int i = 0; i < 16; ++i) {
    const bool outside = poisoned(from + i, 1);
    there += !outside;
    to[i] = outside ? char(launched->random()) : from[i];
  }
  if (!there) fail("16 bytes are read of which none belongs to an array");
}

void do_bulk_copy(int index) {
  const BulkCopy c = std::move(slot->copies[index]);
  slot->copies[index] = std::move(slot->copies.back());
  slot->copies.pop_back();
  slot->progress = true;
  Thread& thread = *slot->threads[c.thread];
  Phases* const p = c.barrier ? &phases_of(c.barrier) : nullptr;
  const auto finish = [&] {
    if (p) {
      p->bytes -= c.bytes;
      finish_phase(*p);
    } else if (--thread.stores == 0 && thread.state == State::Stores) {
      make_ready(c.thread);
    }
  };
  if (c.value) {
    as_another([&] {
      acquire(c.token.get());
      note_write(c.to, c.bytes);
      release(&p->token[p->phase & 1]);
    });
    memcpy(c.to, c.value.get(), c.bytes);
    return finish();
  }
  as_another([&] {
    acquire(p ? c.token.get() : &slot->fence_token);
    // The first and the last 16 bytes from memory may have others' bytes.
    if (p && c.bytes > 32) note_read(c.from + 16, c.bytes - 32);
    if (!p) note_read(c.from, c.bytes);
    note_write(c.to, c.bytes);
    release(p ? &p->token[p->phase & 1] : &thread.stores_token);
  });
  for (uint32_t i = 0; i < c.bytes; i += 16) copy_granule(c.to + i, c.from + i);
  finish();
}

// Once a round. Where no thread can run, one copy has to come at least.
void serve_bulk_copies() {
  for (int i = int(slot->copies.size()) - 1; i >= 0; --i)
    if (--slot->copies[i].rounds < 0) do_bulk_copy(i);
  if (slot->ready.empty() && !slot->copies.empty()) do_bulk_copy(int(launched->random() % slot->copies.size()));
}

// By the thread that runs, whose block it may or may not be.
void start_bulk_copy(Slot& of, void* to, const void* from, uint32_t bytes, Barrier* b,
                     std::unique_ptr<uint64_t[]> value = {}) {
  const Unnoticed scope;
  auto& random = launched->random;
  const int rounds = int(random() % 8 ? random() % kCopyRounds : random() % kSlowCopyRounds);
  of.copies.push_back(
      {static_cast<char*>(to), static_cast<const char*>(from), bytes, b, slot->thread, rounds, std::move(value)});
  release(of.copies.back().token.get());
  slot->published = true;
}

// ---- clusters -------------------------------------------------------------------------------------------------------

unsigned first_of_cluster() { return slot->block.x / unsigned(options.cluster) * unsigned(options.cluster); }

// Calls visit(slot) for each block of the cluster that is resident.
template <class Visit> void each_of_cluster(Visit visit) {
  const unsigned first = first_of_cluster();
  for (int i = 0; i < launched->resident; ++i)
    if (slots[i]->active && slots[i]->block.x - first < unsigned(options.cluster)) visit(*slots[i]);
}

// What is at p in this block's shared memory, in another's.
char* in_block(const Slot& other, const void* p) {
  const char* const at = static_cast<const char*>(p);
  if (slot->shared && at >= slot->shared.get() && at < slot->shared.get() + launched->shared)
    return other.shared.get() + (at - slot->shared.get());
  for (const auto& [offset, bytes] : launched->variables)
    if (at >= slot->variables + offset && at < slot->variables + offset + bytes)
      return other.variables + (at - slot->variables);
  fail("a block writes to what is not another's shared memory");
}

// Whether other blocks may bring what all threads of this one wait for.
bool waits_for_cluster() {
  if (options.cluster == 1) return false;
  for (int i = 0; i < slot->thread_count(); ++i)
    if (slot->threads[i]->state == State::Cluster || slot->threads[i]->state == State::Phase) return true;
  return false;
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
    case State::Ready: fail("a thread stopped for no reason");
    case State::Phase:
    case State::Cluster:
    case State::Stores: break;
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

// The shared memory that the program's kernels declare: thread-local variables, by the kernel's mangled name.
struct Program {
  uintptr_t base = 0;
  size_t thread_local_bytes = 0;
  std::map<uintptr_t, std::string> functions;                               // by offset in the program
  std::map<std::string, std::vector<std::pair<size_t, size_t>>> variables;  // offset, bytes

  Program() {
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* self) {  // the first one is the program
          static_cast<Program*>(self)->base = info->dlpi_addr;
          for (int i = 0; i < info->dlpi_phnum; ++i)
            if (info->dlpi_phdr[i].p_type == PT_TLS)
              static_cast<Program*>(self)->thread_local_bytes = info->dlpi_phdr[i].p_memsz;
          return 1;
        },
        this);
    const int file = open("/proc/self/exe", O_RDONLY);
    struct stat facts;
    if (file < 0 || fstat(file, &facts) != 0) return;
    const size_t bytes = size_t(facts.st_size);
    void* const mapped = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (mapped == MAP_FAILED) return;
    const char* const elf = static_cast<const char*>(mapped);
    const auto* header = reinterpret_cast<const Elf64_Ehdr*>(elf);
    const auto* sections = reinterpret_cast<const Elf64_Shdr*>(elf + header->e_shoff);
    for (int i = 0; i < header->e_shnum; ++i) {
      if (sections[i].sh_type != SHT_SYMTAB) continue;
      const char* const names = elf + sections[sections[i].sh_link].sh_offset;
      const auto* symbols = reinterpret_cast<const Elf64_Sym*>(elf + sections[i].sh_offset);
      for (size_t k = 0; k < sections[i].sh_size / sizeof(Elf64_Sym); ++k) {
        const std::string name = names + symbols[k].st_name;
        const int type = ELF64_ST_TYPE(symbols[k].st_info);
        if (type == STT_FUNC && name.starts_with("_Z")) functions[symbols[k].st_value] = name.substr(2);
        if (type == STT_TLS && name.starts_with("_ZZ"))  // _ZZ function E variable
          variables[name.substr(3, name.rfind('E') - 3)].push_back({symbols[k].st_value, symbols[k].st_size});
      }
    }
    munmap(mapped, bytes);
  }
  std::vector<std::pair<size_t, size_t>> variables_of(const void* kernel) const {
    const auto function = functions.find(uintptr_t(kernel) - base);
    if (function == functions.end()) return {};
    const auto found = variables.find(function->second);
    return found == variables.end() ? std::vector<std::pair<size_t, size_t>>() : found->second;
  }
};
const Program& program() {
  static const Program once;
  return once;
}

// Makes the block's shared memory anew.
void make_shared_memory() {
  void* data = nullptr;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        *static_cast<void**>(data) = info->dlpi_tls_data;
        return 1;
      },
      &data);
  slot->variables = static_cast<char*>(data);
  for (const auto& [offset, bytes] : launched->variables) memset(slot->variables + offset, kGarbage, bytes);
  void* dynamic = nullptr;
  if (launched->shared && posix_memalign(&dynamic, 128, launched->shared) != 0) abort();
  slot->shared.reset(static_cast<char*>(dynamic));
  if (dynamic) memset(dynamic, kGarbage, launched->shared);
}

void run_block(unsigned index, int mine) {
  Slot& s = *slot;
  const int count = s.thread_count();
  s.block = blockIdx = dim3(index, 0, 0);
  s.at_barrier = s.exited = s.barriers = 0;
  s.phases.clear();
  s.warps.assign((count + kWarp - 1) / kWarp, Warp{kWarp, 0, 0});
  if (count % kWarp) s.warps.back().lanes = count % kWarp;
  s.holder.assign((count + options.wave - 1) / options.wave, -1);
  while (int(s.threads.size()) < count) s.threads.push_back(std::make_unique<Thread>());
  make_shared_memory();
  release(&s.token[0]);
  s.ready.clear();
  for (int i = 0; i < count; ++i) {
    s.threads[i]->fiber.start(thread_body);
    s.threads[i]->site = nullptr;
    s.threads[i]->copies.clear();
    s.threads[i]->batches = s.threads[i]->stores = s.threads[i]->meetings = 0;
    make_ready(i);
  }

  s.active = true;

  Launch& l = *launched;
  while (!s.ready.empty() || !s.copies.empty() || waits_for_cluster() || finish_barrier()) {
    s.round.swap(s.ready);
    s.ready.clear();
    std::shuffle(s.round.begin(), s.round.end(), l.random);
    s.ran = s.progress = s.published = false;
    s.waited = s.round.empty() && s.copies.empty();
    for (int i : s.round) run_thread(i);
    if (s.exited == count && !s.copies.empty()) fail("a block ends before its bulk copies");
    serve_bulk_copies();
    // Those who wait may vote on it, so that a collective is no progress.
    if (s.progress || s.published) l.idle_rounds = l.collective_rounds = 0;
    else if ((s.waited && ++l.idle_rounds > kIdleRounds) || ++l.collective_rounds > kCollectiveRounds)
      fail("no forward progress: every resident block waits");
    // Some blocks are much slower than others, and above all between two things that they publish.
    if (!s.ran || s.published || l.random() % 8 == 0) {
      if (s.ran && l.random() % 2 == 0) l.wakes[mine] = l.turns + l.random() % kLongestSleep;
      pass_turn(mine);
      await_turn(mine);
    }
  }
  s.active = false;
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
#if defined(SIMT_SANITIZED)
  __sanitizer_set_death_callback(print_place);
#endif
#if defined(SIMT_asan)  // it clears what it knows of the stack for every new thread
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kWorkerStack + program().thread_local_bytes);
  pthread_setattr_default_np(&attributes);
#endif
  return true;
}

}  // namespace

void broken(const char* rule) { fail(rule); }

extern "C" void __ubsan_on_report() { print_place(); }

void launch(const void* kernel, unsigned blocks, unsigned threads, unsigned shared, const std::function<void()>& body) {
  static const bool once = prepare();
  (void)once;
  Launch l;
  l.variables = program().variables_of(kernel);
  size_t all_shared = shared;
  for (const auto& [offset, bytes] : l.variables) all_shared += bytes;
  if (blocks == 0 || threads == 0 || threads > kMaxThreads || options.cluster < 1 || options.cluster > kMaxResident ||
      blocks % unsigned(options.cluster) ||
      all_shared > (options.bulk_copies ? size_t(kMostShared) : kPortableShared)) {
    fprintf(stderr, "simt: launch of %u blocks of %u threads with %zu bytes of shared memory: %s\n", blocks, threads,
            all_shared, kernel_name(kernel).c_str());
    _exit(kFailed);
  }
  l.kernel = kernel;
  l.shared = shared;
  l.body = &body;
  l.random.seed(options.seed);
  launched = &l;
  gridDim = dim3(blocks);
  blockDim = dim3(threads);
  l.resident = int(std::min<unsigned>({unsigned(std::max(options.resident, options.cluster)), kMaxResident, blocks}));
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
__attribute__((noinline)) void warp_barrier() {
  slot->running().source = 0;
  wait_as(State::WarpBarrier, __builtin_return_address(0));
}
// A lane's next barrier is the warp's next, and none comes before every lane has passed that.
void fence_release() {
  Warp& warp = slot->warps[slot->thread / kWarp];
  release(&warp.token[warp.barriers % 2]);
}
void fence_acquire() {
  Warp& warp = slot->warps[slot->thread / kWarp];
  acquire(&warp.token[(warp.barriers + 1) % 2]);
}
char* dynamic_shared(int alignment) {
  if (!slot->shared || alignment > 128) fail("a kernel has no dynamic shared memory as it declares it");
  return slot->shared.get();
}

void start_copy(void* to, const void* from, void (*copy)(void*, const void*)) {
  Thread& t = slot->running();
  if (launched->random() % 2) return copy(to, from);
  const Unnoticed scope;
  t.copies.push_back({to, from, copy, t.batches});
}
void end_copies() { ++slot->running().batches; }
void wait_copies(int pending) {
  Thread& t = slot->running();
  std::erase_if(t.copies, [&](const ThreadCopy& c) {
    const bool now = c.batch < t.batches - pending;
    if (now) c.copy(c.to, c.from);
    return now;
  });
}

void barrier_init(Barrier* b, int arrivals) {
  note_write(b, sizeof *b);
  const Unnoticed scope;
  if (!slot->phases.insert({b, Phases{arrivals, arrivals, 0, 0, {}, {}}}).second) fail("a barrier is made twice");
}
void barriers_made() {
  Launch::Cluster* own;
  {
    const Unnoticed scope;
    own = &launched->clusters[first_of_cluster()];
  }
  release(&own->token);
}
void barrier_arrive(Barrier* b) { arrive_at(b, 0); }
void barrier_expect(Barrier* b, uint32_t bytes) { arrive_at(b, bytes); }
__attribute__((noinline)) void barrier_wait(Barrier* b, uint32_t parity) {
  note_read(b, sizeof *b);
  Phases& p = phases_of(b);
  if ((p.phase & 1) == parity) {
    {
      const Unnoticed scope;
      p.waiters.push_back({slot->thread, parity});
    }
    wait_as(State::Phase, __builtin_return_address(0));
  }
  acquire(&p.token[parity]);
}
void bulk_load(void* shared, const void* from, uint32_t bytes, Barrier* b) {
  check_bulk(shared, from, bytes, shared);
  if (poisoned(from, bytes)) fail("a bulk load leaves the array");
  phases_of(b);
  start_bulk_copy(*slot, shared, from, bytes, b);
}
void bulk_store(void* to, const void* shared, uint32_t bytes) {
  check_bulk(to, shared, bytes, shared);
  if (poisoned(to, bytes)) fail("a bulk store leaves the array");
  ++slot->running().stores;
  start_bulk_copy(*slot, to, shared, bytes, nullptr);
}
void bulk_fence() { release(&slot->fence_token); }
__attribute__((noinline)) void bulk_stores_read() {
  Thread& t = slot->running();
  if (t.stores) wait_as(State::Stores, __builtin_return_address(0));
  acquire(&t.stores_token);
}

int cluster_rank() { return int(slot->block.x % unsigned(options.cluster)); }
void cluster_arrive() {
  const Unnoticed scope;
  const int all = options.cluster * slot->thread_count();
  ++slot->running().meetings;
  slot->published = true;
  if (++launched->clusters[first_of_cluster()].arrivals % all) return;
  Slot* const mine = slot;
  each_of_cluster([&](Slot& other) {
    slot = &other;
    for (int i = 0; i < other.thread_count(); ++i)
      if (other.threads[i]->state == State::Cluster) make_ready(i);
  });
  slot = mine;
}
__attribute__((noinline)) void cluster_wait() {
  Launch::Cluster* own;
  {
    const Unnoticed scope;
    own = &launched->clusters[first_of_cluster()];
  }
  if (own->arrivals < slot->running().meetings * options.cluster * slot->thread_count())
    wait_as(State::Cluster, __builtin_return_address(0));
  acquire(&own->token);
}
void put(const void* to, const Barrier* b, const void* value, uint32_t bytes, int rank) {
  if (bytes % 8 || rank < 0 || rank >= options.cluster)
    fail("a write to no block of the cluster, or of no whole words");
  const Unnoticed scope;
  Slot* other = nullptr;
  each_of_cluster([&](Slot& s) {
    if (int(s.block.x - first_of_cluster()) == rank) other = &s;
  });
  if (!other) fail("a write to a block of the cluster that has not started or has ended");
  Barrier* const barrier = reinterpret_cast<Barrier*>(in_block(*other, b));
  if (!other->phases.contains(barrier)) fail("a write that counts at a barrier that was not made");
  auto words = std::make_unique<uint64_t[]>(bytes / 8);
  memcpy(words.get(), value, bytes);
  start_bulk_copy(*other, in_block(*other, to), nullptr, bytes, barrier, std::move(words));
}
__attribute__((noinline)) void back_off() { wait_as(State::Waiting, __builtin_return_address(0)); }

}  // namespace simt
