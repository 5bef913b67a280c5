#include "paceline/training/tensor/tensor_view.h"

#include <algorithm>
#include <span>

#include <fmt/ranges.h>

#include "paceline/engine/collectives/collective.h"
#include "paceline/engine/core/check.h"
#include "paceline/training/tensor/c10d.h"

namespace paceline {
namespace {

// Here, because every program that communicates tensors has this file.
[[maybe_unused]] const bool has_c10d = register_libtorch_gloo();

Device to_device(c10::Device device) {
  if (device.is_cpu()) return Device::kCpu;
  if (device.is_cuda()) return Device::kCuda;
  fail(ErrorCode::kUnsupported, "a tensor on {} cannot be communicated; move it to the CPU",
       device.str());
}

}  // namespace

Dtype to_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return Dtype::kFloat32;
    case at::kDouble:
      return Dtype::kFloat64;
    case at::kHalf:
      return Dtype::kFloat16;
    case at::kBFloat16:
      return Dtype::kBfloat16;
    case at::kChar:
      return Dtype::kInt8;
    case at::kShort:
      return Dtype::kInt16;
    case at::kInt:
      return Dtype::kInt32;
    case at::kLong:
      return Dtype::kInt64;
    case at::kByte:
      return Dtype::kUint8;
    case at::kBool:
      return Dtype::kBool;
    default:
      fail(ErrorCode::kUnsupported, "tensors of type {} cannot be communicated",
           c10::toString(type));
  }
}

at::ScalarType to_scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return at::kFloat;
    case Dtype::kFloat64:
      return at::kDouble;
    case Dtype::kFloat16:
      return at::kHalf;
    case Dtype::kBfloat16:
      return at::kBFloat16;
    case Dtype::kInt8:
      return at::kChar;
    case Dtype::kInt16:
      return at::kShort;
    case Dtype::kInt32:
      return at::kInt;
    case Dtype::kInt64:
      return at::kLong;
    case Dtype::kUint8:
      return at::kByte;
    case Dtype::kBool:
      return at::kBool;
  }
  return at::kByte;
}

bool is_dense(const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }

Buffer dense_view(const at::Tensor& tensor) {
  check(tensor.defined(), "a tensor that is to be communicated is undefined");
  const Device device = to_device(tensor.device());
  check(
      tensor.layout() == at::kStrided && is_dense(tensor),
      "a tensor that is to be communicated in place must be dense (no gaps, no repeated elements)");
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()),
          to_dtype(tensor.scalar_type()), device};
}

Buffer dense_cpu_view(const at::Tensor& tensor) {
  const Buffer view = dense_view(tensor);
  if (view.device != Device::kCpu) {
    fail(ErrorCode::kUnsupported, "a tensor on {} does not do here; move it to the CPU",
         tensor.device().str());
  }
  return view;
}

std::uint32_t shape_of(const at::Tensor& tensor) {
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  return shape_of(std::span(sizes.data(), sizes.size()), std::span(strides.data(), strides.size()));
}

std::string shapes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::string> shapes;
  for (const at::Tensor& tensor : tensors) {
    shapes.push_back(tensor.defined() ? fmt::format("{} [{}]", c10::toString(tensor.scalar_type()),
                                                    fmt::join(tensor.sizes(), ", "))
                                      : "undefined");
  }
  return fmt::format("{}", fmt::join(shapes, ", "));
}

std::string layouts_of(const std::vector<at::Tensor>& tensors) {
  constexpr std::size_t kMost = 8;
  std::vector<std::string> layouts;
  for (std::size_t i = 0; i < std::min(kMost, tensors.size()); ++i) {
    layouts.push_back(fmt::format("{}, strides [{}]", shapes_of({tensors[i]}),
                                  fmt::join(tensors[i].strides(), ", ")));
  }
  if (tensors.size() > kMost) layouts.emplace_back("...");
  return fmt::format("{}", fmt::join(layouts, "; "));
}

void require_backend_for(c10::Device device, const BackendChoice& choice, const std::string& what) {
  if (to_device(device) == Device::kCpu || !choice.cuda.empty()) return;
  fail(ErrorCode::kUnsupported,
       "{} is on {}, which backend {} does not reach; form the group with --backend "
       "cpu:{},cuda:nccl, or move it to the CPU",
       what, device.str(), choice.text(), choice.cpu);
}

}  // namespace paceline
