#include "paceline/training/tensor/tensor_memory_meter.h"

#include "paceline/engine/core/check.h"
#include "paceline/training/tensor/tensor_allocator.h"

namespace paceline {

TensorMemoryMeter::TensorMemoryMeter() {
  check(TensorAllocator::instance().begin_counting(),
        "the memory of this process's tensors is being measured already");
}

TensorMemoryMeter::~TensorMemoryMeter() { TensorAllocator::instance().end_counting(); }

std::int64_t TensorMemoryMeter::bytes() const {
  return TensorAllocator::instance().counted_bytes();
}

std::int64_t TensorMemoryMeter::peak() const { return TensorAllocator::instance().counted_peak(); }

void TensorMemoryMeter::begin_peak() { TensorAllocator::instance().begin_peak(); }

}  // namespace paceline
