// A bit that flips between two steps, in any state that lasts from one step to the next, is noticed
// by the later step. A program's own writes are not taken for damage.

#include <bit>
#include <functional>
#include <memory>
#include <mutex>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/optim/exponential_moving_average.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/activation_checkpoint.h"
#include "paceline/training/parallel/communication_hook.h"
#include "paceline/training/parallel/data_parallel_state.h"
#include "paceline/training/parallel/fully_shard.h"
#include "paceline/training/parallel/low_communication.h"
#include "paceline/training/parallel/reducer/gradient_placement.h"
#include "paceline/training/parallel/reducer/reducer.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/train/training_step.h"

#include "tests/harness/borrowed_group.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"

namespace paceline::damage {
namespace {

using harness::borrowed;
using harness::RankResult;
using harness::run_ranks;
using harness::run_ranks_ok;
using harness::Says;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kLowestMantissaBit = 0, kHighestExponentBit = 30;

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(16, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    frozen = register_module("frozen", torch::nn::Linear(16, 16));
    last = register_module("last", torch::nn::Linear(16, 4));
  }
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor hidden = norm(first(input).to(at::kFloat)).to(first->weight.scalar_type());
    return last(torch::tanh(frozen(torch::tanh(hidden))));
  }
  torch::nn::Linear first{nullptr}, frozen{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

std::shared_ptr<Net> make_net(at::ScalarType type) {
  static std::mutex mutex;  // LibTorch's generator belongs to the process
  const std::lock_guard lock(mutex);
  torch::manual_seed(3);
  auto net = std::make_shared<Net>();
  for (auto& part : {net->first, net->frozen, net->last}) {
    for (auto& parameter : part->parameters()) parameter.set_data(parameter.to(type));
  }
  return net;
}

using Parameters = std::vector<at::Tensor>;
using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(const Parameters&)>;

const std::vector<std::pair<std::string, MakeOptimizer>>& optimizers() {
  using namespace optim;
  static const std::vector<std::pair<std::string, MakeOptimizer>> all = {
      {"adam", [](const Parameters& p) { return std::make_unique<Adam>(p, AdamOptions{}); }},
      {"adamw", [](const Parameters& p) { return std::make_unique<AdamW>(p, AdamWOptions{}); }},
      {"sgd", [](const Parameters& p) { return std::make_unique<SGD>(p, SGDOptions{.lr = 0.1}); }},
      {"momentum",
       [](const Parameters& p) {
         return std::make_unique<SGD>(p, SGDOptions{.lr = 0.1, .momentum = 0.9});
       }},
      {"lamb", [](const Parameters& p) { return std::make_unique<LAMB>(p, LAMBOptions{}); }},
      {"lars", [](const Parameters& p) { return std::make_unique<LARS>(p, LARSOptions{}); }}};
  return all;
}

// One rank's replica. The guard of replicas is off, so that this rank itself must notice the
// damage.
struct Trainee {
  Trainee(ProcessGroup& group, int stage, const MakeOptimizer& make,
          at::ScalarType type = at::kFloat, std::int64_t check_replicas_every = 0)
      : net(make_net(type)),
        optimizer(make(net->parameters())),
        model(net, borrowed(group), options_for(stage, check_replicas_every)) {}

  DistributedDataParallelOptions options_for(int stage, std::int64_t check_replicas_every) {
    DistributedDataParallelOptions options;
    options.check_replicas_every = check_replicas_every;
    if (stage == 0) return options;
    return paceline::detail::sharded_options(*optimizer,
                                             {.stage = stage, .data_parallel = options});
  }
  void step() {
    optimizer->zero_grad();
    const auto type = net->first->weight.scalar_type();
    const at::Tensor input = at::linspace(-1, 1, 8 * 16).view({8, 16}).to(type);
    model(input).to(at::kFloat).square().mean().backward();
    optimizer->step();
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) step();
  }

  std::shared_ptr<Net> net;
  std::unique_ptr<optim::Optimizer> optimizer;
  DistributedDataParallel<Net> model;
};

void flip(void* element, std::size_t size, int bit) {
  if (size == 2) {
    *static_cast<std::uint16_t*>(element) ^= static_cast<std::uint16_t>(1U << (bit * 14 / 30));
  } else {
    *static_cast<std::uint32_t*>(element) ^= 1U << bit;
  }
}

// Flips a bit like a memory fault: behind LibTorch's back, and despite the protection of one copy.
void flip_parameter(const optim::Optimizer& optimizer, std::size_t number, int bit) {
  const at::Tensor first = core_of(optimizer).elements(number, {0, 1});
  flip(first.data_ptr(), first.element_size(), bit);
}

// Flips a bit in one element of the first part of this kind that this rank keeps; returns false if
// it keeps none.
bool flip_state(const optim::Optimizer& optimizer, const std::string& kind, int bit) {
  for (const auto& part : core_of(optimizer).state_parts()) {
    if (!part.name.starts_with(kind + ".") || part.elements.numel() == 0) continue;
    flip(part.elements.data_ptr(), 4, bit);
    return true;
  }
  return false;
}

void expect_noticed(const RankResult& result, const std::string& name, const std::string& row) {
  ASSERT_TRUE(result.error) << row << ": not noticed";
  EXPECT_EQ(result.error->code(), ErrorCode::kCorrupt) << row << result.error->what();
  EXPECT_THAT(result.error->what(), AllOf(HasSubstr(name), Says("memory.changed", "", 3))) << row;
}

// The first parameter is in a small unit, which rank 0 updates. Rank 1 has a copy of it, except in
// stage 3, where the host has a single copy.
TEST(Damage, of_a_parameter_is_noticed_in_every_stage_by_every_optimizer) {
  for (const auto& [name, make] : optimizers()) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        for (const int bit : {kLowestMantissaBit, kHighestExponentBit}) {
          for (const int damaged : {0, 1}) {
            if (stage == 3 && damaged == 1) continue;
            const auto row = fmt::format("{} stage {} {} bit {} rank {}: ", name, stage,
                                         c10::toString(type), bit, damaged);
            const auto results = run_ranks(2, [&, &make = make](ProcessGroup& group) {
              Trainee trainee(group, stage, make, type);
              trainee.steps(3);
              group.barrier();
              if (group.rank() == damaged) flip_parameter(*trainee.optimizer, 0, bit);
              group.barrier();
              trainee.step();
            });
            expect_noticed(results[static_cast<std::size_t>(damaged)], "parameter first.weight",
                           row);
          }
        }
      }
    }
  }
}

TEST(Damage, of_a_parameter_without_a_gradient_is_noticed) {
  const auto& make = optimizers().front().second;
  for (const int stage : {0, 1, 2, 3}) {
    const auto results = run_ranks(2, [&](ProcessGroup& group) {
      const auto adam = [&](const Parameters& parameters) { return make(parameters); };
      Trainee trainee(group, stage, adam);
      for (auto& parameter : trainee.net->frozen->parameters()) parameter.set_requires_grad(false);
      trainee.steps(3);
      group.barrier();
      const auto& parameters = trainee.optimizer->parameters();
      for (std::size_t i = 0; i < parameters.size() && group.rank() == 0; ++i) {
        if (parameters[i].is_same(trainee.net->frozen->weight))
          flip_parameter(*trainee.optimizer, i, 3);
      }
      group.barrier();
      trainee.step();
    });
    const bool is_named =
        results[0].error &&
        std::string(results[0].error->what()).find("parameter frozen.weight changed") !=
            std::string::npos;
    const bool by_other =
        results[1].error &&
        std::string(results[1].error->what()).find("parameter frozen.weight changed") !=
            std::string::npos;
    EXPECT_TRUE(is_named || by_other) << "stage " << stage;
  }
}

TEST(Damage, of_the_state_is_noticed_in_every_stage) {
  int num_kept = 0;  // cases in which the optimizer has such a state
  for (const auto& [name, make] : optimizers()) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const std::string kind : {"exp_avg", "exp_avg_sq", "momentum_buffer", "master"}) {
        const auto type = kind == "master" ? at::kBFloat16 : at::kFloat;
        bool is_kept = false;
        const auto results = run_ranks(2, [&, &make = make](ProcessGroup& group) {
          Trainee trainee(group, stage, make, type);
          trainee.steps(3);
          group.barrier();
          if (group.rank() == 0) is_kept = flip_state(*trainee.optimizer, kind, 30);
          group.barrier();
          trainee.step();
        });
        if (is_kept) expect_noticed(results[0], "first.weight", name + " " + kind + ": ");
        num_kept += is_kept ? 1 : 0;
      }
    }
  }
  EXPECT_EQ(num_kept, 4 * (3 * 2 + 2 * 1 + 6));
}

// A write that a program may make to its weights between two steps, in the same way on every rank.
using Write = std::function<void(Trainee& trainee, ProcessGroup& group)>;

struct Writer {
  const char* name;
  bool needs_own_memory;  // it cannot be made to the single copy of stage 3
  Write write;
};

const std::vector<Writer>& writers() {
  const auto weight = [](Trainee& trainee) { return trainee.net->first->weight; };
  static const std::vector<Writer> all = {
      {"an operation in place", false, [=](auto& t, auto&) { weight(t).mul_(0.5); }},
      {"one on a view", false, [=](auto& t, auto&) { weight(t)[0].fill_(0.25); }},
      {"one on detach()", false, [=](auto& t, auto&) { weight(t).detach().clamp_(-0.1, 0.1); }},
      {"an initialiser", false, [=](auto& t, auto&) { torch::nn::init::ones_(weight(t)); }},
      {"copy_", false,
       [=](auto& t, auto&) {
         weight(t).copy_(at::full({16, 16}, 0.125));
       }},
      {"data()", false, [=](auto& t, auto&) { weight(t).data().clamp_(-0.1, 0.1); }},
      {"data_ptr()", false,
       [=](auto& t, auto&) { *static_cast<float*>(weight(t).data_ptr()) = 0.75F; }},
      {"set_data()", true,
       [=](auto& t, auto&) {
         weight(t).set_data(at::ones({16, 16}));
       }},
      {"torch::load()", true,
       [](auto& t, auto&) {
         std::stringstream stream;
         torch::save(t.net, stream);
         torch::load(t.net, stream);
       }},
      {"a broadcast", true, [=](auto& t, auto& group) { broadcast(group, weight(t).detach(), 1); }},
      {"an average", true,
       [=](auto& t, auto& group) { all_reduce(group, weight(t).detach(), ReduceOp::kMean); }},
      {"an outer step", true,
       [](auto& t, auto& group) {
         LowCommunication(borrowed(group), borrowed(group), t.net->parameters(), {.period = 1})
             .step();
       }},
      {"averaged weights swapped in and out", true,
       [](auto& t, auto&) {
         optim::ExponentialMovingAverage average(t.optimizer->parameters());
         average.update();
         const auto swap = average.swap_in();
       }},
      {"set_state()", false,
       [](auto& t, auto&) {
         const auto state = t.optimizer->state();
         t.optimizer->set_state(state);
       }},
  };
  return all;
}

TEST(Damage, is_not_what_a_program_writes_itself) {
  for (const auto& [name, make] : optimizers()) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const Writer& writer : writers()) {
        const bool moves = std::string_view(writer.name) == "set_data()" ||
                           std::string_view(writer.name) == "torch::load()";
        if (!moves && stage == 3 && writer.needs_own_memory) continue;
        const bool leaves_no_trace = std::string_view(writer.name).starts_with("data");
        SCOPED_TRACE(fmt::format("{} stage {}: {}", name, stage, writer.name));
        run_ranks_ok(2, [&, &make = make](ProcessGroup& group) {
          Trainee trainee(group, stage, make);
          trainee.steps(3);
          {
            const auto writing =
                stage == 3 || leaves_no_trace ? trainee.optimizer->writable_parameters() : nullptr;
            const at::NoGradGuard no_grad;
            group.barrier();
            writer.write(trainee, group);
            group.barrier();
          }
          if (stage > 0 && moves) {
            // If a step divides parameters, they are in memory of the group and must stay there.
            expect_error(ErrorCode::kInvalid,
                         {"first.weight was given other memory after fully_shard()"},
                         [&] { trainee.step(); });
            return;
          }
          trainee.steps(2);
          trainee.optimizer->verify_state();
        });
      }
    }
  }
}

TEST(Damage, a_divided_parameter_that_one_rank_has_moved_is_an_error_on_every_rank) {
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    const auto results = run_ranks(2, [&](ProcessGroup& group) {
      Trainee trainee(group, stage, optimizers().front().second);
      trainee.steps(2);
      if (group.rank() == 1) {
        const at::NoGradGuard no_grad;
        trainee.net->first->weight.set_data(at::ones({16, 16}));
      }
      trainee.steps(2);
    });
    for (const RankResult& result : results) {
      ASSERT_TRUE(result.error);
      EXPECT_THAT(result.error->what(),
                  HasSubstr("first.weight was given other memory after fully_shard()"));
    }
    EXPECT_EQ(results[1].error->code(), ErrorCode::kInvalid);
  }
}

// After a program's own write the parameter is guarded again from the next step on.
TEST(Damage, after_a_write_is_noticed_again) {
  const auto results = run_ranks(1, [](ProcessGroup& group) {
    Trainee trainee(group, 0, optimizers().front().second);
    trainee.steps(2);
    {
      const at::NoGradGuard no_grad;
      trainee.net->first->weight.mul_(0.5);
    }
    trainee.step();
    flip_parameter(*trainee.optimizer, 0, 12);
    trainee.step();
  });
  expect_noticed(results[0], "parameter first.weight", "after a write: ");
}

TEST(Damage, under_swapped_in_averages_is_noticed) {
  const auto results = run_ranks(1, [](ProcessGroup& group) {
    Trainee trainee(group, 0, optimizers().front().second);
    optim::ExponentialMovingAverage average(trainee.optimizer->parameters());
    trainee.steps(3);
    average.update();
    flip_parameter(*trainee.optimizer, 0, 12);
    { const auto swap = average.swap_in(); }
    trainee.step();
  });
  expect_noticed(results[0], "parameter first.weight", "under a swap: ");
}

TEST(Damage, of_averaged_weights_is_noticed) {
  for (const int bit : {kLowestMantissaBit, kHighestExponentBit}) {
    const auto net = make_net(at::kFloat);
    optim::ExponentialMovingAverage average(net->parameters());
    average.update();
    average.update();
    average.verify();
    flip(average.state()[1].second.data_ptr(), 4, bit);
    EXPECT_THROW(average.verify(), DamagedState);
    EXPECT_THROW(average.update(), DamagedState);
  }
}

// ---- buffers

std::vector<RankResult> with_buffers(const std::function<void(Trainee&, ProcessGroup&)>& between) {
  return run_ranks(2, [&](ProcessGroup& group) {
    Trainee trainee(group, 1, optimizers().front().second, at::kFloat, 100);
    trainee.steps(3);
    group.barrier();
    between(trainee, group);
    group.barrier();
    trainee.step();
  });
}

TEST(Damage, of_a_buffer_is_noticed_before_other_ranks_get_it) {
  for (const int damaged : {0, 1}) {
    for (const int bit : {kLowestMantissaBit, kHighestExponentBit}) {
      const auto results = with_buffers([&](Trainee& trainee, ProcessGroup& group) {
        if (group.rank() == damaged) flip(trainee.net->norm->running_var.data_ptr(), 4, bit);
      });
      expect_noticed(results[static_cast<std::size_t>(damaged)], "buffer norm.running_var",
                     fmt::format("rank {} bit {}: ", damaged, bit));
      const auto& other = results[static_cast<std::size_t>(1 - damaged)];
      ASSERT_TRUE(other.error);
      EXPECT_EQ(other.error->code(), ErrorCode::kAborted) << other.error->what();
      EXPECT_THAT(other.error->what(), HasSubstr("norm.running_var"));
    }
  }
}

TEST(Damage, of_a_buffer_is_not_what_layers_and_programs_write) {
  const std::vector<std::pair<const char*, std::function<void(Trainee&, ProcessGroup&)>>> rows = {
      {"evaluation",
       [](Trainee& trainee, ProcessGroup&) {
         const at::NoGradGuard no_grad;
         trainee.model.eval();
         trainee.model(at::ones({4, 16}));
         trainee.model.train();
       }},
      {"a pass of the bare module",
       [](Trainee& trainee, ProcessGroup&) {
         trainee.net->forward(at::rand({4, 16}));
       }},
      {"an operation in place",
       [](Trainee& trainee, ProcessGroup&) { trainee.net->norm->running_mean.zero_(); }},
      {"reset_running_stats",
       [](Trainee& trainee, ProcessGroup&) { trainee.net->norm->reset_running_stats(); }},
      {"a broadcast",
       [](Trainee& trainee, ProcessGroup& group) {
         broadcast(group, trainee.net->norm->running_mean, 1);
       }},
      {"another model's",
       [](Trainee& trainee, ProcessGroup&) { trainee.model.state().take_model_of(1); }}};
  for (const auto& [name, write] : rows) {
    for (const auto& result : with_buffers(write))
      EXPECT_FALSE(result.error) << name << ": " << result.error->what();
  }
}

// ---- the state of communication hooks

TEST(Damage, of_what_a_hook_keeps_is_noticed) {
  using MakeHook = std::function<std::shared_ptr<CommunicationHook>()>;
  const std::vector<std::pair<std::string, MakeHook>> hooks = {
      {"error.", [] { return std::make_shared<TopKHook>(0.1); }},
      {"error.", [] { return std::make_shared<PowerSGDHook>(PowerSGDOptions{.start_step = 0}); }}};
  for (const auto& [kind, make_hook] : hooks) {
    for (const int bit : {kLowestMantissaBit, kHighestExponentBit}) {
      const auto results = run_ranks(2, [&, &kind = kind, &make_hook = make_hook](auto& group) {
        Trainee trainee(group, 0, optimizers().front().second);
        trainee.model.register_comm_hook(make_hook());
        trainee.steps(3);
        trainee.model.reducer().verify();
        if (group.rank() == 1) {
          const HookState state = trainee.model.reducer().hook_state();
          ASSERT_FALSE(state.owed.empty());
          EXPECT_TRUE(state.owed.front().first.starts_with(kind));
          flip(state.owed.front().second.data_ptr(), 4, bit);
          EXPECT_THROW(trainee.model.reducer().verify(), DamagedState);
        }
        trainee.step();
      });
      ASSERT_TRUE(results[1].error);
      EXPECT_THAT(results[1].error->what(), Says("memory.changed", "", 3));
      ASSERT_TRUE(results[0].error);
      EXPECT_EQ(results[0].error->code(), ErrorCode::kAborted);
    }
  }
}

// ---- a model whose parameters have no elements

TEST(Damage, of_nothing_is_never_noticed) {
  struct Empty : torch::nn::Module {
    Empty() { nothing = register_parameter("nothing", at::zeros({0})); }
    at::Tensor forward() { return nothing.sum(); }
    at::Tensor nothing;
  };
  run_ranks_ok(2, [](ProcessGroup& group) {
    DistributedDataParallel model(std::make_shared<Empty>(), borrowed(group));
    for (int pass = 0; pass < 3; ++pass) model.forward().backward();
  });
}

}  // namespace
}  // namespace paceline::damage
