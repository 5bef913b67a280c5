#include "paceline/training/tensor/autocast.h"

#include "paceline/engine/core/check.h"
#include "paceline/training/tensor/libtorch_version.h"

namespace paceline {
namespace {

void require_supported(at::ScalarType type) {
  if (type == at::kBFloat16 || (type == at::kHalf && CpuAutocast::kHasHalf)) return;
  fail(ErrorCode::kUnsupported,
       "autocast: {} is not available on the CPU with LibTorch {}; use bfloat16{}",
       c10::toString(type), TORCH_VERSION,
       type == at::kHalf ? ", or LibTorch 2.4 or later for float16" : "");
}

}  // namespace

Autocast::Autocast(at::ScalarType type, bool enabled)
    : was_enabled_(CpuAutocast::is_enabled()), type_before_(CpuAutocast::dtype()) {
  require_supported(type);
  CpuAutocast::set_enabled(enabled);
  CpuAutocast::set_dtype(type);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  CpuAutocast::set_enabled(was_enabled_);
  CpuAutocast::set_dtype(type_before_);
}

}  // namespace paceline
