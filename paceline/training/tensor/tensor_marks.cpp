#include "paceline/training/tensor/tensor_marks.h"

#include <mutex>

#include <ATen/ATen.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <torch/csrc/autograd/variable.h>

namespace paceline {

namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// The weak pointer keeps the address from being reused for another tensor.
struct Noted {
  WeakTensor parameter;
  ModelShare share;
};

struct Shares {
  std::mutex mutex;  // guards the members below
  std::unordered_map<const c10::TensorImpl*, Noted> of;
  std::size_t most = 64;  // above this size, entries of freed parameters are dropped
};

Shares& shares() {
  static auto* const of_process = new Shares;  // outlives every model
  return *of_process;
}

}  // namespace

void note_model_share(const std::vector<at::Tensor>& parameters, const ModelShare& share) {
  Shares& all = shares();
  const std::lock_guard lock(all.mutex);
  for (const at::Tensor& parameter : parameters) {
    const Noted noted{WeakTensor(parameter.getIntrusivePtr()), share};
    all.of.insert_or_assign(parameter.unsafeGetTensorImpl(), noted);
  }
  if (all.of.size() <= all.most) return;
  std::erase_if(all.of, [](const auto& entry) { return entry.second.parameter.expired(); });
  all.most = 2 * all.of.size() + 64;
}

void forget_model_share(const std::vector<at::Tensor>& parameters) {
  const std::lock_guard lock(shares().mutex);
  for (const at::Tensor& parameter : parameters) shares().of.erase(parameter.unsafeGetTensorImpl());
}

std::optional<FoundShare> first_model_share(const std::vector<at::Tensor>& parameters,
                                            bool divided_only) {
  const std::lock_guard lock(shares().mutex);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto found = shares().of.find(parameters[i].unsafeGetTensorImpl());
    if (found == shares().of.end()) continue;
    if (found->second.share.is_divided || !divided_only) return FoundShare{i, found->second.share};
  }
  return {};
}

std::unordered_map<const c10::TensorImpl*, std::size_t> numbers_by_tensor(
    const std::vector<at::Tensor>& tensors) {
  std::unordered_map<const c10::TensorImpl*, std::size_t> numbers;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    numbers.emplace(tensors[i].unsafeGetTensorImpl(), i);
  return numbers;
}

void name_parameters(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    if (item.value().name().empty()) torch::autograd::impl::set_name(item.value(), item.key());
  }
}

at::Tensor& own_gradient(const at::Tensor& parameter) {
  return torch::autograd::impl::materialize_autograd_meta(parameter)->grad_;
}

namespace {

// LibTorch does not count writes to inference tensors.
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
