#pragma once

// A tensor's elements as the engine's buffers, without a copy.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "paceline/engine/collectives/backends/backend_list.h"
#include "paceline/engine/collectives/buffer.h"
#include "paceline/engine/collectives/call.h"
#include "paceline/engine/collectives/work.h"

namespace paceline {

// Error(kUnsupported) names the type when the engine has none for it.
Dtype to_dtype(at::ScalarType type);
at::ScalarType to_scalar_type(Dtype dtype);
inline bool is_16_bit(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

// True when the tensor's elements fill one range of memory, in whatever order of dimensions
// (contiguous, channels_last, transposed).
bool is_dense(const at::Tensor& tensor);

// All elements in memory order, on the CPU or in CUDA memory. Requires: is_dense(tensor);
// Error(kInvalid) otherwise, kUnsupported for other devices. The view is valid as long as the
// tensor's storage.
Buffer dense_view(const at::Tensor& tensor);
// As dense_view. Error(kUnsupported) for tensors off the CPU.
Buffer dense_cpu_view(const at::Tensor& tensor);

// The hash of a tensor's sizes and strides, which ranks compare when they communicate it in the
// order of its memory (shape_of(), engine/collectives/collective.h). Requires: is_dense(tensor).
std::uint32_t shape_of(const at::Tensor& tensor);

// For messages: "Float [2, 3], undefined".
std::string shapes_of(const std::vector<at::Tensor>& tensors);
// "Float [2, 3], strides [1, 2]; ..." of the first eight.
std::string layouts_of(const std::vector<at::Tensor>& tensors);

// The tensors of a call: what it keeps alive, and names in an error.
struct GivenTensors : TensorShapes {
  std::vector<at::Tensor> all;
  std::string describe() const override { return layouts_of(all); }
};

// Whether collectives of a group with this choice reach memory of `device`: Error(kUnsupported)
// that says what is there, and how to choose a backend that does.
void require_backend_for(c10::Device device, const BackendChoice& choice, const std::string& what);

// The place of a call on a device's tensors in the order of LibTorch's streams: behind what the
// calling thread's current stream has been given, and before what the current stream of a thread
// that waited for it will be given. So c10d orders its NCCL.
//
// By LibTorch's own interface to devices, which a CUDA build fills when it is loaded: nothing here
// is linked to CUDA. Thread safety: that of DeviceOrder.

// For a call that is made now. Error(kUnsupported) when the LibTorch at hand has no such devices.
std::shared_ptr<const DeviceOrder> order_in_current_stream(c10::Device device);

// Where the elements of many tensors lie in one flat array of one type: one tensor after the other,
// each from a cache line on, so that no two share one. Gradient buckets and sharded optimizers use
// it. The array can be cut into equal parts, one a rank; a part is a whole number of blocks, so
// that the blocks of an array do not depend on the number of parts. Costs at most 63 bytes a
// tensor, or a block where that is larger.
//
// A tensor cut into blocks from its own beginning has each of them within a block of the array, and
// so within a part: sums over its blocks are the same whatever the array and the number of parts.
// A value.

class FlatLayout {
 public:
  FlatLayout() : FlatLayout(at::kFloat) {}
  explicit FlatLayout(at::ScalarType type) : type_(type) {}
  static constexpr std::int64_t kBlock = 1024, kSmallBlock = 64;

  // Of all `tensors`, with a count that `num_parts` parts of whole blocks share equally. `block`:
  // 0 for kBlock, or kSmallBlock where that leaves the tensors less than 65,536 elements.
  // Requires: dense tensors of one type; float32 when there are none.
  FlatLayout(const std::vector<at::Tensor>& tensors, int num_parts, std::int64_t block = 0);

  // Adds a tensor of `count` elements behind the others and returns its offset.
  std::int64_t append(std::int64_t count);

  at::ScalarType type() const { return type_; }
  // Elements, padding included; a multiple of the number of parts.
  std::int64_t count() const { return count_; }
  std::int64_t part_count() const { return count_ / num_parts_; }
  // Elements of a block.
  std::int64_t block() const { return block_; }
  // In elements, from the beginning of the array.
  std::int64_t offset(std::size_t tensor) const { return offsets_[tensor]; }

  // The elements of `flat` that belong to `tensor`, in the shape and memory format of `like`. Not a
  // view in autograd's sense: optimizers detach gradients in place, which views refuse. Keeps
  // `flat` alive.
  at::Tensor place(const at::Tensor& flat, std::size_t tensor, const at::Tensor& like) const;

 private:
  at::ScalarType type_;
  std::int64_t num_parts_ = 1;
  std::int64_t block_ = 0;  // 0: tensors only follow each other
  std::vector<std::int64_t> offsets_;
  std::int64_t count_ = 0;
};

// A gradient of so many bytes is communicated alone, where it lies; smaller ones share an array.
inline constexpr std::size_t kAloneBytes = 512 << 10;

// The bytes of all elements.
std::size_t total_bytes(const std::vector<at::Tensor>& tensors);

}  // namespace paceline
