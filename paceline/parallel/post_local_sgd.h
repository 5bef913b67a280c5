#pragma once

// Post-local SGD (Lin, Stich, Patel and Jaggi, 2018): after a beginning in which all ranks average
// their gradients, each averages them with the ranks of its host only, and all ranks their
// parameters from time to time.
//
//   model.register_comm_hook(std::make_shared<PostLocalSgdHook>(host_group(*group), 1000));
//   PeriodicAverager averager(group, model->parameters(), {.period = 4, .warmup_steps = 1000});
//   ... optimizer.step(); averager.average();

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "paceline/parallel/communication_hook.h"

namespace paceline {

// The ranks of `group` on this rank's host, in their order. Collective.
std::shared_ptr<ProcessGroup> host_group(ProcessGroup& group);

class PostLocalSgdHook : public CommunicationHook {
 public:
  // `subgroup`: of this rank, made of the model's group. From the pass after `start_step` others on
  // gradients are averaged in it.
  PostLocalSgdHook(std::shared_ptr<ProcessGroup> subgroup, std::int64_t start_step);
  std::string name() const override;
  bool keeps_replicas_equal() const override { return false; }
  WorkPtr start_round(ProcessGroup& group, const GradientBucket& bucket, int round) override;

 private:
  const std::shared_ptr<ProcessGroup> subgroup_;  // owners: the user and this
  const std::int64_t start_step_;
  std::int64_t num_steps_ = 0;
};

struct PeriodicAveragerOptions {
  std::int64_t period = 1;
  std::int64_t warmup_steps = 0;
};

// PyTorch's PeriodicModelAverager.
class PeriodicAverager {
 public:
  // Error(kInvalid) for a period below 1 or a negative warm-up.
  PeriodicAverager(std::shared_ptr<ProcessGroup> group, std::vector<at::Tensor> parameters,
                   const PeriodicAveragerOptions& options);
  // After each step of the optimizer. Makes every parameter the mean of all ranks' once
  // `warmup_steps` calls have gone, at once and then at every `period`-th call; collective then.
  void average();

 private:
  const std::shared_ptr<ProcessGroup> group_;  // owners: the user and this
  const std::vector<at::Tensor> parameters_;
  const PeriodicAveragerOptions options_;
  std::int64_t num_steps_ = 0;
};

}  // namespace paceline
