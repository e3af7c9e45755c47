// The five functions of CANN's AscendCL that TileLang's runtime calls, without a device: launches go to an observer.

#include <cstddef>
#include <cstdint>
#include <string>

namespace {

struct Function {
  const std::string* binary;
  std::string symbol;
};

using Observer = void (*)(const char* binary, std::size_t binary_bytes, const char* symbol, std::uint32_t blocks,
                          const void* arguments, std::size_t argument_bytes);
Observer observer = nullptr;

}  // namespace

extern "C" {

void observe_launches(Observer chosen) { observer = chosen; }

int aclrtGetDevice(std::int32_t* device) {
  *device = 0;
  return 0;
}

int aclrtBinaryLoadFromData(const void* data, std::size_t bytes, const void* /*options*/, void** binary) {
  *binary = new std::string(static_cast<const char*>(data), bytes);
  return 0;
}

int aclrtBinaryGetFunction(void* binary, const char* symbol, void** function) {
  *function = new Function{static_cast<const std::string*>(binary), symbol};
  return 0;
}

int aclrtBinaryUnLoad(void* /*binary*/) { return 0; }

int aclrtLaunchKernelWithHostArgs(void* function, std::uint32_t blocks, void* /*stream*/, void* /*config*/,
                                  void* arguments, std::size_t bytes, void* /*placeholders*/, std::size_t /*count*/) {
  const auto* launched = static_cast<const Function*>(function);
  observer(launched->binary->data(), launched->binary->size(), launched->symbol.c_str(), blocks, arguments, bytes);
  return 0;
}
}
