// Trains a small convolutional network on images, alone or with any number of ranks:
//
//   train_cnn
//   paceline run --nproc-per-node 2 train_cnn
//
// The program follows the data: who am I, images, model, training, evaluation, report.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include <torch/torch.h>

#include "paceline/paceline.h"

#include "examples/train_cnn/console.h"
#include "examples/train_cnn/images.h"
#include "examples/train_cnn/model.h"
#include "examples/train_cnn/options.h"
#include "examples/train_cnn/training_step.h"

namespace train_cnn {
namespace {

namespace data = paceline::data;
namespace train = paceline::train;
using paceline::Phase;

std::string words_for(const data::ImageDataset& images) {
  return fmt::format("{} ({} images)", images.name, images.size());
}

class TrainingRun {
 public:
  TrainingRun(const Options& options, std::shared_ptr<paceline::ProcessGroup> group,
              const Images& images)
      : options_(options),
        group_(std::move(group)),
        loader_(make_training_loader(options, images, options.seed, *group_)),
        test_loader_(make_test_loader(options, images, *group_)),
        model_(std::make_shared<Model>(options, *images.training), group_),
        optimizer_(make_optimizer(options, model_->parameters())),
        step_(options, *optimizer_, num_steps()),
        progress_(num_steps(), group_->world_size(), !is_first()),
        times_(group_->timeline()) {
    if (const auto hook = make_hook(options)) {
      model_.register_comm_hook(hook);  // a divided step would send the parameters whole
    } else {
      optimizer_->shard(group_);
    }
    if (!options.metrics.empty() && is_first()) metrics_ = paceline::MetricsLog(options.metrics);
    if (!options.tensorboard.empty() && is_first()) {
      scalars_ = paceline::TensorBoardLog(options.tensorboard);
    }
    state_.data = words_for(*images.training);
    if (!options.checkpoint_dir.empty() && begin_checkpoints()) take_seed(images);
  }

  // How the program ends: kStoppedAsAgreed when all ranks were asked to stop and the state is
  // saved, 1 when the newest state could not be written, otherwise 0.
  int exit_code() const {
    if (!saved_) return 1;
    return stopped_ ? paceline::kStoppedAsAgreed : 0;
  }
  bool stopped() const { return stopped_; }

  // Until the end, or until all ranks are asked to stop.
  void train() {
    const auto begin = std::chrono::steady_clock::now();
    first_step_ = state_.step;
    const auto loss = [&](const data::Batch& batch) {
      return torch::nn::functional::cross_entropy(model_(batch.data), batch.target);
    };
    const train::LoopHooks hooks{
        .scale_loss = [&](const at::Tensor& unscaled) { return step_.scaled(unscaled); },
        .take_step = [&] { step_.take(); },
        .after_step = [&](const auto& report) { after_step(report); },
        .stop_requested = [&] { return stop_ && stop_->requested(*group_); },
        .after_epoch = [&](const auto&) { after_epoch(); }};
    const auto end =
        train::run_loop({.epochs = options_.epochs, .max_steps = options_.max_steps}, state_,
                        *loader_, loss, model_.reducer(), *optimizer_, times_, hooks);
    if (end == train::LoopEnd::kStopped) return stop();
    if (checkpointer_ && saved_step_ != state_.step) save();  // what --resume goes on with
    saved_ = !checkpointer_ || finish_checkpoints();
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() -
               times_.seconds(Phase::kEvaluation) - times_.seconds(Phase::kCheckpoint);
  }

  void report() {
    const bool is_evaluated = state_.consumed == 0 && evaluation_.samples > 0;
    if (!is_evaluated) evaluate();
    const auto report =
        train::make_report(*group_, times_, seconds_, state_.step - first_step_, samples_);
    metrics_.write("end", {{"accuracy", evaluation_.accuracy},
                           {"seconds", report.seconds},
                           {"samples_per_second", report.samples_per_second},
                           {"steps", report.steps},
                           {"world_size", std::int64_t{group_->world_size()}}});
    progress_.note(fmt::format("\n{}{}  {:<24}{}", report.table(evaluation_), checkpoints_row(),
                               "next", next_command(options_, *group_, state_)));
    if (!saved_) {
      progress_.note(fmt::format("the last checkpoint could not be written to {}; see above",
                                 options_.checkpoint_dir));
    }
  }

 private:
  // Of the closing table.
  std::string checkpoints_row() const {
    const auto room = checkpointer_ ? checkpointer_->room_on_disk() : std::nullopt;
    if (!room) return {};
    return fmt::format("  {:<24}the disk has room for {}; the oldest goes before each save\n",
                       "checkpoints", *room);
  }

  bool is_first() const { return group_->rank() == 0; }

  std::int64_t num_steps() const {
    const std::int64_t steps = options_.epochs * loader_->num_batches();
    return options_.max_steps > 0 ? std::min(steps, options_.max_steps) : steps;
  }

  // True when an interrupted run was restored.
  bool begin_checkpoints() {
    const bool in_memory = options_.memory_checkpoint_every > 0;
    checkpointer_.emplace(
        group_, options_.checkpoint_dir,
        train::CheckpointerOptions{.memory = in_memory ? train::memory_path() : std::string()});
    train::RunParts parts = step_.parts();
    parts.reducer = &model_.reducer();  // for what its hook keeps
    checkpointer_->attach(parts);
    stop_.emplace(paceline::AgreedStopOptions{.file = options_.stop_file});
    const auto restored = checkpointer_->begin(
        model_.module(), *optimizer_,
        {.resume = options_.resume, .other_run = options_.resume_other_run, .seed = options_.seed});
    if (restored) {
      take_state(restored->state);
      if (!restored->from_memory) saved_step_ = state_.step;
      progress_.note(fmt::format("  resumed at step {}{}", state_.step,
                                 restored->from_memory ? ", from memory" : ""));
    } else if (options_.resume || group_->launch_environment().restart_count > 0) {
      progress_.note("  no checkpoint yet; from the beginning");
    }
    return restored.has_value();
  }

  void take_state(const train::TrainingState& restored) {
    const std::string data = std::exchange(state_, restored).data;
    if (!state_.data.empty() && state_.data != data) {
      throw paceline::Error(paceline::ErrorCode::kInvalid,
                            fmt::format("the run in {} trains on {}, this program was given {}; "
                                        "continue it with the same --dataset and --data-dir",
                                        options_.checkpoint_dir, state_.data, data));
    }
    state_.data = data;
    if (step_.has_schedule()) return;  // --lr is where it began
    const double saved = optimizer_->learning_rate();
    if (!options_.lr_given || saved == options_.lr) return;
    optimizer_->set_learning_rate(options_.lr);
    progress_.note(fmt::format("  learning rate {} from here on, {} before", options_.lr, saved));
  }

  // The order of the samples is the seed's: with another one the epoch under way would repeat some
  // and leave others out.
  void take_seed(const Images& images) {
    if (state_.seed == options_.seed) return;
    if (options_.seed_given) {
      throw paceline::Error(
          paceline::ErrorCode::kInvalid,
          fmt::format("--seed {}: the run in {} has the seed {}; leave --seed out to continue it",
                      options_.seed, options_.checkpoint_dir, state_.seed));
    }
    loader_ = make_training_loader(options_, images, state_.seed, *group_);
  }

  void stop() {
    progress_.note(
        fmt::format("stopping after step {} by {}; saving to {}, a second Ctrl-C ends at once",
                    state_.step, stop_->reason(), options_.checkpoint_dir));
    if (saved_step_ != state_.step) save();
    stopped_ = true;
    saved_ = finish_checkpoints();
    metrics_.write("stopped", {{"step", state_.step}, {"reason", stop_->reason()}});
    progress_.note(fmt::format(
        "stopped after step {} by {}; {}", state_.step, stop_->reason(),
        saved_ ? std::string("to continue: the same command with --resume")
               : fmt::format("the state could not be written to {}: see above; --resume continues "
                             "from an older one",
                             options_.checkpoint_dir)));
  }

  void after_step(const train::StepReport& report) {
    samples_ += report.samples;
    progress_.after_step(report);
    metrics_.write("step", {{"step", state_.step},
                            {"epoch", state_.epoch + 1},
                            {"loss", report.loss},
                            {"learning_rate", step_.learning_rate()}});
    scalars_.scalar("train/loss", state_.step, report.loss);
    scalars_.scalar("train/learning_rate", state_.step, step_.learning_rate());
    const auto due = [&](std::int64_t every) { return every > 0 && state_.step % every == 0; };
    if (due(options_.checkpoint_every)) save();
    if (due(options_.memory_checkpoint_every)) save_to_memory();
  }

  void after_epoch() {
    evaluate();
    step_.end_epoch(evaluation_.loss);
    progress_.note(fmt::format("epoch {}: test accuracy {:.2f}%, loss {:.4f}", state_.epoch,
                               100 * evaluation_.accuracy, evaluation_.loss));
    metrics_.write("epoch", {{"epoch", state_.epoch},
                             {"accuracy", evaluation_.accuracy},
                             {"test_loss", evaluation_.loss}});
    scalars_.scalar("test/accuracy", state_.step, evaluation_.accuracy);
    scalars_.scalar("test/loss", state_.step, evaluation_.loss);
    if (checkpointer_ && options_.checkpoint_every == 0) save();
  }

  void evaluate() {
    const auto timed = times_.measure(Phase::kEvaluation);
    const auto averaged = step_.averaged_weights();
    model_->eval();
    evaluation_ = train::evaluate(*group_, *test_loader_,
                                  [&](const at::Tensor& images) { return model_(images); });
    model_->train();
  }

  void save() {
    const auto timed = times_.measure(Phase::kCheckpoint);
    checkpointer_->save(state_, model_.module(), *optimizer_);
    saved_step_ = state_.step;
  }

  void save_to_memory() {
    const auto timed = times_.measure(Phase::kCheckpoint);
    checkpointer_->save_to_memory(state_, model_.module(), *optimizer_);
  }

  bool finish_checkpoints() {
    const auto timed = times_.measure(Phase::kCheckpoint);
    return checkpointer_->finish();
  }

  const Options options_;
  const std::shared_ptr<paceline::ProcessGroup> group_;
  std::unique_ptr<data::DataLoader> loader_;
  const std::unique_ptr<data::DataLoader> test_loader_;
  paceline::DistributedDataParallel<Model> model_;
  const std::unique_ptr<paceline::optim::Optimizer> optimizer_;
  TrainingStep step_;
  std::optional<train::Checkpointer> checkpointer_;
  std::optional<paceline::AgreedStop> stop_;  // where there is a place to save to
  train::TrainingState state_{.seed = options_.seed};
  train::Evaluation evaluation_;
  train::Progress progress_;
  paceline::MetricsLog metrics_;
  paceline::TensorBoardLog scalars_;
  paceline::PhaseTimes times_;
  std::int64_t first_step_ = 0;
  std::int64_t saved_step_ = -1;
  bool saved_ = true;  // all that was asked for is on the disk
  bool stopped_ = false;
  std::int64_t samples_ = 0;  // of this rank
  double seconds_ = 0;
};

int run(const Options& options) {
  train::keep_large_blocks();
  const auto group = paceline::init_process_group({.group = {.backend = options.backend}});
  const paceline::SymmetricTensors symmetric_tensors(*group);
  const int threads = train::set_num_threads(options.threads);
  torch::manual_seed(options.seed + static_cast<std::uint64_t>(group->rank()));

  const Images images = load_images(options);
  if (group->rank() == 0) print_opening(options, *group, threads, *images.training);
  TrainingRun training(options, group, images);
  training.train();
  if (!training.stopped()) training.report();
  return training.exit_code();
}

}  // namespace
}  // namespace train_cnn

int main(int argc, char** argv) {
  const auto options = train_cnn::parse_options(argc, argv);
  try {
    return train_cnn::run(options);
  } catch (const std::exception& error) {  // so that a checkpoint under way is finished
    fmt::print(stderr, "error: {}\n", error.what());
    // The clean-up of LibTorch's own would only hold up a restart.
    std::fflush(nullptr);
    std::_Exit(1);
  }
}
