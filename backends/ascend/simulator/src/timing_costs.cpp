// Duration of one instruction from its recorded extents (a.5, a.6). No state: what is shared lives in timing_memory.cpp.
#include <algorithm>
#include <cmath>

#include "timing.hpp"

namespace usim::timing {

namespace {

double up(double x, double to) { return std::ceil(x / to) * to; }

int bits_of(Type t) {
  switch (t) {
    case Type::f32: case Type::s32: case Type::u32: return 32;
    case Type::f16: case Type::bf16: case Type::s16: case Type::u16: return 16;
    case Type::e2m1: case Type::e1m2: return 4;
    default: return 8;
  }
}

// The scheduler model of TileLang: rows that are no multiple of a 128-byte transaction waste the rest of it.
double transaction_bytes(double peak, double width) { return peak * width / up(width, 128); }

Cost copy(double bytes, double bandwidth, double base, double interval, bool added) {
  Cost c;
  c.bandwidth = bandwidth;
  c.base = base;
  c.occupancy = added ? interval + bytes / bandwidth : std::max(interval, bytes / bandwidth);
  c.latency = base + bytes / bandwidth;
  return c;
}

Cost gm_copy(Cost c, Gm kind, const std::uint32_t* a, std::uint64_t pitch) {
  c.gm = kind;
  c.rows = a[0];
  c.row_bytes = a[1];
  c.pitch = pitch;
  return c;
}

Cost multiply(const Event& e, bool mx, const Rates& r) {
  const double m16 = up(e.a[0], 16), n16 = up(e.a[2], 16);
  const int bits = std::min(bits_of(static_cast<Type>(e.a[3])), bits_of(static_cast<Type>(e.a[4])));
  const bool single = bits == 32, hf32 = single && e.a[6];
  const double group = single ? (hf32 ? 8 : 1) : 256.0 / bits;
  const double rate = single ? (hf32 ? r.mac_hf32 : r.mac_fp32) : bits == 16 ? r.mac_16bit : bits == 8 ? r.mac_8bit : r.mac_4bit;
  const double area = mx ? std::min(m16, n16) * std::max({m16, n16, r.mx_minimum_side}) : m16 * n16;
  Cost c;
  c.occupancy = area * up(e.a[1], group) / rate;
  c.base = mx ? r.mmad_head_mx : single ? r.mmad_head_fp32 : r.mmad_head;
  c.latency = c.base + c.occupancy;
  return c;
}

Cost fixpipe(const Event& e, bool to_ub, const Rates& r) {
  const double bytes = double(e.a[0]) * e.a[1] * e.a[2];
  if (!to_ub) {
    Cost c = copy(bytes, r.l0c_gm_bytes, r.l0c_gm_latency, r.fixpipe_interval, true);
    c.gm = Gm::write;
    c.rows = e.a[5] ? e.a[1] : e.a[0];
    c.row_bytes = std::uint64_t{e.a[5] ? e.a[0] : e.a[1]} * e.a[2];
    c.pitch = e.a[6];
    return c;
  }
  double bandwidth = e.a[2] == 1 ? r.l0c_ub_bytes_8bit : r.l0c_ub_bytes;
  if (e.a[3]) bandwidth = std::min(2 * bandwidth, std::min(r.l0c_ub_dual_bytes, 2.0 * e.a[1] * e.a[2]));
  return copy(bytes, bandwidth, r.l0c_ub_latency, r.fixpipe_interval, true);
}

Cost gm_to_ub(const Event& e, const Rates& r) {
  const double bytes = double(e.a[0]) * e.a[1], width = e.a[0] > 1 && e.a[2] != e.a[1] ? e.a[1] : bytes;
  const double bandwidth = width < 128 ? r.gm_ub_bytes_narrow : width < 256 ? std::min(r.gm_ub_bytes, transaction_bytes(102, width)) : r.gm_ub_bytes;
  Cost c = gm_copy(copy(bytes, bandwidth, r.gm_ub_latency, r.gm_ub_interval, false), Gm::read, e.a, e.a[2]);
  c.pair_shared = true;
  return c;
}

Cost ub_to_gm(const Event& e, const Rates& r) {
  const double bytes = double(e.a[0]) * e.a[1], width = e.a[0] > 1 && e.a[2] != e.a[1] ? e.a[1] : bytes;
  const bool narrow = width < 128;
  const double bandwidth = narrow ? r.ub_gm_bytes_narrow : width < 256 ? std::min(r.ub_gm_bytes, transaction_bytes(86, width)) : width < 512 ? std::min(r.ub_gm_bytes, 110.0) : r.ub_gm_bytes;
  Cost c = gm_copy(copy(bytes, bandwidth, narrow ? r.ub_gm_latency_narrow : r.ub_gm_latency, r.ub_gm_interval, false), Gm::write, e.a, e.a[2]);
  c.pair_shared = true;
  return c;
}

// A vector function runs its loads, stores, warp functions and arithmetic side by side; the slowest decides.
Cost vector_call(const Event& e, bool simt, const Rates& r) {
  const double ub_read = e.a[1], ub_written = e.a[2], gm_read = e.a[3], gm_written = e.a[4];
  Cost c;
  if (simt)
    c.occupancy = r.simt_launch + e.a[5] * r.simt_barrier +
                  std::max({ub_read / r.simt_ub_read_bytes, ub_written / r.simt_ub_write_bytes, gm_read / r.simt_gm_read_bytes,
                            gm_written / r.simt_gm_write_bytes, e.a[6] / r.simt_warp_ops, e.a[7] / r.vector_elements});
  else
    c.occupancy = r.simd_launch + std::max({ub_read / r.simd_ub_bytes, ub_written / r.simd_ub_bytes, e.a[7] / r.vector_elements});
  c.latency = c.occupancy;
  return c;
}

}  // namespace

double macs_of(const Event& e) {
  const Op op = static_cast<Op>(e.op);
  if (e.skipped || (op != Op::asc_mmad && op != Op::asc_mmad_mx)) return 0;
  return double(e.a[0]) * e.a[1] * e.a[2];
}

Cost cost_of(const Event& e, const Rates& r) {
  if (e.skipped) return {};
  switch (static_cast<Op>(e.op)) {
    case Op::asc_copy_gm2l1_nd2nz: case Op::asc_copy_gm2l1_dn2nz:
      return gm_copy(copy(double(e.a[0]) * e.a[1], r.gm_l1_bytes, r.gm_l1_latency, r.gm_l1_interval, false), Gm::read, e.a, e.a[2]);
    case Op::asc_fill_l1: return copy(e.a[0], r.fill_l1_bytes, r.l1_l0_latency, 0, true);
    case Op::asc_copy_l12l0a: case Op::asc_copy_l12l0b: case Op::asc_copy_l12l0a_transpose:
      return copy(e.a[0] * 512.0, r.l1_l0_bytes, r.l1_l0_latency, r.l1_l0_interval, true);
    case Op::asc_copy_l12l0b_transpose: return copy(e.a[0] * 512.0, r.l1_l0b_transpose_bytes, r.l1_l0_latency, r.l1_l0_interval, true);
    case Op::asc_copy_l12l0a_mx: case Op::asc_copy_l12l0b_mx:
      return copy(e.a[0] * 32.0, r.l1_slot_bytes, r.l1_slot_latency, r.l1_slot_interval, true);
    case Op::asc_mmad: return multiply(e, false, r);
    case Op::asc_mmad_mx: return multiply(e, true, r);
    case Op::asc_copy_l0c2gm: return fixpipe(e, false, r);
    case Op::asc_copy_l0c2ub: return fixpipe(e, true, r);
    case Op::asc_copy_gm2ub_align: return gm_to_ub(e, r);
    case Op::asc_copy_ub2gm_align: return ub_to_gm(e, r);
    case Op::asc_copy_ub2l1: return copy(double(e.a[0]) * e.a[1] * 32, r.ub_l1_bytes, r.ub_l1_latency, 0, true);
    case Op::asc_vf_call: return vector_call(e, true, r);
    case Op::simd_vf: return vector_call(e, false, r);
    case Op::scalar_access: {
      Cost c;
      c.occupancy = c.latency = r.scalar_gm_access;
      return c;
    }
    default: return {};
  }
}

}  // namespace usim::timing
