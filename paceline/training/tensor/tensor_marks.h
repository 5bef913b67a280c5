#pragma once

// Facts that are recorded about tensors: that a parameter is a share of a model, its name, its
// gradient, and whether a tensor was written to.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <torch/nn/module.h>

namespace paceline {

// Marks parameters that are only one rank's share of a model: parameters of a pipeline's stages, of
// layers that are divided among ranks, and of branches on different ranks. Without the mark, for
// instance, the norm of all gradients of one rank would be taken for the norm of the whole model.
// The code that divides a model records the shares; the process keeps them as long as the
// parameters live.
//
// Thread safety: any thread may call these functions.
struct ModelShare {
  std::string part;  // the part to which the parameter belongs: "a stage of a pipeline of 2 ranks"
  bool is_divided = false;  // the parameter itself is a part of a larger one
};

void note_model_share(const std::vector<at::Tensor>& parameters, const ModelShare& share);
// Removes the mark: these parameters then count as having the gradients of a whole model.
void forget_model_share(const std::vector<at::Tensor>& parameters);

struct FoundShare {
  std::size_t parameter = 0;  // index of the parameter in the list
  ModelShare share;
};
// Returns the first parameter that is a share; with `divided_only`, the first that is itself
// divided.
std::optional<FoundShare> first_model_share(const std::vector<at::Tensor>& parameters,
                                            bool divided_only = false);

// Sets the name of each parameter that has no name yet to its name in the module, such as
// "fc1.weight". A parameter with several names gets the first one. The name is stored in the tensor
// (at::Tensor::name()), so that errors everywhere can name a parameter. Thread safety: none.
void name_parameters(const torch::nn::Module& module);

// Returns `.grad` of a parameter, which may be undefined, for the library's own reads and writes.
// If the gradient is divided among ranks, grad() and mutable_grad() outside of a backward pass
// count as the program reading or dropping it (guard_divided_gradient() in
// training/optim/parameters/divided_parameters.h); own_gradient() does not. Thread safety: none for
// calls with the same parameter.
at::Tensor& own_gradient(const at::Tensor& parameter);

// Detects whether a tensor was written to since the mark was made: LibTorch counts the operations
// that write to a tensor or to a view of it, and a tensor that was given other memory (set_data())
// has another storage. The mark does not detect writes through data() or data_ptr(), nor writes by
// another process.
//
// Thread safety: none.
class WriteMark {
 public:
  // A mark that holds for no tensor.
  WriteMark() = default;
  explicit WriteMark(const at::Tensor& tensor);

  // Whether the tensor has not been written to. Requires: `tensor` is the one that was passed to
  // the constructor.
  bool holds_for(const at::Tensor& tensor) const;

 private:
  // Keeps the storage's address from being reused; does not keep its memory.
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage_;
  const void* data_ = nullptr;
  std::int64_t version_ = 0;
};

// Counts a write that bypassed LibTorch's operations: marks of the tensor no longer hold.
void count_write(const at::Tensor& tensor);

// Returns the index of each tensor, by TensorImpl; a tensor that is listed twice has its first
// index.
std::unordered_map<const c10::TensorImpl*, std::size_t> numbers_by_tensor(
    const std::vector<at::Tensor>& tensors);

}  // namespace paceline
