#pragma once

// Post-local SGD (Lin, Stich, Patel and Jaggi, 2018): after a beginning in which all ranks average
// their gradients, each averages them with the ranks of its host only, and all ranks their
// parameters from time to time.
//
//   model.register_comm_hook(std::make_shared<PostLocalSgdHook>(host_group(*group), 1000));
//   PeriodicAverager averager(group, model->parameters(), {.period = 4, .warmup_steps = 1000});
//   ... optimizer.step(); averager.average();
//
// Between two averages the hosts' parameters differ, and their momenta always do. A checkpoint has
// rank 0's: save when averaged(), and a resumed run goes on from the parameters of all ranks, with
// the same bits where the optimizer keeps no momenta. An optimizer must not be sharded.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "paceline/training/optim/words.h"
#include "paceline/training/parallel/communication_hook.h"

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
  optim::Words progress() const override;
  void set_progress(const optim::Words& words) override;
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
  // Whether the last average() averaged, so that all replicas are equal.
  bool averaged() const { return averaged_; }

  // For a checkpoint: its options and how often average() was called. Error(kInvalid) that lists
  // what differs when `state` is of an averager with other options.
  optim::Words state() const;
  void require_own(const optim::Words& state) const;
  void set_state(const optim::Words& state);

 private:
  optim::Words options() const;

  const std::shared_ptr<ProcessGroup> group_;  // owners: the user and this
  const std::vector<at::Tensor> parameters_;
  const PeriodicAveragerOptions options_;
  std::int64_t num_steps_ = 0;
  bool averaged_ = false;
};

}  // namespace paceline
