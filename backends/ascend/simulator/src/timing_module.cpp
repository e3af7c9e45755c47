// The Python face of the timing pass: plain numbers in, plain numbers and arrays out.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>

#include "timing.hpp"

namespace py = pybind11;

namespace usim {

namespace {

timing::Rates rates_of(const std::map<std::string, double>& values) {
  timing::Rates r;
  std::map<std::string, double*> members;
#define X(name) members[#name] = &r.name;
  USIM_RATES(X)
#undef X
  for (const auto& [name, value] : values) {
    const auto it = members.find(name);
    if (it == members.end()) throw py::value_error("the core has no rate named " + name);
    if (!(value >= 0)) throw py::value_error("rate " + name + " must not be negative");
    *it->second = value;
    members.erase(it);
  }
  if (!members.empty()) throw py::value_error("no value given for rate " + members.begin()->first);
  return r;
}

using EventBytes = py::array_t<std::uint8_t, py::array::c_style>;

// Bytes of every tensor that the events reach: needed only to say what a warm L2 holds.
std::uint64_t reached_bytes(const std::vector<timing::Program>& programs, const timing::Rates& r) {
  std::map<std::uint32_t, std::uint64_t> ends;
  for (const auto& p : programs)
    for (const auto& c : p.cores)
      for (std::size_t k = 0; k < c.count; ++k) {
        const Event& e = c.events[k];
        if (e.tensor == ~0u || e.skipped) continue;
        const timing::Cost cost = timing::cost_of(e, r);
        if (cost.gm == timing::Gm::none) continue;
        std::uint64_t& end = ends[p.tensors[e.tensor]];
        end = std::max(end, e.address + (cost.rows - 1) * cost.pitch + cost.row_bytes);
      }
  std::uint64_t total = 0;
  for (const auto& [tensor, end] : ends) total += end;
  return total;
}

py::dict core_dict(timing::CoreResult& c) {
  py::dict d;
  d["block"] = c.block;
  d["core"] = c.core;
  d["start"] = c.start;
  d["end"] = c.end;
  d["busy"] = std::vector<double>(c.busy, c.busy + timing::kPipeCount);
  py::list stalls;
  for (const auto& row : c.stall) stalls.append(std::vector<double>(row, row + timing::kReasons));
  d["stall"] = stalls;
  const auto n = static_cast<py::ssize_t>(c.spans.size());
  py::array_t<double> spans({n, py::ssize_t{4}});
  auto view = spans.mutable_unchecked<2>();
  for (py::ssize_t k = 0; k < n; ++k) {
    const timing::Span& s = c.spans[static_cast<std::size_t>(k)];
    view(k, 0) = s.event, view(k, 1) = s.wait, view(k, 2) = s.start, view(k, 3) = s.end;
  }
  d["spans"] = spans;
  return d;
}

// programs: (vector_only, launch-wide tensor numbers, [(block, core, event bytes)]) per device function, in launch order.
py::list replay_launch(const std::vector<std::tuple<bool, std::vector<std::uint32_t>, std::vector<std::tuple<std::uint32_t, std::uint32_t, EventBytes>>>>& programs,
                       const std::map<std::string, double>& values, bool warm, std::uint32_t traced_blocks) {
  const timing::Rates rates = rates_of(values);
  std::vector<timing::Program> launch;
  for (const auto& [vector_only, tensors, cores] : programs) {
    timing::Program& p = launch.emplace_back();
    p.vector_only = vector_only;
    p.tensors = tensors;
    for (const auto& [block, core, bytes] : cores)
      p.cores.push_back({block, core, reinterpret_cast<const Event*>(bytes.data()), static_cast<std::size_t>(bytes.size()) / sizeof(Event)});
  }
  std::vector<std::tuple<timing::Result, std::array<double, 5>>> results;
  {
    const py::gil_scoped_release release;
    timing::Memory memory(rates, warm, warm ? reached_bytes(launch, rates) : 0);
    std::array<double, 5> before{};
    for (const auto& p : launch) {
      timing::Result result = timing::replay(p, rates, memory, traced_blocks);
      const std::array<double, 5> now{memory.read_bytes, memory.written_bytes, memory.hbm_read_bytes, memory.hbm_written_bytes, memory.l2_bytes};
      std::array<double, 5> difference{};
      for (std::size_t k = 0; k < 5; ++k) difference[k] = now[k] - before[k];
      before = now;
      results.emplace_back(std::move(result), difference);
    }
  }
  py::list out;
  for (auto& [result, bytes] : results) {
    py::dict d;
    d["cycles"] = result.cycles;
    d["macs"] = result.macs;
    d["events"] = result.events;
    d["estimated_vector_work"] = result.estimated_vector_work;
    d["bytes"] = std::vector<double>(bytes.begin(), bytes.end());
    py::list cores;
    for (auto& c : result.cores) cores.append(core_dict(c));
    d["cores"] = cores;
    out.append(d);
  }
  return out;
}

}  // namespace

void register_timing(py::module_& m) {
  m.def("replay", &replay_launch, py::arg("programs"), py::arg("rates"), py::arg("warm"), py::arg("traced_blocks"),
        "Time recorded programs of one launch; events must be EVENT records");
}

}  // namespace usim
