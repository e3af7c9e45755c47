#include "thread_pool.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cpu_native {
namespace {

inline void pause_briefly() {
#if defined(__x86_64__)
    _mm_pause();
#endif
}

// Rounds of waiting before a thread sleeps; about 20 us, a few times what waking it costs.
constexpr int spin_rounds = 500;

class Pool {
public:
    bool try_run(int64_t num_tasks, int threads, TaskRef body) {
        std::unique_lock<std::mutex> exclusive(in_use_, std::try_to_lock);
        if (!exclusive.owns_lock()) return false;
        add_workers(threads - 1);
        body_ = &body;
        num_tasks_ = num_tasks;
        next_task_.store(0, std::memory_order_relaxed);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            seats_ = threads - 1 < num_workers_ ? threads - 1 : num_workers_;
            running_.store(0, std::memory_order_relaxed);
            generation_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        work(0);
        {
            // No seat may be taken from here on: the tasks are all handed out.
            std::lock_guard<std::mutex> lock(mutex_);
            seats_ = 0;
        }
        for (int round = 0; running_.load(std::memory_order_acquire) != 0 && round < spin_rounds; ++round) pause_briefly();
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [&] { return running_.load(std::memory_order_acquire) == 0; });
        return true;
    }

private:
    void add_workers(int wanted) {
        while (num_workers_ < wanted) {
            try {
                std::thread(&Pool::serve, this).detach();
            } catch (const std::system_error&) {
                return;  // out of threads: fewer do the same work
            }
            ++num_workers_;
        }
    }

    void work(int worker) {
        for (;;) {
            const int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
            if (task >= num_tasks_) return;
            (*body_)(task, worker);
        }
    }

    void serve() {
        uint64_t seen = 0;
        for (;;) {
            for (int round = 0; generation_.load(std::memory_order_acquire) == seen && round < spin_rounds; ++round)
                pause_briefly();
            int worker;
            {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
                seen = generation_.load(std::memory_order_acquire);
                if (seats_ == 0) continue;
                worker = seats_--;
                running_.fetch_add(1, std::memory_order_relaxed);
            }
            work(worker);
            if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
                std::lock_guard<std::mutex> lock(mutex_);
                done_.notify_one();
            }
        }
    }

    std::mutex in_use_;  // held by the caller whose tasks run
    std::mutex mutex_;   // guards seats_ and sleeping
    std::condition_variable wake_, done_;
    std::atomic<uint64_t> generation_{0};
    std::atomic<int> running_{0};
    std::atomic<int64_t> next_task_{0};
    const TaskRef* body_ = nullptr;
    int64_t num_tasks_ = 0;
    int seats_ = 0;
    int num_workers_ = 0;
};

// The threads of torch, where it runs on GNU OpenMP or something with its interface. After an operation of torch they spin
// for a while: on a machine that has as many cores as torch has threads, threads of our own would wait behind them.
class TorchThreads {
public:
    static TorchThreads& instance() {
        static TorchThreads found;
        return found;
    }

    bool are_usable() const {
        return parallel_ != nullptr && thread_number_ != nullptr && !is_forked_.load(std::memory_order_relaxed);
    }

    bool try_run(int64_t num_tasks, int threads, TaskRef body) {
        std::unique_lock<std::mutex> exclusive(in_use_, std::try_to_lock);
        if (!exclusive.owns_lock()) return false;
        Region region{body, num_tasks, thread_number_};
        parallel_(&Region::work, &region, unsigned(threads), 0);
        return true;
    }

    // Its OpenMP threads do not exist in the child, and a parallel region would wait for them for ever.
    void leave_in_child() { is_forked_.store(true, std::memory_order_relaxed); }

private:
    struct Region {
        TaskRef body;
        int64_t num_tasks;
        int (*thread_number)();
        std::atomic<int64_t> next_task{0};

        static void work(void* data) {
            Region& region = *static_cast<Region*>(data);
            const int worker = region.thread_number();
            for (;;) {
                const int64_t task = region.next_task.fetch_add(1, std::memory_order_relaxed);
                if (task >= region.num_tasks) return;
                region.body(task, worker);
            }
        }
    };

    TorchThreads() {
        // Only if torch has loaded it already; the handle keeps it loaded.
        void* library = dlopen("libgomp.so.1", RTLD_NOLOAD | RTLD_LAZY);
        if (library == nullptr) return;
        parallel_ = reinterpret_cast<decltype(parallel_)>(dlsym(library, "GOMP_parallel"));
        thread_number_ = reinterpret_cast<decltype(thread_number_)>(dlsym(library, "omp_get_thread_num"));
    }

    void (*parallel_)(void (*work)(void*), void* data, unsigned threads, unsigned flags) = nullptr;
    int (*thread_number_)() = nullptr;
    std::mutex in_use_;
    std::atomic<bool> is_forked_{false};
};

std::atomic<Pool*> current_pool{nullptr};

// A forked child has none of the threads and maybe locked mutexes: it starts over; the old pool is left alone.
void forget_pool_in_child() {
    current_pool.store(nullptr, std::memory_order_release);
    TorchThreads::instance().leave_in_child();
}

void watch_forks() {
    static const int registered = pthread_atfork(nullptr, nullptr, forget_pool_in_child);
    (void)registered;
}

// Never destroyed: its threads may still wait when the process ends.
Pool& pool() {
    Pool* existing = current_pool.load(std::memory_order_acquire);
    if (existing != nullptr) return *existing;
    Pool* fresh = new Pool;
    if (current_pool.compare_exchange_strong(existing, fresh, std::memory_order_acq_rel)) return *fresh;
    delete fresh;  // another thread was first; no thread of `fresh` exists yet
    return *existing;
}

}  // namespace

void run_tasks(int64_t num_tasks, int threads, TaskRef body) {
    if (threads > num_tasks) threads = int(num_tasks);
    if (threads > 1) {
        watch_forks();
        TorchThreads& of_torch = TorchThreads::instance();
        if (of_torch.are_usable() ? of_torch.try_run(num_tasks, threads, body) : pool().try_run(num_tasks, threads, body)) return;
    }
    for (int64_t task = 0; task < num_tasks; ++task) body(task, 0);
}

}  // namespace cpu_native
