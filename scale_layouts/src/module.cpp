#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>

#include "transcode.hpp"

namespace py = pybind11;

namespace {

using Triple = std::array<int64_t, 3>;

int64_t transcode(uintptr_t source, int source_kind, Triple source_shape, Triple source_strides, uintptr_t sink,
                  int sink_kind, std::array<int64_t, 2> sink_shape, Triple sink_strides, int64_t gran_mn,
                  int64_t k_repeat, uintptr_t valid_rows, int num_threads) {
    using namespace scale_layouts;
    const Job job{{reinterpret_cast<const void*>(source), Kind(source_kind), source_shape[0], source_shape[1],
                   source_shape[2], source_strides[0], source_strides[1], source_strides[2]},
                  {reinterpret_cast<void*>(sink), Kind(sink_kind), sink_shape[0], sink_shape[1], sink_strides[0],
                   sink_strides[1], sink_strides[2]},
                  gran_mn,
                  k_repeat,
                  reinterpret_cast<const uint8_t*>(valid_rows)};
    return scale_layouts::transcode(job, num_threads);
}

}  // namespace

PYBIND11_MODULE(_packer, module) {
    module.doc() = "Moves block scales between float32 and UE8M0 words of any strides; addresses are not checked.";
    module.def("transcode", &transcode, py::call_guard<py::gil_scoped_release>(), py::arg("source"),
               py::arg("source_kind"), py::arg("source_shape"), py::arg("source_strides"), py::arg("sink"),
               py::arg("sink_kind"), py::arg("sink_shape"), py::arg("sink_strides"), py::arg("gran_mn"),
               py::arg("k_repeat"), py::arg("valid_rows"), py::arg("num_threads"));
    module.def("use_portable_steps", &scale_layouts::use_portable_steps, py::arg("only_portable"));
}
