// The Python face of the kernels: addresses, sizes and strides; everything was checked by the caller.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "operations.hpp"

namespace py = pybind11;
using namespace unikernels_cpu;

namespace {

using Address = std::uintptr_t;

Matrix make_matrix(Address data, int kind, int64_t mn, int64_t k, int64_t stride_mn, int64_t stride_k, bool k_major,
                   Address scales, int bytes_per_word, int64_t scale_stride_mn, int64_t scale_stride_k, int64_t gran_mn,
                   int64_t gran_k) {
    return {reinterpret_cast<const uint8_t*>(data), static_cast<Kind>(kind), mn, k, stride_mn, stride_k, k_major,
            {reinterpret_cast<const void*>(scales), bytes_per_word, scale_stride_mn, scale_stride_k, gran_mn, gran_k}};
}

}  // namespace

PYBIND11_MODULE(_native, m) {
    m.doc() = "Native kernels of the CPU backend; see _native.pyi.";
    m.attr("STEP") = kStep;
    m.def("isa_variants", &isa_variants);
    m.def("isa_in_force", &isa_in_force);
    m.def("use_isa", &use_isa);
    py::class_<Matrix>(m, "Matrix").def(py::init(&make_matrix));
    m.def("decode", [](const Matrix& x, int64_t row0, int64_t row1, int64_t k0, int64_t k1, bool scaled, Address out,
                       int64_t ld, bool to_bf16, int num_threads) {
        py::gil_scoped_release release;
        decode(x, row0, row1, k0, k1, scaled, reinterpret_cast<void*>(out), ld, to_bf16, num_threads);
    });
    m.def("multiply_few_rows", [](Address a, int64_t lda, int64_t rows, const Matrix& b, Address acc, int64_t ldacc,
                                  int num_threads) {
        py::gil_scoped_release release;
        multiply_few_rows(reinterpret_cast<const float*>(a), lda, rows, b, reinterpret_cast<float*>(acc), ldacc,
                          num_threads);
    });
    m.def("store", [](Address acc, int64_t ldacc, int64_t rows, int64_t columns, Address c, int64_t ldc, float alpha,
                      Address out, int64_t ldout, bool is_bf16, int num_threads) {
        py::gil_scoped_release release;
        store(reinterpret_cast<const float*>(acc), ldacc, rows, columns, reinterpret_cast<const void*>(c), ldc, alpha,
              reinterpret_cast<void*>(out), ldout, is_bf16, num_threads);
    });
}
