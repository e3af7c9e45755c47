// The timing pass: replays recorded events against a table of rates. It never touches data, so a rate cannot change a
// result. Rates and their sources: rates.py. Semantics of synchronisation: sync.cpp and sections d.1 to d.6.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <string>
#include <vector>

#include "events.hpp"
#include "usim/core_api.h"

namespace usim::timing {

// One member per entry of rates.py, same names.
struct Rates {
#define USIM_RATES(X) \
  X(clock_mhz) X(ai_cores) X(launch_us) X(mac_16bit) X(mac_8bit) X(mac_4bit) X(mac_fp32) X(mac_hf32) X(mmad_head) X(mmad_head_fp32) \
  X(mmad_head_mx) X(mx_minimum_side) X(gm_l1_bytes) X(gm_l1_latency) X(gm_l1_interval) X(fill_l1_bytes) X(gm_line) X(l1_l0_bytes) \
  X(l1_l0b_transpose_bytes) X(l1_l0_latency) X(l1_l0_interval) X(l1_slot_bytes) X(l1_slot_latency) X(l1_slot_interval) X(l0c_gm_bytes) \
  X(l0c_gm_latency) X(l0c_ub_bytes) X(l0c_ub_bytes_8bit) X(l0c_ub_dual_bytes) X(l0c_ub_latency) X(fixpipe_interval) X(gm_ub_bytes) \
  X(gm_ub_bytes_narrow) X(gm_ub_latency) X(gm_ub_interval) X(ub_gm_bytes) X(ub_gm_bytes_narrow) X(ub_gm_latency) X(ub_gm_latency_narrow) \
  X(ub_gm_interval) X(ub_l1_bytes) X(ub_l1_latency) X(simt_launch) X(simt_ub_read_bytes) X(simt_ub_write_bytes) X(simt_gm_read_bytes) \
  X(simt_gm_write_bytes) X(simt_warp_ops) X(simt_barrier) X(vector_elements) X(simd_launch) X(simd_ub_bytes) X(scalar_statement) \
  X(scalar_gm_access) X(l2_bytes) X(l2_capacity) X(hbm_bytes) X(hbm_latency)
#define X(name) double name = 0;
  USIM_RATES(X)
#undef X
};

enum class Gm : std::uint8_t { none, read, write };

// What one instruction asks of its pipe: `occupancy` until the next may issue, `latency` until its result is there.
struct Cost {
  double occupancy = 0, latency = 0;
  double bandwidth = 0;     // bytes per cycle of the path, for copies that touch GM
  double base = 0;          // part of the latency that overlaps with the next instruction
  Gm gm = Gm::none;
  bool pair_shared = false; // the path is shared by the two vector cores of a block
  std::uint64_t rows = 0, row_bytes = 0, pitch = 0;
};

Cost cost_of(const Event& e, const Rates& r);
double macs_of(const Event& e);

// A bandwidth that everybody who uses it at the same time shares evenly.
class SharedLink {
 public:
  explicit SharedLink(double rate) : rate_(rate) {}
  double serve(double start, double bytes) {
    while (!busy_until_.empty() && busy_until_.top() <= start) busy_until_.pop();
    double end = start + bytes * static_cast<double>(busy_until_.size() + 1) / rate_;
    // Shares are those at the start; whoever comes last waits until all that was asked for can have passed.
    drained_ = std::max(drained_, start) + bytes / rate_;
    if (std::max(last_, end) < drained_) end = drained_;
    last_ = std::max(last_, end);
    busy_until_.push(end);
    return end;
  }
  void reset() {
    busy_until_ = {};
    drained_ = last_ = 0;
  }

 private:
  double rate_;
  double drained_ = 0;  // when the link would be empty at full rate
  double last_ = 0;     // latest end it has promised
  std::priority_queue<double, std::vector<double>, std::greater<double>> busy_until_;
};

// L2 as an LRU of lines; the L2 port and HBM as shared links.
class Memory {
 public:
  Memory(const Rates& rates, bool warm, std::uint64_t total_bytes);
  struct Access {
    double done = 0, pipe_free = 0;
    double wait_hbm = 0, wait_l2 = 0;
  };
  Access access(std::uint32_t tensor, std::uint64_t address, const Cost& cost, double start);
  double read_bytes = 0, written_bytes = 0, hbm_read_bytes = 0, hbm_written_bytes = 0, l2_bytes = 0;
  void new_kernel() { hbm_.reset(); l2_.reset(); std::fill(fill_done_.begin(), fill_done_.end(), 0.0); }

 private:
  struct Line { std::uint32_t stamp = 0, fill = 0; };
  struct Dirty { std::uint32_t stamp, lines; };
  struct Touched { std::uint64_t lines = 0, missed = 0; double ready = 0; };
  Touched touch(std::uint32_t tensor, std::uint64_t address, const Cost& cost);
  bool initially_resident(std::uint32_t tensor, std::uint64_t line) const;
  void write_back(double now);
  const Rates& r_;
  std::uint64_t line_, capacity_;
  double warm_share_;                    // share of lines resident at the start
  std::uint32_t inserted_ = 1;           // lines brought in so far: the LRU clock
  std::vector<std::vector<Line>> tensors_;
  std::vector<double> fill_done_{0.0};   // arrival time of each fill; entry 0: long ago
  std::deque<Dirty> dirty_;
  SharedLink hbm_, l2_;
};

// Why a pipe stood still. 0..7: a flag from that pipe.
enum Reason : std::uint8_t { kFlag = 0, kLock = 8, kCross, kBarrier, kScalar, kUnitFlag, kHbm, kL2, kPairPort, kReasons };

inline constexpr int kPipeCount = 8;

struct CoreEvents { std::uint32_t block, core; const Event* events; std::size_t count; };

struct Span { std::uint32_t event; double wait, start, end; };  // `end`: result there; wait: cycles stalled before

struct CoreResult {
  std::uint32_t block = 0, core = 0;
  double start = 0, end = 0;
  double busy[kPipeCount] = {};
  double stall[kPipeCount][kReasons] = {};
  std::vector<Span> spans;  // only of traced blocks
};

struct Result {
  double cycles = 0, macs = 0;
  std::uint64_t events = 0;
  bool estimated_vector_work = false;
  std::vector<CoreResult> cores;
};

struct Program {
  std::vector<CoreEvents> cores;
  std::vector<std::uint32_t> tensors;  // launch-wide number of each tensor of the recording
  bool vector_only = false;
};

// Throws std::runtime_error if the program cannot finish.
Result replay(const Program& program, const Rates& rates, Memory& memory, std::uint32_t traced_blocks);

}  // namespace usim::timing
