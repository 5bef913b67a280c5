#pragma once

// Makes a transformer tensor-parallel with layers (models::Layers) that divide heads, the MLP's
// features and the vocabulary among the ranks of a group.
//
//   DeviceMesh mesh(world, {{"dp", 2}, {"tp", 2}});
//   models::Gpt model(options, tensor_parallel_layers(mesh.group("tp")));
//   DistributedDataParallel replicas(model.ptr(), mesh.group("dp"));
//
// If LibTorch's generator is seeded equally on every rank, each rank gets its part of the weights
// of the dense model, bit for bit; full_state_dict.h reads and writes whole weights. Logits, loss
// and gradients equal those of the dense model except for rounding. The gradients of parameters
// that every rank has whole (norms, positions, the biases of last layers) are the same on every
// rank, so any optimizer can be used. A norm over all gradients must be summed over the ranks,
// because each rank has only a part of the gradients.
//
// Each layer of the model costs two all-reduces of [N, T, width] in the forward pass and two in the
// backward pass. With `sequence_parallel` each of them becomes an all-gather and a reduce-scatter
// of the same number of bytes, and the norms, dropout and residuals between them take only a part
// of the time and memory. The number of ranks must then divide the positions T, so generation, one
// position at a time, is not possible.
//
// All ranks of the group must get the same tokens; models::generate() checks that they have the
// same prompt and options. For dropout, call seed_rank() with the same number on all ranks of the
// group, and with other numbers on ranks that have other samples: in replicated activations every
// rank drops the same elements, in divided activations each rank drops different ones.
//
// The model's constructor throws Error(kInvalid), which names the rank, the layer and what cannot
// be divided.
//
// Thread safety: none; one thread trains. The layers keep the group alive.

#include "paceline/training/autograd/differentiable_collectives.h"
#include "paceline/training/models/layers.h"

namespace paceline {

struct TensorParallelOptions {
  // Norms, dropout and residuals process a part of the positions. For transformers only.
  bool sequence_parallel = false;
  // True: logits of the whole vocabulary on every rank. False: this rank's part of the logits, for
  // vocab_parallel_cross_entropy(), which saves an all-gather and the memory of the whole logits.
  bool gather_logits = true;
};

models::Layers tensor_parallel_layers(const GroupPtr& group,
                                      const TensorParallelOptions& options = {});

}  // namespace paceline
