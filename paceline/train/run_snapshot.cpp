#include "paceline/train/run_snapshot.h"

#include <cstring>
#include <map>
#include <utility>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "paceline/core/check.h"
#include "paceline/tensor/tensor_view.h"

namespace paceline::train {
namespace {

using Tensors = optim::NamedTensors;

constexpr const char* kWords = "training_state";
constexpr const char* kRandomStates = "random_states";  // one row a rank

NamedTensor to_named(const std::string& name, const at::Tensor& dense) {
  const Buffer view = dense_cpu_view(dense);
  return {name, view.dtype, dense.sizes().vec(), {view.data, view.bytes()}};
}

std::vector<std::int64_t> strides_of(const at::Tensor& dense) {
  return dense.is_contiguous() ? std::vector<std::int64_t>() : dense.strides().vec();
}

constexpr const char* kSchedule = "schedule";
constexpr const char* kScaler = "grad_scaler";
constexpr const char* kAverage = "average";
constexpr const char* kHook = "communication_hook";
constexpr const char* kAverager = "periodic_averager";
constexpr const char* kHookTensors = "hook.";
constexpr const char* kLearningRates = "learning_rates";
constexpr const char* kGroups = "group_sizes";

// How many parameters each group has.
std::vector<std::size_t> group_sizes(const optim::Optimizer& optimizer) {
  std::vector<std::size_t> sizes(optimizer.num_groups());
  for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) ++sizes[optimizer.group_of(i)];
  return sizes;
}

// As the other parts: null where the reducer has no hook.
struct Hook {
  const Reducer& reducer;
  void require_own(const optim::Words& words) const { reducer.require_own_hook(words); }
};
std::optional<Hook> hook_of(const RunParts& parts) {
  if (parts.reducer == nullptr || !parts.reducer->has_hook()) return std::nullopt;
  return Hook{*parts.reducer};
}

std::string encode(const TrainingState& state, const optim::Optimizer& optimizer,
                   const RunParts& parts) {
  nlohmann::json json{{"epoch", state.epoch},
                      {"step", state.step},
                      {"consumed", state.consumed},
                      {"seed", state.seed},
                      {"data", state.data},
                      {"logical_shards", state.logical_shards},
                      {"num_threads", state.num_threads},
                      {"optimizer", optimizer.name()},
                      {"learning_rate", optimizer.learning_rate()},
                      {kLearningRates, optimizer.learning_rates()},
                      {kGroups, group_sizes(optimizer)}};
  if (parts.schedule != nullptr) json[kSchedule] = parts.schedule->state();
  if (parts.scaler != nullptr) json[kScaler] = parts.scaler->state();
  if (parts.average != nullptr) json[kAverage] = parts.average->options();
  if (hook_of(parts)) json[kHook] = parts.reducer->hook_state().words;
  if (parts.averager != nullptr) json[kAverager] = parts.averager->state();
  return json.dump();
}

// Before there were groups, a run had one learning rate.
std::vector<double> learning_rates_in(const nlohmann::json& json) {
  const auto found = json.find(kLearningRates);
  if (found != json.end()) return found->get<std::vector<double>>();
  return {json.at("learning_rate").get<double>()};
}

void require_same_optimizer(const nlohmann::json& saved, const optim::Optimizer& optimizer) {
  const auto name = saved.at("optimizer").get<std::string>();
  check(name == optimizer.name(), "the checkpoint was made with the optimizer {}, this run uses {}",
        name, optimizer.name());
  const std::size_t groups = learning_rates_in(saved).size();
  check(groups == optimizer.num_groups(),
        "the checkpoint's optimizer has {} parameter groups, this run's {}", groups,
        optimizer.num_groups());
  const auto sizes = group_sizes(optimizer);
  const auto saved_sizes = saved.value(kGroups, sizes);
  check(sizes == saved_sizes,
        "the checkpoint's parameter groups have {} parameters, this run's have {}",
        fmt::join(saved_sizes, ", "), fmt::join(sizes, ", "));
}

// What is wrong with a part of the run; empty: nothing. `part`: null when the run has none.
template <class Part>
std::string difference_of(const nlohmann::json& saved, const char* key, const Part* part) {
  if (saved.contains(key) != (part != nullptr)) {
    return fmt::format("\n{}: {} here, {} in the checkpoint", key, part ? "one" : "none",
                       part ? "none" : "one");
  }
  if (part == nullptr) return "";
  try {
    part->require_own(saved.at(key).template get<optim::Words>());
  } catch (const Error& error) {
    return fmt::format("\n{}", error.what());
  }
  return "";
}

void require_same_parts(const nlohmann::json& saved, const RunParts& parts) {
  const auto hook = hook_of(parts);
  const std::string differences = difference_of(saved, kSchedule, parts.schedule) +
                                  difference_of(saved, kScaler, parts.scaler) +
                                  difference_of(saved, kAverage, parts.average) +
                                  difference_of(saved, kHook, hook ? &*hook : nullptr) +
                                  difference_of(saved, kAverager, parts.averager);
  check(differences.empty(), "the checkpoint's run has other parts than this one:{}", differences);
}

// Error(kInvalid) listing what the checkpoint has and the run has not, and the other way round.
void require_same_tensors(const Snapshot& snapshot, const Tensors& tensors) {
  std::map<std::string, std::string> saved;
  const auto shape = [](Dtype dtype, const std::vector<std::int64_t>& sizes) {
    return fmt::format("{} [{}]", name_of(dtype), fmt::join(sizes, ", "));
  };
  for (const auto& tensor : snapshot.tensors)
    saved[tensor.name] = shape(tensor.dtype, tensor.shape);
  std::string differences;
  for (const auto& [name, tensor] : tensors) {
    const auto wanted = shape(to_dtype(tensor.scalar_type()), tensor.sizes().vec());
    const auto found = saved.find(name);
    if (found == saved.end()) {
      differences += fmt::format("\n  {}: {} here, not in the checkpoint", name, wanted);
    } else if (found->second != wanted) {
      differences +=
          fmt::format("\n  {}: {} here, {} in the checkpoint", name, wanted, found->second);
    }
    saved.erase(name);
  }
  saved.erase(kRandomStates);
  std::erase_if(saved, [](const auto& entry) { return entry.first.starts_with(kHookTensors); });
  for (const auto& [name, what] : saved)
    differences += fmt::format("\n  {}: {} in the checkpoint, not here", name, what);
  check(differences.empty(), "the checkpoint is of another model or optimizer:{}", differences);
}

at::Tensor to_tensor(const NamedTensor& named) {
  at::Tensor tensor = at::empty(named.shape, at::TensorOptions(to_scalar_type(named.dtype)));
  if (!named.bytes.empty()) std::memcpy(tensor.data_ptr(), named.bytes.data(), named.bytes.size());
  return tensor;
}

void add(HeldRun& run, const std::string& name, const at::Tensor& tensor, HeldTensor::By by) {
  const at::Tensor dense = is_dense(tensor) ? tensor : tensor.contiguous();
  run.tensors.emplace_back(name, dense);
  run.held.push_back({to_named(name, dense), by, 0, strides_of(dense)});
}

void add(HeldRun& run, const optim::StatePart& part) {
  HeldTensor held{to_named("optimizer." + part.name, part.elements), HeldTensor::By::kOwners,
                  static_cast<std::size_t>(part.first) * sizeof(float), strides_of(part.like)};
  held.tensor.shape = part.like.sizes().vec();
  run.tensors.emplace_back(held.tensor.name, part.elements);
  run.held.push_back(std::move(held));
}

}  // namespace

Tensors tensors_of(const torch::nn::Module& module, const Tensors& optimizer_state,
                   const Tensors& average_state) {
  Tensors tensors;
  for (const auto& item : module.named_parameters())
    tensors.emplace_back("model." + item.key(), item.value());
  for (const auto& item : module.named_buffers())
    tensors.emplace_back("model." + item.key(), item.value());
  for (const auto& [name, tensor] : optimizer_state)
    tensors.emplace_back("optimizer." + name, tensor);
  for (const auto& [name, tensor] : average_state) tensors.emplace_back("average." + name, tensor);
  for (auto& [name, tensor] : tensors) tensor = tensor.detach();
  return tensors;
}

Snapshot words_of(int world_size, const TrainingState& state, const optim::Optimizer& optimizer,
                  const RunParts& parts) {
  Snapshot words;
  words.world_size = world_size;
  words.metadata[kWords] = encode(state, optimizer, parts);
  return words;
}

OwnedSnapshot snapshot_of(int world_size, const TrainingState& state, Tensors tensors,
                          const optim::Optimizer& optimizer, const RunParts& parts,
                          const Tensors& hook_state, const at::Tensor& random_states) {
  OwnedSnapshot owned{std::move(tensors), words_of(world_size, state, optimizer, parts)};
  for (const auto& [name, tensor] : hook_state)
    owned.tensors.emplace_back(kHookTensors + name, tensor);
  owned.tensors.emplace_back(kRandomStates, random_states);
  for (auto& [name, tensor] : owned.tensors) {
    tensor = tensor.contiguous();  // a copy where the memory format is another
    owned.snapshot.tensors.push_back(to_named(name, tensor));
  }
  return owned;
}

HeldRun held_run(const torch::nn::Module& module, const optim::Optimizer& optimizer,
                 const Tensors* whole_state, const RunParts& parts, const Tensors& hook_state,
                 const at::Tensor& random_states) {
  using By = HeldTensor::By;
  HeldRun run;
  for (const auto& item : module.named_parameters())
    add(run, "model." + item.key(), item.value().detach(), By::kAll);
  for (const auto& item : module.named_buffers())
    add(run, "model." + item.key(), item.value().detach(), By::kRoot);
  if (whole_state != nullptr) {
    for (const auto& [name, tensor] : *whole_state)
      add(run, "optimizer." + name, tensor.detach(), By::kAll);
  } else {
    for (const auto& part : optimizer.state_parts()) add(run, part);
    const auto [name, steps] = optimizer.num_steps();
    add(run, "optimizer." + name, steps, By::kAll);
  }
  if (parts.average != nullptr) {
    for (const auto& [name, tensor] : parts.average->state())
      add(run, "average." + name, tensor, By::kAll);
  }
  for (const auto& [name, tensor] : hook_state) add(run, kHookTensors + name, tensor, By::kRoot);
  add(run, kRandomStates, random_states, By::kRoot);
  return run;
}

TakenRun take_over(const LoadedCheckpoint& loaded, const Tensors& tensors,
                   const optim::Optimizer& optimizer, const RunParts& parts) {
  const Snapshot& snapshot = loaded.snapshot;
  check(snapshot.metadata.contains(kWords), "the checkpoint is not one of a training run");
  const auto words = nlohmann::json::parse(snapshot.metadata.at(kWords));
  require_same_tensors(snapshot, tensors);
  require_same_optimizer(words, optimizer);
  require_same_parts(words, parts);
  std::map<std::string, const NamedTensor*> by_name;
  for (const auto& named : snapshot.tensors) by_name[named.name] = &named;
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors) tensor.copy_(to_tensor(*by_name.at(name)));
  TakenRun taken{snapshot.metadata.at(kWords), to_tensor(*by_name.at(kRandomStates)), {}};
  for (const auto& [name, named] : by_name) {
    if (name.starts_with(kHookTensors))
      taken.hook_state.emplace_back(name.substr(std::strlen(kHookTensors)), to_tensor(*named));
  }
  return taken;
}

TrainingState state_in(const std::string& words) {
  const auto json = nlohmann::json::parse(words);
  return {.epoch = json.at("epoch").get<std::int64_t>(),
          .step = json.at("step").get<std::int64_t>(),
          .consumed = json.at("consumed").get<std::int64_t>(),
          .seed = json.at("seed").get<std::uint64_t>(),
          .data = json.value("data", std::string()),
          .logical_shards = json.value("logical_shards", std::int64_t{0}),
          .num_threads = json.value("num_threads", std::int64_t{0})};
}

std::optional<std::uint64_t> seed_in(const std::map<std::string, std::string>& metadata) try {
  const auto words = metadata.find(kWords);
  if (words == metadata.end()) return std::nullopt;
  return state_in(words->second).seed;
} catch (const nlohmann::json::exception&) {
  return std::nullopt;
}

void take_words(const std::string& words, optim::Optimizer& optimizer, const RunParts& parts) {
  const auto json = nlohmann::json::parse(words);
  optimizer.set_learning_rates(learning_rates_in(json));
  if (parts.schedule != nullptr) parts.schedule->set_state(json.at(kSchedule).get<optim::Words>());
  if (parts.scaler != nullptr) parts.scaler->set_state(json.at(kScaler).get<optim::Words>());
  if (parts.averager != nullptr) parts.averager->set_state(json.at(kAverager).get<optim::Words>());
}

optim::Words hook_words_in(const std::string& words) {
  return nlohmann::json::parse(words).value(kHook, optim::Words());
}

}  // namespace paceline::train
