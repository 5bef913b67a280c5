// The kernel for any processor: one element at a time, with the conversions of elements.h; only the
// compiler vectorises it.
#define PACELINE_KERNEL portable

#include <cstddef>

#include "paceline/engine/collectives/kernels/elements.h"

namespace paceline::PACELINE_KERNEL {
namespace {

constexpr std::size_t kLanes = 1;

}  // namespace
}  // namespace paceline::PACELINE_KERNEL

#include "paceline/engine/collectives/kernels/reduce_kernel.h"
