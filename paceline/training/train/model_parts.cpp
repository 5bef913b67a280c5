#include "paceline/training/train/model_parts.h"

#include <algorithm>
#include <string>

#include "paceline/training/models/division.h"

namespace paceline::train {

optim::ModelParts model_parts(torch::nn::Module& module, const ModelGroups& groups,
                              const std::vector<at::Tensor>& tied) {
  optim::ModelParts parts{.model = groups.model, .layers = groups.layers};
  models::visit_parameters(
      module, [&](const std::string&, at::Tensor& parameter, const auto& division) {
        const bool is_divided = division && division->parts > 1;
        if (is_divided) parts.divided.push_back(parameter);
        const bool is_tied = std::ranges::any_of(
            tied, [&](const at::Tensor& other) { return other.is_same(parameter); });
        if (is_tied || (!is_divided && groups.layers->rank() > 0))
          parts.copies.push_back(parameter);
      });
  return parts;
}

}  // namespace paceline::train
