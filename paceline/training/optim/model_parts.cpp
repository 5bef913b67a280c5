#include "paceline/training/optim/model_parts.h"

#include "paceline/engine/core/check.h"
#include "paceline/training/tensor/model_share.h"

namespace paceline::optim {
namespace {

constexpr const char* kCure =
    "tell the optimizer of the other ranks, optimizer.set_model_parts({.model = ...}), and give it "
    "the optimizer instead of parameters (docs/model_parallelism.md)";

}  // namespace

void require_whole_model(const char* caller, const std::vector<at::Tensor>& parameters) {
  const auto found = first_model_share(parameters);
  if (!found) return;
  fail(ErrorCode::kInvalid,
       "{}: parameter {} is in {}: the gradients of this rank are not the whole model's, and their "
       "norm differs from rank to rank; {}",
       caller, found->parameter, found->share.part, kCure);
}

void require_whole_parameters(const char* caller, const std::vector<at::Tensor>& parameters) {
  const auto found = first_model_share(parameters, true);
  if (!found) return;
  fail(ErrorCode::kInvalid,
       "{}: parameter {} is in {}: its norm is not that of the whole parameter; {}", caller,
       found->parameter, found->share.part, kCure);
}

}  // namespace paceline::optim
