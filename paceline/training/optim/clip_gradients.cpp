#include "paceline/training/optim/clip_gradients.h"

#include <algorithm>
#include <cmath>
#include <span>

#include <ATen/ATen.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/collectives/purpose.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/optim_kernels/kernels.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/tensor_blocks.h"

namespace paceline::optim {
namespace {

using BlockValue = std::function<double(const float*, std::int64_t)>;

// The gradients to clip.
struct Gradients {
  std::vector<OrderedGradient> ordered;  // for reading
  std::vector<at::Tensor> memory;        // for writing
  std::vector<std::int64_t> sizes;       // [ordered]: the number of elements of the whole gradient
  ProcessGroup* group = nullptr;  // the ranks with the other parts; null: the gradients are whole
  ProcessGroup* model = nullptr;  // the ranks that divide the model; null: none
  std::vector<bool> counts = {};  // [ordered]: whether the gradient counts in norms on this rank
};

Gradients whole_gradients(const std::vector<at::Tensor>& parameters) {
  const auto is_divided = [](const at::Tensor& parameter) {
    return OptimizerCore::divides_gradient_of(parameter);
  };
  check(std::ranges::none_of(parameters, is_divided),
        "the gradients of these parameters are divided among the ranks (fully_shard), and this "
        "rank has none of them whole: pass the optimizer, not its parameters");
  Gradients all{ordered_gradients(parameters), gradients_of(parameters), {}, nullptr};
  for (const auto& gradient : all.ordered) all.sizes.push_back(gradient.tensor.numel());
  all.counts.assign(all.ordered.size(), true);
  return all;
}

Gradients divided_gradients(const Optimizer& optimizer) {
  Gradients own{core_of(optimizer).gradients(),
                core_of(optimizer).gradient_memory(),
                {},
                core_of(optimizer).shard_group()};
  for (const auto& gradient : own.ordered)
    own.sizes.push_back(optimizer.parameters()[gradient.parameter].numel());
  return own;
}

Gradients gradients_for(const Optimizer& optimizer) {
  Gradients all = core_of(optimizer).shards_gradients() ? divided_gradients(optimizer)
                                                        : whole_gradients(optimizer.parameters());
  all.model = core_of(optimizer).model_group();
  all.counts.clear();
  for (const auto& gradient : all.ordered)
    all.counts.push_back(core_of(optimizer).counts_in_norms(gradient.parameter));
  return all;
}

// Returns the values of every block of every gradient, in order, including the parts of other
// ranks; zeros for gradients that are counted on other ranks of the model.
std::vector<double> of_blocks(const Gradients& gradients, const BlockValue& value) {
  std::vector<double> values;
  std::vector<std::int64_t> begins;
  std::int64_t count = 0;
  for (const std::int64_t size : gradients.sizes) {
    begins.push_back(count);
    count += (size + kBlock - 1) / kBlock;
  }
  values.resize(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < gradients.ordered.size(); ++i) {
    const OrderedGradient& gradient = gradients.ordered[i];
    if (!gradients.counts[i]) continue;
    const std::int64_t begin = begins[i] + gradient.first / kBlock;
    for_blocks(gradient.tensor, false,
               [&](std::int64_t block, const float* elements, std::int64_t length) {
                 values[static_cast<std::size_t>(begin + block)] = value(elements, length);
               });
  }
  // Each value is computed on one rank, and is zero on the others.
  if (gradients.group != nullptr) {
    const auto all = std::span(values);
    engine(*gradients.group)
        .run({.op = Op::kAllReduce,
              .input = all,
              .output = all,
              .shape = purpose_of(kClipGradNorm)});
  }
  return values;
}

double largest(double a, double b) { return std::isnan(a) || a > b ? a : b; }

double norm_of(const Gradients& gradients, double power) {
  const bool is_largest = std::isinf(power);
  const auto values = of_blocks(gradients, [&](const float* elements, std::int64_t count) {
    return is_largest ? largest_magnitude(elements, count) : sum_of_powers(elements, count, power);
  });
  const auto sum_of = [&](const std::vector<double>& all) {
    double sum = 0;
    for (const double value : all) sum = is_largest ? largest(sum, value) : sum + value;
    return sum;
  };
  double total = sum_of(values);
  if (gradients.model != nullptr) {
    std::vector<double> totals(static_cast<std::size_t>(gradients.model->world_size()));
    gradients.model->all_gather(std::span(totals), std::span(&total, 1));
    total = sum_of(totals);
  }
  if (is_largest || power == 1) return total;
  return power == 2 ? std::sqrt(total) : std::pow(total, 1 / power);
}

[[noreturn]] void fail_nonfinite(const Gradients& gradients, double norm) {
  const auto bad = of_blocks(gradients, [](const float* elements, std::int64_t count) {
    return all_finite(elements, count) ? 0.0 : 1.0;
  });
  auto block = bad.begin();
  for (std::size_t i = 0; i < gradients.sizes.size(); ++i) {
    const auto end = block + (gradients.sizes[i] + kBlock - 1) / kBlock;
    check(std::find(block, end, 1.0) == end,
          "clip_grad_norm: the norm is {}, because the gradient of parameter {} is not finite",
          norm, gradients.ordered[i].parameter);
    block = end;
  }
  fail(ErrorCode::kInvalid, "clip_grad_norm: the norm is {}, though every gradient {}is finite",
       norm, gradients.model != nullptr ? "of this rank " : "");
}

void require_power(double power) {
  check(power > 0, "the order of a norm must be above 0, not {}", power);
}

double clip_norm(const Gradients& gradients, double max_norm, double norm_type,
                 bool error_if_nonfinite) {
  require_power(norm_type);
  check(max_norm >= 0, "clip_grad_norm: max_norm {} must not be negative", max_norm);
  const double norm = norm_of(gradients, norm_type);
  if (error_if_nonfinite && !std::isfinite(norm)) fail_nonfinite(gradients, norm);
  const auto factor = static_cast<float>(max_norm / (norm + 1e-6));
  if (factor >= 1) return norm;
  for (const at::Tensor& gradient : gradients.memory) {
    for_blocks(gradient, true, [&](std::int64_t, float* elements, std::int64_t count) {
      scale(elements, count, factor);
    });
  }
  return norm;
}

void clip_values(const Gradients& gradients, double most) {
  check(most >= 0, "clip_grad_value: {} must not be negative", most);
  for (const at::Tensor& gradient : gradients.memory) {
    for_blocks(gradient, true, [&](std::int64_t, float* elements, std::int64_t count) {
      clamp(elements, count, static_cast<float>(most));
    });
  }
}

}  // namespace

double grad_norm(const std::vector<at::Tensor>& parameters, double norm_type) {
  require_power(norm_type);
  require_whole_model("grad_norm", parameters);
  return norm_of(whole_gradients(parameters), norm_type);
}

double grad_norm(const Optimizer& optimizer, double norm_type) {
  require_power(norm_type);
  core_of(optimizer).require_model_parts("grad_norm");
  return norm_of(gradients_for(optimizer), norm_type);
}

double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                      bool error_if_nonfinite) {
  require_whole_model("clip_grad_norm", parameters);
  return clip_norm(whole_gradients(parameters), max_norm, norm_type, error_if_nonfinite);
}

double clip_grad_norm(const Optimizer& optimizer, double max_norm, double norm_type,
                      bool error_if_nonfinite) {
  core_of(optimizer).require_model_parts("clip_grad_norm");
  return clip_norm(gradients_for(optimizer), max_norm, norm_type, error_if_nonfinite);
}

void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value) {
  clip_values(whole_gradients(parameters), clip_value);
}

void clip_grad_value(const Optimizer& optimizer, double clip_value) {
  clip_values(gradients_for(optimizer), clip_value);
}

}  // namespace paceline::optim
