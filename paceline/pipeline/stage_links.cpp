#include "paceline/pipeline/stage_links.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "paceline/core/check.h"
#include "paceline/tensor/collectives.h"

namespace paceline {
namespace {

// Stands for a gradient that is not there: no gradient has this type.
at::Tensor no_gradient() { return at::empty({0}, at::kBool); }

}  // namespace

StageLinks::StageLinks(std::shared_ptr<ProcessGroup> group, const pipeline::Plan& plan)
    : group_(std::move(group)), plan_(plan) {}

// Of each micro-batch on each boundary in each direction one, so that ranks may take micro-batches
// in another order than they are sent.
std::uint32_t StageLinks::tag(int from, int micro_batch, Direction direction) const {
  const auto way =
      2u * static_cast<std::uint32_t>(from) + (direction == Direction::kForward ? 0u : 1u);
  return way * static_cast<std::uint32_t>(plan_.num_micro_batches) +
         static_cast<std::uint32_t>(micro_batch);
}

std::uint32_t StageLinks::tag_of_count(int from) const {
  return tag(plan_.num_stages(), 0, Direction::kForward) + static_cast<std::uint32_t>(from);
}

void StageLinks::announce(int from, int peer, std::size_t count) {
  const auto [known, is_new] = counts_.emplace(from, count);
  check(known->second == count,
        "rank {}: stage {} gives {} tensors; in its first micro-batch it gave {}", group_->rank(),
        from, count, known->second);
  if (!is_new || peer == group_->rank()) return;
  sends_.push_back(
      send_with_shape_async(*group_, at::scalar_tensor(static_cast<std::int64_t>(count), at::kLong),
                            peer, tag_of_count(from)));
}

std::size_t StageLinks::learn(int from, int peer) {
  const auto known = counts_.find(from);
  if (known != counts_.end()) return known->second;
  const at::Tensor count = recv_with_shape(*group_, peer, tag_of_count(from)).tensor;
  return counts_[from] = static_cast<std::size_t>(count.item<std::int64_t>());
}

void StageLinks::send(int stage, int micro_batch, Direction direction, const Tensors& tensors) {
  const int peer = rank_of(direction == Direction::kForward ? stage + 1 : stage - 1);
  if (direction == Direction::kForward) announce(stage, peer, tensors.size());
  if (peer == group_->rank()) {
    own_[{stage, micro_batch, direction}] = tensors;
    return;
  }
  drop_finished_sends();
  for (const at::Tensor& tensor : tensors) {
    sends_.push_back(send_with_shape_async(*group_,
                                           tensor.defined() ? tensor.contiguous() : no_gradient(),
                                           peer, tag(stage, micro_batch, direction)));
  }
}

StageLinks::Tensors StageLinks::receive(int stage, int micro_batch, Direction direction,
                                        std::size_t count) {
  const int from = direction == Direction::kForward ? stage - 1 : stage + 1;
  const int peer = rank_of(from);
  if (peer == group_->rank())
    return std::move(own_.extract({from, micro_batch, direction}).mapped());
  if (direction == Direction::kForward) count = learn(from, peer);
  Tensors tensors(count);
  for (at::Tensor& tensor : tensors) {
    tensor = recv_with_shape(*group_, peer, tag(from, micro_batch, direction)).tensor;
    if (direction == Direction::kBackward && tensor.scalar_type() == at::kBool) tensor.reset();
  }
  return tensors;
}

void StageLinks::drop_finished_sends() {
  std::erase_if(sends_, [](const WorkPtr& work) {
    if (!work->is_completed()) return false;
    work->wait();  // throws its error
    return true;
  });
}

void StageLinks::finish_sends() {
  for (const WorkPtr& work : sends_) work->wait();
  sends_.clear();
}

}  // namespace paceline
