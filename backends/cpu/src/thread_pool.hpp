// Worker threads: torch's, or persistent ones of our own after a fork and where torch has none that can be shared. Safe for
// several callers at once.
#pragma once

#include <cstdint>

namespace cpu_native {

// A borrowed callable (task, worker); it must outlive the call that takes it.
class TaskRef {
public:
    template <class F>
    TaskRef(F& callable)
        : context_(&callable), call_([](void* context, int64_t task, int worker) { (*static_cast<F*>(context))(task, worker); }) {}
    void operator()(int64_t task, int worker) const { call_(context_, task, worker); }

private:
    void* context_;
    void (*call_)(void*, int64_t, int);
};

// Calls body(task, worker) once for each task in 0..num_tasks, on at most `threads` threads with worker < threads, the
// caller being worker 0. While another caller holds the workers, the caller does all tasks itself: that never waits and
// never has more threads running than were asked for. `body` must not throw.
void run_tasks(int64_t num_tasks, int threads, TaskRef body);

}  // namespace cpu_native
