// Cooperative stacks: one per running core program, one per SIMT thread of a function with barriers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace usim {

// A stack with a guard page below it; overrunning it faults instead of corrupting a neighbour.
class Stack {
 public:
  explicit Stack(std::size_t bytes);
  ~Stack();
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  std::uint8_t* low() const { return low_; }
  std::uint8_t* high() const { return low_ + bytes_; }

 private:
  std::uint8_t* base_;
  std::uint8_t* low_;
  std::size_t bytes_;
};

// A saved point of execution. resume() runs the fiber until it calls yield() or its function returns.
class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  using Function = void (*)(void*);
  void start(Stack& stack, Function function, void* argument);
  void resume();
  static void yield();      // back to whoever resumed the running fiber
  static Fiber* running();  // nullptr on a plain thread
  bool finished() const { return finished_; }
  const Stack* stack() const { return stack_; }

 private:
  static void entry();
  void* context_ = nullptr;  // saved stack pointer (x86-64) or ucontext
  void* caller_ = nullptr;
  Fiber* outer_ = nullptr;
  Stack* stack_ = nullptr;
  Function function_ = nullptr;
  void* argument_ = nullptr;
  bool finished_ = true;
  struct Portable;
  std::shared_ptr<Portable> portable_;
};

}  // namespace usim
