// Every kind of loss with every way to divide a step: the training and the losses are those of one
// process that takes the whole batch with LibTorch's own mean.

#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/planning/schedules/named_schedules.h"
#include "paceline/training/data/dataset.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/fully_shard.h"
#include "paceline/training/parallel/reducer/reducer.h"
#include "paceline/training/pipeline/pipeline.h"
#include "paceline/training/train/evaluate.h"
#include "paceline/training/train/loop.h"
#include "paceline/training/train/pipeline_gradients.h"

#include "tests/harness/borrowed_group.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/thread_ranks.h"

namespace paceline::train {
namespace {

using harness::run_ranks_ok;

constexpr std::int64_t kSentences = 28, kTokens = 6, kWords = 11, kWidth = 8;
constexpr std::int64_t kPerStep = 12;  // each epoch ends with a step of 4 samples
constexpr std::int64_t kStepsTaken = 5;
constexpr std::int64_t kIgnored = -100;

// Sequences of 6 tokens. If `is_padded`, only 1 to 6 of them count, and the other targets are
// ignored.
std::shared_ptr<const data::TensorDataset> sentences(bool is_padded) {
  const auto generator = at::detail::createCPUGenerator(4);
  const at::Tensor tokens = at::randint(0, kWords, {kSentences, kTokens}, generator, at::kLong);
  at::Tensor targets = at::randint(0, kWords, {kSentences, kTokens}, generator, at::kLong);
  const at::Tensor lengths = at::arange(kSentences).mul(5).remainder(kTokens) + 1;
  if (is_padded)
    targets = targets.masked_fill(at::arange(kTokens) >= lengths.unsqueeze(1), kIgnored);
  return std::make_shared<data::TensorDataset>("sentences",
                                               std::vector<at::Tensor>{tokens, targets});
}

// The same weights on every rank, in whatever order the ranks' threads run.
template <class Module>
Module filled(Module module) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : module->parameters()) {
    const at::Tensor numbers = at::arange(parameter.numel(), at::kFloat);
    parameter.copy_(numbers.mul(0.7).sin().mul(0.5).view(parameter.sizes()));
  }
  return module;
}

struct TokenNetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& tokens) { return last(first(tokens).tanh()); }
  torch::nn::Embedding first = register_module("first", torch::nn::Embedding(kWords, kWidth));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(kWidth, kWords));
};
TORCH_MODULE(TokenNet);

struct LossKind {
  std::string name;
  bool is_padded = true;
  bool has_weights = false;
  double label_smoothing = 0;

  at::Tensor weights() const {
    return has_weights ? at::arange(kWords, at::kFloat) * 0.3 + 0.1 : at::Tensor();
  }
  template <class Reduction>
  at::Tensor of(const at::Tensor& logits, const at::Tensor& targets, Reduction reduction) const {
    auto options = torch::nn::functional::CrossEntropyFuncOptions()
                       .ignore_index(kIgnored)
                       .label_smoothing(label_smoothing)
                       .reduction(reduction);
    if (has_weights) options.weight(weights());
    return torch::nn::functional::cross_entropy(logits.flatten(0, 1), targets.flatten(), options);
  }
  // Null for a mean over samples.
  CountFunction count() const {
    return is_padded ? CountedLoss::targets_except(kIgnored, weights()) : CountFunction();
  }
  at::Tensor summed_or_mean(const at::Tensor& logits, const at::Tensor& targets) const {
    return is_padded ? of(logits, targets, torch::kSum) : of(logits, targets, torch::kMean);
  }
};

const std::vector<LossKind> kKinds = {
    {.name = "mean over samples", .is_padded = false},
    {.name = "tokens"},
    {.name = "weighted classes", .has_weights = true},
    {.name = "smoothed", .label_smoothing = 0.2},
    {.name = "weighted and smoothed", .has_weights = true, .label_smoothing = 0.1}};

struct Outcome {
  std::vector<double> losses;          // loss of each step
  std::vector<at::Tensor> parameters;  // in the order of the model
};

data::DataLoader loader_of(const LossKind& kind, int ranks, int rank, std::int64_t micro,
                           std::int64_t shards = 0) {
  return {sentences(kind.is_padded),
          data::DistributedSampler(kSentences, ranks, rank, {.seed = 3}),
          {.global_batch_size = kPerStep, .micro_batch_size = micro, .logical_shards = shards}};
}

// The outcome of a plain loop in one process.
Outcome of_one_process(const LossKind& kind) {
  Outcome outcome;
  const TokenNet net = filled(TokenNet());
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.5));
  auto loader = loader_of(kind, 1, 0, 0);
  for (std::int64_t epoch = 0; std::ssize(outcome.losses) < kStepsTaken; ++epoch) {
    for (const data::Batch& batch : loader.epoch(epoch)) {
      if (std::ssize(outcome.losses) == kStepsTaken) break;
      optimizer.zero_grad();
      const at::Tensor loss =
          kind.of(TokenNet(net)->forward(batch.data), batch.target, torch::kMean);
      loss.backward();
      optimizer.step();
      outcome.losses.push_back(loss.item<double>());
    }
  }
  for (const at::Tensor& parameter : net->parameters())
    outcome.parameters.push_back(parameter.detach().clone());
  return outcome;
}

void expect_same(const Outcome& found, const Outcome& wanted, double tolerance = 1e-5) {
  ASSERT_EQ(found.losses.size(), wanted.losses.size());
  for (std::size_t step = 0; step < wanted.losses.size(); ++step)
    EXPECT_NEAR(found.losses[step], wanted.losses[step], tolerance) << "step " << step;
  ASSERT_EQ(found.parameters.size(), wanted.parameters.size());
  for (std::size_t i = 0; i < wanted.parameters.size(); ++i) {
    const auto off = (found.parameters[i] - wanted.parameters[i]).abs().max().item<double>();
    EXPECT_LE(off, tolerance) << "parameter " << i;
  }
}

std::vector<double> losses_of_loop(data::DataLoader& loader, StepGradients& gradients,
                                   optim::Optimizer& optimizer) {
  TrainingState state;
  PhaseTimes times;
  std::vector<double> losses;
  run_loop({.epochs = 100, .max_steps = kStepsTaken}, state, loader, gradients, optimizer, times,
           {.after_step = [&](const StepReport& report) { losses.push_back(report.loss); }});
  return losses;
}

struct Way {
  int ranks = 1;
  std::int64_t micro = 0;
  std::int64_t shards = 0;
  int stage = 0;  // stage of fully_shard()
};

// The outcome of replicas, for each rank.
std::vector<Outcome> of_replicas(const LossKind& kind, const Way& way) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(way.ranks));
  run_ranks_ok(way.ranks, [&](ProcessGroup& group) {
    const TokenNet net = filled(TokenNet());
    optim::SGD optimizer(net->parameters(), {.lr = 0.5});
    DistributedDataParallelOptions options{.logical_shards = way.shards};
    if (way.stage > 0)
      options = paceline::detail::sharded_options(optimizer,
                                                  {.stage = way.stage, .data_parallel = options});
    DistributedDataParallel<TokenNetImpl> model(net, harness::borrowed(group), options);
    auto loader = loader_of(kind, way.ranks, group.rank(), way.micro, way.shards);
    const auto loss = [&](const data::Batch& batch) {
      return kind.summed_or_mean(model.forward(batch.data), batch.target);
    };
    const auto gradients = kind.count() ? backward_passes(CountedLoss{loss, kind.count()}, model)
                                        : backward_passes(loss, model);
    Outcome& outcome = outcomes[static_cast<std::size_t>(group.rank())];
    outcome.losses = losses_of_loop(loader, *gradients, optimizer);
    const auto whole = optimizer.whole_parameters();
    for (const at::Tensor& parameter : net->parameters())
      outcome.parameters.push_back(parameter.detach().clone());
  });
  return outcomes;
}

TEST(CountedLoss, micro_batches_and_uneven_ranks_train_as_one_process_does) {
  for (const LossKind& kind : kKinds) {
    const Outcome wanted = of_one_process(kind);
    for (const Way& way : std::vector<Way>{{1, 0},
                                           {1, 1},
                                           {1, 5},
                                           {2, 0},
                                           {3, 1},
                                           {5, 0},
                                           {5, 2},
                                           {1, 0, 4},
                                           {2, 0, 4},
                                           {4, 0, 4},
                                           {.ranks = 2, .micro = 2, .stage = 2},
                                           {.ranks = 3, .stage = 3}}) {
      SCOPED_TRACE(testing::Message()
                   << kind.name << ", " << way.ranks << " ranks, micro-batches "
                   << "of " << way.micro << ", " << way.shards << " shards, stage " << way.stage);
      for (const Outcome& outcome : of_replicas(kind, way)) expect_same(outcome, wanted);
    }
  }
}

TEST(CountedLoss, logical_shards_have_the_same_bits_at_any_number_of_ranks) {
  for (const LossKind& kind : kKinds) {
    const Outcome alone = of_replicas(kind, {1, 0, 4}).front();
    for (const int ranks : {2, 4}) {
      for (const Outcome& outcome : of_replicas(kind, {ranks, 0, 4})) {
        for (std::size_t i = 0; i < alone.parameters.size(); ++i)
          EXPECT_TRUE(at::equal(outcome.parameters[i], alone.parameters[i])) << kind.name;
      }
    }
  }
}

// Trains with two stages in each of `replicas` replicas.
void expect_pipeline(const LossKind& kind, int replicas, std::int64_t micro) {
  const Outcome wanted = of_one_process(kind);
  run_ranks_ok(2 * replicas, [&](ProcessGroup& world) {
    const int stage = world.rank() % 2, replica = world.rank() / 2;
    const std::shared_ptr<ProcessGroup> stages = world.split(replica, stage),
                                        replicas_group = world.split(stage, replica);
    const TokenNet net = filled(TokenNet());
    const PipelineStage own{
        .index = stage,
        .forward = [net = net,
                    stage](const Pipeline::Tensors& inputs) mutable -> Pipeline::Tensors {
          if (stage == 0) return {net->first(inputs[0]).tanh()};
          return {net->last(inputs[0])};
        },
        .parameters = stage == 0 ? net->first->parameters() : net->last->parameters()};
    optim::SGD optimizer(own.parameters, {.lr = 0.5});
    Pipeline pipeline(stages, pipeline_schedule("1f1b", 2, 5), {own});
    PipelineGradients gradients(pipeline,
                                [&](const Pipeline::Tensors& outputs, const data::Batch& part) {
                                  return kind.summed_or_mean(outputs[0], part.target);
                                },
                                optimizer, {.replicas = replicas_group, .count = kind.count()});
    auto loader = loader_of(kind, replicas, replica, micro);
    Outcome found{.losses = losses_of_loop(loader, gradients, optimizer)};
    for (const at::Tensor& parameter : own.parameters)
      found.parameters.push_back(parameter.detach().clone());
    const auto begin = wanted.parameters.begin() + (stage == 0 ? 0 : 1);
    const Outcome own_part{wanted.losses, {begin, stage == 0 ? begin + 1 : begin + 2}};
    expect_same(found, own_part);
  });
}

TEST(CountedLoss, a_pipeline_trains_as_one_process_does) {
  for (const LossKind& kind : kKinds) {
    for (const int replicas : {1, 2, 3}) {
      for (const std::int64_t micro : {0, 2}) {
        SCOPED_TRACE(testing::Message()
                     << kind.name << ", " << replicas << " replicas, parts of " << micro);
        expect_pipeline(kind, replicas, micro);
      }
    }
  }
}

TEST(CountedLoss, an_evaluation_counts_what_counts_once) {
  for (const LossKind& kind : kKinds) {
    const auto dataset = sentences(kind.is_padded);
    const TokenNet net = filled(TokenNet());
    data::DataLoader whole(dataset, data::evaluation_indices(kSentences, 1, 0),
                           {.batch_size = kSentences});
    auto running = whole.epoch(0);
    const auto all = running.next();
    const at::NoGradGuard no_grad;
    const double wanted =
        kind.of(TokenNet(net)->forward(all->data), all->target, torch::kMean).item<double>();
    for (const int ranks : {1, 2, 3, 5}) {
      run_ranks_ok(ranks, [&](ProcessGroup& group) {
        data::DataLoader loader(dataset, data::evaluation_indices(kSentences, ranks, group.rank()),
                                {.batch_size = 4});
        const CountedLoss loss{.sum =
                                   [&](const data::Batch& batch) {
                                     return kind.of(TokenNet(net)->forward(batch.data),
                                                    batch.target, torch::kSum);
                                   },
                               .count = CountedLoss::targets_except(kIgnored, kind.weights())};
        EXPECT_NEAR(evaluate_text(group, loader, loss).loss, wanted, 1e-5)
            << kind.name << ", " << ranks << " ranks";
      });
    }
  }
}

// data_parallel.md and the tutorial show this loop.
TEST(CountedLoss, a_loop_of_ones_own_takes_the_weight_of_its_batches) {
  for (const LossKind& kind : kKinds) {
    const Outcome wanted = of_one_process(kind);
    run_ranks_ok(3, [&](ProcessGroup& group) {
      const TokenNet net = filled(TokenNet());
      DistributedDataParallel<TokenNetImpl> model(net, harness::borrowed(group));
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.5));
      auto loader = loader_of(kind, 3, group.rank(), 0);
      Outcome found;
      for (std::int64_t epoch = 0; std::ssize(found.losses) < kStepsTaken; ++epoch) {
        for (data::Batch& batch : loader.epoch(epoch)) {
          if (std::ssize(found.losses) == kStepsTaken) break;
          if (kind.count()) weigh_by_count(std::span(&batch, 1), kind.count(), &group);
          optimizer.zero_grad();
          const at::Tensor loss =
              batch.weighted(kind.summed_or_mean(model.forward(batch.data), batch.target));
          model.reducer().note_loss(loss.item<double>());
          loss.backward();
          optimizer.step();
          found.losses.push_back(model.reducer().step_loss());
        }
      }
      for (const at::Tensor& parameter : net->parameters())
        found.parameters.push_back(parameter.detach().clone());
      expect_same(found, wanted);
    });
  }
}

TEST(CountedLoss, where_nothing_counts_nothing_is_learnt) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    data::Batch batch{.data = at::zeros({2, 3}), .target = at::full({2, 3}, kIgnored, at::kLong)};
    weigh_by_count(std::span(&batch, 1), CountedLoss::targets_except(kIgnored), &group);
    EXPECT_EQ(batch.weight, 0);
  });
}

TEST(CountedLoss, a_count_that_is_none_is_an_error_on_every_rank) {
  for (const double count :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    data::Batch batch;
    expect_error(ErrorCode::kInvalid, {"must be finite and not negative"}, [&] {
      weigh_by_count(
          std::span(&batch, 1), [&](const data::Batch&) { return count; }, nullptr);
    });
    run_ranks_ok(2, [&](ProcessGroup& group) {
      data::Batch own;
      const bool is_wrong = group.rank() == 1;
      expect_error(ErrorCode::kInvalid,
                   {is_wrong ? "rank 1: the count of a batch's loss is " : "on another rank"}, [&] {
                     weigh_by_count(
                         std::span(&own, 1),
                         [&](const data::Batch&) { return is_wrong ? count : 3.0; }, &group);
                   });
    });
  }
}

}  // namespace
}  // namespace paceline::train
