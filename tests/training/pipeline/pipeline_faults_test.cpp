// Refused inputs, and the errors on every rank when a stage or a rank fails.

#include <chrono>
#include <csignal>
#include <iostream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <torch/torch.h>

#include "paceline/engine/core/error_text.h"
#include "paceline/planning/schedules/named_schedules.h"
#include "paceline/training/pipeline/pipeline.h"
#include "paceline/training/pipeline/stage_weights.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/shared_counter.h"
#include "tests/harness/thread_ranks.h"
#include "tests/training/pipeline/stage_models.h"

namespace paceline {
namespace {

using harness::run_ranks;
using harness::run_ranks_ok;
using testing::ContainsRegex;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using Tensors = PipelineStage::Tensors;

std::vector<Tensors> inputs_of(const ProcessGroup& group, int count) {
  std::vector<Tensors> result;
  for (int i = 0; group.rank() == 0 && i < count; ++i)
    result.push_back({made_up({4, kWidth}, 10 + i)});
  return result;
}

at::Tensor mean_loss(const Tensors& outputs, int) { return outputs[0].mean(); }

void take_step(ProcessGroup& group, const PipelineStage& stage,
               const Pipeline::Loss& loss = mean_loss) {
  const auto schedule = pipeline_schedule("1f1b", group.world_size(), 6);
  Pipeline(loan_of(group), schedule, {stage}).step(inputs_of(group, 6), loss);
}

void expect_all_told(const std::vector<harness::RankResult>& results,
                     const std::vector<std::string>& words) {
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    for (const auto& word : words) EXPECT_THAT(result.error->what(), HasSubstr(word));
  }
}

TEST(PipelineFaults, a_parameter_that_is_not_listed_is_an_error_on_every_rank) {
  for (const int forgetful : {0, 1}) {
    expect_all_told(run_ranks(2,
                              [&](ProcessGroup& group) {
                                auto stage = block_stage(group.rank());
                                if (group.rank() == forgetful) stage.parameters.clear();
                                take_step(group, stage);
                              }),
                    {"stage " + std::to_string(forgetful) + " of 2 uses a parameter",
                     "is not in PipelineStage::parameters"});
  }
}

TEST(GatherStages, refuse_different_tensors_of_one_name) {
  expect_all_told(run_ranks(2,
                            [](ProcessGroup& group) {
                              const auto own = static_cast<float>(group.rank());
                              gather_stages(loan_of(group), {{"0.weight", at::full({2}, own)}});
                            }),
                  {"gather_stages: rank 1 has another tensor named 0.weight"});
}

TEST(PipelineFaults, a_stage_that_throws_is_named_on_every_rank) {
  expect_all_told(
      run_ranks(3,
                [](ProcessGroup& group) {
                  auto stage = block_stage(group.rank());
                  if (group.rank() == 1) {
                    int calls = 0;
                    stage.forward = [calls, inner = stage.forward](const Tensors& inputs) mutable {
                      if (++calls == 3) throw std::runtime_error("out of luck");
                      return inner(inputs);
                    };
                  }
                  take_step(group, stage);
                }),
      {"rank 1: 1F2: stage 1 of 3 failed on inputs Float [4, 6]", "out of luck"});
}

TEST(PipelineFaults, stages_that_do_not_fit_are_told_with_shapes) {
  expect_all_told(run_ranks(2,
                            [](ProcessGroup& group) {
                              if (group.rank() == 0) return take_step(group, block_stage(0));
                              take_step(group, make_stage(1, torch::nn::Linear(9, 2)));
                            }),
                  {"rank 1: 1F0: stage 1 of 2 failed on inputs Float [4, 6]", "4x6 and 9x2"});
}

// A program ends with exit code 1 after an exception of its own, and with 2 after a wrong call.
TEST(PipelineFaults, exceptions_of_the_programs_functions_are_no_wrong_calls) {
  const auto out_of_luck = []() -> at::Tensor { throw std::runtime_error("out of luck"); };
  const auto in_loss = run_ranks(2, [&](ProcessGroup& group) {
    take_step(group, block_stage(group.rank()),
              [&](const Tensors& /*outputs*/, int) { return out_of_luck(); });
  });
  const auto in_stage = run_ranks(2, [&](ProcessGroup& group) {
    auto stage = block_stage(group.rank());
    if (group.rank() == 1) stage.forward = [&](const Tensors&) { return Tensors{out_of_luck()}; };
    take_step(group, stage);
  });
  for (const auto* const results : {&in_loss, &in_stage}) {
    for (const auto& result : *results) {
      ASSERT_TRUE(result.error);
      EXPECT_THAT(result.error->what(), HasSubstr("out of luck"));
      EXPECT_EQ(exit_code_of(*result.error), 1);
    }
  }
}

TEST(PipelineFaults, evaluate_on_one_rank_is_named_on_every_rank) {
  const auto results = run_ranks(2, [](ProcessGroup& group) {
    Pipeline pipeline(loan_of(group), pipeline_schedule("1f1b", 2, 4), {block_stage(group.rank())});
    if (group.rank() == 0) pipeline.evaluate(inputs_of(group, 4), mean_loss);
    group.barrier();
  });
  expect_all_told(results,
                  {"in Pipeline::evaluate()", "every rank must call Pipeline::evaluate()"});
}

// Otherwise the other stages would wait for messages of the rank that has left its loop.
TEST(PipelineFaults, a_step_on_some_ranks_only_is_named_on_every_rank) {
  expect_all_told(run_ranks(2,
                            [](ProcessGroup& group) {
                              const auto schedule = pipeline_schedule("1f1b", 2, 6);
                              Pipeline pipeline(loan_of(group), schedule,
                                                {block_stage(group.rank())});
                              pipeline.step(inputs_of(group, 6), mean_loss);
                              if (group.rank() == 0) pipeline.step(inputs_of(group, 6), mean_loss);
                              group.barrier();
                            }),
                  {"Pipeline::step()"});
}

TEST(PipelineFaults, a_stage_that_would_not_be_trained_is_an_error_on_every_rank) {
  expect_all_told(
      run_ranks(2,
                [](ProcessGroup& group) {
                  take_step(group, block_stage(group.rank()),
                            [](const Tensors& outputs, int) { return outputs[0].detach().mean(); });
                }),
      {"the loss does not depend on any parameter or input", "stage 1 of 2"});
  expect_all_told(run_ranks(2,
                            [](ProcessGroup& group) {
                              PipelineStage stage = block_stage(group.rank());
                              if (group.rank() == 0)
                                stage.forward = [forward = stage.forward](const Tensors& inputs) {
                                  return Tensors{forward(inputs)[0].detach()};
                                };
                              take_step(group, stage);
                            }),
                  {"the output does not depend on any parameter or input", "stage 0 of 2"});
}

TEST(PipelineFaults, a_frozen_stage_needs_no_gradient) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const PipelineStage stage = block_stage(group.rank());
    if (group.rank() == 0)
      for (at::Tensor parameter : stage.parameters) parameter.set_requires_grad(false);
    take_step(group, stage);
    EXPECT_EQ(stage.parameters[0].grad().defined(), group.rank() == 1);
  });
}

TEST(PipelineFaults, a_stage_may_be_frozen_and_thawed_between_steps) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const PipelineStage stage = block_stage(group.rank());
    Pipeline pipeline(loan_of(group), pipeline_schedule("1f1b", 2, 6), {stage});
    for (const bool trains : {false, true, false, true}) {
      at::Tensor parameter = stage.parameters[0];
      parameter.set_requires_grad(trains);
      parameter.mutable_grad() = at::Tensor();
      pipeline.step(inputs_of(group, 6), mean_loss);
      EXPECT_EQ(parameter.grad().defined(), trains);
    }
  });
}

TEST(PipelineFaults, a_loss_is_one_number) {
  expect_all_told(run_ranks(2,
                            [](ProcessGroup& group) {
                              take_step(group, block_stage(group.rank()),
                                        [](const Tensors& outputs, int) { return outputs[0]; });
                            }),
                  {"rank 1: 1F0: the loss is Float [4, 6]; it must be one number"});
}

TEST(PipelineFaults, the_number_of_tensors_between_stages_does_not_change) {
  expect_all_told(run_ranks(2,
                            [](ProcessGroup& group) {
                              auto stage = block_stage(group.rank());
                              if (group.rank() == 0) {
                                int calls = 0;
                                stage.parameters.clear();
                                stage.forward = [calls](const Tensors& inputs) mutable {
                                  return ++calls < 2 ? inputs : Tensors{inputs[0], inputs[0]};
                                };
                              }
                              take_step(group, stage);
                            }),
                  {"stage 0 gives 2 tensors; in its first micro-batch it gave 1"});
}

TEST(PipelineFaults, another_number_of_micro_batches_than_planned) {
  expect_all_told(run_ranks(2,
                            [](ProcessGroup& group) {
                              Pipeline pipeline(loan_of(group), pipeline_schedule("1f1b", 2, 4),
                                                {block_stage(group.rank())});
                              pipeline.step(inputs_of(group, 3), mean_loss);
                            }),
                  {"rank 0: 3 micro-batches for a schedule of 4"});
}

TEST(PipelineFaults, plans_and_stages_that_are_not_this_groups) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const auto with = [&](const PipelineSchedule& schedule, int stage) {
      Pipeline(loan_of(group), schedule, {block_stage(stage)});
    };
    const std::string rank = "rank " + std::to_string(group.rank());
    expect_error(ErrorCode::kInvalid, {rank, "is for 3 ranks", "has 2"},
                 [&] { with(pipeline_schedule("1f1b", 3, 3), group.rank()); });
    expect_error(ErrorCode::kInvalid, {rank, "were given", "on this rank"},
                 [&] { with(pipeline_schedule("1f1b", 2, 3), 1 - group.rank()); });
    expect_error(
        ErrorCode::kInvalid, {rank, "the pipeline schedules of rank 1 and rank 0 differ"},
        [&] { with(pipeline_schedule(group.rank() == 0 ? "1f1b" : "gpipe", 2, 3), group.rank()); });
    expect_error(ErrorCode::kInvalid, {"deadlock"}, [&] {
      with(PipelineSchedule::from_csv("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"), group.rank());
    });
  });
  expect_error(ErrorCode::kInvalid, {"Float [5, 6] does not divide into 2 micro-batches"}, [] {
    split_micro_batches(made_up({5, 6}, 0), 2);
  });
}

// Micro-batches are in flight on all ranks: rank 1 is killed in its third forward pass. The other
// ranks learn of it before any of their waits could end by a timeout.
TEST(PipelineProcesses, a_rank_that_dies_is_named_with_its_stage_by_all_others) {
  constexpr auto kLimit = std::chrono::seconds(10);  // some milliseconds on an idle machine
  at::set_num_threads(1);
  harness::SharedCounter reached;
  Clock::time_point killed;
  const auto results = harness::run_process_ranks(
      3,
      [&](ProcessGroup& group) -> std::string {
        auto stage = block_stage(group.rank());
        if (group.rank() == 1) {
          int calls = 0;
          stage.forward = [&reached, calls, inner = stage.forward](const Tensors& inputs) mutable {
            if (++calls == 3) {
              reached.add();
              ::pause();
            }
            return inner(inputs);
          };
        }
        take_step(group, stage);
        return "no error";
      },
      {},
      [&](const std::vector<pid_t>& pids) {
        reached.wait_for(1, Deadline::after(std::chrono::seconds(60)));
        killed = Clock::now();
        ::kill(pids[1], SIGKILL);
      });
  EXPECT_EQ(results[1].signal, SIGKILL);
  for (const std::size_t rank : {0u, 2u}) {
    EXPECT_TRUE(results[rank].threw);
    EXPECT_EQ(results[rank].code, ErrorCode::kPeerLost);
    EXPECT_THAT(results[rank].report, HasSubstr("rank 1 ("));
    EXPECT_THAT(results[rank].report,
                HasSubstr("of a pipeline whose stages 0 to 2 are on ranks 0, 1, 2"));
    EXPECT_GE(results[rank].ended, killed);
    EXPECT_LT(results[rank].ended, killed + kLimit);
    std::cout << "rank " << rank << " noticed the kill after "
              << std::chrono::duration<double, std::milli>(results[rank].ended - killed).count()
              << " ms\n";
  }
  // Both ranks wait for what rank 1 would have sent next, or have not reached that wait yet.
  EXPECT_THAT(results[0].report, ContainsRegex("this rank was in 0(F2|B0|F3|B1) "));
  EXPECT_THAT(results[2].report, ContainsRegex("this rank was in 2(F1|B1|F2) "));
}

}  // namespace
}  // namespace paceline
