#pragma once

// Which parameters are only one rank's share of a model: those of a pipeline's stages, of layers
// that are divided among ranks, of branches on different ranks. What reads all parameters of a
// rank, such as the norm of the gradients, would otherwise take them for the whole model. The code
// that divides a model notes the shares; the process keeps them as long as the parameters live.
//
// Thread safety: any thread.

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

struct ModelShare {
  std::string part;         // what the parameter belongs to: "a stage of a pipeline of 2 ranks"
  bool is_divided = false;  // the parameter itself is a part of a larger one
};

void note_model_share(const std::vector<at::Tensor>& parameters, const ModelShare& share);
// These have a whole model's gradients from now on.
void forget_model_share(const std::vector<at::Tensor>& parameters);

struct FoundShare {
  std::size_t parameter = 0;  // its number
  ModelShare share;
};
// The first parameter that is noted; with `divided_only` the first that is itself divided.
std::optional<FoundShare> first_model_share(const std::vector<at::Tensor>& parameters,
                                            bool divided_only = false);

// Names of parameters, kept with the tensors, so that an error can tell which one it is about
// wherever it is found: at::Tensor::name().
//
// Thread safety: none.

// Each parameter that has no name gets its first one in the module, "fc1.weight".
void name_parameters(const torch::nn::Module& module);

// Whether a program has written to a tensor since a moment. LibTorch counts the operations that
// write to a tensor or to a view of it, and a tensor that was given other memory (set_data()) has
// another storage. Memory that changed by itself shows in neither, nor does a write through data()
// or data_ptr().
//
// Thread safety: none.

class WriteMark {
 public:
  // Holds for no tensor.
  WriteMark() = default;
  explicit WriteMark(const at::Tensor& tensor);

  // Requires: the tensor of the constructor.
  bool holds_for(const at::Tensor& tensor) const;

 private:
  // Keeps the storage's address from being used again, not its memory.
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage_;
  const void* data_ = nullptr;
  std::int64_t version_ = 0;
};

// Counts a write past LibTorch's operations, as they would: marks of the tensor hold no more.
void count_write(const at::Tensor& tensor);

// The number of each tensor, by TensorImpl; of one that is there twice the first.
std::unordered_map<const c10::TensorImpl*, std::size_t> numbers_by_tensor(
    const std::vector<at::Tensor>& tensors);

}  // namespace paceline
