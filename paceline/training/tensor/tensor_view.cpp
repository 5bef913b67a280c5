#include "paceline/training/tensor/tensor_view.h"

#include <algorithm>
#include <cstring>
#include <span>

#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include "paceline/engine/collectives/collective.h"
#include "paceline/engine/collectives/device_order.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/training/device/streams.h"
#include "paceline/training/tensor/c10d.h"

namespace paceline {

namespace {

// Registers backend "c10d" in this file, which every program that communicates tensors links.
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
    fail(ErrorCode::kUnsupported, "a tensor on {} cannot be used here; move it to the CPU",
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
  constexpr std::size_t kMaxNamed = 8;
  std::vector<std::string> layouts;
  for (std::size_t i = 0; i < std::min(kMaxNamed, tensors.size()); ++i) {
    layouts.push_back(fmt::format("{}, strides [{}]", shapes_of({tensors[i]}),
                                  fmt::join(tensors[i].strides(), ", ")));
  }
  if (tensors.size() > kMaxNamed) layouts.emplace_back("...");
  return fmt::format("{}", fmt::join(layouts, "; "));
}

void require_device(c10::Device device, const std::string& what) {
  if (to_device(device) == Device::kCpu || knows_device_type(device.type())) return;
  fail(ErrorCode::kUnsupported,
       "{} is on {}, but the LibTorch of this program does not support such devices; link one that "
       "has it (torch_cuda), or move it to the CPU",
       what, device.str());
}

namespace {

constexpr std::int64_t kLineBytes = 64;
// Below this number of elements blocks are small, so that every rank gets some of them.
constexpr std::int64_t kSmallArray = 65536;

std::int64_t round_up(std::int64_t count, std::int64_t unit) {
  return (count + unit - 1) / unit * unit;
}

}  // namespace

FlatLayout::FlatLayout(const std::vector<at::Tensor>& tensors, int num_parts, std::int64_t block)
    : type_(tensors.empty() ? at::kFloat : tensors.front().scalar_type()),
      num_parts_(num_parts),
      block_(block) {
  if (block_ == 0) {
    std::int64_t elements = 0;
    for (const auto& tensor : tensors) elements += tensor.numel();
    block_ = elements < kSmallArray ? kSmallBlock : kBlock;
  }
  for (const auto& tensor : tensors) append(tensor.numel());
  count_ = round_up(count_, block_ * num_parts_);
}

std::int64_t FlatLayout::append(std::int64_t count) {
  const bool would_cross = block_ > 0 && count_ % block_ + count > block_;
  if (would_cross) count_ = round_up(count_, block_);
  offsets_.push_back(count_);
  count_ += round_up(count, kLineBytes / static_cast<std::int64_t>(c10::elementSize(type_)));
  return offsets_.back();
}

at::Tensor FlatLayout::place(const at::Tensor& flat, std::size_t tensor,
                             const at::Tensor& like) const {
  const auto offset = static_cast<std::size_t>(offsets_[tensor]) * flat.element_size();
  return at::from_blob(
      static_cast<std::byte*>(flat.data_ptr()) + offset, like.sizes(), like.strides(),
      [flat](void*) {}, flat.options(), flat.device());
}

std::size_t total_bytes(const std::vector<at::Tensor>& tensors) {
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.defined() ? tensor.nbytes() : 0;
  return bytes;
}

namespace {

constexpr std::int64_t kMaxDimensions = 64;  // LibTorch's limit

void put(std::string& bytes, std::int64_t number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void require(bool condition) {
  if (!condition) fail(ErrorCode::kCorrupt, "these bytes are not a list of tensors");
}

at::Tensor read_tensor(ByteReader& reader) {
  const auto type = reader.get<std::int64_t>(), dimensions = reader.get<std::int64_t>();
  const auto is_known = [type](Dtype dtype) { return static_cast<std::int64_t>(dtype) == type; };
  require(std::any_of(kAllDtypes.begin(), kAllDtypes.end(), is_known));
  require(dimensions >= 0 && dimensions <= kMaxDimensions);
  const auto dtype = static_cast<Dtype>(type);
  std::vector<std::int64_t> sizes;
  for (std::int64_t i = 0; i < dimensions; ++i) sizes.push_back(reader.get<std::int64_t>());
  std::size_t count = 1;
  const bool is_empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  for (const std::int64_t size : sizes) {
    require(size >= 0);
    if (is_empty) continue;
    // The product cannot overflow: it never exceeds the number of remaining bytes.
    require(count <= reader.remaining() / static_cast<std::size_t>(size));
    count *= static_cast<std::size_t>(size);
  }
  if (is_empty) count = 0;
  require(count <= reader.remaining() / size_of(dtype));
  at::Tensor tensor = at::empty(sizes, at::TensorOptions(to_scalar_type(dtype)));
  const auto elements = reader.take(count * size_of(dtype));
  if (count > 0) std::memcpy(tensor.data_ptr(), elements.data(), elements.size());
  return tensor;
}

}  // namespace

std::string to_bytes(const std::vector<at::Tensor>& tensors) {
  std::string bytes;
  for (const at::Tensor& tensor : tensors) {
    check(tensor.defined(), "a list of tensors to be sent has an undefined one");
    const at::Tensor plain = tensor.detach().cpu().contiguous();
    put(bytes, static_cast<std::int64_t>(to_dtype(plain.scalar_type())));
    put(bytes, plain.dim());
    for (const std::int64_t size : plain.sizes()) put(bytes, size);
    if (plain.numel() > 0) {
      bytes.append(static_cast<const char*>(plain.data_ptr()),
                   static_cast<std::size_t>(plain.numel()) * plain.element_size());
    }
  }
  return bytes;
}

std::vector<at::Tensor> tensors_from_bytes(const std::string& bytes) {
  std::vector<at::Tensor> tensors;
  for (ByteReader reader(as_bytes(bytes)); reader.remaining() > 0;)
    tensors.push_back(read_tensor(reader));
  return tensors;
}

}  // namespace paceline
