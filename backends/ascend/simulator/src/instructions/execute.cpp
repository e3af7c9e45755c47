// From an instruction to the function that implements it.
#include "machine.hpp"

namespace usim {

void execute(Core& core, Instruction& i) {
  switch (i.op) {
    case Op::asc_copy_gm2l1_nd2nz: case Op::asc_copy_gm2l1_dn2nz: return copy_gm_to_l1(core, i);
    case Op::asc_fill_l1: return fill_l1(core, i);
    case Op::asc_copy_l12l0a: case Op::asc_copy_l12l0b: case Op::asc_copy_l12l0a_transpose: case Op::asc_copy_l12l0b_transpose:
      return copy_l1_to_l0(core, i);
    case Op::asc_copy_l12l0a_mx: case Op::asc_copy_l12l0b_mx: return copy_l1_to_slots(core, i);
    case Op::asc_mmad: case Op::asc_mmad_mx: return matrix_multiply(core, i);
    case Op::asc_copy_l0c2gm: case Op::asc_copy_l0c2ub: return copy_l0c(core, i);
    case Op::asc_copy_gm2ub_align: return copy_gm_to_ub(core, i);
    case Op::asc_copy_ub2gm_align: return copy_ub_to_gm(core, i);
    case Op::asc_copy_ub2l1: return copy_ub_to_l1(core, i);
    case Op::asc_vf_call: case Op::simd_vf: return vector_function(core, i);
    default:
      raise(core, &i, "unimplemented", std::string(op_name(i.op)) + " has no implementation in the simulator");
  }
}

}  // namespace usim
