#include "vector_portable.hpp"

#include "variant_body.hpp"

namespace cpu_native {
const Variant portable_variant = make_variant<Portable>();
}
