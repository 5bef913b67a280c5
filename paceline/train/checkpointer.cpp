#include "paceline/train/checkpointer.h"

#include <cstring>
#include <functional>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "paceline/collectives/text.h"
#include "paceline/core/check.h"
#include "paceline/core/log.h"
#include "paceline/tensor/collectives.h"
#include "paceline/tensor/tensor_view.h"

namespace paceline::train {
namespace {

constexpr const char* kRandomStates = "random_states";  // one row a rank

using Tensors = optim::NamedTensors;

// All tensors that make up a run, by the names they have in a checkpoint.
Tensors tensors_of(const torch::nn::Module& module, const optim::NamedTensors& optimizer_state) {
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

at::Generator random_generator() { return at::detail::getDefaultCPUGenerator(); }

NamedTensor to_named(const std::string& name, const at::Tensor& contiguous) {
  const Buffer view = dense_view(contiguous);
  return {name, view.dtype, contiguous.sizes().vec(), {view.data, view.bytes()}};
}

// Only rank 0 does `action`; its failure is thrown on every rank.
std::string on_rank_0(ProcessGroup& group, const std::function<std::string()>& action) {
  std::string answer;
  if (group.rank() == 0) {
    try {
      answer = fmt::format("+{}", action());
    } catch (const Error& error) {
      answer = fmt::format("{}{}", static_cast<int>(error.code()), error.what());
    }
  }
  answer = broadcast_text(group, answer, 0);
  if (answer[0] != '+') throw Error(static_cast<ErrorCode>(answer[0] - '0'), answer.substr(1));
  return answer.substr(1);
}

std::string encode(const TrainingState& state, const optim::Optimizer& optimizer) {
  return nlohmann::json{{"epoch", state.epoch},          {"step", state.step},
                        {"consumed", state.consumed},    {"seed", state.seed},
                        {"optimizer", optimizer.name()}, {"optimizer_steps", optimizer.num_steps()}}
      .dump();
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

}  // namespace

Checkpointer::Checkpointer(std::shared_ptr<ProcessGroup> group, const std::string& path, int keep)
    : group_(std::move(group)) {
  on_rank_0(*group_, [&] {
    directory_.emplace(path, CheckpointDirectoryOptions{.keep = keep});
    return std::string();
  });
}

bool Checkpointer::save(const TrainingState& state, const torch::nn::Module& module,
                        const optim::Optimizer& optimizer) {
  const auto random_states = gather(*group_, random_generator().get_state(), 0);
  Tensors tensors = tensors_of(module, optimizer.state());
  const std::string answer = on_rank_0(*group_, [&] {
    tensors.emplace_back(kRandomStates, at::stack(random_states));
    Snapshot snapshot;
    snapshot.world_size = group_->world_size();
    snapshot.metadata["training_state"] = encode(state, optimizer);
    for (auto& [name, tensor] : tensors) {
      tensor = tensor.contiguous();  // a copy where the memory format is another; kept alive until
                                     // the save is done
      snapshot.tensors.push_back(to_named(name, tensor));
    }
    try {
      directory_->save(state.step, snapshot);
      return std::string("saved");
    } catch (const Error& error) {
      log::error(fmt::format("step {}: no checkpoint was written: {}", state.step, error.what()));
      return std::string();
    }
  });
  return !answer.empty();
}

// Rank 0: fills the run's tensors. Returns the training state as text; empty when there is no
// checkpoint.
std::string Checkpointer::read_newest(const optim::NamedTensors& tensors,
                                      at::Tensor& random_states) {
  const auto loaded = directory_->load_newest();
  if (!loaded) return {};
  const auto& snapshot = loaded->snapshot;
  require_same_tensors(snapshot, tensors);
  std::map<std::string, const NamedTensor*> by_name;
  for (const auto& named : snapshot.tensors) by_name[named.name] = &named;
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors) tensor.copy_(to_tensor(*by_name.at(name)));
  random_states = to_tensor(*by_name.at(kRandomStates));
  return snapshot.metadata.at("training_state");
}

std::optional<TrainingState> Checkpointer::restore(torch::nn::Module& module,
                                                   optim::Optimizer& optimizer) {
  at::Tensor random_states;
  const optim::NamedTensors optimizer_state = optimizer.state();
  const Tensors tensors = tensors_of(module, optimizer_state);
  const std::string text = on_rank_0(*group_, [&] { return read_newest(tensors, random_states); });
  if (text.empty()) return std::nullopt;
  const auto json = nlohmann::json::parse(text);
  check(json.at("optimizer") == optimizer.name(),
        "the checkpoint was made with the optimizer {}, this run uses {}",
        json.at("optimizer").get<std::string>(), optimizer.name());
  for (const auto& [name, tensor] : tensors) broadcast(*group_, tensor, 0);
  optimizer.set_state(optimizer_state, json.at("optimizer_steps").get<std::int64_t>());

  auto num_states = random_states.defined() ? random_states.size(0) : std::int64_t{0};
  group_->broadcast(std::span(&num_states, 1), 0);
  auto generator = random_generator();
  const at::Tensor own = generator.get_state();
  if (group_->rank() != 0) random_states = at::empty({num_states, own.numel()}, at::kByte);
  broadcast(*group_, random_states, 0);
  // A rank that the saved run did not have keeps the state that its seed gave it.
  if (group_->rank() < num_states) generator.set_state(random_states[group_->rank()].clone());
  return TrainingState{json.at("epoch").get<std::int64_t>(), json.at("step").get<std::int64_t>(),
                       json.at("consumed").get<std::int64_t>(),
                       json.at("seed").get<std::uint64_t>()};
}

}  // namespace paceline::train
