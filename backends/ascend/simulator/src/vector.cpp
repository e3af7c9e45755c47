// Vector functions (e) as one instruction each: running one, and what its accesses mean for order and initialisation.
#include "vector.hpp"

#include <algorithm>

namespace usim {

constinit thread_local VectorRun* current_vector = nullptr;

namespace {

constexpr std::uint8_t kSecondPoison = 0x7e;  // unlike 0xff: a huge finite float, half, bf16, fp8 and integer

}  // namespace

void VectorRun::raise_at(const char* kind, std::string message, const void* from, std::vector<std::uint64_t> sites) {
  Instruction here = instruction_;
  if (from) here.site = site_of(core_, from);
  if (call_.simt) message = "thread " + std::to_string(view_.linear) + " of " + call_.name + " " + message;
  else message = std::string(call_.name) + " " + message;
  raise(core_, &here, kind, std::move(message), std::move(sites));
}

void VectorRun::run_threads() {
  VectorRun* const outer = current_vector;
  current_vector = this;
  if (call_.simt && call_.lockstep) {
    run_lockstep();
  } else {
    const std::vector<std::uint8_t>& c = instruction_.closure;
    call_.run(c.data(), 0, 0, 0);
  }
  current_vector = outer;
}

void VectorRun::execute() { run_threads(); }

// The first byte from `at` on, before `end`, whose `bit` differs from `set`. Sixty-four at a time: most ranges are long.
std::uint64_t VectorRun::range_end(std::uint64_t at, std::uint64_t end, std::uint8_t bit, bool set) const {
  const std::uint64_t every = 0x0101010101010101ull * bit, expected = set ? every : 0;
  for (; at + 64 <= end; at += 64) {
    std::uint64_t words[8], different = 0;
    std::memcpy(words, touched_ + at, 64);
    for (const std::uint64_t word : words) different |= (word & every) ^ expected;
    if (different) break;
  }
  while (at < end && ((touched_[at] & bit) != 0) == set) ++at;
  return at;
}

// One vector function is one instruction: its reads, then its writes, enter the happens-before order as whole ranges.
void VectorRun::note_ranges() {
  for (const std::uint8_t bit : {std::uint8_t{1}, std::uint8_t{2}})
    for (std::uint64_t at = low_; at < high_;) {
      const std::uint64_t start = range_end(at, high_, bit, false);
      at = range_end(start, high_, bit, true);
      if (start < at) note(core_, instruction_, core_.ub(), start, at, bit == 2);
    }
  std::sort(gm_.begin(), gm_.end(), [](const GmRange& a, const GmRange& b) {
    return std::tie(a.write, a.tensor, a.atomic, a.lo) < std::tie(b.write, b.tensor, b.atomic, b.lo);
  });
  for (std::size_t k = 0; k < gm_.size();) {
    GmRange r = gm_[k++];
    while (k < gm_.size() && gm_[k].tensor == r.tensor && gm_[k].write == r.write && gm_[k].atomic == r.atomic && gm_[k].lo <= r.hi)
      r.hi = std::max(r.hi, gm_[k++].hi);
    note_gm(core_, instruction_, *r.tensor, r.lo, r.hi, r.write, r.atomic);
  }
}

// What the function wrote is valid now. By words: bit 1 of every byte is spread over the byte.
void VectorRun::define_written() {
  static_assert(kValid == 1);
  constexpr std::uint64_t ones = 0x0101010101010101ull;
  std::uint8_t* const valid = valid_;
  const std::uint8_t* const touched = touched_;
  const std::uint64_t end = high_;
  std::uint64_t b = low_;
  for (std::uint64_t t, v; b + 8 <= end; b += 8) {
    std::memcpy(&t, touched + b, 8);
    std::memcpy(&v, valid + b, 8);
    const std::uint64_t written = t >> 1 & ones;
    v = (v & ~(written * 0xff)) | written;
    std::memcpy(valid + b, &v, 8);
  }
  for (; b < end; ++b)
    if (touched[b] & 2) valid[b] = kValid;
}

void VectorRun::restore_gm() {
  for (auto u = undo_.rbegin(); u != undo_.rend(); ++u) std::memcpy(u->address, u->old, u->bytes);
}

// The function read bytes nothing had written. Whether its results depend on them is found by running it again with
// other bytes there: results that change are tainted, the rest (tails computed and never used) are as good as any.
void VectorRun::find_tainted(const std::vector<std::uint8_t>& before) {
  std::uint8_t* ub = core_.view.ub;
  const std::vector<std::uint8_t> first(ub, ub + kUbBytes);
  std::vector<std::pair<std::uint8_t*, std::vector<std::uint8_t>>> gm_first;
  for (const Undo& u : undo_) gm_first.emplace_back(u.address, std::vector<std::uint8_t>(u.address, u.address + u.bytes));
  restore_gm();
  undo_.clear();
  for (std::uint64_t b = 0; b < kUbBytes; ++b) ub[b] = b < before.size() && valid_[b] == kValid ? before[b] : kSecondPoison;
  log_ = watched_ = false;
  const VectorWork counted = work;
  run_threads();
  work = counted;
  log_ = watched_ = true;
  for (std::uint64_t b = low_; b < high_; ++b)
    if (touched_[b] & 2) valid_[b] = ub[b] == first[b] ? kValid : kTainted;
  for (const auto& [address, bytes] : gm_first)
    if (std::memcmp(address, bytes.data(), bytes.size()) != 0)
      raise_uninitialised(core_, instruction_, std::string(call_.name) + " stores a value to GM that depends on uninitialised UB bytes");
  std::memcpy(ub, first.data(), kUbBytes);
}

void VectorRun::execute_checked() {
  // What the function may find: nothing behind the last byte ever written.
  thread_local std::vector<std::uint8_t> before;
  before.assign(core_.view.ub, core_.view.ub + core_.block->arena->dirty[static_cast<std::size_t>(core_.ub())]);
  next_interval();
  run_threads();
  settle_suspect();
  note_ranges();
  if (read_uninitialised_ && !(call_.lockstep & 2)) {
    find_tainted(before);
  } else {
    define_written();
  }
  if (low_ < high_) std::memset(touched_ + low_, 0, high_ - low_);
}

void vector_function(Core& core, Instruction& i) {
  Launch& launch = *core.block->launch;
  if (i.args.vector.simt && i.args.vector.dx * i.args.vector.dy * i.args.vector.dz > 2048)
    raise(core, &i, "capacity", "launches " + std::to_string(i.args.vector.dx * i.args.vector.dy * i.args.vector.dz) + " threads; a vector core runs at most 2048");
  std::array<std::uint32_t, 8> counted{};
  const bool known = [&] {
    if (functional(core)) return false;
    const std::lock_guard<std::mutex> lock(launch.work_mutex);
    const auto it = launch.vector_work.find(i.site);
    if (it == launch.vector_work.end()) return false;
    counted = it->second;
    return true;
  }();
  if (!known) {
    VectorRun run(core, i);
    if (launch.options.check) run.execute_checked();
    else run.execute();
    const VectorWork& w = run.work;
    const std::uint64_t all[8] = {w.threads, w.ub_read, w.ub_written, w.gm_read, w.gm_written, w.barriers, w.warp_ops, w.arithmetic};
    for (std::size_t k = 0; k < 8; ++k) counted[k] = static_cast<std::uint32_t>(std::min<std::uint64_t>(all[k], 0xffffffffu));
    if (!functional(core)) {
      const std::lock_guard<std::mutex> lock(launch.work_mutex);
      launch.vector_work.emplace(i.site, counted);
    }
  }
  if (Event* e = event_of(core, i)) std::copy(counted.begin(), counted.end(), e->a);
}

}  // namespace usim
