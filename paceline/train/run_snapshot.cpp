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

std::string encode(const TrainingState& state, const optim::Optimizer& optimizer) {
  return nlohmann::json{{"epoch", state.epoch},
                        {"step", state.step},
                        {"consumed", state.consumed},
                        {"seed", state.seed},
                        {"data", state.data},
                        {"logical_shards", state.logical_shards},
                        {"num_threads", state.num_threads},
                        {"optimizer", optimizer.name()},
                        {"learning_rate", optimizer.learning_rate()}}
      .dump();
}

void require_same_optimizer(const std::string& saved, const optim::Optimizer& optimizer) {
  const auto name = nlohmann::json::parse(saved).at("optimizer").get<std::string>();
  check(name == optimizer.name(), "the checkpoint was made with the optimizer {}, this run uses {}",
        name, optimizer.name());
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

Tensors tensors_of(const torch::nn::Module& module, const Tensors& optimizer_state) {
  Tensors tensors;
  for (const auto& item : module.named_parameters())
    tensors.emplace_back("model." + item.key(), item.value());
  for (const auto& item : module.named_buffers())
    tensors.emplace_back("model." + item.key(), item.value());
  for (const auto& [name, tensor] : optimizer_state)
    tensors.emplace_back("optimizer." + name, tensor);
  for (auto& [name, tensor] : tensors) tensor = tensor.detach();
  return tensors;
}

Snapshot words_of(int world_size, const TrainingState& state, const optim::Optimizer& optimizer) {
  Snapshot words;
  words.world_size = world_size;
  words.metadata[kWords] = encode(state, optimizer);
  return words;
}

OwnedSnapshot snapshot_of(int world_size, const TrainingState& state, Tensors tensors,
                          const optim::Optimizer& optimizer, const at::Tensor& random_states) {
  OwnedSnapshot owned{std::move(tensors), words_of(world_size, state, optimizer)};
  owned.tensors.emplace_back(kRandomStates, random_states);
  for (auto& [name, tensor] : owned.tensors) {
    tensor = tensor.contiguous();  // a copy where the memory format is another
    owned.snapshot.tensors.push_back(to_named(name, tensor));
  }
  return owned;
}

HeldRun held_run(const torch::nn::Module& module, const optim::Optimizer& optimizer,
                 const Tensors* whole_state, const at::Tensor& random_states) {
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
  add(run, kRandomStates, random_states, By::kRoot);
  return run;
}

TakenRun take_over(const LoadedCheckpoint& loaded, const Tensors& tensors,
                   const optim::Optimizer& optimizer) {
  const Snapshot& snapshot = loaded.snapshot;
  check(snapshot.metadata.contains(kWords), "the checkpoint is not one of a training run");
  require_same_tensors(snapshot, tensors);
  require_same_optimizer(snapshot.metadata.at(kWords), optimizer);
  std::map<std::string, const NamedTensor*> by_name;
  for (const auto& named : snapshot.tensors) by_name[named.name] = &named;
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors) tensor.copy_(to_tensor(*by_name.at(name)));
  return {snapshot.metadata.at(kWords), to_tensor(*by_name.at(kRandomStates))};
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

double learning_rate_in(const std::string& words) {
  return nlohmann::json::parse(words).at("learning_rate").get<double>();
}

}  // namespace paceline::train
