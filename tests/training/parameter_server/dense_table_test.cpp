// Dense parameters in a table: the bits of DistributedDataParallel, consistency, errors.

#include "paceline/training/parameter_server/dense_table.h"

#include <atomic>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include "paceline/engine/tables/servers/row_server.h"
#include "paceline/engine/tables/tables.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/data_parallel_state.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/parallel/reducer/reducer.h"
#include "paceline/training/tensor/compute_settings.h"

#include "tests/engine/rpc/job.h"
#include "tests/harness/borrowed_group.h"
#include "tests/harness/thread_ranks.h"

namespace paceline::tables::dense_tests {
namespace {

using rpc::testing_job::Job;

constexpr int kSteps = 5;

torch::nn::Sequential make_net() {
  static std::mutex making;  // the ranks are threads, which share LibTorch's generator
  const std::lock_guard lock(making);
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(10, 33), torch::nn::Tanh(),
                               torch::nn::Linear(33, 4));
}
at::Tensor loss_of(torch::nn::Sequential& net, int worker, int step) {
  const auto generator = at::detail::createCPUGenerator(worker * 100 + step);
  const auto input = at::randn({6, 10}, generator);
  return torch::mse_loss(net->forward(input), at::randn({6, 4}, generator));
}
std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const auto& tensor : tensors) result.push_back(tensor.detach().clone());
  return result;
}

template <class Optimizer, class Options>
std::vector<at::Tensor> train_with_all_reduce(int num_workers, const Options& options) {
  std::vector<at::Tensor> result;
  harness::run_ranks_ok(num_workers, [&](ProcessGroup& group) {
    auto net = make_net();
    DistributedDataParallel model(net.ptr(), harness::borrowed(group));
    Optimizer optimizer(net->parameters(), options);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      {
        const detail::ForwardPass pass(model.state(), 6);
        loss_of(net, group.rank(), step).backward();
      }
      optimizer.step();
    }
    if (group.rank() == 0) result = copies(net->parameters());
  });
  return result;
}

std::vector<at::Tensor> train_with_table(int num_workers, const DenseOptions& options,
                                         const std::vector<std::string>& servers = {}) {
  Job job;
  std::vector<std::unique_ptr<RowServer>> shelves;
  std::vector<std::unique_ptr<rpc::Workers>> serving;
  for (const std::string& server : servers) {
    shelves.push_back(std::make_unique<RowServer>());
    serving.push_back(job.join(server));
    shelves.back()->serve(*serving.back());
  }
  std::vector<at::Tensor> result;
  harness::run_ranks_ok(num_workers, [&](ProcessGroup& group) {
    const auto workers = job.join("w" + std::to_string(group.rank()));
    Tables tables(*workers);
    auto net = make_net();
    DenseTable dense(tables, "net", net->parameters(), options, {.servers = servers});
    group.barrier();  // all have joined the clock
    for (int step = 0; step < kSteps; ++step) {
      dense.pull();
      net->zero_grad();
      loss_of(net, group.rank(), step).backward();
      dense.push();
      dense.tick();
    }
    dense.pull();
    if (group.rank() == 0) result = copies(net->parameters());
    group.barrier();
  });
  return result;
}

void expect_equal(const std::vector<at::Tensor>& expected, const std::vector<at::Tensor>& got) {
  ASSERT_EQ(expected.size(), got.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(at::equal(expected[i], got[i])) << expected[i] << "\n" << got[i];
}

class DenseTables : public testing::Test {
 protected:
  DenseTables() { set_thread_count(1); }
};

TEST_F(DenseTables, HaveTheBitsOfAnAllReduce) {
  for (const int workers : {1, 2, 4}) {
    SCOPED_TRACE(workers);
    const double scale = 1.0 / workers;
    expect_equal(
        train_with_all_reduce<optim::SGD>(workers, optim::SGDOptions{.lr = 0.1, .momentum = 0.9}),
        train_with_table(
            workers,
            {.optimizer = SGD{.lr = 0.1, .momentum = 0.9}, .gradient_scale = scale, .block = 64}));
    expect_equal(
        train_with_all_reduce<optim::Adam>(workers, optim::AdamOptions{.lr = 0.01}),
        train_with_table(workers,
                         {.optimizer = Adam{.lr = 0.01}, .gradient_scale = scale, .block = 100}));
  }
}

TEST_F(DenseTables, HaveTheBitsOfAnAllReduceOnServers) {
  expect_equal(
      train_with_all_reduce<optim::SGD>(2, optim::SGDOptions{.lr = 0.1}),
      train_with_table(2, {.optimizer = SGD{.lr = 0.1}, .gradient_scale = 0.5, .block = 50},
                       {"server0", "server1"}));
}

// A bounded table keeps its promise, and training converges.
TEST_F(DenseTables, MayBeBoundedOrAsynchronous) {
  for (const Consistency& consistency : {Consistency::bounded(1), Consistency::asynchronous()}) {
    const auto trained = train_with_table(
        2, {.optimizer = SGD{.lr = 0.05}, .consistency = consistency, .gradient_scale = 0.5});
    const auto before = copies(make_net()->parameters());
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_FALSE(at::equal(before[i], trained[i]));
  }
}

TEST_F(DenseTables, BeginWithTheValuesOfTheFirstWorker) {
  Job job;
  const auto one = job.join("one"), two = job.join("two");
  Tables first(*one), second(*two);
  auto net = make_net(), other = make_net();
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : other->parameters()) parameter.zero_();
  }
  const auto expected = copies(net->parameters());
  DenseTable a(first, "net", net->parameters());
  DenseTable b(second, "net", other->parameters());
  expect_equal(expected, other->parameters());
  EXPECT_EQ(a.num_elements(), 10 * 33 + 33 + 33 * 4 + 4);
}

TEST_F(DenseTables, KnowWhenParametersChanged) {
  Job job;
  const auto one = job.join("one");
  Tables tables(*one);
  auto net = make_net();
  DenseTable dense(tables, "net", net->parameters(), {.block = 64});
  at::Tensor loss = loss_of(net, 0, 0);
  dense.pull();  // between the forward pass and the backward pass
  EXPECT_THROW(loss.backward(), c10::Error);
  at::Tensor weight = net->parameters()[2];
  weight.set_data(weight.detach().clone());
  expect_error(ErrorCode::kInvalid, {"pull: ", "parameter 2 has got other memory"},
               [&] { dense.pull(); });
}

// A gradient that is not finite changes nothing, and the clock goes on with those that are.
TEST_F(DenseTables, RefuseGradientsThatAreNotFinite) {
  Job job;
  const auto one = job.join("one");
  Tables tables(*one);
  for (const Consistency& consistency : {Consistency::synchronous(), Consistency::asynchronous()}) {
    SCOPED_TRACE(consistency.text());
    at::Tensor values = at::zeros({25});
    DenseTable dense(tables, consistency.text(), {values},
                     {.optimizer = SGD{.lr = 1}, .consistency = consistency, .block = 10});
    values.mutable_grad() = at::ones({25});
    values.mutable_grad()[12] = std::numeric_limits<float>::quiet_NaN();
    expect_error(ErrorCode::kInvalid,
                 {"the gradient of row 1 (place 1 of the batch) is not finite", "no row was"},
                 [&] { dense.push(); });
    values.mutable_grad() = at::full({25}, 2.0F).to_sparse();  // as of an Embedding
    dense.push();
    dense.tick();
    dense.pull();
    EXPECT_TRUE(at::equal(values, at::full({25}, -2.0F))) << values;
  }
}

// Every push subtracts 1 from all parameters, so those of one moment are equal.
TEST_F(DenseTables, MayBeReadAtOneMoment) {
  Job job;
  const auto one = job.join("one"), two = job.join("two");
  Tables first(*one), second(*two);
  at::Tensor here = at::zeros({300}), there = at::zeros({300});
  const DenseOptions options{
      .optimizer = SGD{.lr = 1}, .consistency = Consistency::asynchronous(), .block = 10};
  DenseTable trained(first, "t", {there}, options);
  DenseTable read(second, "t", {here}, options);
  there.mutable_grad() = at::ones({300});
  std::atomic<int> pushes = 0;
  std::atomic<bool> stops = false;
  std::jthread trainer([&] {
    for (; !stops; ++pushes) {
      trained.push();
      trained.tick();
    }
  });
  while (pushes == 0) std::this_thread::yield();
  for (int i = 0; i < 20; ++i) {
    const std::uint64_t version = read.pull_snapshot();
    // A push in the middle has changed the first blocks.
    EXPECT_LE((here[299] - here[0]).item<float>(), 1);
    EXPECT_GE((here[299] - here[0]).item<float>(), 0);
    EXPECT_LE(static_cast<std::uint64_t>(-here[0].item<float>()), version + 1);
  }
  stops = true;
}

TEST_F(DenseTables, RefuseBadInput) {
  Job job;
  const auto one = job.join("one");
  Tables tables(*one);
  expect_error(ErrorCode::kInvalid, {"there are no parameters"},
               [&] { DenseTable(tables, "t", {}); });
  expect_error(ErrorCode::kInvalid, {"parameter 0 is CPUDoubleType"},
               [&] { DenseTable(tables, "t", {at::zeros({2}, at::kDouble)}); });
  const at::Tensor tied = at::zeros({2});
  expect_error(ErrorCode::kInvalid, {"parameters 0 and 2 are the same tensor; list it once"}, [&] {
    DenseTable(tables, "t", {tied, at::zeros({2}), tied});
  });
  expect_error(ErrorCode::kInvalid, {"the steps of RowAdagrad depend on the blocks"},
               [&] { DenseTable(tables, "t", {at::zeros({2})}, {.optimizer = RowAdagrad{}}); });
}

}  // namespace
}  // namespace paceline::tables::dense_tests
