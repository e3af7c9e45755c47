// Happens-before bookkeeping: vector clocks of pipes, and per memory the last write and later reads of every byte range.
// Nothing here knows an instruction; accesses arrive as byte ranges with the clock of the pipe that made them.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace usim {

using Clock = std::vector<std::uint32_t>;

inline void join(Clock& into, const Clock& from) {
  for (std::size_t i = 0; i < from.size(); ++i)
    if (from[i] > into[i]) into[i] = from[i];
}

// One access as remembered: who, when (a tick of that pipe), by which instruction, and its own byte range.
struct Access {
  std::uint32_t actor = 0;   // (block * 3 + core) * 8 + pipe
  std::uint32_t tick = 0;    // 0: no access
  std::uint16_t op = 0;
  std::uint16_t atomic = 0;  // 0 plain, else atomic kind; equal kinds commute
  std::uint32_t site = 0;    // offset of the call in the kernel's code
  std::uint64_t lo = 0, hi = 0;
};

struct Conflict {
  bool found = false;
  bool previous_writes = false;
  Access previous;
};

class Shadow {
 public:
  // Records the access and reports the first earlier access that conflicts and that nothing orders before it.
  // `ordered(previous)` tells whether an earlier access happened before this one.
  template <class Ordered>
  Conflict access(const Access& now, bool write, Ordered&& ordered) {
    Conflict conflict;
    auto it = split(now.lo);
    split(now.hi);
    std::uint64_t at = now.lo;
    while (at < now.hi) {
      if (it == segments_.end() || it->first > at) {
        const std::uint64_t end = it == segments_.end() ? now.hi : std::min(it->first, now.hi);
        Segment fresh;
        fresh.end = end;
        it = segments_.emplace_hint(it, at, std::move(fresh));
      }
      Segment& s = it->second;
      check(s, now, write, ordered, conflict);
      if (write) {
        s.write = now;
        s.reads.clear();
      } else {
        std::erase_if(s.reads, [&](const Access& r) { return r.actor == now.actor || ordered(r); });
        s.reads.push_back(now);
      }
      at = s.end;
      ++it;
    }
    if (write) merge(now);
    return conflict;
  }
  void clear() { segments_.clear(); }
  // Calls `visit` with the last write of every part of [lo, hi) that has one.
  template <class Visit>
  void last_writes(std::uint64_t lo, std::uint64_t hi, Visit&& visit) const {
    auto it = segments_.upper_bound(lo);
    if (it != segments_.begin()) --it;
    for (; it != segments_.end() && it->first < hi; ++it)
      if (it->second.end > lo && it->second.write.tick != 0) visit(it->second.write);
  }

 private:
  struct Segment {
    std::uint64_t end = 0;
    Access write;
    std::vector<Access> reads;
  };
  using Map = std::map<std::uint64_t, Segment>;

  template <class Ordered>
  static void check(const Segment& s, const Access& now, bool write, Ordered& ordered, Conflict& conflict) {
    if (conflict.found) return;
    const bool commute = now.atomic != 0 && s.write.atomic == now.atomic;
    if (s.write.tick != 0 && !commute && !ordered(s.write)) conflict = {true, true, s.write};
    if (!write || (conflict.found && s.write.actor != now.actor)) return;
    // A read of somebody else says more about what is missing than an earlier write of the same pipe.
    for (const Access& r : s.reads)
      if (!ordered(r)) {
        conflict = {true, false, r};
        return;
      }
  }

  // Makes `at` a segment boundary; returns the first segment that starts at or after it.
  Map::iterator split(std::uint64_t at) {
    auto it = segments_.lower_bound(at);
    if (it == segments_.begin()) return it;
    auto before = std::prev(it);
    if (before->second.end <= at || before->first == at) return it;
    Segment right = before->second;
    before->second.end = at;
    return segments_.emplace_hint(it, at, std::move(right));
  }

  // After a write every covered segment is equal: keep one.
  void merge(const Access& now) {
    auto first = segments_.find(now.lo);
    if (first == segments_.end()) return;
    auto next = std::next(first);
    while (next != segments_.end() && next->first < now.hi) next = segments_.erase(next);
    first->second.end = now.hi;
  }

  Map segments_;
};

}  // namespace usim
