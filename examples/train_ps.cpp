// Trains the CNN of train_image with a parameter server: the parameters are in a table, in the
// memory of one host or on servers, and the optimizer runs where the table is. Synchronous trainers
// have equal parts of the samples, as with DistributedDataParallel. Otherwise a trainer takes the
// next batch of the epoch whenever it has finished one, so a slow trainer takes fewer batches.
//
//   paceline run --nproc-per-node 2 train_ps --consistency synchronous
//   paceline run --nproc-per-node 2 train_ps --consistency bounded:4
//   paceline run --roles trainer=2,server=1 --until trainer train_ps --consistency asynchronous

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <torch/torch.h>

#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/rpc/workers.h"
#include "paceline/engine/telemetry/metrics_log.h"
#include "paceline/training/data/data_loader.h"
#include "paceline/training/data/image_dataset.h"
#include "paceline/training/models/cnn.h"
#include "paceline/training/parameter_server/dense_table.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/train/evaluate.h"
#include "paceline/training/train/run_report.h"
#include "paceline/training/train/training_process.h"

#include "examples/table_job.h"
#include "examples/training_flags.h"

namespace train_ps {
namespace {

namespace data = paceline::data;
namespace rpc = paceline::rpc;
namespace tables = paceline::tables;
namespace train = paceline::train;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

struct Options {
  std::string data_dir = data::ImageDataset::kFashionMnistFolder;
  tables::Consistency consistency = tables::Consistency::synchronous();
  std::string optimizer = "sgd";
  double lr = 0.05, momentum = 0.9;
  double slow_down = 0;  // 3 makes the steps of the last trainer take four times as long
  std::int64_t epochs = 2, max_steps = 0;
  std::uint64_t seed = 0;
  std::string metrics;
  data::DataLoaderOptions loading;
  train::ProcessOptions process;
};

constexpr const char* kExamples =
    "\nExamples:\n  train_ps\n  paceline run --nproc-per-node 2 train_ps --consistency bounded:4\n"
    "  paceline run --roles trainer=2,server=1 --until trainer train_ps --consistency asynchronous";

Options parse_options(int argc, char** argv) {
  Options options;
  std::string consistency = "synchronous";
  CLI::App app("Trains a CNN on Fashion-MNIST with a parameter server", "train_ps");
  app.footer(kExamples);
  constexpr long kMaxCount = training_flags::kMaxCount;
  training_flags::FlagGroup table(app, "Table");
  table.value("--consistency", consistency, "MODE", "synchronous, bounded:S or asynchronous");
  table.number("--slow-down", options.slow_down, "Sleep of the last trainer, in step times", 1000);
  training_flags::FlagGroup training(app, "Training");
  training.value("--optimizer", options.optimizer, "NAME", "sgd or adam")
      ->check(paceline::apps::is_one_of({"sgd", "adam"}));
  training.number("--lr", options.lr, "Learning rate");
  training.number("--momentum", options.momentum, "Momentum of sgd, below 1", 0.9999);
  training.count("--batch-size", options.loading.batch_size, "Samples of each trainer in a step", 1,
                 kMaxCount);
  training.count("--epochs", options.epochs, "Passes over the training data", 1, kMaxCount);
  training.count("--max-steps", options.max_steps, "Steps after which to end; 0: no limit", 0,
                 kMaxCount);
  training.count("--seed", options.seed, "Seed of weights and of the samples' order", 0,
                 std::numeric_limits<long>::max());
  training.count("--threads", options.process.threads,
                 "Threads of each rank; 0: the launcher's choice", 0, 4096);
  training.value("--data-dir", options.data_dir, "DIR", "Folder of Fashion-MNIST");
  training.value("--metrics", options.metrics, "FILE", "Append metrics to FILE, as JSON lines");
  training_flags::parse(argc, argv, app, [&](const paceline::apps::CommandLine&) {
    options.consistency = table_job::consistency_in(consistency);
    options.loading.drop_last = true;
  });
  return options;
}

tables::RowOptimizer optimizer_of(const Options& options) {
  if (options.optimizer == "adam") return tables::Adam{.lr = options.lr};
  return tables::SGD{.lr = options.lr, .momentum = options.momentum};
}

// A call that asks the first trainer for the number of the job's next batch. Numbers start at 0 and
// go on through all epochs.
struct TakeBatch {
  static constexpr std::string_view kName = "take_batch";
  static constexpr rpc::Effect kEffect = rpc::Effect::kAtMostOnce;
  using Request = rpc::Nothing;
  struct Reply {
    std::int64_t number = 0;
    static auto fields(auto& m) { return std::tie(m.number); }
  };
};

class Trainer {
 public:
  Trainer(const Options& options, const table_job::TableJob& job)
      : options_(options),
        workers_(job.workers()),
        group_(*job.trainers()),
        model_((torch::manual_seed(options.seed),
                std::make_shared<paceline::models::CnnImpl>(
                    paceline::models::CnnOptions{.channels = 1, .height = 28, .width = 28}))),
        table_(job.open_dense("cnn", model_->parameters(),
                              {.optimizer = optimizer_of(options),
                               .consistency = options.consistency,
                               .gradient_scale = 1.0 / group_.world_size()})),
        training_(load(data::Split::kTrain)),
        testing_(load(data::Split::kTest)),
        loader_(training_,
                {training_->size(), group_.world_size(), group_.rank(), {.seed = options.seed}},
                options.loading),
        sampler_(training_->size(), 1, 0, {.seed = options.seed}) {
    if (group_.rank() == 0) {
      // The handler owns the number, because calls may still arrive after this trainer has failed.
      const auto next = std::make_shared<std::atomic<std::int64_t>>(0);
      workers_.serve<TakeBatch>([next](const rpc::Nothing&, rpc::Context&) {
        return TakeBatch::Reply{next->fetch_add(1)};
      });
    }
    group_.barrier();  // until all trainers have joined the clock
  }

  void train_epoch(std::int64_t epoch) {
    if (options_.consistency.kind() != tables::Consistency::Kind::kSynchronous)
      return share_epoch(epoch);
    for (const data::Batch& batch : loader_.epoch(epoch)) {
      if (options_.max_steps > 0 && steps_ == options_.max_steps) break;
      step(batch.data, batch.target);
      tick();
    }
  }

  // Collective. Evaluates the parameters in the table on the test data.
  train::Evaluation test() {
    group_.barrier();  // until all pushes have arrived
    table_->pull();
    data::DataLoader loader(
        testing_, data::evaluation_indices(testing_->size(), group_.world_size(), group_.rank()),
        {.batch_size = 250, .logical_shards = 0});
    const torch::NoGradGuard no_grad;
    return train::evaluate(group_, loader,
                           [&](const at::Tensor& images) { return model_->forward(images); });
  }

  // Collective. Returns the table of results that the program prints at its end.
  std::string report(Seconds trained) const {
    const tables::Rows::Stats stats = table_->rows().stats();
    const auto sum = [&](double value) { return paceline::all_reduce_value(group_, value); };
    const double trainers = group_.world_size();
    const double samples = sum(static_cast<double>(steps_ * options_.loading.batch_size));
    const auto steps_of_all = paceline::all_gather_object(group_, std::to_string(steps_));
    const double mean = sum(stats.mean_staleness) / trainers;
    const double largest = paceline::all_reduce_value(
        group_, static_cast<double>(stats.largest_staleness), paceline::ReduceOp::kMax);
    const double waiting = sum(waited_.count()) / trainers / trained.count();
    const double bytes = sum(static_cast<double>(stats.pulled_ids + stats.pushed_ids)) *
                         table_->rows().width() * sizeof(float);
    return train::table_row("throughput",
                            fmt::format("{:.0f} samples/s", samples / trained.count())) +
           train::table_row("batches",
                            fmt::format("{} (by trainer)", fmt::join(steps_of_all, ", "))) +
           train::table_row("staleness", fmt::format("{:.2f} clocks on average, {:.0f} at most",
                                                     mean, largest)) +
           train::table_row("waiting",
                            fmt::format("{:.1f} % of the time, in tick()", 100 * waiting)) +
           train::table_row("bytes", fmt::format("{:.1f} MB pulled and pushed", bytes / 1e6));
  }

 private:
  // Trains on batches of the epoch that the trainers take one by one. With N trainers, each clock
  // stands for N batches of the job, no matter which trainers take them. After a batch, a trainer
  // ticks until it has ended the clock to which the batch belongs.
  void share_epoch(std::int64_t epoch) {
    sampler_.set_epoch(epoch);
    const std::vector<std::int64_t> order = sampler_.order();
    const std::int64_t size = options_.loading.batch_size, trainers = group_.world_size();
    const std::int64_t of_epoch = std::ssize(order) / size, begin = epoch * of_epoch;
    std::int64_t end = begin + of_epoch;
    if (options_.max_steps > 0) end = std::min(end, options_.max_steps * trainers);
    if (epoch == 0) next_ = take_batch();
    for (; next_ < end; next_ = take_batch()) {
      const auto first = static_cast<std::size_t>((next_ - begin) * size);
      const auto samples =
          training_->batch(std::span(order).subspan(first, static_cast<std::size_t>(size)), epoch);
      step(samples[0], samples[1]);
      for (; clock_ <= next_ / trainers; ++clock_) tick();
    }
  }

  std::int64_t take_batch() { return workers_.call<TakeBatch>("trainer0", {}).get().number; }

  void step(const at::Tensor& images, const at::Tensor& labels) {
    const bool is_slow = options_.slow_down > 0 && group_.rank() == group_.world_size() - 1;
    const auto begin = Clock::now();
    if (steps_ > 0) table_->pull();
    model_->zero_grad(true);  // drops the gradients, which have been pushed
    torch::nn::functional::cross_entropy(model_->forward(images), labels).backward();
    if (is_slow) std::this_thread::sleep_for((Clock::now() - begin) * options_.slow_down);
    table_->push();
    ++steps_;
  }

  void tick() {
    const auto begin = Clock::now();
    table_->tick();
    waited_ += Clock::now() - begin;
  }

  std::shared_ptr<const data::Dataset> load(data::Split split) const {
    return std::make_shared<data::ImageSamples>(
        data::load_fashion_mnist(options_.data_dir, split),
        data::ImageSamplesOptions{.mean = {0.2860F}, .std = {0.3530F}, .channels_last = true});
  }

  const Options& options_;
  rpc::Workers& workers_;
  paceline::ProcessGroup& group_;
  const std::shared_ptr<paceline::models::CnnImpl> model_;
  const std::unique_ptr<tables::DenseTable> table_;
  const std::shared_ptr<const data::Dataset> training_, testing_;
  data::DataLoader loader_;
  data::DistributedSampler sampler_;  // orders the samples of share_epoch()
  std::int64_t next_ = 0;             // the number of the batch that this trainer has taken
  std::int64_t clock_ = 0;            // the number of clocks that this trainer has ended
  std::int64_t steps_ = 0;
  Seconds waited_{};  // in tick()
};

int run(const Options& options) {
  const train::TrainingProcess process(options.process, options.seed);
  table_job::TableJob job(process.group());
  if (job.is_server()) return job.serve(), 0;
  process.print_opening(fmt::format("train_ps: cnn on fashion-mnist; parameters {}, {}",
                                    job.place(), options.consistency.text()));
  const bool prints = job.trainers()->rank() == 0;
  paceline::MetricsLog metrics;
  if (prints && !options.metrics.empty()) metrics = paceline::MetricsLog(options.metrics);
  Trainer trainer(options, job);
  Seconds trained{};
  for (std::int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    const auto begin = Clock::now();
    trainer.train_epoch(epoch);
    trained += Clock::now() - begin;
    const train::Evaluation found = trainer.test();
    if (!prints) continue;
    fmt::print("epoch {}: {}\n", epoch, found.test_result().summary);
    metrics.write("epoch", {{"epoch", epoch},
                            {"accuracy", found.accuracy},
                            {"loss", found.loss},
                            {"seconds", trained.count()}});
  }
  const std::string table = trainer.report(trained);
  if (prints) fmt::print("\n{}", table);
  return 0;
}

}  // namespace
}  // namespace train_ps

int main(int argc, char** argv) {
  return paceline::train::run_guarded(
      [&] { return train_ps::run(train_ps::parse_options(argc, argv)); });
}
