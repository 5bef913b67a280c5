// The cost of each part of data parallelism: a training step with one part more takes turns with
// the step without it. Random images, Adam, on the ranks that the launcher starts.
//
//   paceline run --nproc-per-node 2 data_parallel_bench
//   paceline run --nproc-per-node 2 data_parallel_bench --model resnet
//
// Each variant has its own replica; variants take turns, round by round, in the same processes. A
// ratio is the variant's time in a round divided by the time of the variant with which it is
// compared.

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <torch/torch.h>

#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/models/cnn.h"
#include "paceline/training/models/resnet.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/communication_hook.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/parallel/reducer/reducer.h"
#include "paceline/training/tensor/tensor_memory.h"
#include "paceline/training/train/libtorch_facts.h"
#include "paceline/training/train/training_process.h"

#include "benchmarks/spread.h"

namespace paceline::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kBatch = 32;  // for a rank, in all passes of a step together

struct Variant {
  std::string name;
  std::size_t against;  // the variant to compare with
  DistributedDataParallelOptions options;
  std::int64_t passes = 1;  // passes of a step
  std::shared_ptr<CommunicationHook> hook = {};
};

std::vector<Variant> variants_for(int world_size) {
  DistributedDataParallelOptions bare;
  bare.check_replicas_every = 0;
  bare.non_finite = NonFinite::kIgnore;
  bare.logical_shards = 0;
  DistributedDataParallelOptions guard = bare, finite = bare, both = bare;
  guard.check_replicas_every = 100;
  finite.non_finite = NonFinite::kReport;
  both.check_replicas_every = 100;
  both.non_finite = NonFinite::kReport;
  const auto shards = [&](std::int64_t each) {
    DistributedDataParallelOptions options = bare;
    options.logical_shards = each * world_size;
    return options;
  };
  return {{"neither guard nor report", 0, bare},
          {"the same again", 0, bare},
          {"replica guard", 0, guard},
          {"report of gradients that are not finite", 0, finite},
          {"both, the default", 0, both},
          {"logical shards, 1 a rank", 0, shards(1)},
          {"2 passes a step", 0, bare, 2},
          {"logical shards, 2 a rank", 6, shards(2), 2},
          {"4 passes a step", 0, bare, 4},
          {"logical shards, 4 a rank", 8, shards(4), 4},
          {"bf16_compress", 0, bare, 1, std::make_shared<CompressHook>(at::kBFloat16)},
          {"power_sgd, rank 4", 0, bare, 1,
           std::make_shared<PowerSGDHook>(PowerSGDOptions{.rank = 4, .start_step = 0})}};
}

template <class Module>
class Replica {
 public:
  Replica(const Variant& variant, std::shared_ptr<Module> module,
          const std::shared_ptr<ProcessGroup>& group)
      : variant_(variant), model_(std::move(module), group, variant.options) {
    optimizer_.emplace(model_->parameters(), optim::AdamOptions{.lr = 1e-5});
    core_of(*optimizer_).shard(group);
    if (variant.hook) model_.register_comm_hook(variant.hook);
  }

  // The time in backward passes that waited for other ranks and for their data, in milliseconds.
  double take_waited_ms() { return 1e3 * model_.reducer().take_exposed_seconds(); }

  void step(const at::Tensor& images, const at::Tensor& labels) {
    const std::int64_t part = kBatch / variant_.passes;
    for (std::int64_t pass = 0; pass < variant_.passes; ++pass) {
      model_.reducer().set_synchronize(pass + 1 == variant_.passes);
      const at::Tensor logits = model_.forward(images.narrow(0, pass * part, part));
      torch::nn::functional::cross_entropy(logits, labels.narrow(0, pass * part, part)).backward();
    }
    optimizer_->step();
    optimizer_->zero_grad();
  }

 private:
  const Variant variant_;
  DistributedDataParallel<Module> model_;
  std::optional<optim::Adam> optimizer_;
};

std::shared_ptr<models::ResNetImpl> small_resnet() {
  return models::ResNet(models::ResNetOptions{.classes = 10, .small_images = true}).ptr();
}

template <class MakeModule>
void run(int rounds, int steps, MakeModule make_module) {
  const auto group = init_process_group();
  const SymmetricTensors symmetric_tensors(*group);
  using Module = typename decltype(make_module())::element_type;
  const at::Tensor images =
      at::randn({kBatch, 3, 32, 32}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor labels = at::randint(10, {kBatch}, at::kLong);
  const auto variants = variants_for(group->world_size());
  std::vector<std::unique_ptr<Replica<Module>>> replicas;
  for (const auto& variant : variants)
    replicas.push_back(std::make_unique<Replica<Module>>(variant, make_module(), group));
  std::vector<std::vector<double>> times(variants.size()), ratios(variants.size()),
      waits(variants.size());
  for (int round = -1; round < rounds; ++round) {
    for (std::size_t i = 0; i < replicas.size(); ++i) {
      group->barrier();
      const auto begin = Clock::now();
      for (int step = 0; step < steps; ++step) replicas[i]->step(images, labels);
      const double ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
      const double waited = replicas[i]->take_waited_ms();
      if (round < 0) continue;
      times[i].push_back(ms / steps);
      waits[i].push_back(waited / steps);
    }
    if (round < 0) continue;
    for (std::size_t i = 0; i < replicas.size(); ++i)
      ratios[i].push_back(times[i].back() / times[variants[i].against].back());
  }
  if (group->rank() != 0) return;
  fmt::print("{} ranks x {} threads, batch {} a rank, {} rounds of {} steps\n\n",
             group->world_size(), at::get_num_threads(), kBatch, rounds, steps);
  fmt::print(
      "| variant | ms a step, median [min, max] | of it waiting | ratio | to |\n"
      "|---|---|---|---|---|\n");
  for (std::size_t i = 0; i < variants.size(); ++i) {
    fmt::print("| {} | {} | {:.2f} | {} | {} |\n", variants[i].name, with_spread(times[i]),
               bench::spread_of(waits[i]).median,
               i == variants[i].against
                   ? ""
                   : fmt::format("{:.3f} [{:.3f}, {:.3f}]", bench::spread_of(ratios[i]).median,
                                 bench::spread_of(ratios[i]).min, bench::spread_of(ratios[i]).max),
               i == variants[i].against ? "" : variants[variants[i].against].name);
  }
}

}  // namespace
}  // namespace paceline::benchmarks

int main(int argc, char** argv) {
  int rounds = 9;
  int steps = 20;
  std::string model = "cnn";
  CLI::App app("what the parts of data parallelism cost");
  app.add_option("--rounds", rounds, "interleaved rounds")->check(CLI::Range(1, 1000));
  app.add_option("--steps", steps, "steps of a variant in a round")->check(CLI::Range(1, 100000));
  app.add_option("--model", model, "cnn (1.3 million parameters) or resnet (ResNet-18)")
      ->check(CLI::IsMember({"cnn", "resnet"}));
  CLI11_PARSE(app, argc, argv);
  namespace models = paceline::models;
  try {
    paceline::train::keep_large_blocks();
    if (model == "cnn") {
      paceline::benchmarks::run(rounds, steps, [] { return models::Cnn().ptr(); });
    } else {
      paceline::benchmarks::run(rounds, steps, [] { return paceline::benchmarks::small_resnet(); });
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "data_parallel_bench: {}\n", error.what());
    return 1;
  }
}
