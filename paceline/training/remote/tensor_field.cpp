#include "paceline/training/remote/tensor_field.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"

namespace paceline::rpc::detail {
namespace {

// The position of a type in this list, from 1, is its number in messages. Never reorder it.
constexpr std::array kTypes = {at::kFloat, at::kDouble, at::kHalf,         at::kBFloat16,
                               at::kChar,  at::kShort,  at::kInt,          at::kLong,
                               at::kByte,  at::kBool,   at::kComplexFloat, at::kComplexDouble};

std::uint8_t number_of(at::ScalarType type) {
  const auto* const found = std::find(kTypes.begin(), kTypes.end(), type);
  if (found == kTypes.end()) {
    fail(ErrorCode::kUnsupported, "a tensor of type {} cannot be a field of a message",
         c10::toString(type));
  }
  return static_cast<std::uint8_t>(found - kTypes.begin() + 1);
}

void check_place(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided) {
    std::ostringstream layout;
    layout << tensor.layout();
    fail(ErrorCode::kUnsupported,
         "a tensor of layout {} cannot be a field of a message; send to_dense()", layout.str());
  }
  if (!tensor.device().is_cpu()) {
    fail(ErrorCode::kUnsupported,
         "a tensor on device {} cannot be a field of a message; move it to the CPU",
         tensor.device().str());
  }
}

// Returns the number of bytes of a tensor with these sizes; nullopt if no tensor can have them.
std::optional<std::size_t> bytes_of(std::span<const std::int64_t> sizes, std::size_t element) {
  // LibTorch counts a size of 0 as 1 in the strides, and the strides must not overflow either.
  std::int64_t count = 1, stride = static_cast<std::int64_t>(element);
  for (const std::int64_t size : sizes) {
    if (size < 0) return {};
    if (__builtin_mul_overflow(stride, std::max<std::int64_t>(size, 1), &stride)) return {};
    count *= size;  // at most `stride`, so it does not overflow
  }
  return static_cast<std::size_t>(count) * element;
}

}  // namespace

void FieldCodec<at::Tensor>::write(MessageWriter& out, const at::Tensor& tensor) {
  if (!tensor.defined()) return FieldCodec<TensorFields>::write(out, {});
  check_place(tensor);
  const std::uint8_t type = number_of(tensor.scalar_type());
  const auto dimensions = static_cast<std::size_t>(tensor.dim());
  check(dimensions <= kMaxTensorDimensions,
        "a tensor of {} dimensions cannot be a field of a message; it may have {}", dimensions,
        kMaxTensorDimensions);
  const at::Tensor whole = tensor.detach().resolve_conj().resolve_neg().contiguous();
  const std::span elements(static_cast<const std::uint8_t*>(whole.data_ptr()), whole.nbytes());
  if (elements.size() >= MessageWriter::kLargeSpan) out.keep(std::make_shared<at::Tensor>(whole));
  FieldCodec<TensorFields>::write(
      out, {.type = type, .sizes = {whole.sizes().data(), dimensions}, .elements = elements});
}

void FieldCodec<at::Tensor>::read(MessageReader& in, at::Tensor& tensor) {
  TensorFields fields;
  FieldCodec<TensorFields>::read(in, fields);
  const auto& [type, sizes, elements] = fields;
  if (type == 0) {
    if (!sizes.empty() || !elements.empty()) in.refuse("an undefined tensor has sizes or elements");
    tensor = at::Tensor();
    return;
  }
  if (type > kTypes.size()) in.refuse(fmt::format("a tensor has the unknown type {}", type));
  if (sizes.size() > kMaxTensorDimensions) {
    in.refuse(fmt::format("a tensor has {} dimensions", sizes.size()));
  }
  const at::ScalarType scalar = kTypes[type - 1];
  const auto bytes = bytes_of(sizes, c10::elementSize(scalar));
  if (!bytes) in.refuse("the sizes of a tensor are negative or too large");
  if (*bytes != elements.size()) {
    in.refuse(fmt::format("a tensor has {} bytes, and by its sizes it should have {}",
                          elements.size(), *bytes));
  }
  if (scalar == at::kBool &&
      std::any_of(elements.begin(), elements.end(), [](std::uint8_t value) { return value > 1; })) {
    in.refuse("a bool of a tensor is neither 0 nor 1");
  }
  tensor = at::empty(at::IntArrayRef(sizes.data(), sizes.size()), at::TensorOptions(scalar));
  if (!elements.empty()) std::memcpy(tensor.data_ptr(), elements.data(), elements.size());
}

}  // namespace paceline::rpc::detail
