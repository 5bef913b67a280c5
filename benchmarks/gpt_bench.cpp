// A step of a GPT of 31 million parameters, divided among ranks in one of several ways, and the
// memory that the job takes:
//
//   gpt_bench                                                        one rank
//   paceline run --nproc-per-node 2 gpt_bench --way data             DistributedDataParallel
//   paceline run --nproc-per-node 2 gpt_bench --way data --stage 3   fully_shard()
//   paceline run --nproc-per-node 2 gpt_bench --way tensor
//   paceline run --nproc-per-node 2 gpt_bench --way pipeline --schedule zero-bubble
//   gpt_bench --way generate                                         tokens per second
//
// gpt_beside_python.py runs it in turns with PyTorch. The memory is the PSS (proc_pid_smaps(5)), in
// which a page that several processes share counts once in total: the sum over all ranks, after the
// last step. The bytes sent to other hosts are those of rank 0's host.

#include <chrono>
#include <functional>
#include <numeric>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <torch/torch.h>

#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/check.h"
#include "paceline/planning/schedules/named_schedules.h"
#include "paceline/planning/schedules/schedule_checks.h"
#include "paceline/planning/schedules/search.h"
#include "paceline/training/models/gpt.h"
#include "paceline/training/models/transformer_stage.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/fully_shard.h"
#include "paceline/training/pipeline/measure_layers.h"
#include "paceline/training/pipeline/pipeline.h"
#include "paceline/training/pipeline/stage_weights.h"
#include "paceline/training/tensor/tensor_memory.h"
#include "paceline/training/tensor_parallel/tensor_parallel_layers.h"
#include "paceline/training/tensor_parallel/vocab_parallel.h"

#include "benchmarks/own_usage.h"

namespace paceline::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;
using Step = std::function<void()>;

constexpr std::int64_t kTokens = 128, kVocabulary = 256;
constexpr models::GptOptions kGpt{.vocabulary = kVocabulary,
                                  .context = kTokens,
                                  .layers = 10,
                                  .width = 512,
                                  .heads = 8,
                                  .dropout = 0};
constexpr std::int64_t kPromptTokens = 16;

struct Setting {
  std::string way = "data";
  int stage = 0;
  bool shard_across_hosts = false;
  std::string schedule = "1f1b";
  int stages_per_rank = 1;
  std::vector<int> cut;        // layers of each stage; empty: the best cut
  std::int64_t sequences = 2;  // with --way data for each rank, otherwise for the whole step
  int steps = 20;
};

struct Batch {
  at::Tensor inputs, targets;  // [sequences, kTokens]
};

Batch random_batch(std::int64_t sequences) {
  const at::Tensor tokens = at::randint(kVocabulary, {sequences, kTokens + 1}, at::kLong);
  return {tokens.narrow(1, 0, kTokens).contiguous(), tokens.narrow(1, 1, kTokens).contiguous()};
}

double seconds_per_step(ProcessGroup& group, int steps, const Step& step) {
  group.barrier();
  const auto begin = Clock::now();
  for (int i = 0; i < steps; ++i) step();
  group.barrier();
  return std::chrono::duration<double>(Clock::now() - begin).count() / steps;
}

// The same number of steps runs before the measurement.
void measure(ProcessGroup& group, int steps, const Step& step) {
  seconds_per_step(group, steps, step);
  const double sent_before = sent_mb();
  const double seconds = seconds_per_step(group, steps, step);
  const double sent = (sent_mb() - sent_before) / steps;
  const double megabytes = all_reduce_value(group, own_pss_mb(), ReduceOp::kSum);
  if (group.rank() == 0) {
    fmt::print(
        "ms a step: {:.4f}\nPSS of all ranks, MB: {:.2f}\nsent to other hosts, MB a step: {:.2f}\n",
        seconds * 1e3, megabytes, sent);
  }
}

void run_data(const GroupPtr& group, const Setting& setting) {
  const auto module = models::Gpt(kGpt).ptr();
  optim::Adam optimizer(module->parameters(), {.lr = 1e-4});
  DistributedDataParallelOptions options;
  if (setting.stage > 0)
    options = paceline::detail::sharded_options(
        optimizer, {.stage = setting.stage, .shard_across_hosts = setting.shard_across_hosts});
  DistributedDataParallel<models::GptImpl> model(module, group, options);
  const Batch batch = random_batch(setting.sequences);
  measure(*group, setting.steps, [&] {
    optimizer.zero_grad();
    models::next_token_loss(model.forward(batch.inputs), batch.targets).backward();
    optimizer.step();
  });
}

void run_tensor(const GroupPtr& group, const Setting& setting) {
  models::Gpt model(kGpt, tensor_parallel_layers(group, {.gather_logits = false}));
  optim::Adam optimizer(model->parameters(), {.lr = 1e-4});
  const Batch batch = random_batch(setting.sequences);
  measure(*group, setting.steps, [&] {
    optimizer.zero_grad();
    vocab_parallel_cross_entropy(group, model->forward(batch.inputs), batch.targets).backward();
    optimizer.step();
  });
}

// A model cut into stages, and the plan for them.
struct StagesAndPlan {
  std::vector<int> layers;  // layers in each stage
  pipeline::Costs costs;    // as measured
  PipelineSchedule schedule;
};

// Measures layers, cuts the model into stages, and chooses the schedule.
class PipelineDivision {
 public:
  PipelineDivision(ProcessGroup& group, const Setting& setting)
      : ranks_(group.world_size()), setting_(setting) {
    std::vector<PipelineStage> different;
    for (const std::int64_t block : {std::int64_t{0}, std::int64_t{1}, kGpt.layers - 1}) {
      const models::GptStage layer(kGpt, models::Layers{}, models::BlockRange{block, block + 1});
      different.push_back(make_stage(static_cast<int>(block), layer));
    }
    const Batch batch = random_batch(1);
    const auto loss = [&](const auto& outputs, int) {
      return models::next_token_loss(outputs[0], batch.targets);
    };
    const auto measured = measure_layers(group, different, {batch.inputs}, loss, kRepeats);
    layers_ = of_all_layers(measured, static_cast<std::size_t>(kGpt.layers));
  }

  StagesAndPlan choose() const {
    const int micro_batches = static_cast<int>(setting_.sequences);
    if (setting_.schedule != "searched") {
      const pipeline::Division division = cut(pipeline::looped_layout(ranks_, stages_per_rank()));
      return {division.layers, division.costs,
              pipeline_schedule(setting_.schedule, ranks_, micro_batches, stages_per_rank())};
    }
    std::vector<pipeline::Division> divisions;
    for (const std::vector<int>& layout : layouts()) divisions.push_back(cut(layout));
    const auto search = pipeline::search_divisions(divisions, micro_batches);
    const pipeline::Division& best = divisions[search.division];
    return {best.layers, best.costs, search.found.schedule};
  }

 private:
  static constexpr int kRepeats = 5;

  int stages_per_rank() const {
    if (setting_.cut.empty()) return setting_.stages_per_rank;
    const auto& cut = setting_.cut;
    check(cut.size() % static_cast<std::size_t>(ranks_) == 0 &&
              std::accumulate(cut.begin(), cut.end(), std::int64_t{0}) == kGpt.layers,
          "--cut {}: for {} ranks and {} layers", fmt::join(cut, "+"), ranks_, kGpt.layers);
    return static_cast<int>(cut.size()) / ranks_;
  }

  std::vector<std::vector<int>> layouts() const {
    if (!setting_.cut.empty()) return {pipeline::looped_layout(ranks_, stages_per_rank())};
    return pipeline::possible_layouts(ranks_, static_cast<int>(kGpt.layers));
  }

  pipeline::Division cut(const std::vector<int>& layout) const {
    const std::vector<int> counts =
        setting_.cut.empty() ? pipeline::split_by_cost(seconds_of(layers_), layout) : setting_.cut;
    return {layout, counts, costs_of_stages(layers_, counts)};
  }

  const int ranks_;
  const Setting setting_;
  std::vector<LayerTimes> layers_;
};

// A rank's stages of the model, and their step.
class PipelineRun {
 public:
  PipelineRun(const GroupPtr& group, const Setting& setting)
      : group_(group),
        setting_(setting),
        division_(PipelineDivision(*group, setting).choose()),
        batch_(random_batch(setting.sequences)) {
    std::vector<int> indices;
    std::vector<models::GptStage> own;
    std::int64_t begin = 0;
    for (int index = 0; index < division_.schedule.num_stages(); ++index) {
      const auto at = static_cast<std::size_t>(index);
      const models::BlockRange range{begin, begin + division_.layers[at]};
      begin = range.end;
      if (division_.schedule.rank_of_stage[at] != group->rank()) continue;
      torch::manual_seed(0);
      indices.push_back(index);
      own.emplace_back(kGpt, models::Layers{}, range);
    }
    models::join_ends(own);
    std::vector<PipelineStage> stages;
    std::vector<at::Tensor> tied;
    for (const models::GptStage& stage : own) {
      stages.push_back(make_stage(indices[stages.size()], stage));
      for (const auto& one : stage->tied_weights()) tied.push_back(one);
    }
    tied_.emplace(*group, tied);
    optimizer_.emplace(models::one_module(own)->parameters(), optim::AdamOptions{.lr = 1e-4});
    pipeline_.emplace(group, division_.schedule, stages);
    targets_ = split_micro_batches(batch_.targets, micro_batches());
    if (group->rank() == 0) inputs_ = split_micro_batches(batch_.inputs, micro_batches());
  }

  void run() {
    measure(*group_, setting_.steps, [this] { step(); });
    const pipeline::TimedSchedule planned = pipeline::simulate(division_.schedule, division_.costs);
    const double passes = measured(*group_, last_).seconds;
    if (group_->rank() != 0) return;
    fmt::print("ms of the passes: {:.4f}\nsimulated: {:.4f}\nstages of {} layers, {}\n",
               passes * 1e3, planned.seconds * 1e3, fmt::join(division_.layers, "+"),
               describe(division_.schedule, planned));
  }

 private:
  int micro_batches() const { return static_cast<int>(setting_.sequences); }

  void step() {
    optimizer_->zero_grad();
    last_ = pipeline_->step(inputs_, [this](const auto& outputs, int micro_batch) {
      return models::next_token_loss(outputs[0],
                                     targets_[static_cast<std::size_t>(micro_batch)][0]);
    });
    tied_->add_gradients();
    optimizer_->step();
  }

  const GroupPtr group_;
  const Setting setting_;
  const StagesAndPlan division_;
  const Batch batch_;
  std::vector<PipelineStage::Tensors> inputs_, targets_;
  std::optional<TiedWeights> tied_;
  std::optional<optim::Adam> optimizer_;
  std::optional<Pipeline> pipeline_;
  PipelineStep last_;
};

void run_generate(const Setting& setting) {
  models::Gpt model(kGpt);
  const at::Tensor prompt = at::randint(kVocabulary, {1, kPromptTokens}, at::kLong);
  const models::GenerateOptions options{.tokens = kTokens - kPromptTokens, .temperature = 0};
  models::generate(model, prompt, options);
  const auto begin = Clock::now();
  for (int i = 0; i < setting.steps; ++i) models::generate(model, prompt, options);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  fmt::print("tokens a second: {:.2f}\n",
             static_cast<double>(options.tokens) * setting.steps / seconds);
}

void run(const Setting& setting) {
  if (setting.way == "generate") return run_generate(setting);
  const auto group = init_process_group();
  const SymmetricTensors symmetric_tensors(*group);
  torch::manual_seed(0);
  if (setting.way == "data") return run_data(group, setting);
  if (setting.way == "tensor") return run_tensor(group, setting);
  PipelineRun(group, setting).run();
}

}  // namespace
}  // namespace paceline::benchmarks

int main(int argc, char** argv) {
  paceline::benchmarks::Setting setting;
  CLI::App app("a step of a GPT and its memory, divided among the ranks");
  app.add_option("--way", setting.way)
      ->check(CLI::IsMember({"data", "tensor", "pipeline", "generate"}))
      ->capture_default_str();
  app.add_option("--stage", setting.stage, "of fully_shard(); 0: DistributedDataParallel")
      ->check(CLI::Range(0, 3));
  app.add_option("--schedule", setting.schedule, "of a pipeline: a name, or searched")
      ->capture_default_str();
  app.add_flag("--shard-across-hosts", setting.shard_across_hosts,
               "each host keeps a part of the parameters");
  app.add_option("--stages-per-rank", setting.stages_per_rank,
                 "of a pipeline; searched chooses itself")
      ->check(CLI::Range(1, 5));
  app.add_option("--cut", setting.cut, "of a pipeline: layers of each stage, as 4+2+1+3")
      ->delimiter('+')
      ->check(CLI::Range(1, 10));
  app.add_option("--sequences", setting.sequences,
                 "a rank's; with tensor and pipeline the step's, each a micro-batch")
      ->check(CLI::Range(1, 1024));
  app.add_option("--steps", setting.steps, "timed, after as many others")
      ->check(CLI::Range(1, 100000));
  CLI11_PARSE(app, argc, argv);
  try {
    paceline::benchmarks::run(setting);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpt_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
