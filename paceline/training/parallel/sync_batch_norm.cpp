#include "paceline/training/parallel/sync_batch_norm.h"

#include <cmath>
#include <ostream>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {
namespace {

// The data, other than saved tensors, that a backward pass needs.
struct Exchange : torch::CustomClassHolder {
  std::shared_ptr<ProcessGroup> group;
  double count = 0;      // elements of a feature on all ranks together
  at::Tensor on_device;  // on a CUDA device: `count`, which the host does not know
};

// Calls `communicate`. The message of an error also describes the layer and what ranks must do.
template <class Communicate>
auto in_step(const ProcessGroup& group, std::int64_t num_features, const char* pass,
             const Communicate& communicate) {
  try {
    return communicate();
  } catch (const Error& error) {
    throw error.reworded(
        fmt::format("{} (rank {}: {} pass of SyncBatchNorm, {} features: every rank must "
                    "run the layer equally often, also with an empty batch)",
                    error.what(), group.rank(), pass, num_features));
  }
}

at::Tensor widened(const at::Tensor& tensor) {
  return is_16_bit(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
}

std::vector<std::int64_t> all_but_features(const at::Tensor& input) {
  std::vector<std::int64_t> dimensions = {0};
  for (std::int64_t dim = 2; dim < input.dim(); ++dim) dimensions.push_back(dim);
  return dimensions;
}

// Reshapes one value per feature so that it broadcasts over the input's dimensions.
at::Tensor by_feature(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(input.dim()), 1);
  sizes[1] = values.numel();
  return values.view(sizes);
}

struct Statistics {
  at::Tensor mean, variance;  // float64; the variance is divided by `count`, not by `count` - 1
  double count = 0;
  at::Tensor on_device;  // as in Exchange
};

// Returns this rank's means and variances, and the number of elements of a feature.
at::Tensor own_statistics(const at::Tensor& input) {
  const std::int64_t features = input.size(1);
  at::Tensor row = at::zeros({2 * features + 1}, input.options().dtype(at::kDouble));
  if (input.numel() == 0) return row;
  const auto [mean, variance] = at::batch_norm_update_stats(input, {}, {}, 0);
  row.narrow(0, 0, features).copy_(mean);
  row.narrow(0, features, features).copy_(variance);
  row[2 * features].fill_(input.numel() / features);
  return row;
}

// Like merged(), without waiting for the device.
Statistics merged_on_device(const at::Tensor& rows, std::int64_t features) {
  const at::Tensor of_rank = rows.view({-1, 2 * features + 1});
  const at::Tensor counts = of_rank.narrow(1, 2 * features, 1);
  const at::Tensor means = of_rank.narrow(1, 0, features);
  const at::Tensor variances = of_rank.narrow(1, features, features);
  Statistics all;
  all.on_device = counts.sum();
  const at::Tensor total = all.on_device.clamp_min(1);
  all.mean = (means * counts).sum(0) / total;
  all.variance = ((variances + (means - all.mean).square()) * counts).sum(0) / total;
  return all;
}

// Merges the statistics in rank order (Chan et al., 1979), so that the bits depend only on the
// values.
Statistics merged(const at::Tensor& rows, std::int64_t features) {
  if (!rows.is_cpu()) return merged_on_device(rows, features);
  Statistics all{at::zeros({features}, at::kDouble), at::zeros({features}, at::kDouble)};
  auto* const mean = all.mean.data_ptr<double>();
  auto* const variance = all.variance.data_ptr<double>();
  const std::int64_t width = 2 * features + 1;
  for (std::int64_t rank = 0; rank < rows.numel() / width; ++rank) {
    const double* const row = rows.data_ptr<double>() + rank * width;
    const double count = row[2 * features];
    if (count == 0) continue;
    const double total = all.count + count;
    for (std::int64_t i = 0; i < features; ++i) {
      const double difference = row[i] - mean[i];
      mean[i] += difference * (count / total);
      variance[i] +=
          row[features + i] * count + difference * difference * (all.count * (count / total));
    }
    all.count = total;
  }
  if (all.count > 0) all.variance.div_(all.count);
  return all;
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Normalize : torch::autograd::Function<Normalize> {
  // `mean` and `variance` have the type of widened(input).
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& bias,
                            const at::Tensor& mean, const at::Tensor& variance, double eps,
                            const c10::intrusive_ptr<Exchange>& exchange) {
    context->save_for_backward({input, weight, mean, (variance + eps).rsqrt()});
    context->saved_data["exchange"] = c10::IValue::make_capsule(exchange);
    context->saved_data["joins"] = input.requires_grad();
    if (input.numel() == 0) return input.clone();
    return at::batch_norm(widened(input), widened(weight), widened(bias), mean, variance, false, 0,
                          eps, false)
        .to(input.scalar_type());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check(!at::GradMode::is_enabled(), "SyncBatchNorm has no second derivative");
    const auto capsule = context->saved_data["exchange"].toCapsule();
    auto& exchange = static_cast<Exchange&>(*capsule);
    const auto saved = context->get_saved_variables();
    const at::Tensor input = widened(saved[0]), weight = widened(saved[1]);
    const at::Tensor &mean = saved[2], &inverse = saved[3];
    const at::Tensor gradient = widened(gradients.front());

    const auto others = all_but_features(input);
    const at::Tensor centred = input - by_feature(mean, input);
    at::Tensor sum = gradient.sum(others);
    at::Tensor product = (gradient * centred).sum(others);
    variable_list result(7);
    const at::Tensor& narrow_weight = saved[1];
    result[1] = (product * inverse).to(narrow_weight.scalar_type());
    result[2] = sum.to(narrow_weight.scalar_type());
    if (!context->saved_data["joins"].toBool()) return result;

    const at::Tensor sums = at::cat({sum, product}).to(at::kDouble);
    in_step(*exchange.group, mean.numel(), "backward",
            [&] { all_reduce(*exchange.group, sums, ReduceOp::kSum); });
    if (input.numel() == 0) {
      result[0] = at::zeros_like(saved[0]);
      return result;
    }
    exchange.on_device.defined() ? sums.div_(exchange.on_device) : sums.div_(exchange.count);
    const auto halves = sums.to(mean.scalar_type()).chunk(2);
    at::Tensor by_input = gradient - by_feature(halves[0], input);
    by_input.addcmul_(centred, by_feature(halves[1] * inverse.square(), input), -1);
    by_input.mul_(by_feature(inverse * weight, input));
    result[0] = by_input.to(saved[0].scalar_type());
    return result;
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                                     std::shared_ptr<ProcessGroup> group)
    : NormImplBase(options), group_(std::move(group)) {
  check(group_ != nullptr, "SyncBatchNorm needs a group; without one, use torch::nn::BatchNorm");
}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  check(input.dim() >= 2 && input.dim() <= 5 && input.size(1) == options.num_features(),
        "SyncBatchNorm: an input of {} dimensions with {} features; it takes 2 to 5 dimensions "
        "with {}",
        input.dim(), input.dim() > 1 ? input.size(1) : 0, options.num_features());
  check(input.is_cpu() || input.is_cuda(),
        "SyncBatchNorm takes tensors on the CPU or a CUDA device, not on {}", input.device().str());
  check(input.is_floating_point(), "SyncBatchNorm takes floating-point numbers, not {}",
        c10::toString(input.scalar_type()));
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  _check_input_dim(input);
  if (is_training()) return normalize_over_ranks(input);
  return torch::nn::functional::detail::batch_norm(input, running_mean, running_var, weight, bias,
                                                   !options.track_running_stats(), 0,
                                                   options.eps());
}

at::Tensor SyncBatchNormImpl::normalize_over_ranks(const at::Tensor& input) {
  const std::int64_t features = options.num_features();
  const auto exchange = c10::make_intrusive<Exchange>();
  Statistics all;
  at::Tensor mean, variance;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor wide = widened(input);
    const at::Tensor own = own_statistics(wide);
    const at::Tensor rows =
        in_step(*group_, features, "forward", [&] { return all_gather_into_tensor(*group_, own); });
    all = merged(rows, features);
    check(all.count != 1,
          "{}: SyncBatchNorm in training: the ranks together have 1 value for each feature, "
          "which has no variance; give them more samples",
          group_->self());
    all.on_device.defined() ? update_running_on_device(all.mean, all.variance, all.on_device)
                            : update_running_statistics(all.mean, all.variance, all.count);
    mean = all.mean.to(wide.scalar_type());
    variance = all.variance.to(wide.scalar_type());
  }
  exchange->group = group_;
  exchange->count = all.count;
  exchange->on_device = all.on_device;
  // A custom function does not accept undefined tensors.
  return Normalize::apply(input, weight.defined() ? weight : at::ones_like(mean),
                          bias.defined() ? bias : at::zeros_like(mean), mean, variance,
                          options.eps(), exchange);
}

void SyncBatchNormImpl::update_running_statistics(const at::Tensor& mean,
                                                  const at::Tensor& variance, double count) {
  if (!options.track_running_stats() || count == 0) return;
  num_batches_tracked += 1;
  const double share =
      options.momentum() ? *options.momentum() : 1 / num_batches_tracked.item<double>();
  running_mean.mul_(1 - share).add_(mean.to(running_mean.scalar_type()), share);
  running_var.mul_(1 - share).add_((variance * (count / (count - 1))).to(running_var.scalar_type()),
                                   share);
}

// Like update_running_statistics(), without waiting for the device.
void SyncBatchNormImpl::update_running_on_device(const at::Tensor& mean, const at::Tensor& variance,
                                                 const at::Tensor& count) {
  if (!options.track_running_stats()) return;
  const at::Tensor has_values = count.gt(0);
  num_batches_tracked += has_values.to(num_batches_tracked.scalar_type());
  const at::Tensor share =
      (options.momentum() ? at::full_like(count, *options.momentum())
                          : num_batches_tracked.clamp_min(1).to(at::kDouble).reciprocal()) *
      has_values;
  const at::Tensor unbiased = variance * (count / (count - 1));
  running_mean.add_(((mean - running_mean) * share).to(running_mean.scalar_type()));
  running_var.add_(((unbiased - running_var) * share).to(running_var.scalar_type()));
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "paceline::SyncBatchNorm(" << options.num_features()
         << ", eps=" << options.eps() << ", momentum=";
  if (options.momentum()) {
    stream << *options.momentum();
  } else {
    stream << "none";
  }
  stream << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats() << ")";
}

std::function<torch::nn::AnyModule(std::int64_t num_features)> sync_batch_norm(
    std::shared_ptr<ProcessGroup> group, const torch::nn::BatchNormOptions& options) {
  return [group = std::move(group), options](std::int64_t num_features) {
    auto own = options;
    own.num_features(num_features);
    return torch::nn::AnyModule(SyncBatchNorm(own, group));
  };
}

}  // namespace paceline
