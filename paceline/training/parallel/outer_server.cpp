#include "paceline/training/parallel/outer_server.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "paceline/engine/collectives/kernels/reduce.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/rpc/pool.h"
#include "paceline/training/parallel/outer_step.h"

namespace paceline {

using detail::ExchangeUpdate;
using detail::OpenLearner;

class OuterServer::Rounds {
 public:
  explicit Rounds(const OuterServerOptions& options) : options_(options) {
    check(options.lr > 0 && options.momentum >= 0 && options.momentum < 1 && options.quorum >= 1 &&
              options.grace.count() >= 0,
          "OuterServer: lr {} must be above 0, momentum {} in [0, 1), quorum {} at least 1, and "
          "grace {} ms at least 0",
          options.lr, options.momentum, options.quorum, options.grace.count());
  }

  OpenLearner::Reply open(const OpenLearner::Request& request, const std::string& learner) {
    require_whole(request, learner);
    const std::lock_guard lock(mutex_);
    if (!anchor_.defined() && request.parameters.defined()) begin_with(request.parameters);
    if (!anchor_.defined()) return {};
    check(request.elements == anchor_.numel(),
          "outer.open: learner {} has {} parameters, but the others have {}", learner,
          request.elements, anchor_.numel());
    if (fragments_.empty()) divide(request.fragments);
    std::vector<std::uint64_t> versions;
    bool is_equal = request.fragments.size() == fragments_.size();
    for (std::size_t i = 0; is_equal && i < fragments_.size(); ++i) {
      is_equal = request.fragments[i] == fragments_[i].anchor.numel();
      versions.push_back(fragments_[i].version);
    }
    check(is_equal, "outer.open: learner {} has {} fragments, but the others have {}", learner,
          request.fragments.size(), fragments_.size());
    learners_.insert(learner);
    return {anchor_.clone(), versions};
  }

  // Waits until the round of this update has ended.
  ExchangeUpdate::Reply exchange(rpc::Workers& workers, const ExchangeUpdate::Request& request,
                                 const rpc::Context& context) {
    check(
        request.payload.defined() && request.tokens > 0,
        "outer.exchange: the update of learner {} has {} tokens; a learner trains before it sends "
        "an update",
        context.caller(), request.tokens);
    // Copies the values, because the memory of a request ends with its call.
    const at::Tensor values = detail::decode_update(request.payload).reshape({-1}).clone();
    check(values.isfinite().all().item<bool>(),
          "outer.exchange: the update of learner {} has values that are not finite, which would "
          "spoil the parameters of all learners: look at its loss",
          context.caller());
    const rpc::Pool::Blocked blocked;
    std::unique_lock lock(mutex_);
    check(request.fragment < fragments_.size() && learners_.contains(context.caller()),
          "outer.exchange: learner {} has not begun here; make its LowCommunication again",
          context.caller());
    Fragment& fragment = fragments_[request.fragment];
    check(request.version <= fragment.version && values.numel() >= fragment.anchor.numel(),
          "outer.exchange: learner {} sent {} elements of version {} for {} elements of version {}",
          context.caller(), values.numel(), request.version, fragment.anchor.numel(),
          fragment.version);
    // Drops an earlier update of this learner: the learner no longer waits for that update's round.
    withdraw(fragment, [&](const Arrived& one) { return one.update.learner == context.caller(); });
    const auto error = std::make_shared<std::exception_ptr>();
    fragment.arrived.push_back({{context.caller(), request.tokens,
                                 static_cast<std::int64_t>(fragment.version - request.version)},
                                values.slice(0, 0, fragment.anchor.numel()),
                                error});
    const auto is_own = [&](const Arrived& one) { return one.error == error; };
    while (std::ranges::any_of(fragment.arrived, is_own) && !context.is_cancelled()) {
      if (may_end_round(workers, fragment)) {
        end_round(fragment);
        changed_.notify_all();
      } else {
        changed_.wait_for(lock, kCheckInterval);
      }
    }
    if (*error) std::rethrow_exception(*error);
    if (std::ranges::any_of(fragment.arrived, is_own)) {
      withdraw(fragment, is_own);
      fail(ErrorCode::kAborted, "outer.exchange: the call of learner {} ended before its round",
           context.caller());
    }
    return {fragment.version, fragment.anchor.clone()};
  }

  Stats stats() const {
    const std::lock_guard lock(mutex_);
    Stats stats = stats_;
    if (stats.updates > 0) stats.mean_age = sum_of_ages_ / static_cast<double>(stats.updates);
    return stats;
  }
  at::Tensor anchor() const { return copy_of(anchor_); }
  at::Tensor momentum() const { return copy_of(momentum_); }
  void restore(const at::Tensor& anchor, const at::Tensor& momentum) {
    const std::lock_guard lock(mutex_);
    check(!anchor_.defined() && anchor.dim() == 1 && anchor.scalar_type() == at::kFloat &&
              anchor.sizes() == momentum.sizes(),
          "OuterServer: restore() needs float32 tensors of one size, before the first learner");
    begin_with(anchor);
    momentum_.copy_(momentum);
  }

 private:
  static constexpr std::chrono::milliseconds kCheckInterval{10};  // to find lost learners
  using Clock = std::chrono::steady_clock;
  struct Arrived {
    Update update;
    at::Tensor values;
    std::shared_ptr<std::exception_ptr> error;  // set if the round of this update fails
  };
  struct Fragment {
    at::Tensor anchor, momentum;  // views of anchor_ and momentum_
    std::uint64_t version = 0;    // the number of rounds that have ended
    std::vector<Arrived> arrived;
    std::optional<Clock::time_point> quorum_since;
  };

  at::Tensor copy_of(const at::Tensor& tensor) const {
    const std::lock_guard lock(mutex_);
    return tensor.defined() ? tensor.clone() : tensor;
  }
  void begin_with(const at::Tensor& anchor) {
    anchor_ = anchor.clone();
    momentum_ = at::zeros_like(anchor_);
  }
  // Throws if the sizes or the type of a request are invalid.
  static void require_whole(const OpenLearner::Request& request, const std::string& learner) {
    std::int64_t left = request.elements;
    for (const std::int64_t size : request.fragments)
      left = size >= 0 && size <= left ? left - size : -1;
    const at::Tensor& parameters = request.parameters;
    check(
        left == 0 && (!parameters.defined() ||
                      (parameters.dim() == 1 && parameters.scalar_type() == at::kFloat &&
                       parameters.numel() == request.elements)),
        "outer.open: the fragments or the parameters of learner {} are not {} elements of float32",
        learner, request.elements);
  }
  void divide(const std::vector<std::int64_t>& sizes) {
    std::int64_t begin = 0;
    for (const std::int64_t size : sizes) {
      fragments_.push_back({.anchor = anchor_.slice(0, begin, begin + size),
                            .momentum = momentum_.slice(0, begin, begin + size)});
      begin += size;
    }
  }

  template <class Which>
  static void withdraw(Fragment& fragment, const Which& which) {
    if (std::erase_if(fragment.arrived, which) > 0) fragment.quorum_since.reset();
  }

  bool may_end_round(rpc::Workers& workers, Fragment& fragment) const {
    std::size_t lost = 0, missing = 0;
    for (const std::string& learner : learners_) {
      const bool has_arrived =
          std::any_of(fragment.arrived.begin(), fragment.arrived.end(),
                      [&](const Arrived& one) { return one.update.learner == learner; });
      if (has_arrived) continue;
      const bool is_lost = workers.wait_until_gone(learner, std::chrono::milliseconds(0));
      ++(is_lost ? lost : missing);
    }
    if (fragment.arrived.size() + lost < options_.quorum) return false;
    if (!fragment.quorum_since) fragment.quorum_since = Clock::now();
    return missing == 0 || Clock::now() >= *fragment.quorum_since + options_.grace;
  }

  double weight_of(const Update& update) const {
    const double weight = options_.weight ? options_.weight(update)
                                          : static_cast<double>(update.tokens) /
                                                (1.0 + static_cast<double>(update.age));
    check(weight >= 0 && std::isfinite(weight),
          "outer.exchange: the weight {} of an update of learner {} is not a number from 0", weight,
          update.learner);
    return weight;
  }

  // The mean has the bits of an all-reduce if all weights are equal. If the program's weight
  // function throws, the parameters do not change, the updates are dropped, and each learner of the
  // round gets the error.
  void end_round(Fragment& fragment) {
    const at::NoGradGuard no_grad;
    std::vector<Arrived>& arrived = fragment.arrived;
    std::sort(arrived.begin(), arrived.end(), [](const Arrived& a, const Arrived& b) {
      return a.update.learner < b.update.learner;
    });
    std::vector<double> weights;
    try {
      for (const Arrived& one : arrived) weights.push_back(weight_of(one.update));
    } catch (...) {
      for (const Arrived& one : arrived) *one.error = std::current_exception();
      arrived.clear();
      fragment.quorum_since.reset();
      return;
    }
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<const std::byte*> sources;
    for (std::size_t i = 0; i < arrived.size(); ++i) {
      const Arrived& one = arrived[i];
      const double share = sum > 0 ? weights[i] * static_cast<double>(arrived.size()) / sum : 0;
      if (share != 1) one.values.mul_(share);
      sources.push_back(static_cast<const std::byte*>(one.values.data_ptr()));
      ++stats_.updates;
      sum_of_ages_ += static_cast<double>(one.update.age);
      stats_.largest_age = std::max(stats_.largest_age, one.update.age);
    }
    const at::Tensor mean = at::empty_like(fragment.anchor);
    reduce(sources, static_cast<std::byte*>(mean.data_ptr()),
           static_cast<std::size_t>(mean.numel()), Dtype::kFloat32, ReduceOp::kMean);
    detail::take_outer_step(fragment.anchor, fragment.momentum, mean, options_.lr,
                            options_.momentum);
    arrived.clear();
    ++fragment.version;
    ++stats_.rounds;
    fragment.quorum_since.reset();
  }

  const OuterServerOptions options_;
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  at::Tensor anchor_, momentum_;
  std::vector<Fragment> fragments_;
  std::set<std::string> learners_;  // all that have joined, including lost ones
  Stats stats_;
  double sum_of_ages_ = 0;
};

OuterServer::OuterServer(const OuterServerOptions& options)
    : rounds_(std::make_shared<Rounds>(options)) {}
OuterServer::~OuterServer() = default;

void OuterServer::serve(rpc::Workers& workers) {
  workers.serve<OpenLearner>(
      [rounds = rounds_](const OpenLearner::Request& request, rpc::Context& context) {
        return rounds->open(request, context.caller());
      });
  workers.serve<ExchangeUpdate>(
      [rounds = rounds_, &workers](const ExchangeUpdate::Request& request, rpc::Context& context) {
        return rounds->exchange(workers, request, context);
      });
}

OuterServer::Stats OuterServer::stats() const { return rounds_->stats(); }
at::Tensor OuterServer::anchor() const { return rounds_->anchor(); }
at::Tensor OuterServer::momentum() const { return rounds_->momentum(); }
void OuterServer::restore(const at::Tensor& anchor, const at::Tensor& momentum) {
  rounds_->restore(anchor, momentum);
}

}  // namespace paceline
