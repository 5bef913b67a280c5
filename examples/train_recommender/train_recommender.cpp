// Trains a recommender (DLRM) on clicks, with any number of trainers. All trainers share the table
// with the embedding rows of the ids, which is in the memory of one host or on servers.
// DistributedDataParallel trains the dense part of the model.
//
//   train_recommender
//   paceline run --nproc-per-node 2 train_recommender
//   paceline run --roles trainer=2,server=1 --until trainer train_recommender

#include <algorithm>
#include <chrono>
#include <unordered_map>

#include <fmt/format.h>

#include <torch/torch.h>

#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/telemetry/metrics_log.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/parameter_server/remote_embedding.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/train/evaluate.h"
#include "paceline/training/train/run_report.h"
#include "paceline/training/train/training_process.h"

#include "examples/table_job.h"
#include "examples/train_recommender/clicks.h"
#include "examples/train_recommender/dlrm.h"
#include "examples/train_recommender/options.h"

namespace train_recommender {
namespace {

namespace tables = paceline::tables;
namespace train = paceline::train;
using Seconds = std::chrono::duration<double>;
using Clock = std::chrono::steady_clock;

// Counts how often each id is used, in a sample of the batches: every eighth one.
class HotRows {
 public:
  void count(const at::Tensor& ids) {
    if (batches_++ % 8 != 0) return;
    const auto* const first = ids.data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < ids.numel(); ++i) ++counts_[first[i]];
    total_ += ids.numel();
  }
  // Returns the share of all counted uses that the `rows` most frequent ids have.
  double share_of_hottest(std::size_t rows) const {
    std::vector<std::int64_t> counts;
    for (const auto& [id, count] : counts_) counts.push_back(count);
    rows = std::min(rows, counts.size());
    std::partial_sort(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(rows),
                      counts.end(), std::greater<>());
    double sum = 0;
    for (std::size_t i = 0; i < rows; ++i) sum += static_cast<double>(counts[i]);
    return sum / static_cast<double>(std::max<std::int64_t>(total_, 1));
  }

 private:
  std::unordered_map<std::int64_t, std::int64_t> counts_;
  std::int64_t batches_ = 0, total_ = 0;
};

class Recommender {
 public:
  Recommender(const Options& options, const table_job::TableJob& job, const ClickData& data)
      : options_(options),
        data_(data),
        group_(job.trainers()),
        embedding_(job.open_rows("ids", row_options()), 1.0 / group_->world_size()),
        dense_(make_dense()),
        model_(dense_.ptr(), group_),
        adam_(dense_->parameters(), options.lr) {}

  // Collective. Trains one epoch on this trainer's share of the samples. Leaves out the samples at
  // the end that are too few for a step of all trainers.
  void train_epoch(std::int64_t epoch) {
    auto generator = at::detail::createCPUGenerator(options_.seed * 1000 + epoch);
    const at::Tensor order = at::randperm(data_.training.size(), generator, at::kLong);
    const std::int64_t step_size = options_.batch_size * group_->world_size();
    const std::int64_t steps = data_.training.size() / step_size;
    const auto batch_of = [&](std::int64_t step) {
      const std::int64_t begin = step * step_size + group_->rank() * options_.batch_size;
      return data_.training.select(order.slice(0, begin, begin + options_.batch_size));
    };
    if (steps == 0) return;
    Clicks batch = batch_of(0);
    for (std::int64_t step = 0; step < steps; ++step) {
      const at::Tensor rows = embedding_->forward(batch.ids);  // pulls the rows
      hot_rows_.count(batch.ids);
      Clicks next;
      if (step + 1 < steps) next = batch_of(step + 1);
      if (options_.prefetch && step + 1 < steps) embedding_->prefetch(next.ids);
      adam_.zero_grad();
      const at::Tensor logits = model_(batch.dense, rows);
      at::binary_cross_entropy_with_logits(logits, batch.labels).backward();
      adam_.step();
      const auto begin = Clock::now();
      embedding_->tick();
      waited_ += Clock::now() - begin;
      samples_ += options_.batch_size;
      batch = next;
    }
  }

  // Collective. Returns the AUC over all test samples. Every trainer computes all of it.
  double test() {
    const torch::NoGradGuard no_grad;
    group_->barrier();  // afterwards, the pushes of all trainers have arrived
    std::vector<at::Tensor> scores;
    constexpr std::int64_t kBatch = 4096;
    for (std::int64_t begin = 0; begin < data_.testing.size(); begin += kBatch) {
      const auto part = [&](const at::Tensor& all) { return all.slice(0, begin, begin + kBatch); };
      scores.push_back(
          dense_->forward(part(data_.testing.dense), embedding_->forward(part(data_.testing.ids))));
    }
    return area_under_curve(at::cat(scores), data_.testing.labels);
  }

  // Collective. Returns the table that is printed at the end. Its hot rows are those of this
  // trainer.
  std::string report(double auc, Seconds trained) const {
    const tables::Rows::Stats stats = embedding_->rows().stats();
    const auto sum = [&](double value) { return paceline::all_reduce_value(*group_, value); };
    const double width = static_cast<double>(options_.model.width) * sizeof(float);
    const double pulled = sum(static_cast<double>(stats.pulled_ids)) * width;
    const double pushed = sum(static_cast<double>(stats.pushed_ids)) * width;
    const double waited = sum(waited_.count()) / group_->world_size();
    const double samples = sum(static_cast<double>(samples_));
    const auto largest = paceline::all_reduce_value(
        *group_, static_cast<double>(stats.largest_staleness), paceline::ReduceOp::kMax);
    const double mean = sum(stats.mean_staleness) / group_->world_size();
    std::string table = train::table_row(
        "AUC", data_.best_auc == 0
                   ? fmt::format("{:.4f}", auc)
                   : fmt::format("{:.4f} (the teacher's own: {:.4f})", auc, data_.best_auc));
    table +=
        train::table_row("throughput", fmt::format("{:.0f} samples/s", samples / trained.count()));
    table += train::table_row("rows", fmt::format("{}", stats.rows));
    table += train::table_row(
        "staleness", fmt::format("{:.2f} clocks on average, {:.0f} at most", mean, largest));
    table += train::table_row(
        "waiting", fmt::format("{:.1f} % of the time, in tick()", 100 * waited / trained.count()));
    table += train::table_row(
        "hot rows",
        fmt::format("{:.1f} % of the pulls are of the 10 hottest rows, {:.1f} % of the 100 hottest",
                    100 * hot_rows_.share_of_hottest(10), 100 * hot_rows_.share_of_hottest(100)));
    table += train::table_row(
        "bytes", fmt::format("{:.1f} MB pulled, {:.1f} MB pushed", pulled / 1e6, pushed / 1e6));
    return table;
  }

 private:
  tables::RowOptions row_options() const {
    return {.width = static_cast<std::uint32_t>(options_.model.width),
            .optimizer = tables::RowAdagrad{.lr = options_.row_lr},
            .consistency = options_.consistency,
            .capacity = 4'000'000,
            .initial_range = 0.05F,
            .seed = options_.seed};
  }
  Dlrm make_dense() const {
    torch::manual_seed(options_.seed);
    DlrmOptions model = options_.model;
    model.dense = data_.training.dense.size(1);
    model.fields = data_.training.ids.size(1);
    return Dlrm(model);
  }

  const Options& options_;
  const ClickData& data_;
  const std::shared_ptr<paceline::ProcessGroup> group_;
  tables::RemoteEmbedding embedding_;
  Dlrm dense_;
  paceline::DistributedDataParallel<DlrmImpl> model_;
  torch::optim::Adam adam_;
  HotRows hot_rows_;
  Seconds waited_{};
  std::int64_t samples_ = 0;
};

int run(const Options& options) {
  const train::TrainingProcess process(options.process, options.seed);
  table_job::TableJob job(process.group());
  if (job.is_server()) return job.serve(), 0;
  const ClickData data = options.movielens.empty()
                             ? make_clicks(options.synthetic)
                             : read_movielens(options.movielens, options.seed);
  const paceline::ProcessGroup& trainers = *job.trainers();
  const bool prints = trainers.rank() == 0;
  process.print_opening(fmt::format("train_recommender: {} ({} training samples); rows {}, {}",
                                    data.name, data.training.size(), job.place(),
                                    options.consistency.text()));
  Recommender recommender(options, job, data);
  Seconds trained{};
  double auc = 0.5;
  for (std::int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    const auto begin = Clock::now();
    recommender.train_epoch(epoch);
    trained += Clock::now() - begin;
    auc = recommender.test();
    if (prints) fmt::print("epoch {}: AUC {:.4f}\n", epoch, auc);
  }
  const std::string table = recommender.report(auc, trained);
  if (!prints) return 0;
  fmt::print("\n{}", table);
  if (!options.metrics.empty())
    paceline::MetricsLog(options.metrics)
        .write("result", {{"auc", auc}, {"best_auc", data.best_auc}});
  return 0;
}

}  // namespace
}  // namespace train_recommender

int main(int argc, char** argv) {
  return paceline::train::run_guarded(
      [&] { return train_recommender::run(train_recommender::parse_options(argc, argv)); });
}
