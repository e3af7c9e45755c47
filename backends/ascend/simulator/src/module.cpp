// The Python face of the core: load a compiled kernel, run it on host pointers, hand back faults and recordings.
#include <dlfcn.h>
#include <link.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "instructions/mmad_kernels.hpp"
#include "vector.hpp"

namespace py = pybind11;

namespace usim {

const Api& api_table();  // api.cpp
void register_timing(py::module_& m);  // timing_module.cpp

namespace {

struct Kernel {
  explicit Kernel(const std::string& path) {
    handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) throw std::runtime_error(std::string("cannot load the compiled kernel: ") + dlerror());
    const auto bind = reinterpret_cast<std::uint32_t (*)(const Api*, const AccessHooks*)>(dlsym(handle, "usim_bind"));
    if (!bind) throw std::runtime_error("the compiled kernel " + path + " has no usim_bind entry");
    if (bind(&api_table(), &access_hooks()) != kAbiVersion) throw std::runtime_error("the compiled kernel " + path + " was built for another version of the core");
    link_map* map = nullptr;
    dlinfo(handle, RTLD_DI_LINKMAP, &map);
    base = reinterpret_cast<const std::uint8_t*>(map->l_addr);
    dl_iterate_phdr([](dl_phdr_info* info, std::size_t, void* data) {
      auto* self = static_cast<Kernel*>(data);
      if (reinterpret_cast<const std::uint8_t*>(info->dlpi_addr) != self->base) return 0;
      for (int p = 0; p < info->dlpi_phnum; ++p)
        if (info->dlpi_phdr[p].p_type == PT_LOAD)
          self->bytes = std::max<std::uint64_t>(self->bytes, info->dlpi_phdr[p].p_vaddr + info->dlpi_phdr[p].p_memsz);
      return 1;
    }, this);
  }
  ~Kernel() { if (handle) dlclose(handle); }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  void* handle = nullptr;
  const std::uint8_t* base = nullptr;
  std::uint64_t bytes = 0;
};

using TensorSpec = std::tuple<std::string, std::uintptr_t, std::uint64_t, bool>;  // name, address, bytes, writable

py::dict run_kernel(Kernel& kernel, const std::string& symbol, const std::string& kind, std::uint32_t grid, const std::vector<py::object>& arguments,
                    const std::vector<TensorSpec>& tensors, bool inter, const py::dict& options) {
  Launch launch;
  launch.kernel = symbol;
  launch.kind = kind == "cube" ? KernelKind::cube : kind == "vector" ? KernelKind::vector : KernelKind::mixed;
  launch.grid = grid;
  launch.inter = inter;
  launch.entry = reinterpret_cast<void (*)(void**)>(dlsym(kernel.handle, ("usim_entry_" + symbol).c_str()));
  if (!launch.entry) throw std::runtime_error("the compiled kernel has no function " + symbol);
  launch.code_base = kernel.base;
  launch.code_bytes = kernel.bytes;
  // Pointers pass as they are; scalars arrive as little-endian bytes of their C type.
  std::deque<std::string> scalars;
  std::deque<std::uintptr_t> pointers;
  for (const py::object& a : arguments) {
    if (py::isinstance<py::bytes>(a)) {
      scalars.push_back(a.cast<std::string>());
      scalars.back().resize(16);
      launch.arguments.push_back(scalars.back().data());
    } else {
      pointers.push_back(a.cast<std::uintptr_t>());
      launch.arguments.push_back(&pointers.back());
    }
  }
  for (const auto& [name, address, bytes, writable] : tensors) {
    Tensor& t = launch.tensors.emplace_back();
    t.name = name;
    t.base = reinterpret_cast<std::uint8_t*>(address);
    t.bytes = bytes;
    t.writable = writable;
    t.index = static_cast<std::uint32_t>(launch.tensors.size() - 1);
  }
  Options& o = launch.options;
  o.check = options["check"].cast<bool>();
  o.functional = options["functional"].cast<bool>();
  o.record = options["record"].cast<bool>();
  o.memories = options["memories"].cast<bool>();
  o.saturate = options["saturate"].cast<bool>();
  o.threads = options["threads"].cast<int>();
  o.seeded = !options["seed"].is_none();
  if (o.seeded) o.seed = options["seed"].cast<std::uint64_t>();
  {
    const py::gil_scoped_release release;
    run_launch(launch);
  }
  py::dict result;
  result["warnings"] = launch.warnings;
  if (launch.fault) {
    const Fault& f = *launch.fault;
    py::dict fault;
    fault["kind"] = f.kind;
    fault["message"] = f.message;
    fault["builtin"] = f.builtin;
    fault["pipe"] = f.pipe;
    fault["core"] = f.core;
    fault["block"] = f.block;
    fault["sites"] = f.sites;
    result["fault"] = fault;
    return result;
  }
  std::sort(launch.recordings.begin(), launch.recordings.end(), [](const CoreRecording& a, const CoreRecording& b) { return std::tie(a.block, a.core) < std::tie(b.block, b.core); });
  py::dict memories;
  for (const auto& [name, bytes] : launch.memories) memories[py::str(name)] = py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  result["memories"] = memories;
  py::list recordings;
  for (CoreRecording& r : launch.recordings) {
    static_assert(sizeof(Event) == 56);
    auto* owned = new std::vector<Event>(std::move(r.events));
    py::capsule owner(owned, [](void* p) { delete static_cast<std::vector<Event>*>(p); });
    recordings.append(py::make_tuple(r.block, r.core, py::array_t<std::uint8_t>({static_cast<py::ssize_t>(owned->size() * sizeof(Event))}, reinterpret_cast<std::uint8_t*>(owned->data()), owner)));
  }
  result["recordings"] = recordings;
  return result;
}

}  // namespace
}  // namespace usim

PYBIND11_MODULE(_simulator, m) {
  using namespace usim;
  m.doc() = "Functional core of the Ascend 950 simulator";
  m.attr("ABI_VERSION") = kAbiVersion;
  py::class_<Kernel>(m, "Kernel", "A compiled kernel library").def(py::init<const std::string&>());
  m.def("run", &run_kernel, py::arg("kernel"), py::arg("symbol"), py::arg("kind"), py::arg("grid"), py::arg("arguments"), py::arg("tensors"), py::arg("inter"), py::arg("options"));
  m.def("instruction_set", [] { return std::string(tile_kernels().name); }, "Name of the tile kernels chosen for this CPU");
  py::list instructions;
#define USIM_INSTRUCTION(name, pipe, group, section) instructions.append(py::make_tuple(#name, #pipe, #group, section));
#include "usim/instructions.def"
#undef USIM_INSTRUCTION
  m.attr("INSTRUCTIONS") = instructions;
  register_timing(m);
}
