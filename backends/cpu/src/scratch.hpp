// Scratch memory of one call, counted so that tests can check its bound.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cpu_native {

// 64-byte aligned memory. A block is kept by the calling thread for its next call, up to a limit.
class Scratch {
public:
    explicit Scratch(size_t bytes);
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    template <class T>
    T* take(size_t count) {
        T* part = reinterpret_cast<T*>(base_ + used_);
        used_ += rounded(count * sizeof(T));
        return part;
    }

    static size_t rounded(size_t bytes) { return (bytes + 63) & ~size_t(63); }

private:
    uint8_t* base_;
    size_t size_, counted_;
    size_t used_ = 0;
};

// Most scratch bytes alive at once since the last reset, over all threads.
int64_t peak_scratch_bytes();
void reset_peak_scratch_bytes();

}  // namespace cpu_native
