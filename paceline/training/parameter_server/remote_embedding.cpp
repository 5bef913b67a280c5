#include "paceline/training/parameter_server/remote_embedding.h"

#include <atomic>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/tensor/libtorch_version.h"

namespace paceline::tables {

namespace {

using torch::autograd::variable_list;

std::vector<Id> ids_in(const at::Tensor& ids, const char* operation, const std::string& table) {
  check(ids.defined() && ids.scalar_type() == at::kLong && ids.is_cpu(),
        "{}: table '{}': ids are int64 on the CPU, not {}", operation, table,
        ids.defined() ? ids.toString() + " on " + ids.device().str() : "undefined");
  const at::Tensor flat = ids.contiguous();
  const auto* const first = flat.data_ptr<std::int64_t>();
  return {first, first + flat.numel()};
}

// A node of the graph whose backward pass pushes the gradients of a forward pass.
class RowsBackward final : public torch::autograd::Node {
 public:
  RowsBackward(std::shared_ptr<Rows> rows, std::shared_ptr<RowPrefetcher> prefetcher,
               std::vector<Id> ids, double scale)
      : RowsBackward(std::move(rows), std::move(prefetcher), std::move(ids), scale,
                     at::empty({0}).requires_grad_()) {}

  std::string name() const override { return "RowsBackward"; }
  void will_release_variables() override { retains_ = false; }

 private:
  RowsBackward(std::shared_ptr<Rows> rows, std::shared_ptr<RowPrefetcher> prefetcher,
               std::vector<Id> ids, double scale, at::Tensor anchor)
      : Node(torch::autograd::edge_list{torch::autograd::impl::gradient_edge(anchor)}),
        anchor_(std::move(anchor)),
        rows_(std::move(rows)),
        prefetcher_(std::move(prefetcher)),
        ids_(std::move(ids)),
        scale_(scale) {}

  variable_list apply(variable_list&& gradients) override {
    const std::string& table = rows_->name();
    if (at::GradMode::is_enabled())
      fail(ErrorCode::kUnsupported, "table '{}' has no gradients of gradients", table);
    check(!is_released_,
          "table '{}': a second backward pass through its rows: the first one freed the graph; "
          "call backward() with retain_graph",
          table);
    is_released_ = !retains_;
    if (gradients[0].defined()) {
      at::Tensor all = gradients[0].to(at::kFloat).contiguous();
      if (scale_ != 1) all = all * scale_;
      prefetcher_->note_push(ids_);
      rows_->push(ids_, {all.data_ptr<float>(), static_cast<std::size_t>(all.numel())});
      prefetcher_->note_push(ids_);  // for a pull that began during the push
    }
    return variable_list(num_outputs());  // the gradient of the anchor is undefined
  }

  const at::Tensor anchor_;  // exists so that the node has an input that requires a gradient
  const std::shared_ptr<Rows> rows_;
  const std::shared_ptr<RowPrefetcher> prefetcher_;
  const std::vector<Id> ids_;
  const double scale_;
  std::atomic<bool> retains_{true}, is_released_{false};
};

}  // namespace

RemoteEmbeddingImpl::RemoteEmbeddingImpl(std::shared_ptr<Rows> rows, double gradient_scale)
    : rows_(std::move(rows)),
      gradient_scale_(gradient_scale),
      prefetcher_(std::make_shared<RowPrefetcher>(*rows_)) {}

RemoteEmbeddingImpl::~RemoteEmbeddingImpl() = default;

at::Tensor RemoteEmbeddingImpl::forward(const at::Tensor& ids) {
  std::vector<Id> all = ids_in(ids, "forward", rows_->name());
  const auto width = static_cast<std::int64_t>(rows_->width());
  at::Tensor values;
  if (auto pulled = prefetcher_->take(all)) {
    values = std::move(*pulled);
  } else {
    values = at::empty({static_cast<std::int64_t>(all.size()), width});
    rows_->pull(all, {values.data_ptr<float>(), static_cast<std::size_t>(values.numel())});
  }
  std::vector<std::int64_t> shape = ids.sizes().vec();
  shape.push_back(width);
  values = values.view(shape);
  if (!is_training() || !at::GradMode::is_enabled()) return values;
  torch::autograd::create_gradient_edge(
      values, make_node<RowsBackward>(rows_, prefetcher_, std::move(all), gradient_scale_));
  return values;
}

void RemoteEmbeddingImpl::prefetch(const at::Tensor& ids) {
  prefetcher_->start(ids_in(ids, "prefetch", rows_->name()));
}

void RemoteEmbeddingImpl::tick() {
  rows_->tick();
  prefetcher_->note_tick();
}

}  // namespace paceline::tables
