// A stack that is left in the middle of a function and taken up again later, announced to the address and thread
// sanitizers, to which every fiber is a thread of its own. The switch is Boost.Context's; with -DSIMT_UCONTEXT the
// system's, which needs no package and takes a call of the kernel each time (csrc/ladder).
//
// Included by emulator.cpp alone, which is compiled without the sanitizers it works for (-DSIMT_asan, -DSIMT_tsan name
// them): what it does itself is then no memory access and no synchronization in their eyes.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#if defined(SIMT_UCONTEXT)
#include <ucontext.h>
#else
#include <boost/context/detail/fcontext.hpp>
#endif
#include <cstddef>
#include <cstdio>
#include <cstdlib>

#if defined(SIMT_asan)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(SIMT_tsan)
#include <sanitizer/tsan_interface.h>
#endif

namespace simt {

// make_context prepares a call of kEntry, which never returns, on a stack of its own. switch_to leaves the stack that
// runs, and comes back when someone switches to `left`, which it has set.
#if defined(SIMT_UCONTEXT)
using Context = ucontext_t;
template <void (*kEntry)()> void make_context(Context& context, char* stack, size_t bytes) {
  getcontext(&context);
  context.uc_stack = {stack, 0, bytes};
  makecontext(&context, kEntry, 0);
}
inline void switch_to(Context& next, Context& left) { swapcontext(&left, &next); }
#else
struct Context { boost::context::detail::fcontext_t at = nullptr; };
// The one that is left tells the next where it is.
inline void arrive(boost::context::detail::transfer_t from) { static_cast<Context*>(from.data)->at = from.fctx; }
template <void (*kEntry)()> void make_context(Context& context, char* stack, size_t bytes) {
  context.at = boost::context::detail::make_fcontext(stack + bytes, bytes, [](boost::context::detail::transfer_t from) {
    arrive(from);
    kEntry();
  });
}
inline void switch_to(Context& next, Context& left) { arrive(boost::context::detail::jump_fcontext(next.at, &left)); }
#endif

class Fiber {
 public:
  using Body = void (*)();

  Fiber() {
    const size_t page = size_t(sysconf(_SC_PAGESIZE));
    void* memory =
        mmap(nullptr, kStack + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) {  // an overflow faults
      perror("simt: no memory for a stack");
      exit(1);
    }
    stack_ = static_cast<char*>(memory) + page;
#if defined(SIMT_tsan)
    tsan_fiber_ = __tsan_create_fiber(0);
#endif
  }
  Fiber(const Fiber&) = delete;

  // The next resume() calls `body`; when that returns, the fiber is at its end.
  void start(Body body) {
    body_ = body;
#if defined(SIMT_asan)
    __asan_unpoison_memory_region(stack_, kStack);  // what a body that ended in the middle left behind
    fake_stack_ = nullptr;
#endif
    make_context<entry>(context_, stack_, kStack);
  }

  // Runs the fiber until it suspends or ends. By the thread that the fiber belongs to.
  void resume() {
#if defined(SIMT_tsan)
    tsan_resumer_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(tsan_fiber_, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(SIMT_asan)
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, stack_, kStack);
#endif
    resumed = this;
    switch_to(context_, resumer_);
#if defined(SIMT_asan)
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  }

  // Returns to resume(). By the fiber itself.
  void suspend() { leave(false); }

 private:
  static constexpr size_t kStack = 256 * 1024;

  static inline thread_local Fiber* resumed = nullptr;  // the last one

  static void entry() {
    Fiber* const self = resumed;
#if defined(SIMT_asan)
    __sanitizer_finish_switch_fiber(nullptr, &self->resumer_stack_, &self->resumer_stack_size_);
#endif
    self->body_();
    self->leave(true);
  }

  void leave([[maybe_unused]] bool for_good) {
#if defined(SIMT_tsan)
    __tsan_switch_to_fiber(tsan_resumer_, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(SIMT_asan)
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fake_stack_, resumer_stack_, resumer_stack_size_);
#endif
    switch_to(resumer_, context_);
#if defined(SIMT_asan)
    __sanitizer_finish_switch_fiber(fake_stack_, &resumer_stack_, &resumer_stack_size_);
#endif
  }

  char* stack_;
  Body body_ = nullptr;
  Context context_, resumer_;
#if defined(SIMT_asan)
  void* fake_stack_ = nullptr;
  const void* resumer_stack_ = nullptr;
  size_t resumer_stack_size_ = 0;
#endif
#if defined(SIMT_tsan)
  void *tsan_fiber_, *tsan_resumer_ = nullptr;
#endif
};

}  // namespace simt
