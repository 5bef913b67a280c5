#include "paceline/training/train/checkpoints/attached_state.h"

#include <sstream>
#include <typeinfo>
#include <utility>

#include <c10/util/Type.h>
#include <torch/optim/lbfgs.h>
#include <torch/serialize.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/training/optim/metadata_words.h"
#include "paceline/training/tensor/libtorch_version.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline::train {
namespace {

constexpr const char* kNumber = "number";
constexpr const char* kCount = "count";
constexpr const char* kText = "text";
constexpr const char* kTensor = "tensor";
constexpr const char* kLoader = "loader";
constexpr const char* kStepLR = "torch::optim::StepLR";
constexpr const char* kSteps = "steps";

// The state of one value, as metadata with a single entry.
optim::Metadata one_word(std::string word) { return {{"value", std::move(word)}}; }

// Runs an action of LibTorch's archives, whose errors say nothing about the checkpoint.
template <class Action>
void with_archive(const std::string& name, const char* what, const Action& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    fail(ErrorCode::kInvalid, "the checkpoint's \"{}\" is not {} of this run: {}", name, what,
         error.what_without_backtrace());
  }
}

// Runs a function of a part, which may be the program's own.
template <class Action>
auto of_part(const AttachedState& part, const char* what, const Action& action) {
  try {
    return action();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorCode::kInvalid, "the attached part \"{}\": {}: {}", part.name, what, error.what());
  }
}

using torch::serialize::OutputArchive;

// LibTorch's archives do not take undefined tensors, which LBFGS has until its history is full. Any
// value will do: LBFGS writes each of these tensors before it reads it.
void define_tensors_of_lbfgs(torch::optim::OptimizerParamState& state) {
  auto* const lbfgs = dynamic_cast<torch::optim::LBFGSParamState*>(&state);
  if (lbfgs == nullptr || !lbfgs->al()) return;
  for (at::Tensor& tensor : *lbfgs->al()) {
    if (!tensor.defined()) tensor = at::zeros({});
  }
}

// The archive of LibTorch's save(), with the number of a parameter wherever LibTorch writes the
// address of its tensor, so that equal states have equal bytes; load() accepts any key.
OutputArchive numbered_archive(torch::optim::Optimizer& optimizer) {
  OutputArchive archive;
  OutputArchive states(archive.compilation_unit()), groups(archive.compilation_unit());
  std::size_t num_groups = 0, number = 0;
  const auto count = [](std::size_t n) { return torch::tensor(static_cast<std::int64_t>(n)); };
  for (auto& group : optimizer.param_groups()) {
    OutputArchive group_archive(archive.compilation_unit()), options(archive.compilation_unit());
    group_archive.write("params/size", count(group.params().size()));
    for (std::size_t i = 0; i < group.params().size(); ++i, ++number) {
      group_archive.write(fmt::format("params/{}", i), c10::IValue(std::to_string(number)));
      const auto state = optimizer.state().find(key_of_state(optimizer.state(), group.params()[i]));
      if (state == optimizer.state().end()) continue;
      OutputArchive state_archive(archive.compilation_unit());
      define_tensors_of_lbfgs(*state->second);
      std::as_const(*state->second).serialize(state_archive);
      states.write(std::to_string(number), state_archive);
    }
    group.options().serialize(options);
    group_archive.write("options", options);
    groups.write(fmt::format("param_groups/{}", num_groups++), group_archive);
  }
  groups.write("param_groups/size", count(num_groups));
  archive.write("pytorch_version", c10::IValue("1.5.0"));  // version of the format
  archive.write("state", states);
  archive.write("param_groups", groups);
  return archive;
}

// An optimizer of the program's own may keep more than numbered_archive() saves.
bool is_of_libtorch(const torch::optim::Optimizer& optimizer) {
  return c10::demangle(typeid(optimizer).name()).starts_with("torch::optim::");
}

// Loads the options of each group, such as a learning rate that a schedule has set, because
// load() of LibTorch loads only the state.
void load_options(torch::serialize::InputArchive& archive, torch::optim::Optimizer& optimizer) {
  torch::serialize::InputArchive groups;
  archive.read("param_groups", groups);
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    torch::serialize::InputArchive group, options;
    groups.read(fmt::format("param_groups/{}", i), group);
    group.read("options", options);
    optimizer.param_groups()[i].options().serialize(options);
  }
}

}  // namespace

std::string detail::to_bytes(const optim::Metadata& words) {
  return json_text(nlohmann::json(words));
}

optim::Metadata detail::words_in(const std::string& bytes) {
  return parse_json(bytes).get<optim::Metadata>();
}

std::string detail::save_state(const AttachedState& part) {
  return of_part(part, "an exception while its state was saved", [&] { return part.save(); });
}

void detail::load_state(const AttachedState& part, const std::string& bytes) {
  of_part(part, "an exception while its state was restored", [&] { part.load(bytes); });
}

AttachedState state_of(const std::string& name, torch::optim::Optimizer& optimizer) {
  return {name, c10::demangle(typeid(optimizer).name()),
          [&optimizer] {
            std::ostringstream out;
            if (is_of_libtorch(optimizer)) {
              numbered_archive(optimizer).save_to(out);
            } else {
              OutputArchive archive;
              optimizer.save(archive);
              archive.save_to(out);
            }
            return out.str();
          },
          [&optimizer, name](const std::string& bytes) {
            with_archive(name, "the state of an optimizer", [&] {
              std::istringstream in(bytes);
              torch::serialize::InputArchive archive;
              archive.load_from(in);
              optimizer.load(archive);
              load_options(archive, optimizer);
            });
          }};
}

namespace {

// LibTorch keeps the number of steps in a protected member, which derived classes may use.
struct StepCount : torch::optim::StepLR {
  static unsigned& of(torch::optim::StepLR& schedule) {
    return schedule.*(&StepCount::step_count_);
  }
};

}  // namespace

AttachedState state_of(const std::string& name, torch::optim::StepLR& schedule) {
  return {name, kStepLR,
          [&schedule] {
            const auto steps = static_cast<std::int64_t>(StepCount::of(schedule));
            return detail::to_bytes({{kSteps, optim::to_word(steps)}});
          },
          [&schedule, name](const std::string& bytes) {
            StepCount::of(schedule) =
                static_cast<unsigned>(optim::count_in(detail::words_in(bytes), kSteps, name));
          }};
}

AttachedState state_of(const std::string& name, data::DataLoader& loader) {
  return {
      name, kLoader,
      [&loader] {
        const data::DataLoader::Position position = loader.position();
        return detail::to_bytes({{"epoch", optim::to_word(position.epoch)},
                                 {"consumed", optim::to_word(position.consumed)},
                                 {"order", loader.order()}});
      },
      [&loader, name](const std::string& bytes) {
        const optim::Metadata words = detail::words_in(bytes);
        const data::DataLoader::Position position{
            .epoch = optim::count_in(words, "epoch", name),
            .consumed = optim::count_in(words, "consumed", name)};
        const auto found = words.find("order");
        const std::string order = found == words.end() ? "" : found->second;
        check(position.consumed == 0 || order == loader.order(),
              "\"{}\": the checkpoint is in the middle of epoch {} of {}, and this loader has {}: "
              "samples would be repeated and left out; continue with the same data set and seed",
              name, position.epoch, order, loader.order());
        loader.set_position(position);
      }};
}

AttachedState state_of(const std::string& name, double& value) {
  return {name, kNumber, [&value] { return detail::to_bytes(one_word(optim::to_word(value))); },
          [&value, name](const std::string& bytes) {
            value = optim::number_in(detail::words_in(bytes), "value", name);
          }};
}

AttachedState state_of(const std::string& name, std::int64_t& value) {
  return {name, kCount, [&value] { return detail::to_bytes(one_word(optim::to_word(value))); },
          [&value, name](const std::string& bytes) {
            value = optim::count_in(detail::words_in(bytes), "value", name);
          }};
}

AttachedState state_of(const std::string& name, std::string& value) {
  return {name, kText, [&value] { return value; },
          [&value](const std::string& bytes) { value = bytes; }};
}

AttachedState state_of(const std::string& name, at::Tensor& value) {
  return {name, kTensor,
          [&value] {
            std::ostringstream out;
            torch::save(value, out);
            return out.str();
          },
          [&value, name](const std::string& bytes) {
            with_archive(name, "a tensor", [&] {
              std::istringstream in(bytes);
              at::Tensor saved;
              torch::load(saved, in);
              const at::NoGradGuard no_grad;
              if (value.defined() && value.sizes() == saved.sizes())
                value.copy_(saved);
              else
                value = saved;
            });
          }};
}

}  // namespace paceline::train
