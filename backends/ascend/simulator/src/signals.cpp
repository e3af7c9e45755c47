// From a signal to a fault: the handler sends the thread to a function of ours, on the stack it was using, which reports
// where the kernel was. Signals that are not a kernel's go to whoever was there before.
#include "signals.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <array>
#include <memory>
#include <mutex>

#include "vector.hpp"

namespace usim {

namespace {

thread_local FaultGuard* guard = nullptr;
thread_local struct { int signal = 0; std::uintptr_t address = 0, code = 0; bool overflow = false; } caught;
// The handler's own stack, for a kernel that has used up its, and one for the report of such a kernel.
thread_local std::unique_ptr<Stack> handler_stack, report_stack;
constexpr std::size_t kHandlerStack = 64 << 10;

constexpr std::array<int, 3> kSignals = {SIGSEGV, SIGBUS, SIGFPE};
std::array<struct sigaction, kSignals.size()> previous;
std::mutex installing;

#if defined(__x86_64__) && defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
constexpr bool kSupported = true;
std::uintptr_t code_of(const ucontext_t& c) { return static_cast<std::uintptr_t>(c.uc_mcontext.gregs[REG_RIP]); }
void go_on_at(ucontext_t& c, void (*function)(), std::uint8_t* stack) {
  // Below the red zone; aligned as if the function had been called.
  const greg_t top = stack ? reinterpret_cast<greg_t>(stack) : c.uc_mcontext.gregs[REG_RSP] - 256;
  c.uc_mcontext.gregs[REG_RSP] = (top & ~0xfll) - 8;
  c.uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(function);
}
#elif defined(__aarch64__) && defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
constexpr bool kSupported = true;
std::uintptr_t code_of(const ucontext_t& c) { return c.uc_mcontext.pc; }
void go_on_at(ucontext_t& c, void (*function)(), std::uint8_t* stack) {
  c.uc_mcontext.sp = (stack ? reinterpret_cast<std::uintptr_t>(stack) : c.uc_mcontext.sp - 256) & ~0xfull;
  c.uc_mcontext.pc = reinterpret_cast<std::uintptr_t>(function);
}
#else
constexpr bool kSupported = false;
std::uintptr_t code_of(const ucontext_t&) { return 0; }
void go_on_at(ucontext_t&, void (*)(), std::uint8_t*) {}
#endif

// An overflow shows in the guard page below the stack.
bool overflows(const Fiber* fiber, std::uintptr_t address) {
  const auto low = fiber ? reinterpret_cast<std::uintptr_t>(fiber->stack()->low()) : 0;
  return fiber && address < low && address >= low - 4096;
}

// Runs where the kernel was stopped.
[[noreturn]] void report() {
  Core& core = *current_core;
  Launch& launch = *core.block->launch;
  std::string message;
  if (caught.signal == SIGFPE) message = "divides an integer by zero (or the smallest one by -1)";
  else if (caught.overflow) message = "needs more stack than the simulator gives a program (1 MiB) or a SIMT thread (64 KiB): its local arrays are too large";
  else message = "accesses host address " + std::to_string(caught.address) + ", which belongs to no memory of the device: a pointer that was never set, or an index far out of range";
  const auto base = reinterpret_cast<std::uintptr_t>(launch.code_base);
  Instruction here;
  here.op = current_vector ? current_vector->operation() : Op::scalar_access;
  here.pipe = current_vector ? PIPE_V : PIPE_S;
  here.site = caught.code >= base && caught.code < base + launch.code_bytes ? static_cast<std::uint32_t>(caught.code + 1 - base) : core.last_site;
  record_fault(core, &here, "out_of_bounds", std::move(message), {});
  while (Fiber::running()) Fiber::yield();
  siglongjmp(guard->landing, 1);
}

void handle(int signal, siginfo_t* info, void* context) {
  auto& c = *static_cast<ucontext_t*>(context);
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  if (guard && current_core) {
    caught = {signal, address, code_of(c), signal != SIGFPE && overflows(Fiber::running(), address)};
    go_on_at(c, reinterpret_cast<void (*)()>(&report), caught.overflow ? report_stack->high() : nullptr);
    return;
  }
  for (std::size_t s = 0; s < kSignals.size(); ++s) {
    if (kSignals[s] != signal) continue;
    const struct sigaction& old = previous[s];
    if (old.sa_flags & SA_SIGINFO) return old.sa_sigaction(signal, info, context);
    if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) return old.sa_handler(signal);
  }
  ::signal(signal, SIG_DFL);  // the instruction runs again and ends the process as it would have
}

void install() {
  const std::lock_guard<std::mutex> lock(installing);
  for (std::size_t s = 0; s < kSignals.size(); ++s) {
    struct sigaction now = {};
    sigaction(kSignals[s], nullptr, &now);
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == &handle) continue;
    previous[s] = now;
    struct sigaction ours = {};
    ours.sa_sigaction = &handle;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    sigaction(kSignals[s], &ours, nullptr);
  }
}

}  // namespace

FaultGuard::FaultGuard() : outer_(guard) {
  guard = this;
  if (!kSupported || outer_) return;
  if (!handler_stack) handler_stack = std::make_unique<Stack>(kHandlerStack), report_stack = std::make_unique<Stack>(kHandlerStack);
  stack_t ours = {};
  ours.ss_sp = handler_stack->low();
  ours.ss_size = kHandlerStack;
  sigaltstack(&ours, &before_);
  install();
}

FaultGuard::~FaultGuard() {
  guard = outer_;
  if (kSupported && !outer_) sigaltstack(&before_, nullptr);
}

}  // namespace usim
