// Which threads of a SIMT function touched the UB since the last barrier: per 4-byte word, and per byte where threads
// share a word. Kept for the life of a host thread; intervals between barriers are numbered, so nothing is cleared.
#pragma once

#include <array>
#include <cstdlib>
#include <new>

#include "machine.hpp"

namespace usim {

class ThreadHistory {
 public:
  // interval << 12 | thread + 1 of the last access, or one of the two marks below in place of the thread.
  struct Last {
    std::uint32_t writer, reader;
  };
  static constexpr std::uint32_t kMany = 0xfff;    // reader: several threads
  static constexpr std::uint32_t kShared = 0xffe;  // of a word: its bytes are recorded one by one in this interval
  static constexpr std::uint32_t kAtomics = 0xffd; // writer: atomic accesses of several threads
  static constexpr std::uint32_t kAtomic = 0xffc;  // reader: the writer's access was atomic
  static bool is_atomic(const Last& last, std::uint32_t me) { return last.reader == ((me & ~0xfffu) | kAtomic); }
  static bool untouched(const Last& last, std::uint32_t me) { return (last.writer ^ me) > 0xfff && (last.reader ^ me) > 0xfff; }

  // Of the same interval as `me`, but somebody else.
  static bool foreign(std::uint32_t last, std::uint32_t me) { return (last ^ me) - 1 < 0xfff; }
  static void record(Last& last, std::uint32_t me, bool write) {
    if (write) last.writer = me;
    else last.reader = foreign(last.reader, me) ? me | kMany : me;
  }

  // Records an aligned access of `me` if no other thread of the interval is in its way; else changes nothing.
  template <std::uint32_t N, bool write>
  bool undisturbed(std::uint64_t offset, std::uint32_t me) {
    if constexpr (N < 4) {
      for (std::uint32_t b = 0; b < N; ++b)
        if (disturbs(byte(offset + b, me), me, write)) return false;
      for (std::uint32_t b = 0; b < N; ++b) record(bytes_[offset + b], me, write);
    } else {
      Last* const words = &words_[offset / 4];
      for (std::uint32_t w = 0; w < N / 4; ++w)
        if (disturbs(words[w], me, write)) return false;
      for (std::uint32_t w = 0; w < N / 4; ++w) record(words[w], me, write);
    }
    return true;
  }

  // The record of one byte; from now on its word is recorded by bytes, until the interval that `now` lies in ends.
  Last& byte(std::uint64_t offset, std::uint32_t now) {
    Last& word = words_[offset / 4];
    const std::uint32_t shared = (now & ~0xfffu) | kShared;
    if (word.writer != shared) {
      for (std::uint64_t b = offset / 4 * 4; b < offset / 4 * 4 + 4; ++b) bytes_[b] = word;
      word = {shared, shared};
    }
    return bytes_[offset];
  }

  // Empty, in pages that are touched only when used.
  static std::unique_ptr<ThreadHistory, void (*)(void*)> create() {
    void* const p = std::calloc(1, sizeof(ThreadHistory));
    if (!p) throw std::bad_alloc();
    return {static_cast<ThreadHistory*>(p), &std::free};
  }

 private:
  static bool disturbs(const Last& last, std::uint32_t me, bool write) {
    return foreign(last.writer, me) || (write && foreign(last.reader, me)) || is_atomic(last, me);
  }
  std::array<Last, kUbBytes / 4> words_;
  std::array<Last, kUbBytes> bytes_;
};

}  // namespace usim
