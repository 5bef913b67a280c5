#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/collectives/purpose.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/training/optim/libtorch_optimizer.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/tensor/tensor_marks.h"
#include "paceline/training/tensor/tensor_view.h"
#include "paceline/training/train/checkpoints/weights_file.h"
#include "paceline/training/train/dry_run.h"
#include "paceline/training/train/run_parts.h"
#include "paceline/training/train/run_report.h"
#include "paceline/training/train/training_run_core.h"

namespace paceline::train {

// Returns the command with which a user would start the launcher, for hints: `paceline` if the
// shell finds it; otherwise the launcher that was installed or built with this program, quoted for
// a shell.
std::string launcher_command();

namespace fs = std::filesystem;

std::string launcher_command() {
  std::error_code ignored;
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (fs::is_regular_file(fs::path(folder) / "paceline", ignored)) return "paceline";
  }
  const auto here = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const char* place : {"paceline", "../apps/paceline"}) {
    const auto file = (here / place).lexically_normal();
    if (fs::is_regular_file(file, ignored)) return shell_quoted(file.string());
  }
  return "paceline";
}

namespace {

// The path of the memory that the launcher provides for a job (PACELINE_MEMORY_CHECKPOINT).
// Error(kInvalid) under a launcher that provides none.
std::string memory_path() {
  const char* const path = std::getenv("PACELINE_MEMORY_CHECKPOINT");
  check(path != nullptr && *path != '\0',
        "checkpoints in memory need memory that outlives the ranks: start the job with `paceline "
        "run`, or name a file of each host's /dev/shm in PACELINE_MEMORY_CHECKPOINT");
  return path;
}

using Fields = std::vector<MetricsLog::Field>;

// Throws Error(kSystem) at the start of the run if nothing can be written to the file's folder, so
// that the run does not fail after hours of training.
void require_writable(const std::string& file) {
  auto folder = std::filesystem::path(file).parent_path();
  if (folder.empty()) folder = ".";
  if (access(folder.c_str(), W_OK | X_OK) != 0) throw system_error("the weights file " + file);
}

// Returns `training`. Throws if a required member is missing, and if the options need the whole
// model but the model is divided, because each rank then has only the gradients of its part.
const Training& possible(const Training& training, const TrainingRunOptions& options,
                         const ProcessGroup& group) {
  check(training.gradients != nullptr,
        "TrainingRun: Training::gradients is not set; for a model with data parallelism: "
        "train::backward_passes(loss, model)");
  check(training.make_loader != nullptr, "TrainingRun: Training::make_loader is not set");
  if (!training.replicas || training.replicas->world_size() == group.world_size()) return training;
  const auto refuse = [](bool wanted, const char* what, const char* instead) {
    if (wanted) {
      fail(ErrorCode::kUnsupported, "{} not available for a model that is divided among ranks; {}",
           what, instead);
    }
  };
  if (core_of(training.optimizer.get()).model_group() != nullptr) return training;
  constexpr const char* kTell = "call Optimizer::set_model_parts()";
  refuse(options.step.clip_norm > 0, "--clip-norm: the norm of all gradients is", kTell);
  refuse(options.step.scales_loss, "loss scaling is", kTell);
  return training;
}

}  // namespace

Training::AnyOptimizer::AnyOptimizer(optim::Optimizer& optimizer)
    : optimizer_(&optimizer, [](const optim::Optimizer*) {}) {}

Training::AnyOptimizer::AnyOptimizer(torch::optim::Optimizer& optimizer) {
  auto libtorch = std::make_shared<optim::LibTorchOptimizer>(optimizer);
  libtorch_ = libtorch.get();
  optimizer_ = std::move(libtorch);
}

TrainingRunCore::TrainingRunCore(std::shared_ptr<ProcessGroup> group, const Training& training,
                                 const TrainingRunOptions& options)
    : options_(options),
      group_(paceline::detail::require_group(std::move(group), "TrainingRun")),
      training_(possible(training, options_, *group_)),
      optimizer_(training_.optimizer.get()),
      state_{.seed = options.seed.value_or(0), .data = training.data},
      loader_(training.make_loader(state_.seed)),
      step_(options.step, optimizer_, num_steps()),
      times_(group_->timeline()),
      checkpoints_(group_, options.checkpoints, training.module, optimizer_, times_,
                   training.replicas),
      progress_(num_steps(), replicas().world_size(), !is_first(), training.unit) {
  name_parameters(training_.module);
  open_files();
  if (checkpoints_.are_made()) begin_or_resume();
}

void TrainingRunCore::open_files() {
  on_rank(0, *group_, [&] {
    if (!options_.metrics.empty()) metrics_ = MetricsLog(options_.metrics);
    if (!options_.tensorboard.empty()) scalars_ = TensorBoardLog(options_.tensorboard);
    if (!options_.weights.empty()) require_writable(options_.weights);
  });
}

std::int64_t TrainingRunCore::num_steps() const {
  check(loader_ != nullptr, "TrainingRun: Training::make_loader returned no loader");
  if (loader_->is_streamed()) {
    check(options_.max_steps > 0,
          "{} is a stream, whose length is not known: set max_steps (--max-steps), which "
          "schedules and the remaining time depend on",
          loader_->name());
    return options_.max_steps;
  }
  const std::int64_t steps = options_.epochs * loader_->num_batches();
  return options_.max_steps > 0 ? std::min(steps, options_.max_steps) : steps;
}

void TrainingRunCore::begin_or_resume() {
  RunParts parts = step_.parts();
  parts.reducer = training_.gradients->reducer();  // its hook may keep tensors
  parts.states = training_.states;
  if (auto* const libtorch = training_.optimizer.libtorch()) {
    AttachedState state = state_of("optimizer", libtorch->wrapped());
    state.load = [load = state.load, libtorch](const std::string& bytes) {
      load(bytes);
      libtorch->take_rates();
    };
    parts.states.push_back(std::move(state));
  }
  if (training_.after_epoch) parts.states.push_back(state_of("best values", best_));
  const std::uint64_t given = state_.seed;
  if (const auto restored = checkpoints_.begin(parts, given)) {
    take_state(restored->state);
    metrics_.write("resumed", {{"step", state_.step}});
    progress_.note(fmt::format("  resumed at step {}{}", state_.step,
                               restored->from_memory ? ", from memory" : ""));
    scalars_.resume_after(state_.step);
    take_seed(given);
  } else if (options_.checkpoints.resume ||
             engine(*group_).launch_environment().restart_count > 0) {
    progress_.note("  no checkpoint yet; from the beginning");
  }
}

void TrainingRunCore::take_state(const TrainingState& restored) {
  const std::string data = std::exchange(state_, restored).data;
  check(state_.data.empty() || state_.data == data,
        "the run in {} trains on {}, this program was given {}; continue it with the same data set",
        options_.checkpoints.folder, state_.data, data);
  state_.data = data;
  if (step_.has_schedule() || !options_.learning_rate) return;  // a schedule has its own base rate
  const double saved = optimizer_.learning_rate(), wanted = *options_.learning_rate;
  if (saved == wanted) return;
  optimizer_.set_learning_rate(wanted);
  progress_.note(fmt::format("  learning rate {} from here on, {} before", wanted, saved));
}

// The order of the samples depends on the seed: with another seed the current epoch would repeat
// some samples and leave out others.
void TrainingRunCore::take_seed(std::uint64_t given) {
  if (state_.seed == given) return;
  check(!options_.seed, "--seed {}: the run in {} has the seed {}; leave --seed out to continue it",
        given, options_.checkpoints.folder, state_.seed);
  loader_ = training_.make_loader(state_.seed);
}

int TrainingRunCore::write_profile(const std::filesystem::path& file) {
  check(!is_divided() && core_of(optimizer_).shard_group() == nullptr,
        "PACELINE_PROFILE: a profile requires the whole model on every rank; start the program "
        "without --mesh and --shard");
  const auto profile = dry_run(*group_, {.module = training_.module,
                                         .optimizer = optimizer_,
                                         .gradients = *training_.gradients,
                                         .loader = *loader_,
                                         .unit = training_.unit,
                                         .describe = training_.describe});
  on_rank(0, *group_, [&] { planning::save_profile(profile, file); });
  progress_.note(fmt::format("the profile is in {}; nothing was trained", file.string()));
  return 0;
}

int TrainingRunCore::train() {
  if (const auto file = wanted_profile()) return write_profile(*file);
  check(training_.test != nullptr, "TrainingRun: Training::test is not set");
  const auto begin = std::chrono::steady_clock::now();
  first_step_ = state_.step;
  memory_.begin(optimizer_);
  const LoopHooks hooks{.scale_loss = [&](const at::Tensor& loss) { return step_.scaled(loss); },
                        .take_step =
                            [&] {
                              memory_.count_gradients(optimizer_);
                              take_step();
                            },
                        .after_step = [&](const StepReport& report) { after_step(report); },
                        .stop_requested = [&] { return checkpoints_.stop_requested(); },
                        .after_epoch = [&](const TrainingState&) { return after_epoch(); }};
  const LoopEnd end = run_loop({.epochs = options_.epochs, .max_steps = options_.max_steps}, state_,
                               *loader_, *training_.gradients, optimizer_, times_, hooks);
  if (end == LoopEnd::kStopped) return stop();
  const bool is_saved = checkpoints_.finish(state_);  // so that --resume can continue from here
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
  seconds_ = all.count() - times_.seconds(Phase::kEvaluation) - times_.seconds(Phase::kCheckpoint);
  if (evaluated_step_ != state_.step) evaluate();
  print_table();
  write_final_weights();
  if (is_saved) return 0;
  progress_.note(fmt::format("the last checkpoint could not be written to {}; see above",
                             options_.checkpoints.folder));
  return 1;
}

// Aborts the group if this rank cannot take the step; otherwise the other ranks would wait for this
// rank before they learned the reason.
void TrainingRunCore::take_step() try {
  step_.take();
  if (training_.after_step) training_.after_step();
} catch (const DamagedState& error) {
  const DamagedState said(reported_by(group_->self(), "optimizer's step", error).what());
  group_->abort(said.what());
  throw said;
}

int TrainingRunCore::stop() {
  const std::string& folder = options_.checkpoints.folder;
  const std::string reason = checkpoints_.stop_reason();
  progress_.note(
      fmt::format("stopping after step {} by {}; saving to {}, a second Ctrl-C ends at once",
                  state_.step, reason, folder));
  const bool is_saved = checkpoints_.finish(state_);
  metrics_.write("stopped", {{"step", state_.step}, {"reason", reason}});
  progress_.note(fmt::format(
      "stopped after step {} by {}; {}", state_.step, reason,
      is_saved ? std::string("to continue: the same command with --resume")
               : fmt::format("the state could not be written to {}: see above; --resume continues "
                             "from an older one",
                             folder)));
  return is_saved ? kStoppedAsAgreed : 1;
}

// Returns the bytes of the copy from which this rank writes a checkpoint. The ranks that have the
// same part of the model write equal shares of that part's state.
double TrainingRunCore::checkpoint_bytes() const {
  if (!checkpoints_.are_made()) return 0;
  const int parts = core_of(optimizer_).shard_group() != nullptr
                        ? core_of(optimizer_).shard_group()->world_size()
                        : 1;
  const double bytes = static_cast<double>(optimizer_.num_state_bytes()) * parts +
                       static_cast<double>(total_bytes(optimizer_.parameters()));
  return bytes / replicas().world_size();
}

void TrainingRunCore::after_step(const StepReport& report) {
  if (state_.step == first_step_ + 1) memory_.plan(optimizer_, checkpoint_bytes());
  samples_ += report.samples;
  last_loss_ = report.loss;
  progress_.after_step(report);
  metrics_.write("step", {{"step", state_.step},
                          {"epoch", state_.epoch + 1},
                          {"loss", report.loss},
                          {"learning_rate", step_.learning_rate()}});
  scalars_.scalar("train/loss", state_.step, report.loss);
  scalars_.scalar("train/learning_rate", state_.step, step_.learning_rate());
  checkpoints_.after_step(state_);
}

Next TrainingRunCore::after_epoch() {
  evaluate();
  step_.end_epoch(result_.loss);
  progress_.note(fmt::format("epoch {}: {}", state_.epoch, result_.summary));
  Fields fields{{"epoch", state_.epoch}};
  for (const auto& [name, value] : result_.values) {
    fields.emplace_back(name, value);
    scalars_.scalar("test/" + name, state_.step, value);
  }
  fields.emplace_back("test_loss", result_.loss);
  scalars_.scalar("test/loss", state_.step, result_.loss);
  metrics_.write("epoch", fields);
  std::int32_t stops = 0;
  if (training_.after_epoch) {
    const EpochReport report(*group_, state_, result_, best_,
                             [&](const std::string& file) { write_weights_to(file); });
    training_.after_epoch(report);
    stops = report.stops() ? 1 : 0;
    group_->broadcast(std::span(&stops, 1), 0);
  }
  checkpoints_.after_epoch(state_);
  ended_by_program_ = stops != 0;
  if (!ended_by_program_) return Next::kContinue;
  progress_.note(fmt::format("the program ends the run after epoch {}", state_.epoch));
  return Next::kStop;
}

void TrainingRunCore::evaluate() {
  const auto timed = times_.measure(Phase::kEvaluation);
  // Held for the whole test, because ranks may test different numbers of batches.
  const auto whole = optimizer_.whole_parameters();
  const auto averaged = step_.averaged_weights();
  training_.module.eval();
  result_ = training_.test();
  training_.module.train();
  compare_results();
  evaluated_step_ = state_.step;
}

// Warns once if the ranks' results of Training::test differ.
void TrainingRunCore::compare_results() {
  engine(*group_).enter(kTest);
  std::string own = fmt::format("loss {}", result_.loss);
  for (const auto& [name, value] : result_.values) own += fmt::format(", {} {}", name, value);
  const auto all = all_gather_object(*group_, own);
  const auto other = std::ranges::find_if(all, [&](const auto& one) { return one != all.front(); });
  if (other == all.end() || std::exchange(results_differ_, true) || !is_first()) return;
  const auto rank = static_cast<std::size_t>(other - all.begin());
  log::warning(fmt::format(
      "TrainingRun: Training::test returned {} on rank 0 and {} on {}; the run shows and "
      "compares that of rank 0: to test all samples, add up the ranks' sums with "
      "all_reduce (reported once)",
      all.front(), *other, group_->name_of_member(rank)));
}

void TrainingRunCore::print_table() {
  const auto memory = memory_.report(*group_);  // first, because make_report() uses memory
  const RunReport report = make_report(*group_, times_, seconds_, state_.step - first_step_,
                                       all_reduce_value(replicas(), samples_), training_.unit);
  Fields fields(result_.values.begin(), result_.values.end());
  fields.emplace_back("seconds", report.seconds);
  fields.emplace_back("samples_per_second", report.samples_per_second);
  if (training_.unit.per_sample != 1)
    fields.emplace_back(training_.unit.name + "_per_second", report.units_per_second());
  if (report.matrix_speed > 0) fields.emplace_back("matrix_share", report.matrix_share());
  fields.emplace_back("steps", report.steps);
  fields.emplace_back("world_size", std::int64_t{group_->world_size()});
  fields.emplace_back("test_loss", result_.loss);
  std::string table = table_of(result_) + report.table();
  if (training_.num_skipped) {
    const std::int64_t skipped = all_reduce_value(*group_, training_.num_skipped());
    fields.emplace_back("skipped_files", skipped);
    table += table_row("skipped files", fmt::format("{}", skipped));
  }
  if (memory) {
    fields.emplace_back("host_memory_planned", memory->host_planned);
    fields.emplace_back("host_memory_peak", memory->host_peak);
    fields.emplace_back("rank_memory_planned", memory->rank.all());
    fields.emplace_back("rank_memory_peak", memory->rank_peak);
    table += memory->table();
  }
  metrics_.write("end", fields);
  if (const auto room = checkpoints_.checkpoints_that_fit()) {
    table += table_row(
        "checkpoints",
        fmt::format("the disk has room for {}; the oldest is removed before each save", *room));
  }
  progress_.note("\n" + table + fmt::format("  {:<24}{}", "next", next_command()));
}

void TrainingRunCore::write_weights_to(const std::string& file) {
  const auto whole = optimizer_.whole_parameters();
  const auto averaged = step_.averaged_weights();
  const StateDict weights = training_.weights ? training_.weights() : weights_of(training_.module);
  on_rank(0, *group_, [&] { write_weights(file, weights); });
}

void TrainingRunCore::write_final_weights() {
  if (options_.weights.empty()) return;
  write_weights_to(options_.weights);
  progress_.note(fmt::format("the weights are in {}", options_.weights));
}

// Returns the options of a run that continues where this one ended: they make the run longer and
// keep its schedule.
std::string TrainingRunCore::options_of_longer_run() const {
  const StepOptions& step = options_.step;
  const std::int64_t steps = step_.schedule_steps();
  const bool ends_with_schedule = step.schedule == "one-cycle";
  const bool is_longer_than_run = ends_with_schedule && state_.step < steps;
  std::int64_t most = 0;
  if (options_.max_steps > 0 && state_.step >= options_.max_steps) most = 2 * options_.max_steps;
  if (is_longer_than_run) most = most > 0 ? std::min(most, steps) : steps;
  std::string longer;
  if (state_.epoch >= options_.epochs) longer += fmt::format(" --epochs {}", options_.epochs + 1);
  if (most > 0) longer += fmt::format(" --max-steps {}", most);
  if (ends_with_schedule && !is_longer_than_run) return longer;
  if (steps > 0) longer += fmt::format(" --lr-schedule-steps {}", steps);
  return longer;
}

// Suggests how to go on after this run: with a complete command, or with options to add to the
// command of this run. Both work exactly as printed. The condition that ended this run would end
// the next one before its first step, so the options change that condition. A schedule without
// remaining steps requires a new run.
std::string TrainingRunCore::next_command() const {
  if (!std::isfinite(last_loss_)) {
    return checkpoints_.are_made()
               ? "the loss is not finite: see the warnings; the last checkpoint "
                 "with finite parameters is kept"
               : "the loss is not finite: see the warnings";
  }
  if (ended_by_program_) {
    return checkpoints_.are_made() ? "nothing: the program ended the run (--resume adds an epoch)"
                                   : "nothing: the program ended the run";
  }
  const bool can_continue =
      options_.step.schedule != "one-cycle" || state_.step < step_.schedule_steps();
  const std::string longer = options_of_longer_run();
  if (checkpoints_.are_made() && can_continue) return "the same with --resume" + longer;
  if (checkpoints_.are_made())
    return fmt::format("the same with --checkpoint-dir {}{}",
                       shell_quoted(options_.checkpoints.folder + "-longer"), longer);
  if (group_->world_size() == 1 && !options_.command.empty())
    return fmt::format("{} run --nproc-per-node 2 {}", launcher_command(), options_.command);
  if (!can_continue) return "the same with --checkpoint-dir run" + longer;
  return fmt::format(
      "the same with --checkpoint-dir run, then with --checkpoint-dir run --resume{}", longer);
}

// ---- the public class

TrainingRun::TrainingRun(std::shared_ptr<ProcessGroup> group, const Training& training,
                         const TrainingRunOptions& options)
    : core_(new TrainingRunCore(std::move(group), training, options)) {}

TrainingRun::~TrainingRun() = default;

int TrainingRun::train() { return core_->train(); }

const TrainingState& TrainingRun::state() const { return core_->state(); }

const TestResult& TrainingRun::result() const { return core_->result(); }

RunCheckpoints::RunCheckpoints(std::shared_ptr<ProcessGroup> group, CheckpointOptions options,
                               torch::nn::Module& module, optim::Optimizer& optimizer,
                               PhaseTimes& times, const std::shared_ptr<ProcessGroup>& replicas)
    : group_(std::move(group)),
      options_(std::move(options)),
      module_(module),
      optimizer_(optimizer),
      times_(times) {
  if (options_.folder.empty()) return;
  if (replicas) options_.replicas = replicas;
  if (options_.memory_every > 0 && options_.memory.empty()) options_.memory = memory_path();
  checkpointer_.emplace(group_, options_);
}

std::optional<RestoredRun> RunCheckpoints::begin(const RunParts& parts, std::uint64_t seed) {
  checkpointer_->attach(parts);
  stop_.emplace(options_.stop_file);
  auto restored = checkpointer_->begin(module_, optimizer_, seed);
  if (restored && !restored->from_memory) saved_step_ = restored->state.step;
  return restored;
}

void RunCheckpoints::after_step(const TrainingState& state) {
  if (!checkpointer_) return;
  const auto due = [&](std::int64_t every) { return every > 0 && state.step % every == 0; };
  if (due(options_.every)) save(state);
  if (!due(options_.memory_every)) return;
  const auto timed = times_.measure(Phase::kCheckpoint);
  checkpointer_->save_to_memory(state, module_, optimizer_);
}

void RunCheckpoints::after_epoch(const TrainingState& state) {
  if (checkpointer_ && options_.every == 0) save(state);
}

void RunCheckpoints::save(const TrainingState& state) {
  const auto timed = times_.measure(Phase::kCheckpoint);
  // If a save has failed (it is not known which one), the step is not recorded, so that finish()
  // saves again.
  if (checkpointer_->save(state, module_, optimizer_)) saved_step_ = state.step;
}

bool RunCheckpoints::finish(const TrainingState& state) {
  if (!checkpointer_) return true;
  if (saved_step_ != state.step) save(state);
  const auto timed = times_.measure(Phase::kCheckpoint);
  return checkpointer_->finish();
}

std::optional<int> RunCheckpoints::checkpoints_that_fit() const {
  return checkpointer_ ? checkpointer_->checkpoints_that_fit() : std::nullopt;
}

}  // namespace paceline::train
