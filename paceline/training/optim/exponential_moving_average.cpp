#include "paceline/training/optim/exponential_moving_average.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_set>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/optim_kernels/kernels.h"
#include "paceline/training/optim/metadata_words.h"
#include "paceline/training/optim/rules/tensor_blocks.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline::optim {
namespace {

constexpr std::int64_t kAverageGrain = 32768;
constexpr const char* kUpdates = "num_updates";

// Updates the average. Returns the checksums of its words, as read and as written.
WordSums average(const at::Tensor& parameter, const at::Tensor& average, double decay) {
  const Dtype type = to_dtype(parameter.scalar_type());
  const auto kept = static_cast<float>(decay);
  const auto taken = static_cast<float>(1 - decay);
  const auto* const bytes = static_cast<const std::byte*>(parameter.data_ptr());
  auto* const averages = average.data_ptr<float>();
  std::mutex mutex;  // guards `sums`
  WordSums sums;
  at::parallel_for(0, parameter.numel(), kAverageGrain, [&](std::int64_t begin, std::int64_t end) {
    WordSums own;
    if (type == Dtype::kFloat32) {
      average_kernel(kept, taken, reinterpret_cast<const float*>(bytes) + begin, averages + begin,
                     end - begin, &own);
    } else {
      std::array<float, kBlock> widened;
      for (std::int64_t at = begin; at < end; at += kBlock) {
        const std::int64_t count = std::min(kBlock, end - at);
        widen(type, bytes + static_cast<std::size_t>(at) * parameter.itemsize(), widened.data(),
              count);
        average_kernel(kept, taken, widened.data(), averages + at, count, &own);
      }
    }
    const std::lock_guard lock(mutex);
    sums.add(own.read, own.written);
  });
  return sums;
}

void average_on_device(const at::Tensor& parameter, const at::Tensor& average, double decay) {
  average.mul_(decay).add_(parameter.detach().to(at::kFloat), 1 - decay);
}

}  // namespace

ExponentialMovingAverage::ExponentialMovingAverage(const std::vector<at::Tensor>& parameters,
                                                   double decay, bool warm_up)
    : decay_(decay), warm_up_(warm_up) {
  check(decay >= 0 && decay <= 1, "the decay {} of an average must be in [0, 1]", decay);
  std::unordered_set<const void*> known;
  for (const at::Tensor& parameter : parameters) {
    if (!known.insert(parameter.unsafeGetTensorImpl()).second) continue;
    const auto type = parameter.scalar_type();
    check((type == at::kFloat || type == at::kBFloat16 || type == at::kHalf) &&
              (parameter.is_cpu() || parameter.is_cuda()) &&
              parameter.is_non_overlapping_and_dense(),
          "parameter {} is not a dense float32, bfloat16 or float16 tensor on the CPU or a CUDA "
          "device, which an average of weights needs",
          parameters_.size());
    check(parameters_.empty() || parameter.device() == parameters_.front().device(),
          "an average of weights on {} and on {}; move them to one device",
          parameters_.empty() ? "" : parameters_.front().device().str(), parameter.device().str());
    parameters_.push_back(parameter);
    const auto options = at::TensorOptions(at::kFloat).device(parameter.device());
    averages_.push_back(at::empty_strided(parameter.sizes(), parameter.strides(), options).zero_());
  }
  sums_.resize(averages_.size());
}

void ExponentialMovingAverage::update() {
  check(!is_swapped_in_, "the average of the weights cannot be updated while it is swapped in");
  const at::NoGradGuard no_grad;
  const auto updates = static_cast<double>(num_updates_);
  const double warm = (1 + updates) / (10 + updates);
  const double decay = warm_up_ ? std::min(decay_, warm) : decay_;
  const double kept = num_updates_ == 0 ? 0 : decay;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_checked()) {
      average_on_device(parameters_[i], averages_[i], kept);
      continue;
    }
    const WordSums sums = average(parameters_[i], averages_[i], kept);
    require_sum(i, sums.read);
    sums_[i] = sums.written;
  }
  ++num_updates_;
}

bool ExponentialMovingAverage::is_checked() const {
  return !averages_.empty() && averages_.front().is_cpu();
}

void ExponentialMovingAverage::verify() const {
  if (!is_checked()) return;
  for (std::size_t i = 0; i < averages_.size(); ++i) require_sum(i, sum_of(averages_[i]));
}

void ExponentialMovingAverage::require_sum(std::size_t parameter, std::uint32_t found) const {
  if (found == sums_[parameter]) return;
  const std::string& name = parameters_[parameter].name();
  throw DamagedState(fmt::format(
      "the average of parameter {} changed in memory after update {}: its words add up to {:08x}, "
      "the update left {:08x}; memory is failing or was overwritten: continue from a checkpoint",
      name.empty() ? std::to_string(parameter) : name, num_updates_, found, sums_[parameter]));
}

// Writes through variable_data(), whose writes LibTorch does not count: the parameters get the same
// bits back, and if they do not, their optimizer detects that.
ExponentialMovingAverage::Swap::Swap(ExponentialMovingAverage& average) : average_(average) {
  check(!average.is_swapped_in_, "the average of the weights is swapped in already");
  check(average.num_updates_ > 0, "the average of the weights has had no update yet");
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : average.parameters_)
    weights_.push_back(parameter.detach().clone());
  for (std::size_t i = 0; i < weights_.size(); ++i)
    average.parameters_[i].variable_data().copy_(average.averages_[i]);
  average.is_swapped_in_ = true;
}

ExponentialMovingAverage::Swap::~Swap() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < weights_.size(); ++i)
    average_.parameters_[i].variable_data().copy_(weights_[i]);
  average_.is_swapped_in_ = false;
}

NamedTensors ExponentialMovingAverage::state() const {
  NamedTensors all;
  for (std::size_t i = 0; i < averages_.size(); ++i)
    all.emplace_back(fmt::format("weight.{}", i), averages_[i]);
  all.emplace_back(kUpdates, at::scalar_tensor(num_updates_, at::kLong));
  return all;
}

void ExponentialMovingAverage::set_state(const NamedTensors& state) {
  const NamedTensors own = this->state();
  check(state.size() == own.size(), "{} tensors were given as the average of {} parameters",
        state.size(), averages_.size());
  for (std::size_t i = 0; i < own.size(); ++i) {
    check(state[i].first == own[i].first && state[i].second.sizes() == own[i].second.sizes(),
          "the average has {} of {} elements where {} of {} is wanted", state[i].first,
          state[i].second.numel(), own[i].first, own[i].second.numel());
  }
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    averages_[i].copy_(state[i].second);
    if (is_checked()) sums_[i] = sum_of(averages_[i]);
  }
  num_updates_ = state.back().second.item<std::int64_t>();
}

Metadata ExponentialMovingAverage::options() const {
  return {{"decay", to_word(decay_)}, {"warm_up", warm_up_ ? "yes" : "no"}};
}

void ExponentialMovingAverage::require_compatible(const Metadata& options) const {
  require_same_words(options, this->options(), "average of the weights");
}

}  // namespace paceline::optim
