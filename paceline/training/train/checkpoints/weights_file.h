#pragma once

// Weights files: reads and writes safetensors files. Element types that the engine does not support
// can be converted to wider types, without changing any value.
//
// Thread safety: the functions share no state.

#include <functional>
#include <string>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "paceline/training/models/layers.h"

namespace paceline {

// Weights files are safetensors files, which Python and other frameworks can read. Use them to
// pass on a model's weights; to continue a training run, use a checkpoint (checkpointer.h).
//
//   write_weights("model.safetensors", weights_of(*model));
//   models::load_hugging_face(gpt, read_weights("gpt2"));  // a folder from Hugging Face

// Copies the tensors into the module. If names, shapes or element types differ, copies nothing and
// throws Error(kInvalid), which lists the first 8 differences.
void load_weights(torch::nn::Module& module, const StateDict& tensors);
// For LibTorch's module holders (TORCH_MODULE).
template <class Contained>
void load_weights(const torch::nn::ModuleHolder<Contained>& holder, const StateDict& tensors) {
  load_weights(*holder.ptr(), tensors);
}

// Replaces the file with a single rename, so that a reader sees either the whole old file or the
// whole new one. The tensors may be on any device and have any strides. Error(kInvalid) for a
// folder, kSystem if a system call fails, kUnsupported for an unsupported element type.
void write_weights(const std::string& path, const StateDict& tensors);

struct ReadWeightsOptions {
  // Leaves out the tensors for whose names this function returns true, whatever their element type.
  std::function<bool(const std::string& name)> skip = nullptr;
  // Converts float16 and bfloat16 to float32, and some types that the engine does not support:
  // F8_E4M3 and F8_E5M2 to float32, U16 to int32, U32 to int64. No value changes.
  bool widen = false;
};

// Reads all tensors, on the CPU and contiguous. `path`: a file, or a folder or an index in Hugging
// Face's format, whose shards are read. Links are followed. Error(kCorrupt) when a file is missing,
// is not a regular file or is not valid, and when the shards do not contain exactly the tensors
// that the index lists; kUnsupported, which names the tensor, for an element type that the engine
// does not support.
StateDict read_weights(const std::string& path, const ReadWeightsOptions& options = {});

}  // namespace paceline
