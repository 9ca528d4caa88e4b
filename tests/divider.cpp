// Division by a product (Divider in csrc/kernels/reduce/reduce_launch.h) beside division: by many numbers, and around
// multiples of them. Prints the first that is wrong.
#include <cstdio>
#include <random>

#include "kernels/reduce/reduce_launch.h"

int main() {
  std::mt19937 random(1);
  const auto wrong = [](int64_t by, int64_t of) {
    if (of < 0 || of > INT32_MAX || torchreduce::divider(by).quotient(int(of)) == of / by) return false;
    std::printf("%lld / %lld", (long long)of, (long long)by);
    return true;
  };
  for (int i = 1; i < 20000; ++i) {
    const int64_t by = i < 5000 ? i : i < 5100 ? INT32_MAX - (i - 5000) : 1 + random() % INT32_MAX;
    for (int64_t at : {int64_t(0), int64_t(random() % (INT32_MAX / by + 1)), INT32_MAX / by})
      for (int64_t of = at * by - 1; of <= at * by + 1; ++of)
        if (wrong(by, of)) return 1;
    if (wrong(by, INT32_MAX) || wrong(by, random() >> 1)) return 1;
  }
  for (int log = 0; log < 31; ++log)
    for (int64_t by = (int64_t(1) << log) - 1; by <= (int64_t(1) << log) + 1; ++by)
      for (int64_t of :
           {by - 1, by, 2 * by - 1, INT32_MAX - INT32_MAX % std::max<int64_t>(by, 1) - 1, int64_t(INT32_MAX)})
        if (by > 0 && wrong(by, of)) return 1;
}
