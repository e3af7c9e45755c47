// L2 and HBM of the timing pass (a.7): shared by all cores, asked in order of time.
#include <algorithm>
#include <cmath>

#include "timing.hpp"

namespace usim::timing {

Memory::Memory(const Rates& rates, bool warm, std::uint64_t total_bytes)
    : r_(rates), line_(static_cast<std::uint64_t>(rates.gm_line)), capacity_(static_cast<std::uint64_t>(rates.l2_capacity / rates.gm_line)),
      hbm_(rates.hbm_bytes), l2_(rates.l2_bytes) {
  warm_share_ = !warm ? 0.0 : total_bytes <= rates.l2_capacity ? 1.0 : rates.l2_capacity / static_cast<double>(total_bytes);
}

// Too much data for a warm L2 leaves an even share of every tensor in it.
bool Memory::initially_resident(std::uint32_t tensor, std::uint64_t line) const {
  if (warm_share_ <= 0) return false;
  if (warm_share_ >= 1) return true;
  const std::uint64_t h = ((line >> 3) * 0x9e3779b97f4a7c15ull + tensor) * 0xbf58476d1ce4e5b9ull;
  return static_cast<double>(h >> 40) < warm_share_ * static_cast<double>(1 << 24);
}

Memory::Touched Memory::touch(std::uint32_t tensor, std::uint64_t address, const Cost& cost) {
  if (tensor >= tensors_.size()) tensors_.resize(tensor + 1);
  auto& lines = tensors_[tensor];
  const bool write = cost.gm == Gm::write, contiguous = cost.pitch == cost.row_bytes;
  const std::uint64_t rows = contiguous ? 1 : cost.rows, bytes = contiguous ? cost.rows * cost.row_bytes : cost.row_bytes;
  const auto fill = static_cast<std::uint32_t>(fill_done_.size());
  Touched t;
  for (std::uint64_t row = 0; row < rows; ++row) {
    const std::uint64_t first = (address + row * cost.pitch) / line_, last = (address + row * cost.pitch + bytes - 1) / line_;
    while (last >= lines.size()) {
      const std::uint64_t old = lines.size();
      lines.resize(std::max<std::uint64_t>(last + 1, old * 2));
      for (std::uint64_t k = old; k < lines.size(); ++k) lines[k].stamp = initially_resident(tensor, k) ? 1 : 0;
    }
    t.lines += last - first + 1;
    for (std::uint64_t k = first; k <= last; ++k) {
      Line& line = lines[k];
      const bool resident = line.stamp != 0 && inserted_ - line.stamp < capacity_;
      if (!resident) {
        ++t.missed;
        ++inserted_;
        line.fill = write ? 0 : fill;
      } else if (line.fill != 0 && line.fill != fill) {
        t.ready = std::max(t.ready, fill_done_[line.fill]);
      }
      line.stamp = inserted_;
    }
  }
  return t;
}

// Written lines leave for HBM when as many lines as L2 holds have come in after them. Nobody waits for that, but the
// memory is busy meanwhile.
void Memory::write_back(double now) {
  while (!dirty_.empty() && inserted_ - dirty_.front().stamp >= capacity_) {
    const double bytes = static_cast<double>(dirty_.front().lines * line_);
    hbm_written_bytes += bytes;
    hbm_.serve(now, bytes);
    dirty_.pop_front();
  }
}

Memory::Access Memory::access(std::uint32_t tensor, std::uint64_t address, const Cost& cost, double start) {
  const Touched t = touch(tensor, address, cost);
  const double moved = static_cast<double>(t.lines * line_);
  const double alone = start + std::max(cost.occupancy, moved / cost.bandwidth);
  const double issue = std::max(alone, l2_.serve(start, moved));
  Access a;
  l2_bytes += moved;
  a.wait_l2 = issue - alone;
  a.pipe_free = issue;
  a.done = issue + cost.base;
  write_back(start);
  if (cost.gm == Gm::write) {
    written_bytes += static_cast<double>(cost.rows * cost.row_bytes);
    dirty_.push_back({inserted_, static_cast<std::uint32_t>(t.lines)});
    return a;
  }
  read_bytes += static_cast<double>(cost.rows * cost.row_bytes);
  double arrival = t.ready;
  if (t.missed) {
    const double bytes = static_cast<double>(t.missed * line_);
    hbm_read_bytes += bytes;
    const double fetched = std::max(hbm_.serve(start, bytes), issue) + r_.hbm_latency;
    fill_done_.push_back(fetched);
    arrival = std::max(arrival, fetched);
  }
  // Latency overlaps with the next copy, a queue in front of HBM does not.
  if (arrival > issue) {
    a.done = arrival + cost.base;
    a.pipe_free = std::max(issue, arrival - r_.hbm_latency);
    a.wait_hbm = a.pipe_free - issue;
  }
  return a;
}

}  // namespace usim::timing
