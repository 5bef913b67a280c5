// Steps on one copy of the parameters; the ranks are processes.

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <torch/torch.h>

#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/optim/rules/update_slice.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/says.h"
#include "tests/harness/shared_counter.h"
#include "tests/harness/thread_ranks.h"
#include "tests/training/optim/odd_parameters.h"

namespace paceline::optim {
namespace {

using harness::run_process_ranks;
using harness::Says;
using harness::SharedCounter;
using namespace std::chrono_literals;

std::unique_ptr<Adam> make_shared_adam(ProcessGroup& group) {
  auto optimizer = std::make_unique<Adam>(make_odd_parameters(), AdamOptions{.lr = 1e-2});
  core_of(*optimizer)
      .shard(borrowed(group), {.node_shared = true, .names = {"weight", "bias", "kernel"}});
  return optimizer;
}

TEST(OneCopyStep, processes_take_the_steps_of_a_single_one_bit_for_bit) {
  Adam single(make_odd_parameters(), AdamOptions{.lr = 1e-2});
  take_steps(single, 0, 5);
  for (const int world : {2, 4}) {
    const auto results = run_process_ranks(world, [&](ProcessGroup& group) {
      at::set_num_threads(1);
      const auto optimizer = make_shared_adam(group);
      take_steps(*optimizer, 0, 5);
      expect_same_bits(optimizer->parameters(), single.parameters());
      return std::string();
    });
    for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.report;
  }
}

// The other ranks' step waits for the late rank, and so do their next gradients.
TEST(OneCopyStep, a_late_rank_reads_the_old_weights_until_it_steps_itself) {
  const auto results = run_process_ranks(3, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    const auto optimizer = make_shared_adam(group);
    for (int step = 0; step < 20; ++step) {
      const auto before = copies(optimizer->parameters());
      if (step % 3 == group.rank()) {
        for (int look = 0; look < 5; ++look) {
          std::this_thread::sleep_for(1ms);  // the other ranks reach their step in this time
          expect_same_bits(copies(optimizer->parameters()), before);
        }
      }
      take_steps(*optimizer, step, step + 1);
      EXPECT_FALSE(at::equal(optimizer->parameters()[0], before[0]));
    }
    return std::string();
  });
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.report;
}

TEST(OneCopyStep, a_rank_that_is_killed_ends_the_others_steps_with_its_name) {
  SharedCounter running;
  const auto results = run_process_ranks(
      3,
      [&](ProcessGroup& group) {
        at::set_num_threads(1);
        const auto optimizer = make_shared_adam(group);
        for (int step = 0;; ++step) {
          take_steps(*optimizer, step, step + 1);
          if (step == 5) running.add();
        }
        return std::string();
      },
      {},
      [&](const std::vector<pid_t>& pids) {
        running.wait_for(3, Deadline::after(20s));
        ::kill(pids[1], SIGKILL);
      });
  for (const std::size_t rank : {0U, 2U}) {
    ASSERT_TRUE(results[rank].threw);
    EXPECT_EQ(results[rank].code, ErrorCode::kPeerLost) << results[rank].report;
    EXPECT_EQ(results[rank].context.ranks, std::vector{1}) << results[rank].report;
  }
}

// Plain gradient descent. Rank 1 dies in its third step after it has updated half of its part.
class KilledDescent : public Optimizer {
 public:
  KilledDescent(const std::vector<at::Tensor>& parameters, bool is_victim)
      : Optimizer({{parameters, 0.1}}, {}), is_victim_(is_victim) {}
  const char* name() const override { return "killed descent"; }
  double momentum(std::size_t) const override { return 0; }
  void set_momentum(std::size_t, double) override {}

 private:
  void update(const UpdateSlice& slice, const NormPair&) const override {
    for (std::int64_t i = 0; i < slice.count; ++i) {
      if (is_victim_ && slice.step == 3 && i == slice.count / 2) raise(SIGKILL);
      slice.parameter[i] -= 0.1F * slice.gradient[i];
    }
  }
  const bool is_victim_;
};

// No rank completes a step that another rank left half done; otherwise a later save would look
// intact.
TEST(OneCopyStep, a_rank_that_dies_in_a_step_lets_no_other_finish_it) {
  SharedCounter finished;
  const auto results = run_process_ranks(3, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    KilledDescent optimizer(make_odd_parameters(), group.rank() == 1);
    core_of(optimizer).shard(borrowed(group), {.node_shared = true});
    for (int step = 0; step < 5; ++step) {
      take_steps(optimizer, step, step + 1);
      finished.add();
    }
    return std::string();
  });
  EXPECT_EQ(finished.count(), 3U * 2U);
  EXPECT_EQ(results[1].signal, SIGKILL);
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_EQ(results[rank].code, ErrorCode::kPeerLost) << results[rank].report;
    EXPECT_EQ(results[rank].context.ranks, std::vector{1}) << results[rank].report;
  }
}

TEST(OneCopyStep, a_write_outside_of_a_step_names_the_parameter) {
  testing::internal::CaptureStderr();
  const auto results = run_process_ranks(2, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    const auto optimizer = make_shared_adam(group);
    take_steps(*optimizer, 0, 2);
    const at::NoGradGuard no_grad;
    if (group.rank() == 0) optimizer->parameters()[2].zero_();
    group.barrier();
    return std::string();
  });
  EXPECT_EQ(results[0].signal, SIGSEGV);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              Says("one_copy.written_outside", "rank 0", "parameter kernel"));
}

TEST(OneCopyStep, is_refused_where_ranks_share_no_memory) {
  harness::run_ranks_ok(2,
                        [](ProcessGroup& group) {
                          Adam optimizer(make_odd_parameters(), AdamOptions{});
                          expect_error(ErrorCode::kUnsupported, {"share no memory"}, [&] {
                            core_of(optimizer).shard(borrowed(group), {.node_shared = true});
                          });
                        },
                        {.transport = TransportKind::kTcp});
}

TEST(OneCopyStep, names_are_of_all_parameters_or_of_none) {
  harness::run_ranks_ok(2, [](ProcessGroup& group) {
    Adam optimizer(make_odd_parameters(), AdamOptions{});
    expect_error(ErrorCode::kInvalid, {"2 names", "3 parameters"}, [&] {
      core_of(optimizer).shard(borrowed(group), {.node_shared = true, .names = {"a", "b"}});
    });
  });
}

}  // namespace
}  // namespace paceline::optim
