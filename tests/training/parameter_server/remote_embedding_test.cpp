// A layer whose rows are in a table: results of one process, prefetched rows, errors.

#include "paceline/training/parameter_server/remote_embedding.h"

#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include "paceline/engine/tables/servers/row_server.h"
#include "paceline/engine/tables/tables.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/tensor/compute_settings.h"

#include "tests/engine/rpc/job.h"
#include "tests/harness/borrowed_group.h"
#include "tests/harness/thread_ranks.h"

namespace paceline::tables::embedding_tests {
namespace {

using namespace std::chrono_literals;
using rpc::testing_job::Job;

constexpr std::int64_t kWidth = 8, kFields = 3, kSamples = 10;
constexpr int kSteps = 6;

RowOptions options_of(const Consistency& consistency, const RowOptimizer& optimizer) {
  return {.width = kWidth,
          .optimizer = optimizer,
          .consistency = consistency,
          .capacity = 1'000,
          .initial_range = 0.5F};
}

// The samples of a worker in a step. Few different ids, so that they repeat within a batch and
// among workers.
struct Samples {
  at::Tensor ids, targets;
};
Samples samples_of(int worker, int step) {
  auto generator = at::detail::createCPUGenerator(worker * 100 + step);
  const at::Tensor ids = at::randint(0, 12, {kSamples, kFields}, generator, at::kLong);
  return {ids, at::randn({kSamples, 1}, generator)};
}

at::Tensor all_rows(Rows& rows) {
  std::vector<Id> ids;
  for (Id id = 0; id < 12; ++id) ids.push_back(id);
  at::Tensor values = at::empty({12, kWidth});
  rows.pull(ids, {values.data_ptr<float>(), static_cast<std::size_t>(values.numel())});
  return values;
}

torch::nn::Sequential make_dense() {
  static std::mutex making;  // the ranks are threads, which share LibTorch's generator
  const std::lock_guard lock(making);
  torch::manual_seed(7);
  return torch::nn::Sequential(torch::nn::Linear(kFields * kWidth, 6), torch::nn::Tanh(),
                               torch::nn::Linear(6, 1));
}
at::Tensor flat(const at::Tensor& rows) { return rows.reshape({kSamples, kFields * kWidth}); }

struct Result {
  at::Tensor rows;
  std::vector<at::Tensor> dense;
};
void expect_equal(const Result& expected, const Result& got) {
  EXPECT_TRUE(torch::equal(expected.rows, got.rows)) << expected.rows << "\n" << got.rows;
  for (std::size_t i = 0; i < expected.dense.size(); ++i)
    EXPECT_TRUE(torch::equal(expected.dense[i], got.dense[i]));
}

// Every worker's part of a batch in one process.
Result train_alone(const RowOptimizer& optimizer, int num_workers) {
  Job job;
  const auto workers = job.join("one");
  Tables tables(*workers);
  RemoteEmbedding embedding(
      tables.open_rows("t", options_of(Consistency::synchronous(), optimizer)));
  auto dense = make_dense();
  torch::optim::SGD sgd(dense->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    sgd.zero_grad();
    for (int worker = 0; worker < num_workers; ++worker) {
      const Samples samples = samples_of(worker, step);
      const auto output = dense->forward(flat(embedding->forward(samples.ids)));
      (torch::mse_loss(output, samples.targets) / num_workers).backward();
    }
    sgd.step();
    embedding->tick();
  }
  return {all_rows(embedding->rows()), dense->parameters()};
}

// Rows in a synchronous table, the dense part by DistributedDataParallel.
Result train_together(const RowOptimizer& optimizer, int num_workers,
                      const std::vector<std::string>& servers = {}) {
  Job job;
  std::vector<std::unique_ptr<RowServer>> shelves;
  std::vector<std::unique_ptr<rpc::Workers>> serving;
  for (const std::string& server : servers) {
    shelves.push_back(std::make_unique<RowServer>());
    serving.push_back(job.join(server));
    shelves.back()->serve(*serving.back());
  }
  Result result;
  harness::run_ranks_ok(num_workers, [&](ProcessGroup& group) {
    const auto workers = job.join("w" + std::to_string(group.rank()));
    Tables tables(*workers);
    RemoteEmbedding embedding(
        tables.open_rows("t", options_of(Consistency::synchronous(), optimizer),
                         {.servers = servers}),
        1.0 / num_workers);
    const auto dense = make_dense();
    DistributedDataParallel model(dense.ptr(), harness::borrowed(group));
    torch::optim::SGD sgd(dense->parameters(), 0.1);
    group.barrier();
    for (int step = 0; step < kSteps; ++step) {
      const Samples samples = samples_of(group.rank(), step);
      sgd.zero_grad();
      const auto rows = embedding->forward(samples.ids);
      if (step + 1 < kSteps) embedding->prefetch(samples_of(group.rank(), step + 1).ids);
      torch::mse_loss(model(flat(rows)), samples.targets).backward();
      sgd.step();
      embedding->tick();
    }
    EXPECT_EQ(embedding->rows().stats().largest_staleness, 0U);
    if (group.rank() == 0) result = {all_rows(embedding->rows()), dense->parameters()};
    group.barrier();
  });
  return result;
}

class RemoteEmbeddings : public testing::Test {
 protected:
  RemoteEmbeddings() { set_thread_count(1); }
  RemoteEmbedding open(const Consistency& consistency = Consistency::asynchronous(),
                       const RowOptimizer& optimizer = SGD{.lr = 0.1}) {
    return RemoteEmbedding(tables_.open_rows("t", options_of(consistency, optimizer)));
  }

  Job job_;
  std::unique_ptr<rpc::Workers> workers_ = job_.join("one"), others_ = job_.join("two");
  Tables tables_{*workers_}, other_tables_{*others_};
};

using SynchronousEmbedding = RemoteEmbeddings;

TEST_F(SynchronousEmbedding, HasTheBitsOfOneProcess) {
  for (const RowOptimizer& optimizer :
       {RowOptimizer(SGD{.lr = 0.1}), RowOptimizer(Adam{.lr = 0.01}),
        RowOptimizer(RowAdagrad{.lr = 0.1})})
    expect_equal(train_alone(optimizer, 2), train_together(optimizer, 2));
}

TEST_F(SynchronousEmbedding, HasTheBitsOfOneProcessOnServers) {
  expect_equal(train_alone(RowAdagrad{.lr = 0.1}, 2),
               train_together(RowAdagrad{.lr = 0.1}, 2, {"server0", "server1"}));
}

// torch::nn::Embedding adds the gradients of a row in another order, so the last bits differ.
TEST_F(RemoteEmbeddings, TrainAsEmbeddingsOfLibTorch) {
  auto embedding = open();
  auto dense = make_dense(), same_dense = make_dense();
  torch::nn::Embedding local(12, kWidth);
  {
    const torch::NoGradGuard no_grad;
    local->weight.copy_(all_rows(embedding->rows()));
  }
  auto parameters = same_dense->parameters();
  parameters.push_back(local->weight);
  torch::optim::SGD sgd(dense->parameters(), 0.1), same_sgd(parameters, 0.1);
  for (int step = 0; step < kSteps; ++step) {
    const Samples samples = samples_of(0, step);
    sgd.zero_grad();
    same_sgd.zero_grad();
    const auto loss =
        torch::mse_loss(dense->forward(flat(embedding->forward(samples.ids))), samples.targets);
    const auto same_loss =
        torch::mse_loss(same_dense->forward(flat(local->forward(samples.ids))), samples.targets);
    EXPECT_NEAR(loss.item<double>(), same_loss.item<double>(), 1e-5);
    loss.backward();
    same_loss.backward();
    sgd.step();
    same_sgd.step();
  }
  EXPECT_TRUE(torch::allclose(all_rows(embedding->rows()), local->weight, 1e-4, 1e-6));
}

// Rows that were pulled before the worker's own push are pulled again.
TEST_F(RemoteEmbeddings, HaveTheSameBitsWithPrefetch) {
  const auto train = [](RemoteEmbedding& embedding, int ahead) {
    auto dense = make_dense();
    torch::optim::SGD sgd(dense->parameters(), 0.1);
    for (int step = 0; step < ahead; ++step) embedding->prefetch(samples_of(0, step).ids);
    for (int step = 0; step < kSteps; ++step) {
      const Samples samples = samples_of(0, step);
      sgd.zero_grad();
      const auto rows = embedding->forward(samples.ids);
      if (ahead > 0) embedding->prefetch(samples_of(0, step + ahead).ids);
      torch::mse_loss(dense->forward(flat(rows)), samples.targets).backward();
      sgd.step();
      embedding->tick();
    }
    return Result{all_rows(embedding->rows()), dense->parameters()};
  };
  const std::vector<Consistency> consistencies = {
      Consistency::asynchronous(), Consistency::bounded(2), Consistency::synchronous()};
  for (std::size_t i = 0; i < consistencies.size(); ++i) {
    Result results[3];
    for (int ahead = 0; ahead < 3; ++ahead) {
      RemoteEmbedding embedding(
          tables_.open_rows("t" + std::to_string(3 * i + ahead),
                            options_of(consistencies[i], RowAdagrad{.lr = 0.1})));
      results[ahead] = train(embedding, ahead);
    }
    expect_equal(results[0], results[1]);
    expect_equal(results[0], results[2]);
  }
}

// A pull of an earlier clock is not used, so the bound holds for prefetched rows too.
TEST_F(RemoteEmbeddings, PullRowsWithAClockAfterTheTick) {
  auto embedding = open(Consistency::bounded(0));
  RemoteEmbedding other(
      other_tables_.open_rows("t", options_of(Consistency::bounded(0), SGD{.lr = 0.1})));
  const auto ids = torch::tensor({1}, torch::kLong);
  embedding->prefetch(ids);
  std::this_thread::sleep_for(20ms);
  other->forward(ids).sum().backward();
  std::jthread ticks([&] { other->tick(); });
  embedding->tick();
  EXPECT_TRUE(torch::equal(embedding->forward(ids), other->forward(ids)));
}

TEST_F(RemoteEmbeddings, DropWhatWasPrefetchedForOtherIds) {
  auto embedding = open();
  const auto one = torch::tensor({1}, torch::kLong), two = torch::tensor({2}, torch::kLong);
  const auto expected = embedding->forward(two).detach().clone();
  embedding->prefetch(one);
  embedding->prefetch(one);
  EXPECT_TRUE(torch::equal(embedding->forward(two).detach(), expected));
  embedding->prefetch(two);
  EXPECT_TRUE(torch::equal(embedding->forward(two).detach(), expected));
}

TEST_F(RemoteEmbeddings, PushOnlyInTraining) {
  auto embedding = open();
  const auto ids = torch::arange(12, torch::kLong);
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(embedding->forward(ids).requires_grad());
  }
  embedding->eval();
  EXPECT_FALSE(embedding->forward(ids).requires_grad());
  EXPECT_EQ(embedding->rows().stats().rows, 0U);
  embedding->train();
  embedding->forward(ids.slice(0, 0, 5)).sum().backward();
  EXPECT_EQ(embedding->rows().stats().rows, 5U);
}

TEST_F(RemoteEmbeddings, MayBeEmpty) {
  auto embedding = open();
  const auto rows = embedding->forward(torch::empty({0, 3}, torch::kLong));
  EXPECT_EQ(rows.sizes().vec(), (std::vector<std::int64_t>{0, 3, kWidth}));
  rows.sum().backward();
  EXPECT_EQ(embedding->rows().stats().rows, 0U);
}

TEST_F(RemoteEmbeddings, RefuseBadInput) {
  auto embedding = open();
  const auto ids = torch::tensor({41, 42}, torch::kLong);
  expect_error(ErrorCode::kInvalid, {"ids are int64 on the CPU, not CPUFloatType"},
               [&] { embedding->forward(torch::zeros({2})); });
  expect_error(ErrorCode::kInvalid, {"the gradient of row 42"}, [&] {
    const auto bad = torch::tensor({{1.0F}, {std::numeric_limits<float>::quiet_NaN()}});
    (embedding->forward(ids) * bad).sum().backward();
  });
  EXPECT_EQ(embedding->rows().stats().rows, 0U);
  const auto rows = embedding->forward(ids).sum();
  rows.backward({}, true);
  rows.backward();
  expect_error(ErrorCode::kInvalid, {"the first one freed the graph"}, [&] { rows.backward(); });
}

}  // namespace
}  // namespace paceline::tables::embedding_tests
