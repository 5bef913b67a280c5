#include "paceline/training/train/checkpoints/run_snapshot.h"

#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/training/parallel/reducer/gradient_placement.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/train/checkpoints/run_boxes.h"
#include "paceline/training/train/run_parts.h"

namespace paceline::train {

namespace {

constexpr std::string_view kShared = "shared.";
constexpr std::string_view kOwed = "owed.";

// Collective. Returns uninitialised tensors with the names and sizes of the tensors that `root`
// has.
optim::NamedTensors empty_like_those_of(ProcessGroup& group, const optim::NamedTensors& saved,
                                        int root) {
  auto list = nlohmann::json::array();
  for (const auto& [name, tensor] : saved) list.push_back({name, tensor.sizes().vec()});
  const auto agreed = parse_json(broadcast_object(group, json_text(list), root));
  optim::NamedTensors tensors;
  for (const auto& entry : agreed)
    tensors.emplace_back(entry[0], at::empty(entry[1].get<std::vector<std::int64_t>>()));
  return tensors;
}

}  // namespace

optim::NamedTensors gather_hook_state(ProcessGroup& group, const HookState& state,
                                      std::optional<int> root) {
  optim::NamedTensors all;
  for (const auto& [name, tensor] : state.shared)
    all.emplace_back(std::string(kShared) + name, tensor);
  for (const auto& [name, tensor] : state.owed) {
    const at::Tensor own = tensor.contiguous();
    const auto of_ranks = root ? gather(group, own, *root) : all_gather(group, own);
    std::vector<std::int64_t> sizes = own.sizes().vec();
    sizes.insert(sizes.begin(), group.world_size());
    const bool has_all = !root || group.rank() == *root;
    all.emplace_back(std::string(kOwed) + name, has_all ? at::stack(of_ranks) : at::empty(sizes));
  }
  return all;
}

HookState scatter_hook_state(ProcessGroup& group, const optim::NamedTensors& saved, int root,
                             optim::Metadata words) {
  HookState state{std::move(words), {}, {}};
  optim::NamedTensors all = empty_like_those_of(group, saved, root);
  if (group.rank() == root) all = saved;
  for (const auto& [name, tensor] : all) {
    broadcast(group, tensor, root);
    if (name.starts_with(kShared)) {
      state.shared.emplace_back(name.substr(kShared.size()), tensor);
      continue;
    }
    const bool is_same_world = tensor.size(0) == group.world_size();
    state.owed.emplace_back(
        name.substr(kOwed.size()),
        is_same_world ? tensor[group.rank()] : tensor.to(at::kDouble).mean(0).to(at::kFloat));
  }
  return state;
}

namespace {

constexpr const char* kWords = "training_state";
constexpr const char* kSchedule = "schedule";
constexpr const char* kScaler = "grad_scaler";
constexpr const char* kAverage = "average";
constexpr const char* kHook = "communication_hook";
constexpr const char* kLearningRates = "learning_rates";
constexpr const char* kAttached = "attached";  // the names of the attached states, with their kinds

// The hook of a reducer, with the same interface as the other parts.
struct Hook {
  const Reducer& reducer;
  void require_compatible(const optim::Metadata& words) const { reducer.require_own_hook(words); }
};
std::optional<Hook> hook_of(const RunParts& parts) {
  if (parts.reducer == nullptr || !parts.reducer->has_hook()) return std::nullopt;
  return Hook{*parts.reducer};
}

std::string name_of(const optim::Optimizer* optimizer) {
  return optimizer != nullptr ? optimizer->name() : "none";
}

optim::Metadata kinds_of(const std::vector<AttachedState>& states) {
  optim::Metadata kinds;
  for (const AttachedState& state : states) kinds[state.name] = state.kind;
  return kinds;
}

std::string encode(const TrainingState& state, const optim::Optimizer* optimizer,
                   const RunParts& parts) {
  nlohmann::json json{
      {"epoch", state.epoch},
      {"step", state.step},
      {"consumed", state.consumed},
      {"seed", state.seed},
      {"data", state.data},
      {"logical_shards", state.logical_shards},
      {"num_threads", state.num_threads},
      {"optimizer", name_of(optimizer)},
      {kLearningRates, optimizer != nullptr ? optimizer->learning_rates() : std::vector<double>()}};
  if (!parts.states.empty()) json[kAttached] = kinds_of(parts.states);
  if (parts.schedule != nullptr) json[kSchedule] = parts.schedule->state();
  if (parts.scaler != nullptr) json[kScaler] = parts.scaler->state();
  if (parts.average != nullptr) json[kAverage] = parts.average->options();
  if (hook_of(parts)) json[kHook] = parts.reducer->hook_state().words;
  return json_text(json);
}

void require_same_optimizer(const nlohmann::json& saved, const optim::Optimizer* optimizer) {
  const auto name = saved.at("optimizer").get<std::string>();
  check(name == name_of(optimizer),
        "the checkpoint was made with the optimizer {}, this run uses {}", name,
        name_of(optimizer));
  if (optimizer == nullptr) return;
  const std::size_t groups = saved.at(kLearningRates).size();
  check(groups == optimizer->num_groups(),
        "the checkpoint's optimizer has {} parameter groups, this run's {}", groups,
        optimizer->num_groups());
}

// Describes the attached states that only the checkpoint or only this run has, and those of another
// kind; empty if there are none.
std::string differences_of_states(const nlohmann::json& saved, const RunParts& parts) {
  const auto there = saved.value(kAttached, optim::Metadata());
  const auto here = kinds_of(parts.states);
  std::string text;
  for (const auto& [name, kind] : here) {
    const auto found = there.find(name);
    if (found != there.end() && found->second == kind) continue;
    text += fmt::format("\n  \"{}\": {} here, {} in the checkpoint", name, kind,
                        found == there.end() ? "nothing" : found->second);
  }
  for (const auto& [name, kind] : there) {
    if (!here.contains(name))
      text += fmt::format("\n  \"{}\": nothing here, {} in the checkpoint", name, kind);
  }
  return text;
}

// Describes how a part of the run differs from the saved one; empty if it does not differ. `part`:
// null if the run does not have this part.
template <class Part>
std::string difference_of(const nlohmann::json& saved, const char* key, const Part* part) {
  if (saved.contains(key) != (part != nullptr)) {
    return fmt::format("\n  {}: {} here, {} in the checkpoint", key, part ? "one" : "none",
                       part ? "none" : "one");
  }
  if (part == nullptr) return "";
  try {
    part->require_compatible(saved.at(key).template get<optim::Metadata>());
  } catch (const Error& error) {
    return fmt::format("\n  {}", error.what());
  }
  return "";
}

void require_same_parts(const nlohmann::json& saved, const RunParts& parts) {
  const auto hook = hook_of(parts);
  const std::string of_schedule = difference_of(saved, kSchedule, parts.schedule);
  const std::string differences = of_schedule + difference_of(saved, kScaler, parts.scaler) +
                                  difference_of(saved, kAverage, parts.average) +
                                  difference_of(saved, kHook, hook ? &*hook : nullptr) +
                                  differences_of_states(saved, parts);
  check(differences.empty(),
        "this run's parts differ from those of the checkpoint's run:{}\n  To continue that run, "
        "attach the same parts with the same options{}; to begin another run with its weights, "
        "call load_weights()",
        first_lines(differences),
        of_schedule.empty() ? ""
                            : " (a longer run keeps the length of its schedule: "
                              "StepOptions::schedule_steps, --lr-schedule-steps)");
}

// The tensors that have one kind of difference from those of the checkpoint. The message names only
// one tensor.
struct Differences {
  void add(const std::string& name, const std::string& what) {
    of_model = of_model || name.starts_with(kModelTensors);
    const bool is_better =
        count == 0 || (name.starts_with(kModelTensors) && !first.starts_with(kModelTensors));
    if (is_better) first = fmt::format("{}: {}", name, what);
    ++count;
  }
  // Returns one line of a message; empty if there are no such tensors.
  std::string text(const char* how) const {
    if (count == 0) return "";
    return fmt::format("\n  {} {}, {}{}", counted(count, "tensor"), how,
                       count > 1 ? "for instance " : "", first);
  }

  std::size_t count = 0;
  std::string first;
  bool of_model = false;  // at least one of them is the model's
};

nlohmann::json json_in(const std::map<std::string, std::string>& metadata) {
  return parse_json(metadata.at(kWords));
}

}  // namespace

std::map<std::string, std::string> words_of(const TrainingState& state,
                                            const optim::Optimizer* optimizer,
                                            const RunParts& parts) {
  return {{kWords, encode(state, optimizer, parts)}};
}

void require_compatible(const Manifest& saved, const optim::Optimizer* optimizer,
                        const RunParts& parts) {
  check(saved.metadata.contains(kWords), "the checkpoint is not one of a training run");
  const auto words = json_in(saved.metadata);
  require_same_optimizer(words, optimizer);
  require_same_parts(words, parts);
}

void require_same_tensors(const Manifest& saved, const std::vector<HeldBox>& wanted) {
  std::map<std::string, std::string> rest;
  for (const StoredTensor& tensor : saved.tensors) {
    if (tensor.name != kRandomStates && !tensor.name.starts_with(kHookTensors) &&
        !tensor.name.starts_with(kStates))
      rest[tensor.name] = describe(tensor.dtype, tensor.shape);
  }
  std::map<std::string, std::string> here;
  for (const HeldBox& one : wanted) here[one.name] = describe(one.dtype, one.shape);
  Differences changed, added, missing;
  for (const auto& [name, what] : here) {
    const auto found = rest.find(name);
    if (found == rest.end()) {
      added.add(name, what);
    } else if (found->second != what) {
      changed.add(name, fmt::format("{} here, {} in the checkpoint", what, found->second));
    }
    rest.erase(name);
  }
  for (const auto& [name, what] : rest) missing.add(name, what);
  const bool is_other_model = changed.of_model || added.of_model || missing.of_model;
  const std::string differences = changed.text("of another shape or type") +
                                  added.text("not in the checkpoint") +
                                  missing.text("in the checkpoint only");
  check(differences.empty(), "the checkpoint is of another {}:{}",
        is_other_model
            ? "model than this program built; continue with the options that the run began with"
            : "optimizer, or of other parameter groups, than this program made",
        differences);
}

TrainingState state_in(const std::map<std::string, std::string>& metadata) {
  const auto json = json_in(metadata);
  return {.epoch = json.at("epoch").get<std::int64_t>(),
          .step = json.at("step").get<std::int64_t>(),
          .consumed = json.at("consumed").get<std::int64_t>(),
          .seed = json.at("seed").get<std::uint64_t>(),
          .data = json.value("data", std::string()),
          .logical_shards = json.value("logical_shards", std::int64_t{0}),
          .num_threads = json.value("num_threads", std::int64_t{0})};
}

std::optional<std::uint64_t> seed_in(const std::map<std::string, std::string>& metadata) try {
  if (!metadata.contains(kWords)) return std::nullopt;
  return state_in(metadata).seed;
} catch (const nlohmann::json::exception&) {
  return std::nullopt;
}

void take_words(const std::map<std::string, std::string>& metadata, optim::Optimizer* optimizer,
                const RunParts& parts) {
  const auto json = json_in(metadata);
  if (optimizer != nullptr)
    optimizer->set_learning_rates(json.at(kLearningRates).get<std::vector<double>>());
  if (parts.schedule != nullptr)
    parts.schedule->set_state(json.at(kSchedule).get<optim::Metadata>());
  if (parts.scaler != nullptr) parts.scaler->set_state(json.at(kScaler).get<optim::Metadata>());
}

optim::Metadata hook_words_in(const std::map<std::string, std::string>& metadata) {
  return json_in(metadata).value(kHook, optim::Metadata());
}

}  // namespace paceline::train
