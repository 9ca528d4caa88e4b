// A stack that is left in the middle of a function and taken up again later: Boost.Context's switch, announced to the
// address and thread sanitizers, to which every fiber is a thread of its own.
//
// Included by emulator.cpp alone, which is compiled without the sanitizers it works for (-DSIMT_asan, -DSIMT_tsan name
// them): what it does itself is then no memory access and no synchronization in their eyes.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <boost/context/detail/fcontext.hpp>
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
    context_ = boost::context::detail::make_fcontext(stack_ + kStack, kStack, entry);
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
    context_ = boost::context::detail::jump_fcontext(context_, this).fctx;
#if defined(SIMT_asan)
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  }

  // Returns to resume(). By the fiber itself.
  void suspend() { leave(false); }

 private:
  static constexpr size_t kStack = 256 * 1024;

  static void entry(boost::context::detail::transfer_t from) {
    auto* self = static_cast<Fiber*>(from.data);
    self->resumer_ = from.fctx;
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
    resumer_ = boost::context::detail::jump_fcontext(resumer_, nullptr).fctx;
#if defined(SIMT_asan)
    __sanitizer_finish_switch_fiber(fake_stack_, &resumer_stack_, &resumer_stack_size_);
#endif
  }

  char* stack_;
  Body body_ = nullptr;
  boost::context::detail::fcontext_t context_ = nullptr, resumer_ = nullptr;
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
