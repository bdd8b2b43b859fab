// One instruction-set path: products of 8-bit activations with 8-bit weights.
#include "int8.hpp"

namespace paceline {
namespace PACELINE_PATH {

extern const PackedKernels int8_kernels;
const PackedKernels int8_kernels = {int8_bytes, int8_product, int8_pack, int8_unpack};

}  // namespace PACELINE_PATH
}  // namespace paceline
