// Runs rungs on the emulator of tests/simt: a program, since that is what the emulator knows the shared memory of. It
// reads requests from its input and answers on its output, one after the other:
//
//     <file> <rung> <op> <type> <n> <block> <exclusive> <wave> <seed>\n, then n elements of 4 bytes
//     <launches> <results>\n, then as many results of 4 bytes; or "! <message>\n"
//
// Arrays are exactly as long as a rung is told, so that the sanitizers see what leaves them; results and workspace hold
// garbage before the call.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "emulator.h"

using Entry = const char*(const char* rung, int op, int type, void* in, void* out, void* work, int64_t n, int block,
                          int exclusive, void* stream, int* launches);
extern "C" Entry ladder_reduce, ladder_segments, ladder_scan;

static std::unique_ptr<char, void (*)(void*)> garbage(size_t bytes) {
  void* p = nullptr;
  if (posix_memalign(&p, 16, bytes) != 0) abort();
  memset(p, 0x7f, bytes);
  return {static_cast<char*>(p), free};
}

int main() {
  char file[32], rung[64];
  int op, type, block, exclusive, launches = 0;
  long long n;
  while (scanf("%31s %63s %d %d %lld %d %d %d %u", file, rung, &op, &type, &n, &block, &exclusive, &simt::options.wave,
               &simt::options.seed) == 9) {
    getchar();
    simt::options.title = std::string("rung ") + rung + ", n = " + std::to_string(n);
    const bool scans = !strcmp(file, "scan");
    const size_t results = scans ? size_t(n) : 1;
    const auto in = garbage(4 * size_t(n)), out = garbage(4 * results), work = garbage(4 * (size_t(n) + (1 << 18)));
    if (fread(in.get(), 4, size_t(n), stdin) != size_t(n)) return 1;
    Entry* const entry = scans ? ladder_scan : !strcmp(file, "segments") ? ladder_segments : ladder_reduce;
    const char* const error =
        entry(rung, op, type, in.get(), out.get(), work.get(), n, block, exclusive, nullptr, &launches);
    if (error) {
      printf("! %s\n", error);
    } else {
      printf("%d %zu\n", launches, results);
      fwrite(out.get(), 4, results, stdout);
    }
    fflush(stdout);
  }
}
