#pragma once

// What makes a transformer tensor-parallel: the layers (models::Layers) that divide heads, the
// MLP's features and the vocabulary among the ranks of a group.
//
//   DeviceMesh mesh(world, {{"dp", 2}, {"tp", 2}});
//   models::Gpt model(options, tensor_parallel_layers(mesh.group("tp")));
//   DistributedDataParallel replicas(model.ptr(), mesh.group("dp"));
//
// Built with LibTorch's generator seeded alike on every rank, the model has the weights of the
// dense model, each rank its part, bit for bit; dense_weights.h reads and writes whole ones.
// Logits, loss and gradients are the dense model's but for rounding, and the gradients of what
// every rank has whole (norms, positions, the biases of last layers) are the same on every rank:
// an optimizer needs to know nothing. A norm over all gradients does: gradients of parts are parts
// of it.
//
// Each layer of the model costs two all-reduces of [N, T, width] forward and two backward. With
// `sequence_parallel` each becomes an all-gather and a reduce-scatter, the same bytes, and what
// lies between (norms, dropout, residuals) takes a part of time and memory; the positions T must
// divide among the ranks, so generation, one position at a time, is not possible then.
//
// All ranks of the group are given the same tokens; models::generate() checks that they have the
// same prompt and options. For dropout, call seed_rank() with the same number on all of them, and
// with another number for other samples: activations that every rank has drop the same elements
// everywhere, divided ones (part_dropout.h) do not.
//
// Error(kInvalid) from the model's constructor names rank, layer and what does not divide.
//
// Thread safety: that of a module; one thread trains. The layers keep the group alive.

#include "paceline/training/autograd/regions.h"
#include "paceline/training/models/layers.h"

namespace paceline {

struct TensorParallelOptions {
  // Norms, dropout and residuals work on a part of the positions. For transformers only.
  bool sequence_parallel = false;
  // Logits of the whole vocabulary on every rank. False: each rank's part, for
  // vocab_parallel_cross_entropy(), which saves an all-gather and their memory.
  bool gather_logits = true;
};

models::Layers tensor_parallel_layers(const GroupPtr& group,
                                      const TensorParallelOptions& options = {});

}  // namespace paceline
