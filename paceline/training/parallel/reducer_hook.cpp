// What a Reducer does with a communication hook.

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/ranges.h>

#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/core/check.h"
#include "paceline/training/parallel/lockstep.h"
#include "paceline/training/parallel/reducer.h"

namespace paceline {
namespace {

constexpr const char* kHook = "communication hook";
constexpr const char* kName = "name";
constexpr const char* kOrder = "order";

}  // namespace

void Reducer::set_hook(std::shared_ptr<CommunicationHook> hook) {
  const auto names = all_gather_object(*group_, hook ? hook->name() : "none");
  const auto self = static_cast<std::size_t>(group_->rank());
  check(std::all_of(names.begin(), names.end(), [&](const auto& n) { return n == names[self]; }),
        "{}: the ranks chose different communication hooks: {}", group_->self(),
        fmt::join(names, ", "));
  check(!hook || !steps_.has_shards(),
        "{}: communication hook {}: with logical shards gradients are added up exactly, and "
        "travel as they are",
        group_->self(), hook ? hook->name() : "");
  check(!hook || !divides(),
        "{}: communication hook {}: a hook makes averages for every rank, and here each rank "
        "gets those of its part (fully_shard with stage 2 or 3): take stage 1",
        group_->self(), hook ? hook->name() : "");
  forget_plan();
  hook_ = std::move(hook);
  kept_by_hook_.reset();
  hook_tensors_.forget();
}

// Collective, at the end of a plan.
void Reducer::prepare_hook() {
  std::vector<GradientBucket> views;
  for (std::size_t i = 0; i + 1 < buckets_.size(); ++i) views.push_back(view_of(i));
  hook_->prepare(*group_, views);
  if (!kept_by_hook_) return;
  std::map<std::string, at::Tensor> before;
  for (const auto* tensors : {&kept_by_hook_->shared, &kept_by_hook_->owed})
    before.insert(tensors->begin(), tensors->end());
  const at::NoGradGuard no_grad;
  for (const auto& view : views) {
    for (const auto& kept : hook_->kept(view)) {
      const auto found = before.find(name_of(view, kept));
      if (found == before.end()) continue;
      check(found->second.sizes() == kept.tensor.sizes(),
            "{}: communication hook {}: {} has another shape than the one that was kept",
            group_->self(), hook_->name(), found->first);
      kept.tensor.copy_(found->second);
    }
  }
  kept_by_hook_.reset();
}

GradientBucket Reducer::view_of(std::size_t index) const {
  const Bucket& bucket = buckets_[index];
  GradientBucket view{index, index + 2 == buckets_.size(), bucket.flat, {}};
  for (const std::size_t i : bucket.plan.parameters) {
    view.gradients.push_back(parameters_[i].place);
  }
  return view;
}

std::string Reducer::name_of(const GradientBucket& bucket, const KeptTensor& kept) const {
  const std::size_t parameter = buckets_[bucket.index].plan.parameters.at(kept.gradient);
  return kept.kind + "." + parameters_[parameter].named.name;
}

HookState Reducer::hook_state() const {
  if (!hook_) return {};
  if (!is_planned_ && kept_by_hook_) return *kept_by_hook_;
  HookState state;
  state.words = hook_->progress();
  state.words[kName] = hook_->name();
  if (!is_planned_) return state;
  std::vector<std::int64_t> order;
  for (std::size_t i = 0; i + 1 < buckets_.size(); ++i) {
    const auto& parameters = buckets_[i].plan.parameters;
    order.insert(order.end(), parameters.begin(), parameters.end());
    const GradientBucket view = view_of(i);
    for (const auto& kept : hook_->kept(view))
      (kept.is_owed ? state.owed : state.shared).emplace_back(name_of(view, kept), kept.tensor);
  }
  state.words[kOrder] = optim::to_word(order);
  return state;
}

void Reducer::note_hook() {
  if (!hook_) return;
  const HookState state = hook_state();
  KeptTensors::Named all = state.shared;
  all.insert(all.end(), state.owed.begin(), state.owed.end());
  hook_tensors_.note(all);
}

void Reducer::require_own_hook(const optim::Words& words) const {
  optim::require_same_words(words, {{kName, hook_ ? hook_->name() : "none"}}, kHook);
}

void Reducer::set_hook_state(HookState state) {
  require_own_hook(state.words);
  forget_plan();
  hook_->set_progress(state.words);
  hook_tensors_.forget();
  kept_by_hook_ = std::move(state);
}

// Empty where other gradients are to be placed than the hook had.
std::vector<std::size_t> Reducer::order_of_hook() const {
  if (!kept_by_hook_ || !kept_by_hook_->words.contains(kOrder)) return {};
  std::vector<std::size_t> order;
  std::vector<bool> is_kept(parameters_.size());
  for (const double index : optim::numbers_in(kept_by_hook_->words, kOrder, kHook)) {
    if (!(index >= 0 && index < static_cast<double>(is_kept.size()))) return {};
    order.push_back(static_cast<std::size_t>(index));
    if (is_kept[order.back()]) return {};
    is_kept[order.back()] = true;
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_kept[i] != parameters_[i].is_trained) return {};
  }
  return order;
}

// What goes wrong in the hook itself no other rank would hear of.
WorkPtr Reducer::start_round(std::size_t index) {
  try {
    return hook_->start_round(*group_, view_of(index), buckets_[index].round);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kPeerLost || error.code() == ErrorCode::kAborted)
      throw with_advice(error);
    fail_in_hook(index, error.what());
  } catch (...) {
    fail_in_hook(index, describe_current_exception().c_str());
  }
}

void Reducer::fail_in_hook(std::size_t index, const char* why) {
  const std::string message =
      fmt::format("communication hook {} failed in round {} of bucket {}: {}", hook_->name(),
                  buckets_[index].round, index, why);
  group_->abort(message);
  fail(ErrorCode::kInvalid, "{}: {}", group_->self(), message);
}

}  // namespace paceline
