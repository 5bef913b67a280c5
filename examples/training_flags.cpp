#include "examples/training_flags.h"

#include <cstdio>
#include <cstdlib>
#include <limits>

#include <fmt/format.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/training/train/training_step.h"

#include "apps/cli/command_line.h"
#include "apps/cli/option_value.h"

namespace training_flags {
namespace {

using namespace paceline::apps;

void declare_training(CLI::App& app, TrainingFlags& flags) {
  FlagGroup training(app, "Training");
  auto& optimizer = flags.optimizer;
  training.value("--optimizer", optimizer.name, "NAME", "adam, adamw, sgd, lamb or lars")
      ->check(is_one_of({"adam", "adamw", "sgd", "lamb", "lars"}));
  training.number("--lr", optimizer.lr, "Learning rate");
  training.number("--momentum", optimizer.momentum, "Momentum of sgd and lars, 0 to 1", 1);
  training.number("--weight-decay", optimizer.weight_decay,
                  "Weight decay [0.01 of adamw, 0 of the others]");
  training.count("--epochs", flags.run.epochs, "Passes over the training data", 1);
  training.count("--max-steps", flags.run.max_steps, "Steps after which to end; 0: no limit", 0);
  training.count("--seed", flags.seed, "Seed of weights and of the samples' order", 0,
                 std::numeric_limits<long>::max());
  training.count("--threads", flags.process.threads,
                 "Threads of each rank; 0: the launcher's choice", 0, 4096);
  training.value("--device", flags.process.device, "NAME",
                 "cpu, cuda (the local rank's device) or cuda:N");
  training.value("--backend", flags.process.backend, "NAME",
                 "paceline, gloo, c10d, mpi or oneccl [PACELINE_BACKEND, or paceline]");
}

void declare_batches(CLI::App& app, TrainingFlags& flags) {
  FlagGroup batches(app, "Batches");
  auto& loading = flags.loading;
  auto* const batch =
      batches.count("--batch-size", loading.batch_size, "Samples of each rank in a step", 1);
  auto* const global_batch =
      batches
          .count("--global-batch-size", loading.global_batch_size,
                 "Samples of all ranks in a step, instead of --batch-size", 1)
          ->excludes(batch);
  batches
      .count("--micro-batch-size", loading.micro_batch_size,
             "Most samples of a rank at once; gradients add up [all]", 1)
      ->needs(global_batch);
  batches.flag("--drop-last", loading.drop_last, "Leave out a last batch that is not full");
  batches.count("--logical-shards", loading.logical_shards,
                "Parts of each step: the same bits for any number of ranks; 0: none", 0,
                paceline::kMaxLogicalShards);
  batches.count("--workers", loading.num_threads, "Threads of each rank that prepare batches", 0,
                1024);
}

void declare_step(CLI::App& app, TrainingFlags& flags) {
  FlagGroup group(app, "Step");
  auto& step = flags.run.step;
  group
      .value("--lr-schedule", step.schedule, "NAME",
             "Learning rate: constant, step, cosine, one-cycle or plateau")
      ->check(is_one_of({"constant", "step", "cosine", "one-cycle", "plateau"}));
  group.count("--warmup", step.warmup_steps,
              "Steps in which the rate of cosine or one-cycle rises; 0: none, or 30%", 0);
  group.count("--lr-schedule-steps", step.schedule_steps,
              "Length of the schedule in steps; 0: this run's", 0);
  group.count("--rate-every", step.rate_every,
              "Steps between cuts to a tenth by --lr-schedule step; 0: a third of all", 0);
  group.number("--clip-norm", step.clip_norm, "Largest norm of the gradients; 0: any");
  group.number("--clip-value", step.clip_value, "Largest element of the gradients; 0: any");
  group
      .value("--precision", flags.precision, "NAME",
             "float32, bf16 (parameters too), autocast-bf16 or autocast-fp16")
      ->check(is_one_of({"float32", "bf16", "autocast-bf16", "autocast-fp16"}));
  group.number("--ema", step.ema,
               "Decay of an average of the weights, which is then evaluated; 0: none", 1);
}

void declare_communication(CLI::App& app, TrainingFlags& flags) {
  FlagGroup communication(app, "Communication of gradients");
  auto& hook = flags.hook;
  communication
      .value("--hook", hook.name, "NAME", "none, bf16, fp16, powersgd or topk: fewer bytes")
      ->check(is_one_of({"none", "bf16", "fp16", "powersgd", "topk"}));
  communication.count("--powersgd-rank", hook.powersgd_rank, "Rank of powersgd's factors", 1);
  communication.count("--hook-start", hook.powersgd_start, "Steps before powersgd compresses", 0);
  communication.number("--topk-density", hook.topk_density, "Share of the elements that topk sends",
                       1);
}

void declare_checkpoints(CLI::App& app, TrainingFlags& flags) {
  FlagGroup group(app, "Checkpoints");
  auto& checkpoints = flags.run.checkpoints;
  auto* const directory = group.value("--checkpoint-dir", checkpoints.folder, "DIR",
                                      "Save checkpoints into DIR; used ones need --resume");
  group
      .count("--checkpoint-every", checkpoints.every, "Steps between checkpoints; 0: one an epoch",
             0)
      ->needs(directory);
  group
      .count("--memory-checkpoint-every", checkpoints.memory_every,
             "Steps between copies in memory, which outlive a rank; 0: none", 0)
      ->needs(directory);
  auto* const resume =
      group.flag("--resume", checkpoints.resume, "Continue from the newest checkpoint")
          ->needs(directory);
  group
      .flag("--resume-other-run", checkpoints.resume_other_run,
            "With --resume: also from a checkpoint of another run")
      ->needs(resume);
  group
      .value("--stop-file", checkpoints.stop_file, "FILE",
             "Stop all ranks after the same step when FILE appears, as SIGUSR1 and SIGTERM do: "
             "with a checkpoint and exit code 85")
      ->needs(directory);
}

void declare_output(CLI::App& app, TrainingFlags& flags) {
  FlagGroup output(app, "Output");
  auto& run = flags.run;
  output.value("--metrics", run.metrics, "FILE", "Append metrics to FILE, as JSON lines");
  output.value("--tensorboard", run.tensorboard, "DIR", "Write metrics for TensorBoard");
  output.value("--weights", run.weights, "FILE", "Write the final weights, as safetensors");
}

void check_together(const TrainingFlags& flags) {
  const auto& step = flags.run.step;
  if (step.warmup_steps > 0 && step.schedule != "cosine" && step.schedule != "one-cycle") {
    throw UsageError(
        fmt::format("--warmup: --lr-schedule {} has none; use cosine or one-cycle", step.schedule));
  }
  if (step.clip_norm > 0 && step.clip_value > 0) {
    throw UsageError("--clip-norm and --clip-value: choose one");
  }
  const bool takes_float32 = flags.hook.name == "powersgd" || flags.hook.name == "topk";
  if (takes_float32 && flags.precision == "bf16") {
    throw UsageError(fmt::format(
        "--hook {}: takes float32 gradients, and those of --precision bf16 are not; use "
        "autocast-bf16",
        flags.hook.name));
  }
}

// Completes the flags. Throws UsageError if they do not fit together.
void take(TrainingFlags& flags, const CommandLine& line) {
  if (line.has("--seed")) flags.run.seed = flags.seed;
  flags.process.logical_shards = flags.loading.logical_shards;
  if (line.has("--lr")) flags.run.learning_rate = flags.optimizer.lr;
  flags.run.step.scales_loss = paceline::train::precision_of(flags.precision).scales_loss;
  check_together(flags);
}

}  // namespace

void parse(int argc, char** argv, CLI::App& app,
           const std::function<void(const CommandLine& line)>& take) {
  app.get_formatter()->column_width(34);
  app.get_help_ptr()->group("Help");
  try {
    const CommandLine line = split_command_line(app, {argv + 1, argv + argc});
    if (!line.program.empty())
      throw UsageError(fmt::format("'{}' was not expected", line.program.front()));
    if (take_options(app, line)) return take(line);
    fmt::print("{}", app.help());
    std::exit(0);
  } catch (const UsageError& error) {
    const std::string program = app.get_name();
    fmt::print(stderr, "{}: {}; see {} --help\n", program, error.what(), program);
    std::exit(paceline::kExitUsage);
  }
}

void parse(int argc, char** argv, CLI::App& app, TrainingFlags& flags,
           const std::function<void()>& check) {
  for (int i = 0; i < argc; ++i) {
    if (i > 0) flags.run.command += ' ';
    flags.run.command += paceline::shell_quoted(argv[i]);
  }
  declare_training(app, flags);
  declare_batches(app, flags);
  declare_step(app, flags);
  declare_communication(app, flags);
  declare_checkpoints(app, flags);
  declare_output(app, flags);
  parse(argc, argv, app, [&](const CommandLine& line) {
    take(flags, line);
    check();
  });
}

}  // namespace training_flags
