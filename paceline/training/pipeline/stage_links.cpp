#include "paceline/training/pipeline/stage_links.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <utility>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {
namespace {

// How one tensor comes: a row of the list that goes ahead.
struct Row {
  enum How : std::int64_t { kUndefined, kAsMessage, kLent };
  std::int64_t how = kUndefined;
  Loans::Loan loan;
  std::int64_t dtype = 0, num_sizes = 0;
  std::array<std::int64_t, kMaxMessageSizes> sizes{};
};
constexpr std::int64_t kWords = sizeof(Row) / sizeof(std::int64_t);

Row row_of(const Loans::Loan& loan, const at::Tensor& tensor) {
  Row row{.how = Row::kLent,
          .loan = loan,
          .dtype = static_cast<std::int64_t>(to_dtype(tensor.scalar_type())),
          .num_sizes = tensor.dim()};
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), row.sizes.begin());
  return row;
}

}  // namespace

StageLinks::StageLinks(std::shared_ptr<ProcessGroup> group, const pipeline::Plan& plan)
    : group_(std::move(group)), plan_(plan), loans_(group_) {}

// Of each micro-batch on each boundary in each direction one, so that ranks may take micro-batches
// in another order than they are sent.
std::uint32_t StageLinks::tag(int from, int micro_batch, Direction direction) const {
  const auto way =
      2u * static_cast<std::uint32_t>(from) + (direction == Direction::kForward ? 0u : 1u);
  return way * static_cast<std::uint32_t>(plan_.num_micro_batches) +
         static_cast<std::uint32_t>(micro_batch);
}

void StageLinks::send(int stage, int micro_batch, Direction direction, const Tensors& tensors) {
  if (direction == Direction::kForward) {
    const auto [known, is_new] = counts_.emplace(stage, tensors.size());
    check(known->second == tensors.size(),
          "{}: stage {} gives {} tensors; in its first micro-batch it gave {}", group_->self(),
          stage, tensors.size(), known->second);
  }
  const int peer = rank_of(direction == Direction::kForward ? stage + 1 : stage - 1);
  if (peer == group_->rank()) {
    own_[{stage, micro_batch, direction}] = tensors;
    return;
  }
  drop_finished_sends();
  const at::Tensor list = at::zeros({static_cast<std::int64_t>(tensors.size()), kWords}, at::kLong);
  auto* row = static_cast<Row*>(list.data_ptr());
  Tensors all{list};
  for (const at::Tensor& given : tensors) {
    Row& own = *row++;
    if (!given.defined()) continue;
    const at::Tensor tensor = given.contiguous();
    const auto loan =
        tensor.dim() <= std::ssize(own.sizes) ? loans_.lend(tensor, peer) : std::nullopt;
    if (loan) {
      own = row_of(*loan, tensor);
    } else {
      own.how = Row::kAsMessage;
      all.push_back(tensor);
    }
  }
  for (const at::Tensor& tensor : all) {
    sends_.push_back(
        send_with_shape_async(*group_, tensor, peer, tag(stage, micro_batch, direction)));
  }
}

StageLinks::Tensors StageLinks::receive(int stage, int micro_batch, Direction direction) {
  const int from = direction == Direction::kForward ? stage - 1 : stage + 1;
  const int peer = rank_of(from);
  if (peer == group_->rank())
    return std::move(own_.extract({from, micro_batch, direction}).mapped());
  const auto take = [&] {
    return recv_with_shape(*group_, peer, tag(from, micro_batch, direction)).tensor;
  };
  const at::Tensor list = take();
  check(list.scalar_type() == at::kLong && list.dim() == 2 && list.size(1) == kWords,
        "{}: {} has sent {} in a pipeline's step; use another group for other messages",
        group_->self(), group_->name_of_member(static_cast<std::size_t>(peer)), shapes_of({list}));
  Tensors tensors;
  for (const Row& row : std::span(static_cast<const Row*>(list.data_ptr()),
                                  static_cast<std::size_t>(list.size(0)))) {
    at::Tensor& tensor = tensors.emplace_back();
    if (row.how == Row::kAsMessage) tensor = take();
    if (row.how == Row::kLent) {
      const at::IntArrayRef sizes(
          row.sizes.data(), static_cast<std::size_t>(
                                std::clamp<std::int64_t>(row.num_sizes, 0, std::ssize(row.sizes))));
      tensor = loans_.borrow(row.loan, peer, sizes, to_scalar_type(static_cast<Dtype>(row.dtype)));
    }
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

void StageLinks::finish() {
  for (const WorkPtr& work : sends_) work->wait();
  sends_.clear();
  loans_.settle();
}

}  // namespace paceline
