// Faults of the host while kernel code runs: a wild pointer or a division by zero becomes an error of the kernel.
#pragma once

#include <setjmp.h>
#include <signal.h>

namespace usim {

// Catches SIGSEGV, SIGBUS and SIGFPE of this thread's kernel code as long as it lives. Where no fiber runs, execution
// continues at the innermost `landing`, which the owner has set with sigsetjmp.
class FaultGuard {
 public:
  FaultGuard();
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;
  sigjmp_buf landing;

 private:
  FaultGuard* outer_;
  stack_t before_{};  // the thread's alternate signal stack
};

}  // namespace usim
