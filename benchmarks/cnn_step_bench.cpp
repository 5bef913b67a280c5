// How one training step spends its time: the CNN on CIFAR-10's shape (random images), batch 32 per
// rank, Adam, data parallel over the ranks that the launcher starts.
//
//   paceline run --nproc-per-node 2 cnn_step_bench
//
// Each variant changes one option; the variants take turns, round by round, in the same processes.
// Two settings hold for a whole process: --default-malloc runs everything without Paceline's
// setting of the allocator, and --ordinary-tensors without shared tensors.

#include <chrono>
#include <cstdio>
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
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/parallel/reducer/reducer.h"
#include "paceline/training/tensor/tensor_memory.h"
#include "paceline/training/train/libtorch_facts.h"
#include "paceline/training/train/training_process.h"

#include "benchmarks/spread.h"

namespace paceline::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kBatch = 32;
constexpr std::int64_t kImages = 2048;

struct Variant {
  std::string name;
  bool channels_last = true;
  bool fused = true;
  bool drop_gradients = true;  // otherwise they are zeroed in place, and passes add to them
  std::size_t bucket_bytes = 25 << 20;
  bool sharded = true;  // the step of the fused optimizer is divided among the ranks
};

struct Phases {
  double forward = 0, backward = 0, exposed = 0, optimizer = 0;
  double total() const { return forward + backward + optimizer; }
};

double seconds_since(Clock::time_point& mark) {
  const auto now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - mark).count();
  mark = now;
  return seconds;
}

class Replica {
 public:
  Replica(Variant variant, const std::shared_ptr<ProcessGroup>& group)
      : variant_(std::move(variant)),
        cnn_(make(variant_)),
        model_(cnn_, group, {.buckets = {.cap_bytes = variant_.bucket_bytes}}) {
    if (variant_.fused) {
      fused_ = std::make_unique<optim::Adam>(cnn_->parameters(),
                                             optim::AdamOptions{.lr = 1e-5, .weight_decay = 0.005});
      if (variant_.sharded) core_of(*fused_).shard(group);
    } else {
      plain_ = std::make_unique<torch::optim::Adam>(
          cnn_->parameters(), torch::optim::AdamOptions(1e-5).weight_decay(0.005));
    }
  }

  const std::string& name() const { return variant_.name; }

  void step(const at::Tensor& images, const at::Tensor& labels, Phases& phases) {
    auto mark = Clock::now();
    zero_grad();
    phases.optimizer += seconds_since(mark);
    const auto input =
        variant_.channels_last ? images.contiguous(at::MemoryFormat::ChannelsLast) : images;
    auto loss = torch::nn::functional::cross_entropy(model_.forward(input), labels);
    phases.forward += seconds_since(mark);
    loss.backward();
    phases.backward += seconds_since(mark);
    phases.exposed += model_.reducer().take_exposed_seconds();
    fused_ ? fused_->step() : static_cast<void>(plain_->step());
    phases.optimizer += seconds_since(mark);
  }

 private:
  static models::Cnn make(const Variant& variant) {
    models::Cnn cnn;
    if (variant.channels_last) {
      for (auto& parameter : cnn->parameters()) {
        if (parameter.dim() == 4)
          parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
      }
    }
    return cnn;
  }

  void zero_grad() {
    for (auto& parameter : cnn_->parameters()) {
      if (variant_.drop_gradients) {
        parameter.mutable_grad() = at::Tensor();
      } else if (parameter.grad().defined()) {
        parameter.mutable_grad().zero_();
      }
    }
  }

  const Variant variant_;
  models::Cnn cnn_;
  DistributedDataParallel<models::CnnImpl> model_;
  std::unique_ptr<optim::Adam> fused_;
  std::unique_ptr<torch::optim::Adam> plain_;
};

struct Data {
  at::Tensor images = at::randn({kImages, 3, 32, 32});
  at::Tensor labels = at::randint(10, {kImages}, at::kLong);
};

Phases run_steps(Replica& replica, const Data& data, int steps) {
  Phases phases;
  for (int step = 0; step < steps; ++step) {
    const std::int64_t begin = step * kBatch % kImages;
    replica.step(data.images.slice(0, begin, begin + kBatch).clone(),
                 data.labels.slice(0, begin, begin + kBatch), phases);
  }
  return phases;
}

void run(int rounds, int steps, bool symmetric) {
  const auto group = init_process_group();
  std::optional<SymmetricTensors> symmetric_tensors;
  if (symmetric) symmetric_tensors.emplace(*group);
  const Data data;
  std::vector<std::unique_ptr<Replica>> replicas;
  for (const Variant& variant :
       {Variant{"everything"}, Variant{"without channels_last", false},
        Variant{"without the fused optimizer", true, false},
        Variant{"gradients zeroed in place, not dropped", true, true, false},
        Variant{"buckets of 1 MB, not 25 MB", true, true, true, 1 << 20},
        Variant{"every rank takes the whole optimizer step", true, true, true, 25 << 20, false},
        Variant{"none of the first three", false, false, false}})
    replicas.push_back(std::make_unique<Replica>(variant, group));
  std::vector<std::vector<double>> total(replicas.size());
  std::vector<Phases> last(replicas.size());
  for (int round = -1; round < rounds; ++round) {
    for (std::size_t i = 0; i < replicas.size(); ++i) {
      group->barrier();
      last[i] = run_steps(*replicas[i], data, steps);
      if (round >= 0) total[i].push_back(last[i].total() * 1e3 / steps);
    }
  }
  if (group->rank() != 0) return;
  fmt::print("{} ranks x {} threads, batch {} a rank, {} rounds of {} steps, ms a step\n\n",
             group->world_size(), at::get_num_threads(), kBatch, rounds, steps);
  fmt::print(
      "| variant | step, median [min, max] | forward | backward | of it exposed | optimizer |\n"
      "|---|---|---|---|---|---|\n");
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    const double scale = 1e3 / steps;
    const auto& phases = last[i];
    fmt::print("| {} | {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} |\n", replicas[i]->name(),
               with_spread(total[i]), phases.forward * scale, phases.backward * scale,
               phases.exposed * scale, phases.optimizer * scale);
  }
}

}  // namespace
}  // namespace paceline::benchmarks

int main(int argc, char** argv) {
  int rounds = 5;
  int steps = 30;
  bool default_malloc = false;
  bool ordinary_tensors = false;
  CLI::App app("where the time of one training step goes");
  app.add_option("--rounds", rounds, "interleaved rounds")->check(CLI::Range(1, 1000));
  app.add_option("--steps", steps, "steps of a variant in a round")->check(CLI::Range(1, 100000));
  app.add_flag("--default-malloc", default_malloc, "give freed memory back to the system");
  app.add_flag("--ordinary-tensors", ordinary_tensors,
               "tensors in memory that the ranks do not share");
  CLI11_PARSE(app, argc, argv);
  try {
    if (!default_malloc) paceline::train::keep_large_blocks();
    paceline::benchmarks::run(rounds, steps, !ordinary_tensors);
  } catch (const std::exception& error) {
    fmt::print(stderr, "cnn_step_bench: {}\n", error.what());
    return 1;
  }
}
