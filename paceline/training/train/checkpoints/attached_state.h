#pragma once

// Parts of a training run that a checkpoint keeps as bytes: optimizers of torch::optim, loaders,
// schedules, and values of the program's own. Checkpointer::attach() makes them; rank 0's bytes are
// saved, and every rank loads them.
//
// Thread safety: none.

#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/step_lr.h>

#include "paceline/training/data/data_loader.h"
#include "paceline/training/optim/metadata.h"

namespace paceline::train {

// A part with a name in the checkpoint. `kind` describes what the bytes are; a run continues only
// with parts of the same names and kinds. Both functions may throw an Error, which every rank then
// throws.
struct AttachedState {
  std::string name;
  std::string kind;
  std::function<std::string()> save;                   // not collective; called on rank 0
  std::function<void(const std::string& bytes)> load;  // called on every rank
};

// A class whose whole state is an optim::Metadata, such as the schedules and GradScaler, or a class
// of the program's own.
template <class T>
concept Stateful = requires(T& object, const T& same, const optim::Metadata& state) {
  { same.state() } -> std::convertible_to<optim::Metadata>;
  object.set_state(state);
};

// A value of the program's own, such as the best loss so far.
template <class T>
concept OwnValue =
    std::is_arithmetic_v<T> || std::same_as<T, std::string> || std::same_as<T, at::Tensor>;

// The result of state_of() refers to the object, which must outlive it.
AttachedState state_of(const std::string& name, torch::optim::Optimizer& optimizer);
// The state is the schedule's number of steps; the rates are a part of its optimizer's state.
// LibTorch's other schedulers have no state that a program can read.
AttachedState state_of(const std::string& name, torch::optim::StepLR& schedule);
// The state is the loader's position: after a restore, loader.epoch() continues in the middle of
// the saved epoch.
AttachedState state_of(const std::string& name, data::DataLoader& loader);
AttachedState state_of(const std::string& name, double& value);
AttachedState state_of(const std::string& name, std::int64_t& value);
AttachedState state_of(const std::string& name, std::string& value);
// A defined tensor of the same sizes gets the saved values; otherwise it is replaced.
AttachedState state_of(const std::string& name, at::Tensor& value);

namespace detail {

// Call save and load. An exception other than Error becomes Error(kInvalid) with the part's name.
std::string save_state(const AttachedState& part);
void load_state(const AttachedState& part, const std::string& bytes);
// Convert metadata to bytes and back.
std::string to_bytes(const optim::Metadata& words);
optim::Metadata words_in(const std::string& bytes);

}  // namespace detail

template <Stateful T>
AttachedState state_of(const std::string& name, T& object) {
  return {name, "state", [&object] { return detail::to_bytes(object.state()); },
          [&object](const std::string& bytes) { object.set_state(detail::words_in(bytes)); }};
}

// A number of a type other than double and std::int64_t is saved as one of these two types.
template <class T>
  requires std::is_arithmetic_v<T>
AttachedState state_of(const std::string& name, T& value) {
  using Kept = std::conditional_t<std::is_floating_point_v<T>, double, std::int64_t>;
  Kept none = 0;
  return {name, state_of(name, none).kind,
          [name, &value] {
            auto kept = static_cast<Kept>(value);
            return state_of(name, kept).save();
          },
          [name, &value](const std::string& bytes) {
            Kept kept = 0;
            state_of(name, kept).load(bytes);
            value = static_cast<T>(kept);
          }};
}

}  // namespace paceline::train
