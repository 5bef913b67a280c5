#pragma once

// Tensors as the engine's types, without a copy: element types, buffers, layouts; and many tensors
// in one flat array, or as bytes.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "paceline/engine/collectives/buffer.h"
#include "paceline/engine/collectives/call.h"
#include "paceline/engine/collectives/device_order.h"
#include "paceline/engine/collectives/work.h"

namespace paceline {

// Error(kUnsupported), which names the type, if the engine does not support it.
Dtype to_dtype(at::ScalarType type);
at::ScalarType to_scalar_type(Dtype dtype);
inline bool is_16_bit(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

// Whether the tensor's elements fill one range of memory, in any order of dimensions (contiguous,
// channels_last, transposed).
bool is_dense(const at::Tensor& tensor);

// Returns all elements in memory order, on the CPU or in CUDA memory. Error(kInvalid) unless the
// tensor is dense, kUnsupported for other devices. The view is valid while the tensor's storage
// exists.
Buffer dense_view(const at::Tensor& tensor);
// Like dense_view(), but with Error(kUnsupported) for tensors that are not on the CPU.
Buffer dense_cpu_view(const at::Tensor& tensor);

// The hash of a tensor's sizes and strides, which ranks compare when they communicate the tensor in
// the order of its memory (shape_of(), engine/collectives/collective.h). Requires:
// is_dense(tensor).
std::uint32_t shape_of(const at::Tensor& tensor);

// Describes tensors in messages, for instance as "Float [2, 3], undefined".
std::string shapes_of(const std::vector<at::Tensor>& tensors);
// Like shapes_of(), with strides, for the first eight tensors: "Float [2, 3], strides [1, 2]; ...".
std::string layouts_of(const std::vector<at::Tensor>& tensors);

// The tensors of a call; this object keeps them alive and describes them in errors.
struct GivenTensors : TensorShapes {
  std::vector<at::Tensor> all;
  std::string subject = {};  // empty: only the tensors are described
  std::string describe() const override {
    return subject.empty() ? layouts_of(all) : subject + ": " + layouts_of(all);
  }
};

// Error(kUnsupported), which begins with `what`, unless collectives can be carried out on memory of
// this device: of the CPU, or of a CUDA device that this LibTorch supports.
void require_device(c10::Device device, const std::string& what);

// Offsets of many tensors in one flat array of one type (a gradient bucket, or an optimizer's
// state). A copyable value.
//
// The tensors are stored in sequence, each from the beginning of a cache line, so that no two of
// them share a line. The array can be cut into equal parts, one for each rank. A part is a whole
// number of blocks, so the blocks of an array do not depend on the number of parts. For each tensor
// the padding is at most 63 bytes, or one block if that is larger.
//
// If a tensor is cut into blocks from its own beginning, each of these lies within a block of the
// array, and therefore within a part: sums over the tensor's blocks have the same bits for any
// array and any number of parts.
class FlatLayout {
 public:
  FlatLayout() : FlatLayout(at::kFloat) {}
  explicit FlatLayout(at::ScalarType type) : type_(type) {}
  static constexpr std::int64_t kBlock = 1024, kSmallBlock = 64;

  // Places all `tensors`; the count divides into `num_parts` equal parts of whole blocks. `block`
  // 0: kBlock, or kSmallBlock for fewer than 65,536 elements. Requires: dense tensors of one type.
  // If `tensors` is empty, the type is float32.
  FlatLayout(const std::vector<at::Tensor>& tensors, int num_parts, std::int64_t block = 0);

  // Places a tensor of `count` elements after the others and returns its offset.
  std::int64_t append(std::int64_t count);

  at::ScalarType type() const { return type_; }
  // The number of elements with padding, a multiple of the number of parts.
  std::int64_t count() const { return count_; }
  std::int64_t part_count() const { return count_ / num_parts_; }
  // The number of elements of a block.
  std::int64_t block() const { return block_; }
  // The index of the tensor's first element in the array.
  std::int64_t offset(std::size_t tensor) const { return offsets_[tensor]; }

  // Returns the elements of `flat` that belong to `tensor`, in the shape and memory format of
  // `like`. Not a view in autograd's sense, because optimizers detach gradients in place, which is
  // not allowed for views. Keeps `flat` alive.
  at::Tensor place(const at::Tensor& flat, std::size_t tensor, const at::Tensor& like) const;

 private:
  at::ScalarType type_;
  std::int64_t num_parts_ = 1;
  std::int64_t block_ = 0;  // 0: no blocks; tensors are only placed in sequence
  std::vector<std::int64_t> offsets_;
  std::int64_t count_ = 0;
};

// A gradient of at least this many bytes is communicated alone, in place, because the copy into a
// shared array would cost more than a separate collective; smaller gradients share an array.
inline constexpr std::size_t kAloneBytes = 512 << 10;

// The total bytes of all elements of the tensors.
std::size_t total_bytes(const std::vector<at::Tensor>& tensors);

// Convert tensors to bytes and back. Each tensor is written as its type, its number of dimensions,
// its sizes and its elements. Error(kCorrupt) for bytes that are not such a list. Thread safety:
// any thread may call them.
std::string to_bytes(const std::vector<at::Tensor>& tensors);
std::vector<at::Tensor> tensors_from_bytes(const std::string& bytes);

}  // namespace paceline
