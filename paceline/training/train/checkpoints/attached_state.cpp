#include "paceline/training/train/checkpoints/attached_state.h"

#include <sstream>
#include <typeinfo>

#include <c10/util/Type.h>
#include <torch/serialize.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/training/optim/metadata_words.h"
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

// The state of one value, as words with a single name.
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

AttachedState state_of(const std::string& name, torch::optim::Optimizer& optimizer) {
  return {name, c10::demangle(typeid(optimizer).name()),
          [&optimizer] {
            std::ostringstream out;
            torch::serialize::OutputArchive archive;
            optimizer.save(archive);
            archive.save_to(out);
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
  return {name, kLoader,
          [&loader] {
            const data::DataLoader::Position position = loader.position();
            return detail::to_bytes({{"epoch", optim::to_word(position.epoch)},
                                     {"consumed", optim::to_word(position.consumed)}});
          },
          [&loader, name](const std::string& bytes) {
            const optim::Metadata words = detail::words_in(bytes);
            loader.set_position({.epoch = optim::count_in(words, "epoch", name),
                                 .consumed = optim::count_in(words, "consumed", name)});
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
