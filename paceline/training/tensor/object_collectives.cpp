#include "paceline/training/tensor/object_collectives.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {

namespace {

constexpr std::int64_t kMostDimensions = 64;  // as LibTorch has it

void put(std::string& bytes, std::int64_t number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}
  bool is_at_end() const { return position_ == bytes_.size(); }
  std::int64_t number() {
    std::int64_t value = 0;
    std::memcpy(&value, take(sizeof(value)), sizeof(value));
    return value;
  }
  const char* take(std::size_t count) {
    require(count <= bytes_.size() - position_);
    position_ += count;
    return bytes_.data() + (position_ - count);
  }
  std::size_t left() const { return bytes_.size() - position_; }
  static void require(bool condition) {
    if (!condition) fail(ErrorCode::kCorrupt, "these bytes are not a list of tensors");
  }

 private:
  const std::string& bytes_;
  std::size_t position_ = 0;
};

at::Tensor read_tensor(Reader& reader) {
  const std::int64_t type = reader.number(), dimensions = reader.number();
  const auto is_known = [type](Dtype dtype) { return static_cast<std::int64_t>(dtype) == type; };
  Reader::require(std::any_of(kAllDtypes.begin(), kAllDtypes.end(), is_known));
  Reader::require(dimensions >= 0 && dimensions <= kMostDimensions);
  const auto dtype = static_cast<Dtype>(type);
  std::vector<std::int64_t> sizes;
  for (std::int64_t i = 0; i < dimensions; ++i) sizes.push_back(reader.number());
  std::size_t count = 1;
  const bool is_empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  for (const std::int64_t size : sizes) {
    Reader::require(size >= 0);
    if (is_empty) continue;
    // No product overflows: what has come so far is at most what there is.
    Reader::require(count <= reader.left() / static_cast<std::size_t>(size));
    count *= static_cast<std::size_t>(size);
  }
  if (is_empty) count = 0;
  Reader::require(count <= reader.left() / size_of(dtype));
  at::Tensor tensor = at::empty(sizes, at::TensorOptions(to_scalar_type(dtype)));
  const char* const elements = reader.take(count * size_of(dtype));
  if (count > 0) std::memcpy(tensor.data_ptr(), elements, count * size_of(dtype));
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
  for (Reader reader(bytes); !reader.is_at_end();) tensors.push_back(read_tensor(reader));
  return tensors;
}

std::vector<at::Tensor> broadcast_object(ProcessGroup& group,
                                         const std::vector<at::Tensor>& tensors, int root,
                                         const ObjectOptions& options) {
  const std::string mine = group.rank() == root ? to_bytes(tensors) : std::string();
  return tensors_from_bytes(broadcast_object(group, mine, root, options));
}

std::vector<std::vector<at::Tensor>> all_gather_object(ProcessGroup& group,
                                                       const std::vector<at::Tensor>& tensors,
                                                       const ObjectOptions& options) {
  return all_from_bytes(all_gather_object(group, to_bytes(tensors), options));
}

std::vector<std::vector<at::Tensor>> gather_objects(ProcessGroup& group,
                                                    const std::vector<at::Tensor>& tensors,
                                                    int root, const ObjectOptions& options) {
  return all_from_bytes(gather_objects(group, to_bytes(tensors), root, options));
}

}  // namespace paceline
