#include "examples/train_cnn/options.h"

#include <cstdio>
#include <cstdlib>
#include <limits>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "paceline/core/exit_code.h"
#include "paceline/process/shell_words.h"

#include "apps/command_line.h"
#include "apps/option_value.h"
#include "apps/usage_error.h"

namespace train_cnn {
namespace {

using namespace paceline::apps;

constexpr long kMost = 1L << 40;
constexpr double kMostRate = 1e9;

constexpr const char* kExamples =
    "\nExamples:\n  train_cnn\n  paceline run --nproc-per-node 2 train_cnn --epochs 3\n"
    "  mpirun -np 2 train_cnn --dataset cifar10 --data-dir DIR --lr 1e-3";

// Adds options of one group to the help, with their defaults.
class Group {
 public:
  Group(CLI::App& app, const char* name) : app_(app), name_(name) {}

  template <class T>
  CLI::Option* value(const char* name, T& target, const char* type, const char* text) {
    return app_.add_option(name, target, text)
        ->type_name(type)
        ->group(name_)
        ->capture_default_str();
  }
  template <class T>
  CLI::Option* count(const char* name, T& target, const char* text, long min, long max = kMost) {
    auto* const option = value(name, target, "N", text)->check(is_whole_number(min, max));
    return static_cast<long>(target) < min ? option->default_str("") : option;
  }
  void number(const char* name, double& target, const char* text, double max = kMostRate) {
    value(name, target, "X", text)->check(is_number(0, max));
  }
  CLI::Option* flag(const char* name, bool& target, const char* text) {
    return app_.add_flag(name, target, text)->group(name_);
  }

 private:
  CLI::App& app_;
  const char* name_;
};

void declare_data(CLI::App& app, Options& options) {
  Group data(app, "Data and model");
  data.value("--dataset", options.dataset, "NAME", "fashion-mnist, mnist or cifar10")
      ->check(is_one_of({"fashion-mnist", "mnist", "cifar10"}));
  data.value("--data-dir", options.data_dir, "DIR",
             "Folder of the data set's files [Debian's Fashion-MNIST]");
  data.value("--model", options.model, "NAME", "cnn, or net for images of 28x28")
      ->check(is_one_of({"cnn", "net"}));
  data.flag("--augment", options.augment, "Crop and flip images at random");
}

void declare_training(CLI::App& app, Options& options) {
  Group training(app, "Training");
  training.value("--optimizer", options.optimizer, "NAME", "adam, adamw or sgd")
      ->check(is_one_of({"adam", "adamw", "sgd"}));
  training.number("--lr", options.lr, "Learning rate");
  training.number("--momentum", options.momentum, "Momentum of sgd, 0 to 1", 1);
  training.number("--weight-decay", options.weight_decay, "Weight decay");
  auto* const batch =
      training.count("--batch-size", options.batch_size, "Samples of each rank in a step", 1);
  auto* const global_batch =
      training
          .count("--global-batch-size", options.global_batch_size,
                 "Samples of all ranks in a step, instead of --batch-size", 1)
          ->excludes(batch);
  training
      .count("--micro-batch-size", options.micro_batch_size,
             "Most samples of a rank at once; gradients add up [all]", 1)
      ->needs(global_batch);
  training.count("--epochs", options.epochs, "Passes over the training images", 1);
  training.count("--max-steps", options.max_steps, "Steps after which to end; 0: no limit", 0);
  training.count("--seed", options.seed, "Seed of weights and of the samples' order", 0,
                 std::numeric_limits<long>::max());
  training.count("--threads", options.threads, "Threads of each rank; 0: the launcher's choice", 0,
                 4096);
  training.value("--backend", options.backend, "NAME",
                 "paceline, gloo, c10d, mpi or oneccl [PACELINE_BACKEND, or paceline]");
}

void declare_step(CLI::App& app, Options& options) {
  Group step(app, "Step");
  step.value("--schedule", options.schedule, "NAME",
             "Learning rate: constant, step, cosine, one-cycle or plateau")
      ->check(is_one_of({"constant", "step", "cosine", "one-cycle", "plateau"}));
  step.count("--warmup", options.warmup,
             "Steps in which the rate of cosine or one-cycle rises; 0: none, or 30%", 0);
  step.count("--schedule-steps", options.schedule_steps,
             "Steps of the whole schedule; 0: those of this run", 0);
  step.count("--rate-every", options.rate_every,
             "Steps after which schedule step takes a tenth; 0: a third of all", 0);
  step.number("--clip-norm", options.clip_norm, "Largest norm of the gradients; 0: any");
  step.number("--clip-value", options.clip_value, "Largest element of the gradients; 0: any");
  step.value("--precision", options.precision, "NAME",
             "float32, bf16 (parameters too), autocast-bf16 or autocast-fp16")
      ->check(is_one_of({"float32", "bf16", "autocast-bf16", "autocast-fp16"}));
  step.number("--ema", options.ema,
              "Decay of an average of the weights, which is then evaluated; 0: none", 1);
}

void declare_communication(CLI::App& app, Options& options) {
  Group communication(app, "Communication of gradients");
  communication
      .value("--hook", options.hook, "NAME", "none, bf16, fp16, powersgd or topk: fewer bytes")
      ->check(is_one_of({"none", "bf16", "fp16", "powersgd", "topk"}));
  communication.count("--powersgd-rank", options.powersgd_rank, "Rank of powersgd's factors", 1);
  communication.count("--hook-start", options.hook_start, "Steps before powersgd compresses", 0);
  communication.number("--topk-density", options.topk_density,
                       "Share of the elements that topk sends", 1);
}

void declare_output(CLI::App& app, Options& options) {
  Group output(app, "Output");
  auto* const directory = output.value("--checkpoint-dir", options.checkpoint_dir, "DIR",
                                       "Save checkpoints into DIR; used ones need --resume");
  output
      .count("--checkpoint-every", options.checkpoint_every,
             "Steps between checkpoints; 0: one an epoch", 0)
      ->needs(directory);
  output
      .count("--memory-checkpoint-every", options.memory_checkpoint_every,
             "Steps between copies in memory, which outlive a rank; 0: none", 0)
      ->needs(directory);
  auto* const resume =
      output.flag("--resume", options.resume, "Continue from the newest checkpoint")
          ->needs(directory);
  output
      .flag("--resume-other-run", options.resume_other_run,
            "With --resume: also from a checkpoint of another run")
      ->needs(resume);
  output
      .value("--stop-file", options.stop_file, "FILE",
             "Stop all ranks after the same step when FILE appears, as SIGUSR1 and SIGTERM do: "
             "with a checkpoint and exit code 85")
      ->needs(directory);
  output.value("--metrics", options.metrics, "FILE", "Append metrics to FILE, as JSON lines");
  output.value("--tensorboard", options.tensorboard, "DIR", "Write metrics for TensorBoard");
}

// What no single flag is wrong about.
void check_together(const Options& options) {
  if (options.model == "net" && options.dataset == "cifar10") {
    throw UsageError(
        "--model net: takes images of 1x28x28, those of --dataset cifar10 are 3x32x32; use --model "
        "cnn");
  }
  if (options.warmup > 0 && options.schedule != "cosine" && options.schedule != "one-cycle") {
    throw UsageError(
        fmt::format("--warmup: --schedule {} has none; use cosine or one-cycle", options.schedule));
  }
  if (options.clip_norm > 0 && options.clip_value > 0) {
    throw UsageError("--clip-norm and --clip-value: choose one");
  }
  const bool takes_float32 = options.hook == "powersgd" || options.hook == "topk";
  if (takes_float32 && options.precision == "bf16") {
    throw UsageError(fmt::format(
        "--hook {}: takes float32 gradients, and those of --precision bf16 are not; use "
        "autocast-bf16",
        options.hook));
  }
}

// False when --help was asked for. Throws UsageError.
bool parse(Options& options, CLI::App& app, const std::vector<std::string>& arguments) {
  declare_data(app, options);
  declare_training(app, options);
  declare_step(app, options);
  declare_communication(app, options);
  declare_output(app, options);
  const CommandLine line = split_command_line(app, arguments);
  if (!line.program.empty()) {
    throw UsageError(fmt::format("'{}' was not expected", line.program.front()));
  }
  if (!take_options(app, line)) return false;
  options.lr_given = line.has("--lr");
  options.seed_given = line.has("--seed");
  check_together(options);
  return true;
}

}  // namespace

Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 0; i < argc; ++i) {
    if (i > 0) options.command += ' ';
    options.command += paceline::launch::shell_quoted(argv[i]);
  }
  CLI::App app("Trains a small convolutional network with any number of ranks.", "train_cnn");
  app.get_formatter()->column_width(34);
  app.get_help_ptr()->group("Help");
  app.footer(kExamples);
  try {
    if (parse(options, app, {argv + 1, argv + argc})) return options;
    fmt::print("{}", app.help());
    std::exit(0);
  } catch (const UsageError& error) {
    fmt::print(stderr, "train_cnn: {}; see train_cnn --help\n", error.what());
    std::exit(paceline::kExitUsage);
  }
}

}  // namespace train_cnn
