// Tensors that stages on one host read in each other's memory, without a write to that memory in
// the meantime.

#include <algorithm>
#include <csignal>
#include <mutex>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <torch/torch.h>

#include "paceline/planning/schedules/named_schedules.h"
#include "paceline/training/pipeline/pipeline.h"
#include "paceline/training/pipeline/stage_links.h"
#include "paceline/training/tensor/tensor_allocator.h"
#include "paceline/training/tensor/tensor_memory.h"

#include "tests/harness/process_ranks.h"
#include "tests/harness/says.h"
#include "tests/harness/shared_counter.h"
#include "tests/harness/thread_ranks.h"
#include "tests/training/pipeline/stage_models.h"

namespace paceline {
namespace {

using harness::Says;
using testing::HasSubstr;
using Tensors = PipelineStage::Tensors;

constexpr std::int64_t kRows = 64, kColumns = 1024;  // SymmetricTensors::kMinBytes in float32
constexpr std::size_t kArenaBytes = 16 << 20;

at::Tensor mean_of_squares(const Tensors& outputs, int) { return outputs[0].pow(2).mean(); }

std::vector<Tensors> wide_micro_batches(int count) {
  std::vector<Tensors> result;
  for (int i = 0; i < count; ++i) result.push_back({made_up({kRows, kColumns}, i)});
  return result;
}

// Whether the tensor is in the memory of this rank of the world.
bool lies_with(int world_rank, const at::Tensor& tensor) {
  const auto arena = TensorAllocator::instance().arena();
  const auto* const data = static_cast<const std::byte*>(tensor.data_ptr());
  const std::byte* const area = arena->area_of(world_rank);
  return data >= area && data < area + arena->bytes();
}

// The number of inputs and gradients that were read directly from another rank's memory.
struct InPlace {
  int inputs = 0, gradients = 0;
};

PipelineStage wide_stage(int index, const std::shared_ptr<InPlace>& seen = nullptr,
                         std::vector<int> world_ranks = {}) {
  const at::Tensor weight = made_up({kColumns}, index).requires_grad_();
  return {.index = index,
          .forward =
              [=](const Tensors& inputs) {
                if (seen && index > 0)
                  seen->inputs +=
                      lies_with(world_ranks[static_cast<std::size_t>(index - 1)], inputs[0]);
                const at::Tensor output = (inputs[0] * weight).tanh() + inputs[0];
                const auto next = static_cast<std::size_t>(index + 1);
                if (seen && output.requires_grad() && next < world_ranks.size()) {
                  output.register_hook([=](const at::Tensor& gradient) {
                    seen->gradients += lies_with(world_ranks[next], gradient);
                  });
                }
                return Tensors{output};
              },
          .parameters = {weight}};
}

// Two pipelines with two stages each, side by side: on ranks 0 and 2, and on ranks 1 and 3 of the
// world.
TEST(PipelineLoansProcesses, results_are_read_where_they_are_with_the_bits_of_one_process) {
  constexpr int kMicroBatches = 4;
  at::set_num_threads(1);
  const auto results = harness::run_process_ranks(4, [&](ProcessGroup& world) {
    // Inside the rank's process: LibTorch has no autograd in the child of a process that has used
    // it.
    const auto batches = wide_micro_batches(kMicroBatches);
    const Oracle oracle =
        run_in_one_process({wide_stage(0), wide_stage(1)}, batches, mean_of_squares);
    const SymmetricTensors symmetric(world, kArenaBytes);
    const auto group = world.split(world.rank() % 2, world.rank());
    const int rank = group->rank();
    std::string report;
    for (const auto& name : pipeline_schedule_names()) {
      const auto seen = std::make_shared<InPlace>();
      const auto stage = wide_stage(rank, seen, group->world_ranks());
      Pipeline pipeline(group, pipeline_schedule(name, 2, kMicroBatches), {stage});
      pipeline.step(rank == 0 ? batches : std::vector<Tensors>{}, mean_of_squares);
      const bool is_equal = at::equal(stage.parameters[0].grad(),
                                      oracle.gradients[static_cast<std::size_t>(rank)][0]);
      report +=
          fmt::format("{} {} {};", is_equal ? "equal" : "unequal", seen->inputs, seen->gradients);
    }
    return report;
  });
  for (const std::size_t rank : {0u, 1u, 2u, 3u}) {
    std::string expected;
    for ([[maybe_unused]] const auto& name : pipeline_schedule_names())
      expected += rank < 2 ? "equal 0 4;" : "equal 4 0;";
    EXPECT_EQ(results[rank].report, expected) << "rank " << rank;
  }
}

TEST(PipelineLoans, ranks_that_are_threads_read_each_others_results) {
  for (const auto& name : pipeline_schedule_names()) {
    std::mutex mutex;
    Tensors given;  // kept, so that no copy has their addresses
    std::vector<const void*> taken;
    harness::run_ranks_ok(3, [&](ProcessGroup& group) {
      auto stage = block_stage(group.rank());
      stage.forward = [&, inner = stage.forward](const Tensors& inputs) {
        const Tensors outputs = inner(inputs);
        const std::lock_guard lock(mutex);
        if (group.rank() > 0) taken.push_back(inputs[0].data_ptr());
        given.push_back(outputs[0].detach());
        return outputs;
      };
      std::vector<Tensors> batches;
      for (int i = 0; group.rank() == 0 && i < 6; ++i) batches.push_back({made_up({4, kWidth}, i)});
      Pipeline(loan_of(group), pipeline_schedule(name, 3, 6), {stage})
          .step(batches, mean_of_squares);
    });
    std::set<const void*> places;
    for (const at::Tensor& tensor : given) places.insert(tensor.data_ptr());
    EXPECT_EQ(taken.size(), 12u) << name;
    for (const void* place : taken) EXPECT_EQ(places.count(place), 1u) << name;
  }
}

// Rank 1 is frozen with its first input; meanwhile rank 0 computes all its results. Rank 1 keeps
// all its inputs, even after the pass.
TEST(PipelineLoansProcesses, memory_is_not_used_again_before_the_slowest_rank_is_done_with_it) {
  constexpr int kMicroBatches = 6;
  const auto deadline = Deadline::after(std::chrono::seconds(60));
  at::set_num_threads(1);
  harness::SharedCounter reached, made;
  const auto body = [&](ProcessGroup& world) -> std::string {
    std::vector<Tensors> batches;
    for (int i = 0; world.rank() == 0 && i < kMicroBatches; ++i)
      batches.push_back({at::full({kRows, kColumns}, double(i))});
    const SymmetricTensors symmetric(world, kArenaBytes);
    Tensors kept;
    int in_place = 0;
    const auto is_kept = [&] {
      for (std::size_t i = 0; i < kept.size(); ++i) {
        if (!kept[i].eq(static_cast<double>(i) + 1).all().item<bool>()) return false;
      }
      return true;
    };
    bool is_intact = true;
    PipelineStage stage{.index = world.rank()};
    stage.forward = [&](const Tensors& inputs) -> Tensors {
      if (world.rank() == 0) {
        const at::Tensor output = inputs[0] + 1;
        made.add();
        return {output};
      }
      kept.push_back(inputs[0]);
      in_place += lies_with(0, inputs[0]);
      reached.add();
      made.wait_for(kMicroBatches, deadline);
      is_intact = is_intact && is_kept();
      return inputs;
    };
    Pipeline pipeline(loan_of(world), pipeline_schedule("1f1b", 2, kMicroBatches), {stage});
    pipeline.evaluate(batches, mean_of_squares);
    world.barrier();
    Tensors others;
    for (int i = 0; i < 4 * kMicroBatches; ++i) others.push_back(at::full({kRows, kColumns}, -1.0));
    world.barrier();
    for (const at::Tensor& tensor : kept) in_place += 100 * lies_with(0, tensor);
    return fmt::format("{} {} {}", is_intact, is_kept(), in_place);
  };
  const auto results = harness::run_process_ranks(2, body, {}, [&](const std::vector<pid_t>& pids) {
    reached.wait_for(1, deadline);
    ::kill(pids[1], SIGSTOP);
    made.wait_for(kMicroBatches, deadline);
    ::kill(pids[1], SIGCONT);
  });
  EXPECT_EQ(results[0].report, "true true 0");
  EXPECT_EQ(results[1].report, "true true 6");
}

// The area would be full after a few steps if memory were not freed.
TEST(PipelineLoansProcesses, after_many_steps_all_memory_is_free) {
  constexpr int kSteps = 50, kMicroBatches = 4;
  at::set_num_threads(1);
  const auto results = harness::run_process_ranks(2, [&](ProcessGroup& world) -> std::string {
    const auto batches =
        world.rank() == 0 ? wide_micro_batches(kMicroBatches) : std::vector<Tensors>{};
    const SymmetricTensors symmetric(world, kArenaBytes);
    const auto seen = std::make_shared<InPlace>();
    {
      Pipeline pipeline(loan_of(world), pipeline_schedule("1f1b", 2, kMicroBatches),
                        {wide_stage(world.rank(), seen, world.world_ranks())});
      for (int step = 0; step < kSteps; ++step) {
        pipeline.step(batches, mean_of_squares);
        pipeline.evaluate(batches, mean_of_squares);
      }
    }
    return fmt::format("{} {} {}", seen->inputs, seen->gradients,
                       TensorAllocator::instance().arena()->is_empty() ? "empty" : "in use");
  });
  EXPECT_EQ(results[0].report, fmt::format("0 {} empty", kSteps * kMicroBatches));
  EXPECT_EQ(results[1].report, fmt::format("{} 0 empty", 2 * kSteps * kMicroBatches));
}

// Rank 1 is killed while it borrows three results of rank 0, which continues to use the world's
// area.
TEST(PipelineLoansProcesses, what_a_lost_rank_has_borrowed_is_not_used_again) {
  at::set_num_threads(1);
  harness::SharedCounter reached;
  const auto body = [&](ProcessGroup& world) -> std::string {
    const SymmetricTensors symmetric(world, kArenaBytes);
    std::set<const void*> lent;
    auto stage = wide_stage(world.rank());
    stage.forward = [&, calls = 0, inner = stage.forward](const Tensors& inputs) mutable {
      if (world.rank() == 1 && ++calls == 3) {
        reached.add();
        ::pause();
      }
      Tensors outputs = inner(inputs);
      lent.insert(outputs[0].data_ptr());
      return outputs;
    };
    std::string error = "no error";
    try {
      const auto group = world.split(0, world.rank());
      Pipeline(group, pipeline_schedule("gpipe", 2, 3), {stage})
          .step(world.rank() == 0 ? wide_micro_batches(3) : std::vector<Tensors>{},
                mean_of_squares);
    } catch (const Error& caught) {
      error = fmt::format("{} {}", to_string(caught.code()), caught.what());
    }
    int num_symmetric = 0, num_lent = 0;
    Tensors others;
    for (int i = 0; i < 8; ++i) {
      others.push_back(at::ones({kRows, kColumns}));
      num_symmetric += lies_with(0, others.back());
      num_lent += static_cast<int>(lent.count(others.back().data_ptr()));
    }
    return fmt::format("{} of {} new, {} of {} lent; {}", num_symmetric, others.size(), num_lent,
                       lent.size(), error);
  };
  const auto results = harness::run_process_ranks(2, body, {}, [&](const std::vector<pid_t>& pids) {
    reached.wait_for(1, Deadline::after(std::chrono::seconds(60)));
    ::kill(pids[1], SIGKILL);
  });
  EXPECT_EQ(results[1].signal, SIGKILL);
  EXPECT_THAT(results[0].report, HasSubstr("8 of 8 new, 0 of 3 lent"));
  EXPECT_THAT(results[0].report, HasSubstr(to_string(ErrorCode::kPeerLost)));
  EXPECT_THAT(results[0].report, Says("pipeline.place_of_failure", "0B0"));
}

// Rank 1 reads its input until rank 0 has given up.
TEST(PipelineLoans, the_wait_at_the_end_has_the_groups_deadline) {
  harness::SharedCounter given_up;
  const auto results = harness::run_ranks(
      2,
      [&](ProcessGroup& group) {
        auto stage = block_stage(group.rank());
        if (group.rank() == 1) {
          stage.forward = [&](const Tensors& inputs) {
            given_up.wait_for(1, Deadline::after(std::chrono::seconds(60)));
            return inputs;
          };
        }
        Pipeline pipeline(loan_of(group), pipeline_schedule("1f1b", 2, 1), {stage});
        std::vector<Tensors> batches;
        if (group.rank() == 0) batches.push_back({made_up({4, kWidth}, 1)});
        try {
          pipeline.evaluate(batches, mean_of_squares);
        } catch (const Error&) {
          given_up.add();
          throw;
        }
      },
      {.group_timeout = std::chrono::milliseconds(300)});
  ASSERT_TRUE(results[0].error);
  EXPECT_EQ(results[0].error->code(), ErrorCode::kTimeout);
  EXPECT_THAT(results[0].error->what(), Says("pipeline.loan_kept", "rank 0", "rank 1"));
}

TEST(PipelineLoansProcesses, a_rank_without_the_area_of_the_others_is_told) {
  at::set_num_threads(1);
  for (const auto& result : harness::run_process_ranks(2, [](ProcessGroup& world) {
         std::optional<SymmetricTensors> symmetric(std::in_place, world, kArenaBytes);
         if (world.rank() == 1) symmetric.reset();
         Pipeline(loan_of(world), pipeline_schedule("1f1b", 2, 1), {wide_stage(world.rank())})
             .step(world.rank() == 0 ? wide_micro_batches(1) : std::vector<Tensors>{},
                   mean_of_squares);
         return std::string();
       })) {
    EXPECT_THAT(result.report, Says("pipeline.loan_refused", "rank 1", "rank 0"));
  }
}

// More tensors than there are slots, in both directions: the rest are sent as messages.
TEST(PipelineLoans, the_number_of_tensors_is_not_limited) {
  constexpr int kTensors = static_cast<int>(Loans::kMaxOpenLoans) + 50;
  const auto make = [](int index) {
    auto stage = block_stage(index);
    stage.forward = [index, inner = stage.forward](const Tensors& inputs) {
      if (index == 1) return inner({at::stack(inputs).sum(0)});
      Tensors outputs;
      for (int i = 0; i < kTensors; ++i) outputs.push_back(inner(inputs)[0] * i);
      return outputs;
    };
    return stage;
  };
  const std::vector<Tensors> batches{{made_up({1, kWidth}, 3)}};
  const Oracle oracle = run_in_one_process({make(0), make(1)}, batches, mean_of_squares);
  harness::run_ranks_ok(2, [&](ProcessGroup& group) {
    const auto stage = make(group.rank());
    Pipeline(loan_of(group), pipeline_schedule("1f1b", 2, 1), {stage})
        .step(group.rank() == 0 ? batches : std::vector<Tensors>{}, mean_of_squares);
    const auto& expected = oracle.gradients[static_cast<std::size_t>(group.rank())];
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(at::equal(stage.parameters[i].grad(), expected[i]));
  });
}

// Expects this error on every rank when stage 1 runs `forward`.
void expect_refused(const std::function<Tensors(const Tensors& inputs)>& forward, bool trains,
                    const std::string& words) {
  const auto results = harness::run_ranks(2, [&](ProcessGroup& group) {
    auto stage = block_stage(group.rank());
    stage.forward = [&, inner = stage.forward](const Tensors& inputs) -> Tensors {
      if (group.rank() == 0) return {inner(inputs)[0], inputs[0] > 0};
      return forward(inputs);
    };
    Pipeline pipeline(loan_of(group), pipeline_schedule("1f1b", 2, 2), {stage});
    std::vector<Tensors> batches;
    if (group.rank() == 0) batches.assign(2, {made_up({4, kWidth}, 1)});
    trains ? static_cast<void>(pipeline.step(batches, mean_of_squares))
           : static_cast<void>(pipeline.evaluate(batches, mean_of_squares));
  });
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_THAT(result.error->what(), HasSubstr(words));
  }
}

TEST(PipelineLoans, a_change_in_place_is_an_error_on_every_rank) {
  expect_refused([](const Tensors& inputs) { return Tensors{inputs[0].relu_()}; }, false,
                 "rank 1: 1F0: stage 1 of 2 failed on inputs Float [4, 6], Bool [4, 6]: its input "
                 "0 was changed in place, but another rank may be using it; change a clone()");
  expect_refused(
      [](const Tensors& inputs) {
        inputs[1].logical_not_();
        return Tensors{inputs[0] * inputs[1]};
      },
      true, "rank 1: 1F0: stage 1 of 2 failed on inputs Float [4, 6], Bool [4, 6]: its input 1");
}

TEST(PipelineLoans, a_gradient_that_is_changed_in_place_is_an_error_on_every_rank) {
  const auto results = harness::run_ranks(2, [](ProcessGroup& group) {
    auto stage = block_stage(group.rank());
    stage.forward = [&, inner = stage.forward](const Tensors& inputs) {
      Tensors outputs = inner(inputs);
      if (group.rank() == 0)
        outputs[0].register_hook([](const at::Tensor& gradient) { gradient.mul_(2); });
      return outputs;
    };
    std::vector<Tensors> batches;
    if (group.rank() == 0) batches.assign(2, {made_up({4, kWidth}, 1)});
    Pipeline(loan_of(group), pipeline_schedule("1f1b", 2, 2), {stage})
        .step(batches, mean_of_squares);
  });
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_THAT(result.error->what(),
                HasSubstr("rank 0: 0B0: the gradient of output 0 was changed in place"));
  }
}

}  // namespace
}  // namespace paceline
