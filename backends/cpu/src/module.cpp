// Python bindings: tuples of addresses, sizes and strides in, no torch headers. Addresses are not checked.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <string>
#include <vector>

#include "scratch.hpp"
#include "thread_pool.hpp"
#include "variants.hpp"

namespace py = pybind11;

namespace {

using namespace cpu_native;

// Reads a tuple of ints faster than pybind11's casters would.
class Fields {
public:
    Fields(const py::tuple& tuple, Py_ssize_t size) : tuple_(tuple.ptr()) {
        if (PyTuple_GET_SIZE(tuple_) != size) throw py::value_error("a descriptor has " + std::to_string(size) + " fields");
    }
    int64_t next() {
        const long long value = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple_, at_++));
        if (value == -1 && PyErr_Occurred()) throw py::error_already_set();
        return value;
    }
    template <class T>
    T* address() {
        return reinterpret_cast<T*>(uintptr_t(next()));
    }

private:
    PyObject* tuple_;
    Py_ssize_t at_ = 0;
};

// (data, kind, mn, k, is_k_major, pitch, scales, scale_bytes, is_ue8m0, scale_pitch_mn, scale_pitch_k, gran_mn, gran_k);
// pitches in bytes.
Operand read_operand(const py::tuple& tuple) {
    Fields fields(tuple, 13);
    Operand op;
    op.data = fields.address<const uint8_t>();
    op.kind = Kind(fields.next());
    op.mn = fields.next();
    op.k = fields.next();
    op.is_k_major = fields.next() != 0;
    op.pitch = fields.next();
    op.scales = fields.address<const uint8_t>();
    op.scale_bytes = int(fields.next());
    op.is_ue8m0 = fields.next() != 0;
    op.scale_pitch_mn = fields.next();
    op.scale_pitch_k = fields.next();
    op.gran_mn = fields.next();
    op.gran_k = fields.next();
    return op;
}

// (data, is_fp32, pitch, addend, addend_is_fp32, addend_pitch); pitches in elements, addend 0 for none.
Output read_output(const py::tuple& tuple, double alpha) {
    Fields fields(tuple, 6);
    Output out;
    out.data = fields.address<void>();
    out.type = fields.next() != 0 ? OutputType::fp32 : OutputType::bf16;
    out.pitch = fields.next();
    out.addend = fields.address<const void>();
    out.addend_type = fields.next() != 0 ? OutputType::fp32 : OutputType::bf16;
    out.addend_pitch = fields.next();
    out.alpha = float(alpha);
    return out;
}

const Variant& variant_named(const char* name) {
    const Variant* variant = find_variant(name);
    if (variant == nullptr) throw py::value_error("isa '" + std::string(name) + "' is none of isa_variants()");
    return *variant;
}

std::vector<std::string> isa_variants() {
    std::vector<std::string> names;
    const VariantList& list = usable_variants();
    for (int i = 0; i < list.count; ++i) names.emplace_back(list.items[i]->name);
    return names;
}

std::vector<std::string> built_variants() {
    std::vector<std::string> names;
    for (const Variant* variant : {&portable_variant, avx2_variant, avx512_variant, avx512_bf16_variant})
        if (variant != nullptr) names.emplace_back(variant->name);
    return names;
}

void gemm_tuples(const py::tuple& a_fields, const py::tuple& b_fields, const py::tuple& out_fields, double alpha, int threads,
                 const char* isa, bool allows_bf16, bool row_invariant) {
    const Operand a = read_operand(a_fields), b = read_operand(b_fields);
    const Output out = read_output(out_fields, alpha);
    if (a.k != b.k) throw py::value_error("a has k=" + std::to_string(a.k) + ", b has k=" + std::to_string(b.k));
    const Variant* variant = isa != nullptr ? &variant_named(isa) : nullptr;
    bool is_done;
    {
        py::gil_scoped_release released;
        is_done = gemm(a, b, out, {threads < 1 ? 1 : threads, variant, allows_bf16, row_invariant});
    }
    if (!is_done) throw py::value_error("isa '" + std::string(isa) + "' needs operands that bfloat16 holds exactly, float32 "
                                          "scales aside, whose blocks must fit each other");
}

void decode_tuples(const py::tuple& fields, int64_t row0, int64_t row1, uintptr_t out, bool is_fp32, int64_t pitch,
                   bool apply_scales, int threads, const char* isa) {
    const Operand op = read_operand(fields);
    py::gil_scoped_release released;
    const Variant& variant = variant_named(isa);
    // Panels of MN-major operands are `rows_per_task` / 16 or 8 rows high, so that none is cut.
    constexpr int64_t rows_per_task = 16, elements_worth_a_thread = 1 << 14;
    if ((row1 - row0) * op.k < elements_worth_a_thread) threads = 1;
    auto body = [&](int64_t task, int) {
        const int64_t first = row0 + task * rows_per_task, last = first + rows_per_task < row1 ? first + rows_per_task : row1;
        const int64_t offset = (first - row0) * pitch;
        if (is_fp32)
            variant.rows_to_fp32(op, first, last, apply_scales, reinterpret_cast<float*>(out) + offset, pitch);
        else
            variant.rows_to_bf16(op, first, last, apply_scales, reinterpret_cast<uint16_t*>(out) + offset, pitch);
    };
    run_tasks((row1 - row0 + rows_per_task - 1) / rows_per_task, threads, body);
}

void relu_sum_addresses(uintptr_t dots, std::array<int64_t, 2> dots_pitch, uintptr_t weights,
                        std::array<int64_t, 2> weights_pitch, uintptr_t out, int64_t out_pitch, std::array<int64_t, 3> sizes,
                        int threads, const char* isa) {
    const ReluSum job{reinterpret_cast<const float*>(dots),    dots_pitch[0],    dots_pitch[1],
                      reinterpret_cast<const float*>(weights), weights_pitch[0], weights_pitch[1],
                      reinterpret_cast<float*>(out),           out_pitch,        sizes[0],
                      sizes[1],                                sizes[2]};
    py::gil_scoped_release released;
    variant_named(isa).relu_sum(job, threads);
}

}  // namespace

PYBIND11_MODULE(_native, module) {
    module.doc() = "GEMM, decoding and head sums on addresses; see _native.pyi and kernels/matmul.py.";
    module.def("isa_variants", &isa_variants);
    module.def("built_variants", &built_variants);
    module.def("gemm", &gemm_tuples, py::arg("a"), py::arg("b"), py::arg("out"), py::arg("alpha"), py::arg("threads"),
               py::arg("isa") = static_cast<const char*>(nullptr), py::arg("allows_bf16") = true, py::arg("row_invariant") = false);
    module.def("decode", &decode_tuples, py::arg("operand"), py::arg("row0"), py::arg("row1"), py::arg("out"),
               py::arg("is_fp32"), py::arg("pitch"), py::arg("apply_scales"), py::arg("threads"),
               py::arg("isa") = static_cast<const char*>(nullptr));
    module.def(
        "is_exact_in_bf16", [](const py::tuple& fields) { return is_exact_in_bf16(read_operand(fields)); }, py::arg("operand"));
    module.def("weighted_relu_sum", &relu_sum_addresses, py::arg("dots"), py::arg("dots_pitch"), py::arg("weights"),
               py::arg("weights_pitch"), py::arg("out"), py::arg("out_pitch"), py::arg("sizes"), py::arg("threads"),
               py::arg("isa") = static_cast<const char*>(nullptr));
    module.def("peak_scratch_bytes", &peak_scratch_bytes);
    module.def("reset_peak_scratch_bytes", &reset_peak_scratch_bytes);
}
