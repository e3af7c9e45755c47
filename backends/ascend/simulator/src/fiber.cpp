#include "fiber.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !(defined(__x86_64__) && defined(__linux__))
#define USIM_UCONTEXT 1
#include <ucontext.h>
#endif

namespace usim {

namespace {
thread_local Fiber* running_fiber = nullptr;
}

Stack::Stack(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  bytes_ = (bytes + page - 1) / page * page;
  void* p = mmap(nullptr, bytes_ + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<std::uint8_t*>(p);
  mprotect(base_, page, PROT_NONE);
  low_ = base_ + page;
}

Stack::~Stack() {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(low_, bytes_);  // the address range may be mapped again for something else
#endif
  munmap(base_, bytes_ + static_cast<std::size_t>(low_ - base_));
}

Fiber* Fiber::running() { return running_fiber; }

#ifdef USIM_UCONTEXT

struct Fiber::Portable {
  ucontext_t self, caller;
};

void Fiber::start(Stack& stack, Function function, void* argument) {
  stack_ = &stack;
  function_ = function;
  argument_ = argument;
  finished_ = false;
  portable_ = std::make_shared<Portable>();
  getcontext(&portable_->self);
  portable_->self.uc_stack.ss_sp = stack.low();
  portable_->self.uc_stack.ss_size = static_cast<std::size_t>(stack.high() - stack.low());
  portable_->self.uc_link = nullptr;
  makecontext(&portable_->self, &Fiber::entry, 0);
}

void Fiber::resume() {
  outer_ = running_fiber;
  running_fiber = this;
  swapcontext(&portable_->caller, &portable_->self);
  running_fiber = outer_;
}

void Fiber::yield() {
  Fiber* self = running_fiber;
  swapcontext(&self->portable_->self, &self->portable_->caller);
}

#else

struct Fiber::Portable {};

// Saves the callee-saved registers and floating-point control words on the current stack, stores the stack pointer in
// *from and continues on `to`. No system call, about 10 ns.
extern "C" void usim_switch(void** from, void* to);
asm(R"(
.text
.globl usim_switch
.hidden usim_switch
.type usim_switch,@function
usim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  subq $8, %rsp
  stmxcsr (%rsp)
  fnstcw 4(%rsp)
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  ldmxcsr (%rsp)
  fldcw 4(%rsp)
  addq $8, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size usim_switch,.-usim_switch
.section .note.GNU-stack,"",@progbits
.text
)");

void Fiber::start(Stack& stack, Function function, void* argument) {
  stack_ = &stack;
  function_ = function;
  argument_ = argument;
  finished_ = false;
#if defined(__SANITIZE_ADDRESS__)
  // Frames left behind on this memory, by an abandoned fiber or an earlier mapping, are gone.
  __asan_unpoison_memory_region(stack.low(), static_cast<std::size_t>(stack.high() - stack.low()));
#endif
  auto** top = reinterpret_cast<void**>(stack.high());
  *--top = nullptr;                                   // return address of entry(): none, and rsp is 8 below 16
  *--top = reinterpret_cast<void*>(&Fiber::entry);    // where `ret` of the first switch goes
  for (int i = 0; i < 6; ++i) *--top = nullptr;       // rbp rbx r12 r13 r14 r15
  *--top = nullptr;
  auto* words = reinterpret_cast<std::uint32_t*>(top);
  std::uint16_t control;
  asm volatile("stmxcsr %0" : "=m"(words[0]));
  asm volatile("fnstcw %0" : "=m"(control));
  words[1] = control;
  context_ = top;
}

void Fiber::resume() {
  outer_ = running_fiber;
  running_fiber = this;
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, stack_->low(), static_cast<std::size_t>(stack_->high() - stack_->low()));
#endif
  usim_switch(&caller_, context_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  running_fiber = outer_;
}

#if defined(__SANITIZE_ADDRESS__)
namespace {
thread_local const void* outer_bottom = nullptr;
thread_local std::size_t outer_size = 0;
}  // namespace
#endif

void Fiber::yield() {
  Fiber* self = running_fiber;
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  const Fiber* outer = self->outer_;
  const void* bottom = outer ? outer->stack_->low() : outer_bottom;
  const std::size_t size = outer ? static_cast<std::size_t>(outer->stack_->high() - outer->stack_->low()) : outer_size;
  __sanitizer_start_switch_fiber(self->finished_ ? nullptr : &fake, bottom, size);
#endif
  usim_switch(&self->context_, self->caller_);
#if defined(__SANITIZE_ADDRESS__)
  const void* from = nullptr;
  std::size_t from_size = 0;
  __sanitizer_finish_switch_fiber(fake, &from, &from_size);
  if (!self->outer_) outer_bottom = from, outer_size = from_size;
#endif
}

#endif

void Fiber::entry() {
  Fiber* self = running_fiber;
#if defined(__SANITIZE_ADDRESS__)
  const void* from = nullptr;
  std::size_t from_size = 0;
  __sanitizer_finish_switch_fiber(nullptr, &from, &from_size);
  if (!self->outer_) outer_bottom = from, outer_size = from_size;
#endif
  self->function_(self->argument_);
  self->finished_ = true;
  yield();
}

}  // namespace usim
