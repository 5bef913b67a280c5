#pragma once

// A layer whose rows are in a table that workers share (engine/tables): its forward pass pulls
// rows, its backward pass pushes their gradients, and the optimizer runs where the rows are.
//
//   auto rows = tables.open_rows("item", {.width = 64, .optimizer = tables::RowAdagrad{0.02}});
//   tables::RemoteEmbedding embedding(std::move(rows));
//   auto features = embedding->forward(batch.ids);     // [samples, fields, 64]
//   embedding->prefetch(next_batch.ids);               // pulled while the rest computes
//   loss_of(features, batch).backward();               // pushes
//   embedding->tick();
//
// The layer has no parameters of its own, so the model around it can be trained by
// DistributedDataParallel: rows asynchronously, the dense part by all-reduce.
//
// Thread safety: none; one thread trains. The prefetch has a thread of its own.

#include <cstdint>
#include <memory>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "paceline/engine/tables/rows.h"

namespace paceline::tables {

class RowPrefetcher;

class RemoteEmbeddingImpl final : public torch::nn::Module {
 public:
  // `gradient_scale` multiplies the gradients before they are pushed. If each of W workers takes
  // the mean loss of its own samples and the dense part averages its gradients over the workers,
  // 1.0 / W gives a synchronous table the gradients of the mean loss of all samples.
  explicit RemoteEmbeddingImpl(std::shared_ptr<Rows> rows, double gradient_scale = 1);
  ~RemoteEmbeddingImpl() override;

  // Returns the rows of `ids`, an int64 tensor on the CPU of any shape, as float32 [...ids, width].
  // While the module is training and gradients are enabled, the backward pass pushes the gradients
  // of all ids in one push. Throws as Rows::pull(), and Error(kInvalid) for another type or device.
  //
  // The backward pass throws as Rows::push(), for instance for a gradient that is not finite;
  // Error(kInvalid) if the graph was freed; Error(kUnsupported) for gradients of gradients.
  at::Tensor forward(const at::Tensor& ids);

  // Begins to pull the rows for the next forward() on another thread. It may be called for several
  // batches, in the order of their use. If a forward() has other ids, all prefetched batches are
  // dropped. Rows that this worker pushes in between are pulled again. With a synchronous or
  // bounded table the pull begins at the next tick().
  void prefetch(const at::Tensor& ids);

  // Calls Rows::tick(), and begins the pulls that waited for it.
  void tick();

  Rows& rows() const { return *rows_; }

 private:
  const std::shared_ptr<Rows> rows_;  // shared with the user and the graph's nodes
  const double gradient_scale_;
  std::shared_ptr<RowPrefetcher> prefetcher_;  // shared with the graph's nodes
};
TORCH_MODULE(RemoteEmbedding);

}  // namespace paceline::tables
