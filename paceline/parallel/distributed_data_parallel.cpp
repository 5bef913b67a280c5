#include "paceline/parallel/distributed_data_parallel.h"

#include "paceline/core/check.h"
#include "paceline/tensor/collectives.h"

namespace paceline {

DataParallelState::DataParallelState(std::shared_ptr<torch::nn::Module> module,
                                     std::shared_ptr<ProcessGroup> group,
                                     const DistributedDataParallelOptions& options)
    : module_(std::move(module)),
      group_(std::move(group)),
      options_(options),
      buffers_(module_->buffers()) {
  std::vector<NamedParameter> all;
  std::vector<NamedParameter> trained;
  for (const auto& item : module_->named_parameters()) {
    all.push_back({item.key(), item.value()});
    if (item.value().requires_grad()) trained.push_back({item.key(), item.value()});
  }
  check(!trained.empty(),
        "DistributedDataParallel: no parameter of the module requires a gradient");
  require_same_parameters(*group_, all);
  one_device_of(all, group_->rank(), parse_backend_choice(group_->backend()));
  broadcast_parameters(all);
  broadcast_buffers();
  reducer_ = std::make_unique<Reducer>(group_, std::move(trained), options.buckets);
}

void DataParallelState::broadcast_parameters(const std::vector<NamedParameter>& parameters) {
  if (group_->world_size() == 1) return;
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters) broadcast(*group_, parameter.tensor.detach(), 0);
}

void DataParallelState::broadcast_buffers() {
  if (group_->world_size() == 1) return;
  const at::NoGradGuard no_grad;
  for (const auto& buffer : buffers_) broadcast(*group_, buffer, 0);
}

void DataParallelState::before_forward() {
  reducer_->before_forward();
  if (options_.broadcast_buffers && reducer_->synchronizes() && torch::GradMode::is_enabled())
    broadcast_buffers();
}

}  // namespace paceline
