#include "paceline/training/tensor/write_mark.h"

#include <ATen/ATen.h>

namespace paceline {
namespace {

// LibTorch does not count the writes to inference tensors.
std::int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::int64_t>(tensor._version());
}

}  // namespace

WriteMark::WriteMark(const at::Tensor& tensor)
    : storage_(tensor.storage().getWeakStorageImpl()),
      data_(tensor.data_ptr()),
      version_(version_of(tensor)) {}

bool WriteMark::holds_for(const at::Tensor& tensor) const {
  return storage_ && storage_->_unsafe_get_target() == tensor.storage().unsafeGetStorageImpl() &&
         data_ == tensor.data_ptr() && version_ == version_of(tensor);
}

void count_write(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace paceline
