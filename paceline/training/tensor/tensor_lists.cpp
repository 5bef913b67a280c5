#include "paceline/training/tensor/tensor_lists.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <ATen/ATen.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/training/tensor/tensor_bytes.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {

namespace {

constexpr std::int64_t kMostDimensions = 64;  // LibTorch's limit

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
  require(dimensions >= 0 && dimensions <= kMostDimensions);
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

std::vector<std::vector<at::Tensor>> all_from_bytes(const std::vector<std::string>& objects) {
  std::vector<std::vector<at::Tensor>> lists;
  for (const std::string& object : objects) lists.push_back(tensors_from_bytes(object));
  return lists;
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

std::vector<at::Tensor> broadcast_object(GroupRef group, const std::vector<at::Tensor>& tensors,
                                         int root, const ObjectOptions& options) {
  const std::string mine = group->rank() == root ? to_bytes(tensors) : std::string();
  return tensors_from_bytes(broadcast_object(group, mine, root, options));
}

std::vector<std::vector<at::Tensor>> all_gather_object(GroupRef group,
                                                       const std::vector<at::Tensor>& tensors,
                                                       const ObjectOptions& options) {
  return all_from_bytes(all_gather_object(group, to_bytes(tensors), options));
}

std::vector<std::vector<at::Tensor>> gather_objects(GroupRef group,
                                                    const std::vector<at::Tensor>& tensors,
                                                    int root, const ObjectOptions& options) {
  return all_from_bytes(gather_objects(group, to_bytes(tensors), root, options));
}

}  // namespace paceline
