#pragma once

// The network that ddp_reference.py trains, trained here in the same way.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/parallel/sync_batch_norm.h"

#include "tests/parity/reference.h"

namespace paceline::parity {

inline constexpr int kDdpRanks = 2;
inline constexpr std::int64_t kDdpSteps = 20;
inline constexpr std::int64_t kDdpBatch = 8;
inline constexpr std::int64_t kDdpWidth = 20;

// Like the reference's network. The norm exists in every case, so that all cases have the same
// weights.
struct DdpNet : torch::nn::Module {
  explicit DdpNet(const std::shared_ptr<ProcessGroup>& group, bool with_norm)
      : with_norm(with_norm) {
    first = register_module("first", torch::nn::Linear(kDdpWidth, 30));
    extra = register_module("extra", torch::nn::Linear(30, 30));
    norm = register_module("norm", SyncBatchNorm(torch::nn::BatchNormOptions(30), group));
    last = register_module("last", torch::nn::Linear(30, 10));
    for (auto& parameter : norm->parameters()) parameter.requires_grad_(with_norm);
  }
  at::Tensor forward(const at::Tensor& input, bool use_extra) {
    at::Tensor features = first(input);
    features = at::relu(with_norm ? norm(features) : features);
    if (use_extra) features = features + extra(features);
    return last(features);
  }
  bool with_norm;
  torch::nn::Linear first{nullptr}, extra{nullptr}, last{nullptr};
  SyncBatchNorm norm{nullptr};
};

// The reference for a suite, which runs once for all its tests.
template <class Suite>
class DdpReferenceTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    reference_ = std::make_unique<Reference>("ddp_reference.py", Suite::kCases);
    ASSERT_EQ(reference_->failure(), "");
  }
  static void TearDownTestSuite() { reference_.reset(); }
  static const Reference& reference() { return *reference_; }

  static void take_weights(torch::nn::Module& module) {
    set_weights(module, reference().tensor("weights.f32", {flat(module.parameters()).numel()}));
  }
  static at::Tensor inputs() {
    return reference().tensor("inputs.f32", {kDdpSteps, kDdpRanks, kDdpBatch, kDdpWidth});
  }
  static at::Tensor labels() {
    return reference().tensor("labels.i64", {kDdpSteps, kDdpRanks, kDdpBatch}, at::kLong);
  }
  static std::vector<at::Tensor> trained_of(const torch::nn::Module& module) {
    std::vector<at::Tensor> trained;
    for (const auto& parameter : module.parameters()) {
      if (parameter.requires_grad()) trained.push_back(parameter);
    }
    return trained;
  }
  static void drop_gradients(const std::vector<at::Tensor>& parameters) {
    for (const auto& parameter : parameters) parameter.mutable_grad() = at::Tensor();
  }
  // Throws unless the weights are those of `name`, to `tolerance` (absolute). Returns the largest
  // difference.
  static double require_weights(const std::string& name, const torch::nn::Module& module,
                                double tolerance) {
    const at::Tensor weights = flat(module.parameters());
    const at::Tensor pythons = reference().tensor(name + ".final.f32", {weights.numel()});
    const double apart = (weights - pythons).abs().max().item<double>();
    check(apart <= tolerance, "{}: a weight is {:.1e} from Python's", name, apart);
    return apart;
  }

 private:
  inline static std::unique_ptr<Reference> reference_;
};

}  // namespace paceline::parity
