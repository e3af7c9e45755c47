#include "scratch.hpp"

#include <atomic>
#include <new>

namespace cpu_native {
namespace {

// Kept for the next call of a thread: fresh pages cost more than packing A into them. Above the bound of two threads.
constexpr size_t kept_bytes = size_t(24) << 20;
constexpr std::align_val_t alignment{64};

std::atomic<int64_t> live_bytes{0}, peak_bytes{0};

struct Kept {
    uint8_t* base = nullptr;
    size_t size = 0;
    ~Kept() { operator delete(base, alignment); }
};

thread_local Kept kept;

}  // namespace

Scratch::Scratch(size_t bytes) : size_(bytes), counted_(bytes) {
    if (kept.size >= bytes) {
        base_ = kept.base;
        size_ = kept.size;
        kept = {};
    } else {
        base_ = static_cast<uint8_t*>(operator new(bytes, alignment));
    }
    const int64_t live = live_bytes.fetch_add(int64_t(counted_)) + int64_t(counted_);
    int64_t peak = peak_bytes.load();
    while (peak < live && !peak_bytes.compare_exchange_weak(peak, live)) {
    }
}

Scratch::~Scratch() {
    live_bytes.fetch_sub(int64_t(counted_));
    if (size_ <= kept_bytes && size_ > kept.size) {
        operator delete(kept.base, alignment);
        kept.base = base_;
        kept.size = size_;
    } else {
        operator delete(base_, alignment);
    }
}

int64_t peak_scratch_bytes() { return peak_bytes.load(); }
void reset_peak_scratch_bytes() { peak_bytes.store(live_bytes.load()); }

}  // namespace cpu_native
