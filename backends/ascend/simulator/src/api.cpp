// The function table kernels call. Plain functions, never inlined into one another: the return address of each is the
// place in the kernel that errors and traces name.
#include "vector.hpp"

#define USIM_ENTRY [[gnu::noinline]]
#define USIM_CALLER __builtin_return_address(0)

namespace usim {

void dispatch(Op op, const void* args, const void* return_address);
const Api& api_table();

namespace {

VectorRun& running(const void* from, const char* what) {
  if (current_vector) return *current_vector;
  Instruction here;
  here.op = Op::asc_vf_call;
  here.pipe = PIPE_V;
  here.site = site_of(*current_core, from);
  raise(*current_core, &here, "barrier", std::string(what) + " is used outside a vector function");
}

USIM_ENTRY void entry_dispatch(Op op, const void* args) { dispatch(op, args, USIM_CALLER); }

USIM_ENTRY void entry_set_register(Register r, std::uint64_t value) {
  Registers& g = current_core->registers;
  ++current_core->scalar_work;
  switch (r) {
    case Register::gm2l1_nz: g.gm2l1_nz = value; break;
    case Register::l0c_nz: g.l0c_nz = value; break;
    case Register::pad_value: g.pad_value = value; break;
    case Register::atomic: g.atomic = static_cast<std::uint32_t>(value); break;
    case Register::hf32: g.hf32 = static_cast<std::uint8_t>(value); break;
    case Register::hf32_round: g.hf32_round = static_cast<std::uint8_t>(value); break;
    case Register::mmad_direction: g.direction = static_cast<std::uint8_t>(value); break;
  }
}

USIM_ENTRY const CoreView* entry_core() { return &current_core->view; }
USIM_ENTRY void entry_vector_call(const VectorCall* call) { dispatch(call->simt ? Op::asc_vf_call : Op::simd_vf, call, USIM_CALLER); }
USIM_ENTRY const ThreadView* entry_thread() { return running(USIM_CALLER, "threadIdx").thread(); }
USIM_ENTRY void entry_next_thread(std::uint32_t x, std::uint32_t y, std::uint32_t z) { current_vector->next_thread(x, y, z); }
USIM_ENTRY void entry_sync_threads() { running(USIM_CALLER, "asc_syncthreads").sync_threads(USIM_CALLER); }
USIM_ENTRY void entry_memory_barrier() { running(USIM_CALLER, "asc_mem_bar").memory_barrier(); }
USIM_ENTRY void entry_sync_warp() { running(USIM_CALLER, "a warp barrier").sync_warp(USIM_CALLER); }
USIM_ENTRY const WarpValues* entry_warp_exchange(const void* value, std::uint32_t bytes) {
  return running(USIM_CALLER, "a warp function").warp_exchange(value, bytes, USIM_CALLER);
}
USIM_ENTRY void entry_touch(const void* address, std::uint32_t bytes, int write, int atomic) {
  if (!checking(*current_core)) return;
  if (current_vector) current_vector->touch(address, bytes, write != 0, static_cast<std::uint16_t>(atomic), USIM_CALLER);
  else uncached_access(address, bytes, write != 0, USIM_CALLER);
}
USIM_ENTRY std::int64_t entry_vector_cost(std::uint32_t kind, std::uint64_t amount) {
  if (current_vector && kind == 0) current_vector->work.arithmetic += amount;
  return 0;
}
[[noreturn]] USIM_ENTRY void entry_fail(const char* kind, const char* message) {
  Instruction here;
  here.op = current_vector ? Op::asc_vf_call : Op::scalar_access;
  here.pipe = current_vector ? PIPE_V : PIPE_S;
  here.site = site_of(*current_core, USIM_CALLER);
  raise(*current_core, &here, kind, message);
}

}  // namespace

const Api& api_table() {
  static const Api table = {kAbiVersion, entry_dispatch, entry_set_register, entry_core, entry_vector_call, entry_thread, entry_next_thread,
                            entry_sync_threads, entry_sync_warp, entry_memory_barrier, entry_warp_exchange, entry_touch, entry_vector_cost, entry_fail};
  return table;
}

}  // namespace usim
