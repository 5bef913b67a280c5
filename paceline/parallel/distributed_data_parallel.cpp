#include "paceline/parallel/distributed_data_parallel.h"

#include <algorithm>

#include "paceline/core/check.h"
#include "paceline/parallel/lockstep.h"
#include "paceline/tensor/collectives.h"
#include "paceline/tensor/tensor_view.h"

namespace paceline {
namespace {

// Each parameter once, under its first name.
std::vector<NamedParameter> parameters_of(const torch::nn::Module& module) {
  std::vector<NamedParameter> parameters;
  for (const auto& item : module.named_parameters()) {
    const bool is_known = std::any_of(parameters.begin(), parameters.end(), [&](const auto& known) {
      return known.tensor.is_same(item.value());
    });
    if (!is_known) parameters.push_back({item.key(), item.value()});
  }
  return parameters;
}

}  // namespace

DataParallelState::DataParallelState(std::shared_ptr<torch::nn::Module> module,
                                     std::shared_ptr<ProcessGroup> group,
                                     const DistributedDataParallelOptions& options)
    : module_(std::move(module)),
      group_(std::move(group)),
      options_(options),
      buffers_(module_->buffers()),
      shard_buffers_(buffers_) {
  const auto all = parameters_of(*module_);
  const bool trains = std::any_of(all.begin(), all.end(), [](const auto& parameter) {
    return parameter.tensor.requires_grad();
  });
  check(trains, "DistributedDataParallel: no parameter of the module requires a gradient");
  require_same_parameters(*group_, all);
  one_device_of(all, group_->rank(), parse_backend_choice(group_->backend()));
  broadcast_parameters(all);
  broadcast_buffers();
  reducer_ = std::make_unique<Reducer>(
      group_, all,
      ReducerOptions{.buckets = options.buckets,
                     .require_all_used = options.require_all_used,
                     .guard_passes = options.guard_passes,
                     .non_finite = options.non_finite,
                     .logical_shards = options.logical_shards,
                     .at_end_of_step = [this] { shard_buffers_.end_step(); }});
}

void DataParallelState::broadcast_parameters(const std::vector<NamedParameter>& parameters) {
  if (group_->world_size() == 1) return;
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters) broadcast(*group_, parameter.tensor.detach(), 0);
}

void DataParallelState::broadcast_buffers() {
  if (group_->world_size() == 1) return;
  const at::NoGradGuard no_grad;
  std::vector<Buffer> bytes;  // of those on the host: one message, whatever their types
  for (const auto& buffer : buffers_) {
    if (!buffer.is_cpu()) {
      broadcast(*group_, buffer, 0);
      continue;
    }
    const Buffer view = dense_view(buffer);
    bytes.emplace_back(view.data, view.bytes(), Dtype::kUint8);
  }
  if (!bytes.empty()) group_->broadcast_coalesced(bytes, 0);
}

DataParallelState::Pass::Pass(DataParallelState& state, std::int64_t samples)
    : state_(state), is_shard_(state.reducer_->has_shards() && torch::GradMode::is_enabled()) {
  state.before_forward(samples);
  if (is_shard_) state.shard_buffers_.begin_forward(state.reducer_->num_shards_done());
}

DataParallelState::Pass::~Pass() {
  if (is_shard_) state_.shard_buffers_.end_forward(state_.reducer_->num_shards_done());
}

void DataParallelState::before_forward(std::int64_t samples) {
  reducer_->before_forward(samples);
  if (!options_.broadcast_buffers) return;
  const bool trains = torch::GradMode::is_enabled();
  const bool begins_step =
      reducer_->has_shards() ? reducer_->num_shards_done() == 0 : reducer_->synchronizes();
  if (trains ? begins_step : buffers_may_differ_) in_lockstep([this] { broadcast_buffers(); });
  buffers_may_differ_ = trains;
}

}  // namespace paceline
