// A replica that differs from the others because of a flipped bit in one rank's memory, also if
// another process flipped it.

#include "paceline/training/parallel/replica_guard.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include <torch/torch.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/distributed_data_parallel.h"

#include "tests/harness/borrowed_group.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::borrowed;
using harness::Says;

using ::testing::AllOf;
using ::testing::HasSubstr;

// The guard checks it in several parts: 300 x 300 floats are 360 kB.
struct Guarded : torch::nn::Module {
  Guarded() {
    for (const char* name : {"first", "second", "third"})
      layers.push_back(register_module(name, torch::nn::Linear(300, 300)));
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = at::tanh(layer(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};

// Trains for `steps`, or until the guard reports an error. `damage` is called after step
// `damaged_step`.
void train(ProcessGroup& group, std::int64_t check_replicas_every, int steps, int damaged_step,
           const std::function<void(Guarded&)>& damage) {
  DistributedDataParallelOptions options;
  options.check_replicas_every = check_replicas_every;
  DistributedDataParallel model(std::make_shared<Guarded>(), borrowed(group), options);
  // Paceline's optimizers would notice the damage by themselves.
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  for (int step = 1; step <= steps; ++step) {
    model.forward(at::ones({2, 300}) * (group.rank() + step)).sum().backward();
    optimizer.step();
    optimizer.zero_grad();
    if (step == damaged_step) damage(model.module());
  }
}

void flip_bit(const at::Tensor& tensor, std::int64_t element, int bit) {
  auto* const words = static_cast<std::uint32_t*>(tensor.data_ptr());
  words[element] ^= 1U << bit;
}

// The errors of `world` ranks when rank 1 damages its replica after step 5.
std::vector<std::string> told_after(int world, std::int64_t check_replicas_every,
                                    const std::function<void(Guarded&)>& damage) {
  const auto results = harness::run_ranks(world, [&](ProcessGroup& group) {
    train(group, check_replicas_every, 5 + static_cast<int>(check_replicas_every), 5,
          [&](Guarded& module) {
            if (group.rank() == 1) damage(module);
          });
  });
  std::vector<std::string> texts;
  for (const auto& result : results) {
    texts.emplace_back(result.error ? result.error->what() : "nothing");
    EXPECT_TRUE(result.error && result.error->code() == ErrorCode::kCorrupt) << texts.back();
  }
  return texts;
}

TEST(ReplicaGuard, names_rank_tensor_and_step_of_a_flipped_bit_within_its_passes) {
  for (const std::int64_t passes : {1, 3, 20}) {
    const auto texts = told_after(
        3, passes, [](Guarded& module) { flip_bit(module.layers[1]->weight, 77'000, 3); });
    for (const auto& text : texts) {
      EXPECT_THAT(text, Says("replica.one_differs", 1));
      EXPECT_THAT(text, HasSubstr("second.weight"));
    }
  }
}

TEST(ReplicaGuard, names_both_of_two_ranks) {
  const auto texts =
      told_after(2, 4, [](Guarded& module) { flip_bit(module.layers[2]->bias, 299, 0); });
  for (const auto& text : texts)
    EXPECT_THAT(text, AllOf(Says("replica.two_differ", "0 and 1"), HasSubstr("third.bias")));
}

// Damage to a parameter also changes the other ranks' parameters, through the gradients. So the
// test damages one that has no gradients.
TEST(ReplicaGuard, compares_bits_the_sign_of_a_zero_and_the_payload_of_a_nan) {
  for (const std::uint32_t bits : {0x80000000U, 0x7fc00001U}) {
    const auto results = harness::run_ranks(3, [&](ProcessGroup& group) {
      struct Idle : torch::nn::Module {
        Idle() {
          idle = register_parameter("idle", at::zeros({64}), false);
          used = register_parameter("used", at::ones({64}));
        }
        at::Tensor forward() { return used.sum(); }
        at::Tensor idle, used;
      };
      const auto module = std::make_shared<Idle>();
      if (bits != 0x80000000U) module->idle.fill_(std::numeric_limits<float>::quiet_NaN());
      DistributedDataParallel model(module, borrowed(group));
      model.forward().backward();
      if (group.rank() == 2) std::memcpy(module->idle.data_ptr(), &bits, sizeof bits);
      for (int pass = 0; pass < 100; ++pass) model.forward().backward();
    });
    for (const auto& result : results) {
      ASSERT_TRUE(result.error);
      EXPECT_THAT(result.error->what(), AllOf(Says("replica.one_differs", 2),
                                              Says("replica.tensors_that_differ", "idle")));
    }
  }
}

TEST(ReplicaGuard, says_nothing_of_replicas_that_are_equal_or_not_guarded) {
  harness::run_ranks_ok(3, [](ProcessGroup& group) {
    train(group, 3, 20, -1, {});
    train(group, 0, 8, 5, [&](Guarded& module) {
      if (group.rank() == 1) flip_bit(module.layers[0]->weight, 1, 1);
    });
  });
}

TEST(ReplicaGuard, of_nothing_has_nothing_to_hash) {
  const ReplicaGuard guard({{"nothing", at::zeros({0})}}, 100);
  EXPECT_EQ(guard.hash_part(7), guard.hash_all());
  EXPECT_THROW(ReplicaGuard({}, 0), Error);
}

TEST(ReplicaGuard, before_a_save_compares_everything) {
  const auto results = harness::run_ranks(2, [](ProcessGroup& group) {
    Guarded module;
    std::vector<NamedParameter> parameters;
    for (const auto& item : module.named_parameters()) {
      item.value().detach().fill_(0.5);
      parameters.push_back({item.key(), item.value().detach()});
    }
    require_equal_replicas(group, parameters, 3);
    if (group.rank() == 0) flip_bit(module.layers[0]->bias, 0, 31);
    require_equal_replicas(group, parameters, 4);
  });
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_THAT(result.error->what(), Says("replica.two_differ", "0 and 1", 4, "first.bias"));
  }
}

// The parent process writes into the memory of a running rank.
TEST(ReplicaGuardProcesses, finds_a_bit_that_another_process_flipped) {
  struct Shared {
    std::atomic<std::uintptr_t> address;
    std::atomic<bool> is_flipped;
  };
  auto* const shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(shared, MAP_FAILED);
  const auto body = [shared](ProcessGroup& group) -> std::string {
    DistributedDataParallelOptions options;
    options.check_replicas_every = 5;
    DistributedDataParallel model(std::make_shared<Guarded>(), borrowed(group), options);
    if (group.rank() == 2) {
      auto* const weight = static_cast<float*>(model.module().layers[0]->weight.data_ptr());
      shared->address = reinterpret_cast<std::uintptr_t>(weight + 4321);
    }
    int passes_since = 0;
    for (const auto deadline = Deadline::after(std::chrono::seconds(30)); !deadline.expired();) {
      model.forward(at::ones({2, 300})).sum().backward();
      if (shared->is_flipped && ++passes_since > 50) return "not noticed";
    }
    return "not flipped";
  };
  const auto flip = [shared](const std::vector<pid_t>& pids) {
    while (shared->address == 0) std::this_thread::yield();
    std::uint32_t word = 0;
    const iovec here{&word, sizeof word};
    const iovec there{reinterpret_cast<void*>(shared->address.load()), sizeof word};
    ASSERT_EQ(process_vm_readv(pids[2], &here, 1, &there, 1, 0), 4) << std::strerror(errno);
    word ^= 1U << 20;
    ASSERT_EQ(process_vm_writev(pids[2], &here, 1, &there, 1, 0), 4) << std::strerror(errno);
    shared->is_flipped = true;
  };
  for (const auto& result : harness::run_process_ranks(3, body, {}, flip)) {
    EXPECT_THAT(result.report, AllOf(Says("replica.one_differs", 2), HasSubstr("first.weight")));
    EXPECT_EQ(result.code, ErrorCode::kCorrupt);
  }
  munmap(shared, sizeof(Shared));
}

// ---- gradients that are not finite

TEST(NonFiniteGradient, is_said_with_rank_parameter_and_step) {
  for (const auto bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const auto results = harness::run_ranks(3, [&](ProcessGroup& group) {
      DistributedDataParallelOptions options;
      options.non_finite = NonFinite::kError;
      DistributedDataParallel model(std::make_shared<Guarded>(), borrowed(group), options);
      for (int step = 1; step <= 4; ++step) {
        model.module().layers[1]->weight.mutable_grad() = at::Tensor();
        at::Tensor loss = model.forward(at::ones({2, 300})).sum();
        if (step == 3 && group.rank() == 1)
          loss = loss + bad * model.module().layers[1]->weight[7][3];
        loss.backward();
      }
    });
    for (const auto& result : results) {
      ASSERT_TRUE(result.error);
      EXPECT_EQ(result.error->code(), ErrorCode::kInvalid);
      EXPECT_THAT(result.error->what(), Says("gradient.not_finite", 1, "second.weight", 3));
    }
  }
}

TEST(NonFiniteGradient, of_a_rank_alone_is_said_too) {
  for (const bool is_error : {false, true}) {
    const auto results = harness::run_ranks(1, [&](ProcessGroup& group) {
      DistributedDataParallelOptions options;
      if (is_error) options.non_finite = NonFinite::kError;
      DistributedDataParallel model(std::make_shared<Guarded>(), borrowed(group), options);
      for (int step = 1; step <= 3; ++step) {
        const float factor = step == 2 ? std::numeric_limits<float>::quiet_NaN() : 1.F;
        for (auto& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
        (model.forward(at::ones({2, 300})).sum() * factor).backward();
      }
    });
    ASSERT_EQ(results[0].error.has_value(), is_error);
    if (is_error) {
      EXPECT_THAT(results[0].error->what(), HasSubstr("is not finite in step 2"));
    }
  }
}

// One parameter is only used by a pass under no_sync(), which does not average.
TEST(NonFiniteGradient, that_an_accumulating_pass_left_is_said_with_the_average) {
  struct TwoParts : torch::nn::Module {
    TwoParts() {
      always = register_parameter("always", at::ones({4}));
      at_first = register_parameter("at_first", at::ones({4}));
    }
    at::Tensor forward(bool first, float factor) {
      return first ? (always * at_first * factor).sum() : always.sum();
    }
    at::Tensor always, at_first;
  };
  for (const int world : {1, 2}) {
    for (const int step_of_nan : {1, 2}) {
      const auto results = harness::run_ranks(world, [&](ProcessGroup& group) {
        DistributedDataParallelOptions options;
        options.non_finite = NonFinite::kError;
        DistributedDataParallel model(std::make_shared<TwoParts>(), borrowed(group), options);
        for (int step = 1; step <= 2; ++step) {
          for (auto& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
          const bool is_bad = step == step_of_nan && group.rank() == world - 1;
          {
            const auto paused = model.no_sync();
            model.forward(true, 1.F).backward();
          }
          if (is_bad)
            model.module().at_first.mutable_grad()[2] = std::numeric_limits<float>::infinity();
          model.forward(false, 1.F).backward();
        }
      });
      for (const auto& result : results) {
        ASSERT_TRUE(result.error) << world;
        EXPECT_THAT(result.error->what(),
                    Says("gradient.not_finite", world - 1, "at_first", step_of_nan));
      }
    }
  }
}

TEST(NonFiniteGradient, is_only_said_unless_it_is_to_be_an_error) {
  harness::run_ranks_ok(2, [](ProcessGroup& group) {
    DistributedDataParallel model(std::make_shared<Guarded>(), borrowed(group));
    const float factor = group.rank() == 0 ? std::numeric_limits<float>::infinity() : 1.F;
    (model.forward(at::ones({2, 300})).sum() * factor).backward();
    EXPECT_FALSE(at::isfinite(model.module().layers[0]->weight.grad()).all().item<bool>());
  });
}

}  // namespace
}  // namespace paceline
