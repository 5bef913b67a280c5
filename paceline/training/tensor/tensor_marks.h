#pragma once

// Facts that are noted about tensors: that a parameter is a share of a model, its name, and whether
// a tensor was written to.

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

// Marks parameters that are only one rank's share of a model: those of a pipeline's stages, of
// layers that are divided among ranks, of branches on different ranks. Without the mark, the norm
// of all gradients of a rank, for instance, would be taken for that of the whole model. The code
// that divides a model notes the shares; the process keeps them as long as the parameters live.
//
// Thread safety: any thread.
struct ModelShare {
  std::string part;         // what the parameter belongs to: "a stage of a pipeline of 2 ranks"
  bool is_divided = false;  // the parameter itself is a part of a larger one
};

void note_model_share(const std::vector<at::Tensor>& parameters, const ModelShare& share);
// These parameters have the gradients of a whole model from now on.
void forget_model_share(const std::vector<at::Tensor>& parameters);

struct FoundShare {
  std::size_t parameter = 0;  // its place in the list
  ModelShare share;
};
// The first parameter that is a share; with `divided_only` the first that is itself divided.
std::optional<FoundShare> first_model_share(const std::vector<at::Tensor>& parameters,
                                            bool divided_only = false);

// Gives each parameter that has none its name in the module, "fc1.weight", or the first of several.
// The name stays with the tensor (at::Tensor::name()), so errors can name a parameter everywhere.
// Thread safety: none.
void name_parameters(const torch::nn::Module& module);

// Tells whether a tensor was written to since the mark was made: LibTorch counts the operations
// that write to a tensor or to a view of it, and a tensor that was given other memory (set_data())
// has another storage. The mark does not see writes through data() or data_ptr(), nor writes of
// another process.
//
// Thread safety: none.
class WriteMark {
 public:
  // Holds for no tensor.
  WriteMark() = default;
  explicit WriteMark(const at::Tensor& tensor);

  // Whether the tensor is unchanged. Requires: the tensor of the constructor.
  bool holds_for(const at::Tensor& tensor) const;

 private:
  // Keeps the storage's address from being used again, not its memory.
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage_;
  const void* data_ = nullptr;
  std::int64_t version_ = 0;
};

// Counts a write that bypassed LibTorch's operations: marks of the tensor no longer hold.
void count_write(const at::Tensor& tensor);

// The number of each tensor, by TensorImpl; a tensor that is listed twice has its first number.
std::unordered_map<const c10::TensorImpl*, std::size_t> numbers_by_tensor(
    const std::vector<at::Tensor>& tensors);

}  // namespace paceline
