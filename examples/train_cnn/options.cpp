#include "examples/train_cnn/options.h"

#include <cmath>
#include <cstdlib>

#include <CLI/CLI.hpp>

#include "paceline/launch/shell_words.h"

namespace train_cnn {
namespace {

// "nan" is in every range: it compares false with both ends.
CLI::Validator is_number() {
  return {[](const std::string& text) {
            double value = 0;
            return CLI::detail::lexical_cast(text, value) && !std::isfinite(value)
                       ? text + " is not a finite number"
                       : std::string();
          },
          "", "finite"};
}

// Text that begins with "-" would wrap around to a large unsigned number.
CLI::Validator is_not_negative() {
  return {[](const std::string& text) {
            return text.starts_with('-') ? text + " is below 0" : std::string();
          },
          "", "not negative"};
}

// What no single flag is wrong about.
void check_together(const Options& options) {
  if (options.model == "net" && options.dataset == "cifar10") {
    throw CLI::ValidationError(
        "--model net",
        "takes images of 1x28x28, those of --dataset cifar10 are 3x32x32; use --model cnn");
  }
}

}  // namespace

Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 0; i < argc; ++i) {
    if (i > 0) options.command += ' ';
    options.command += paceline::launch::shell_quoted(argv[i]);
  }
  CLI::App app("Trains a small convolutional network with any number of ranks.");
  // The last one counts: "the same with --epochs 3" may be put behind a command that says another.
  app.option_defaults()->always_capture_default()->multi_option_policy(
      CLI::MultiOptionPolicy::TakeLast);
  const CLI::Range positive(std::int64_t{1}, std::int64_t{1} << 40);
  const CLI::Range not_negative(std::int64_t{0}, std::int64_t{1} << 40);
  const CLI::Range rate(0.0, 1e9);

  auto* data = app.add_option_group("Data and model");
  data->add_option("--dataset", options.dataset)
      ->check(CLI::IsMember({"fashion-mnist", "mnist", "cifar10"}));
  data->add_option("--data-dir", options.data_dir, "the folder with the data set's files");
  data->add_option("--model", options.model, "net is for the 28x28 data sets")
      ->check(CLI::IsMember({"cnn", "net"}));
  data->add_flag("--augment", options.augment, "random crops and flips");

  auto* training = app.add_option_group("Training");
  training->add_option("--optimizer", options.optimizer)
      ->check(CLI::IsMember({"adam", "adamw", "sgd"}));
  training->add_option("--lr", options.lr, "learning rate")->check(is_number())->check(rate);
  training->add_option("--momentum", options.momentum, "for sgd")
      ->check(is_number())
      ->check(CLI::Range(0.0, 1.0));
  training->add_option("--weight-decay", options.weight_decay)->check(is_number())->check(rate);
  auto* batch =
      training->add_option("--batch-size", options.batch_size, "samples a step, of each rank")
          ->check(positive);
  auto* global_batch =
      training
          ->add_option("--global-batch-size", options.global_batch_size,
                       "samples a step, of all ranks together, whatever their number")
          ->check(positive)
          ->excludes(batch);
  training
      ->add_option("--micro-batch-size", options.micro_batch_size,
                   "of it, at most so many samples of a rank at once; gradients add up")
      ->check(positive)
      ->needs(global_batch);
  training->add_option("--epochs", options.epochs)->check(positive);
  training->add_option("--max-steps", options.max_steps, "end after this many steps; 0: no limit")
      ->check(not_negative);
  auto* seed = training->add_option("--seed", options.seed)->check(is_not_negative());
  training->add_option("--threads", options.threads, "of each rank; 0: what the launcher says")
      ->check(CLI::Range(0, 4096));
  training->add_option("--backend", options.backend,
                       "paceline, gloo, mpi (under mpirun), oneccl; default: PACELINE_BACKEND");

  auto* output = app.add_option_group("Output");
  auto* directory =
      output->add_option("--checkpoint-dir", options.checkpoint_dir,
                         "save checkpoints into this folder, which has none yet unless "
                         "--resume is given");
  output
      ->add_option("--checkpoint-every", options.checkpoint_every,
                   "steps, and at the end; 0: at the end of each epoch")
      ->check(not_negative)
      ->needs(directory);
  output
      ->add_option("--memory-checkpoint-every", options.memory_checkpoint_every,
                   "steps; keep the state in memory too, which outlives a rank; 0: never")
      ->check(not_negative)
      ->needs(directory);
  output->add_flag("--resume", options.resume, "continue from the newest checkpoint")
      ->needs(directory);
  output
      ->add_option("--stop-file", options.stop_file,
                   "stop as SIGUSR1 and SIGTERM do: when this file appears, all ranks end after "
                   "the same step with a checkpoint and exit code 85")
      ->needs(directory);
  output->add_option("--metrics", options.metrics, "append metrics to this file, as JSON lines");
  output->add_option("--tensorboard", options.tensorboard,
                     "write metrics into this folder, for TensorBoard");
  app.footer(
      "Examples:\n  train_cnn\n  paceline run --nproc-per-node 2 train_cnn --epochs 3\n"
      "  mpirun -np 2 train_cnn --dataset cifar10 --data-dir DIR --lr 1e-3");
  try {
    app.parse(argc, argv);
    options.seed_given = seed->count() > 0;
    check_together(options);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    std::exit(code == 0 ? 0 : 2);
  }
  return options;
}

}  // namespace train_cnn
