// What the headers of newer compilers call and older systems lack, for all libraries of this package: they run where
// glibc is 2.28 and libstdc++ that of GCC 8 (manylinux_2_28: RHEL 8, Ubuntu 20.04), wherever they are built. x86-64
// only.
#include <new>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GLIBCXX__)
// A function of this library alone, under the name that the headers call.
#define TR_LOCAL(name) asm(name) __attribute__((visibility("hidden")))

extern "C" {
// glibc 2.32: whether the process has one thread, so that counters need not be atomic. Nobody knows.
extern char is_single_threaded TR_LOCAL("__libc_single_threaded");
char is_single_threaded = 0;

// GCC 11: of std::exception_ptr, a pointer. Before, its copies and destructors were functions of libstdc++, where they
// are still.
void copy_exception(void** to, void* const* from) noexcept;
void destroy_exception(void** of) noexcept;
asm(".symver copy_exception, _ZNSt15__exception_ptr13exception_ptrC1ERKS0_@CXXABI_1.3.3");
asm(".symver destroy_exception, _ZNSt15__exception_ptr13exception_ptrD1Ev@CXXABI_1.3.3");

void add_reference(void** of) noexcept TR_LOCAL("_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
void add_reference(void** of) noexcept {
  void* another;
  copy_exception(&another, of);
}
void release(void** of) noexcept TR_LOCAL("_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");
void release(void** of) noexcept {
  destroy_exception(of);
  *of = nullptr;
}

// GCC 11.
[[noreturn]] void throw_bad_length() TR_LOCAL("_ZSt28__throw_bad_array_new_lengthv");
void throw_bad_length() { throw std::bad_array_new_length(); }
}
#endif
