"""Every constant of the timing model, with its unit and its source; the one place to change a rate.

Holds numbers only. How they combine is in src/timing_costs.cpp and src/timing.cpp; how well they predict is in
docs/simulator_timing.md. Short names of sources: see SOURCES.
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCES = {
    "architecture page": "vendor architecture pages of NPU 3510 (data paths, widths, memory sizes)",
    "mmad example": "vendor samples for CANN 9.2, mmad performance example (clock, instruction head)",
    "cube table": "vendor C-API documentation, appendix on the theoretical performance of the cube unit, 3510",
    "register table": "vendor C-API documentation, appendix on the theoretical performance of register instructions",
    "scheduler model": "TileLang 0.1.15, src/ascend/transform/estimate_latency.h and .cc (MIT licence)",
    "platform file": "platform description Ascend950PR_957bx of the vendor's toolkit",
    "third-party measurement": "measurements of the SIMT unit published with a third-party simulator, in system ticks",
    "announcement": "vendor's announcements of 950PR and 950DT",
    "assumed": "no public source; the reason stands beside the value",
    "fitted": "fitted to the named rows of data/ascend950_published.csv, see docs/simulator_timing.md",
}

# The third-party measurements count a system counter of about 989 MHz; the cores run at 1650 MHz.
SYSTEM_TICK = 1650.0 / 989.0


@dataclass(frozen=True, slots=True)
class Rate:
    """One constant. `source` starts with a key of SOURCES; `detail` says what exactly it is."""

    value: float
    unit: str
    source: str
    detail: str


RATES: dict[str, Rate] = {
    # ---- chip ----
    "clock_mhz": Rate(1650, "MHz", "mmad example", "AI core clock; 32 cores at this clock give the quoted peaks"),
    "ai_cores": Rate(32, "cores", "announcement", "full part: 432 TFLOPS bf16 = 32 x 4096 MAC x 2 x 1.65 GHz"),
    "launch_us": Rate(2.75, "us", "fitted", "added to every kernel; with hbm_latency on four dense rows"),
    # ---- cube: multiply-accumulates per cycle, and latency of a multiply beyond its throughput ----
    "mac_16bit": Rate(4096, "MAC/cycle", "cube table", "16 x 16 x 16"),
    "mac_8bit": Rate(8192, "MAC/cycle", "cube table", "16 x 16 x 32"),
    "mac_4bit": Rate(16384, "MAC/cycle", "cube table", "16 x 16 x 64"),
    "mac_fp32": Rate(256, "MAC/cycle", "scheduler model", "16 x 16 x 1"),
    "mac_hf32": Rate(2048, "MAC/cycle", "scheduler model", "16 x 16 x 8"),
    "mmad_head": Rate(8, "cycles", "scheduler model", "overlaps with the next multiply; 16-bit and 8-bit operands"),
    "mmad_head_fp32": Rate(67, "cycles", "scheduler model", "float32 operands"),
    "mmad_head_mx": Rate(25, "cycles", "scheduler model", "block-scaled multiplies"),
    "mx_minimum_side": Rate(48, "elements", "scheduler model", "the longer side of C counts at least this much"),
    # ---- global memory to L1 ----
    "gm_l1_bytes": Rate(100, "B/cycle", "scheduler model", "per core; the platform file gives the same for L2"),
    "gm_l1_latency": Rate(190, "cycles", "scheduler model", "of a copy that hits in L2"),
    "gm_l1_interval": Rate(64, "cycles", "scheduler model", "least distance of two copies"),
    "fill_l1_bytes": Rate(256, "B/cycle", "assumed", "the width of the other L1 paths"),
    "gm_line": Rate(128, "B", "scheduler model", "transaction size: rows count in whole, aligned lines"),
    # ---- L1 to L0 ----
    "l1_l0_bytes": Rate(256, "B/cycle", "architecture page", "L0A and L0B share the one MTE1 pipe"),
    "l1_l0b_transpose_bytes": Rate(128, "B/cycle", "architecture page", "transposing load into L0B"),
    "l1_l0_latency": Rate(5, "cycles", "scheduler model", ""),
    "l1_l0_interval": Rate(3, "cycles", "scheduler model", "added to every copy"),
    "l1_slot_bytes": Rate(32, "B/cycle", "scheduler model", "scale slots"),
    "l1_slot_latency": Rate(28, "cycles", "scheduler model", ""),
    "l1_slot_interval": Rate(1, "cycles", "scheduler model", "added to every copy"),
    # ---- fixpipe ----
    "l0c_gm_bytes": Rate(128, "B/cycle", "scheduler model", "output bytes"),
    "l0c_gm_latency": Rate(200, "cycles", "scheduler model", ""),
    "l0c_ub_bytes": Rate(128, "B/cycle", "architecture page", "to one vector core, 16- and 32-bit outputs"),
    "l0c_ub_bytes_8bit": Rate(64, "B/cycle", "architecture page", "to one vector core, 8-bit outputs"),
    "l0c_ub_dual_bytes": Rate(256, "B/cycle", "scheduler model", "to both vector cores; at most twice the row width"),
    "l0c_ub_latency": Rate(58, "cycles", "scheduler model", ""),
    "fixpipe_interval": Rate(2, "cycles", "scheduler model", "added to every copy"),
    # ---- vector side copies; the bandwidths are those of both vector cores of a block together ----
    "gm_ub_bytes": Rate(100, "B/cycle", "scheduler model", "rows of 256 bytes or more"),
    "gm_ub_bytes_narrow": Rate(50, "B/cycle", "scheduler model", "rows below 128 bytes"),
    "gm_ub_latency": Rate(90, "cycles", "scheduler model", "of a copy that hits in L2"),
    "gm_ub_interval": Rate(13, "cycles", "scheduler model", "least distance of two copies"),
    "ub_gm_bytes": Rate(115, "B/cycle", "scheduler model", "rows of 512 bytes or more"),
    "ub_gm_bytes_narrow": Rate(40, "B/cycle", "scheduler model", "rows below 128 bytes"),
    "ub_gm_latency": Rate(180, "cycles", "scheduler model", ""),
    "ub_gm_latency_narrow": Rate(440, "cycles", "scheduler model", "rows below 128 bytes"),
    "ub_gm_interval": Rate(10, "cycles", "scheduler model", "least distance of two copies"),
    "ub_l1_bytes": Rate(128, "B/cycle", "architecture page", "per vector core"),
    "ub_l1_latency": Rate(43, "cycles", "scheduler model", ""),
    # ---- vector functions ----
    "simt_launch": Rate(186 * SYSTEM_TICK, "cycles", "third-party measurement", "182 to 190 ticks"),
    "simt_ub_read_bytes": Rate(65, "B/cycle", "third-party measurement", ""),
    "simt_ub_write_bytes": Rate(68, "B/cycle", "third-party measurement", ""),
    "simt_gm_read_bytes": Rate(22 / SYSTEM_TICK, "B/cycle", "third-party measurement", "per vector core"),
    "simt_gm_write_bytes": Rate(16.5 / SYSTEM_TICK, "B/cycle", "third-party measurement", "per vector core"),
    "simt_warp_ops": Rate(
        0.82 * 32, "threads/cycle", "third-party measurement", "one shuffle per warp in 1/0.82 cycles"
    ),
    "simt_barrier": Rate(27, "cycles", "assumed", "as long as a shuffle's latency"),
    "vector_elements": Rate(51, "elements/cycle", "scheduler model", "add, mul, compare; SIMD lane operations"),
    "simd_launch": Rate(20, "cycles", "assumed", "about three instruction latencies to fill the pipeline"),
    "simd_ub_bytes": Rate(256, "B/cycle", "register table", "aligned loads, and as much for stores"),
    # ---- scalar unit ----
    "scalar_statement": Rate(1, "cycles", "scheduler model", "register writes and dispatches"),
    "scalar_gm_access": Rate(190, "cycles", "assumed", "a scalar load that misses its cache waits like a short copy"),
    # ---- shared memory system ----
    "l2_bytes": Rate(3200, "B/cycle", "platform file", "100 per core x 32 cores"),
    "l2_capacity": Rate(128 * 2**20, "B", "platform file", "4 MiB per core (112 MiB on 28 cores) x 32 cores"),
    "hbm_bytes": Rate(
        2142,
        "B/cycle",
        "fitted",
        "950DT, on hc_prenorm M=8192: 3463 GB/s x 136.7 us / (136.7 - 2.75) us; announced: 2424",
    ),
    "hbm_latency": Rate(
        600, "cycles", "fitted", "added to a copy that misses in L2; with launch_us on four dense rows"
    ),
}


def rate_values(**changes: float) -> dict[str, float]:
    """All rates as plain numbers, some replaced: `rate_values(hbm_bytes=970)` is a 950PR's memory.

    Raises:
        KeyError: a name that is not a rate.
    """
    unknown = set(changes) - set(RATES)
    if unknown:
        raise KeyError(f"no rate is named {sorted(unknown)}; rates are {sorted(RATES)}")
    return {name: float(changes.get(name, rate.value)) for name, rate in RATES.items()}
