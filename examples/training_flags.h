#pragma once

// The flags of every training program, for any model and data: optimizer, step, batches,
// checkpoints, output. A program adds groups of its own flags.
//
//   CLI::App app("Trains ...", "my_program");
//   training_flags::FlagGroup data(app, "Data");
//   data.value("--data-dir", options.data_dir, "DIR", "Folder of the data");
//   training_flags::parse(argc, argv, app, options.training, [&] { ... });

#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include "paceline/training/data/data_loader.h"
#include "paceline/training/train/training_process.h"
#include "paceline/training/train/training_run.h"
#include "paceline/training/train/training_step.h"

#include "apps/cli/command_line.h"
#include "apps/cli/option_value.h"

namespace training_flags {

struct TrainingFlags {
  paceline::train::ProcessOptions process;
  paceline::train::OptimizerChoice optimizer;
  paceline::train::HookChoice hook;
  std::string precision = "float32";  // a name that train::precision_of() accepts
  paceline::data::DataLoaderOptions loading;
  paceline::train::TrainingRunOptions run{.epochs = 2};
  std::uint64_t seed = 0;
};

inline constexpr long kMaxCount = 1L << 40;
inline constexpr double kMaxNumber = 1e9;

// Adds options under one heading of the help, with their default values.
class FlagGroup {
 public:
  FlagGroup(CLI::App& app, const char* name) : app_(app), name_(name) {}

  template <class T>
  CLI::Option* value(const char* name, T& target, const char* type, const char* text) {
    return app_.add_option(name, target, text)
        ->type_name(type)
        ->group(name_)
        ->capture_default_str();
  }
  template <class T>
  CLI::Option* count(const char* name, T& target, const char* text, long min,
                     long max = kMaxCount) {
    auto* const option =
        value(name, target, "N", text)->check(paceline::apps::is_whole_number(min, max));
    return static_cast<long>(target) < min ? option->default_str("") : option;
  }
  void number(const char* name, double& target, const char* text, double max = kMaxNumber) {
    value(name, target, "X", text)->check(paceline::apps::is_number(0, max));
  }
  // For an option without a default value: `text` explains what happens if it is not given.
  void number(const char* name, std::optional<double>& target, const char* text) {
    app_.add_option(name, target, text)
        ->type_name("X")
        ->group(name_)
        ->check(paceline::apps::is_number(0, kMaxNumber));
  }
  CLI::Option* flag(const char* name, bool& target, const char* text) {
    return app_.add_flag(name, target, text)->group(name_);
  }

 private:
  CLI::App& app_;
  const char* name_;
};

// Reads the command line; `take` may throw UsageError if flags do not fit together. Ends the
// program with exit code 2 if a flag is wrong, and with 0 after --help.
void parse(int argc, char** argv, CLI::App& app,
           const std::function<void(const paceline::apps::CommandLine& line)>& take);

// As above, with the groups of TrainingFlags after the program's own groups. `check` throws
// UsageError if flags do not fit together.
void parse(int argc, char** argv, CLI::App& app, TrainingFlags& flags,
           const std::function<void()>& check);

}  // namespace training_flags
