// Compares join() with Python's DistributedDataParallel.join(), with inputs that end after 13 steps
// on rank 0 and after 20 on rank 1, and with both divisors: the losses of all steps and the weights
// after the last one, to 1e-5 (relative and absolute). With an optimizer that join() knows the
// result is the same as Python's, whose ranks without inputs take no steps and get the weights at
// the end.

#include <algorithm>
#include <cstdio>
#include <string>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/join.h"

#include "tests/harness/process_ranks.h"
#include "tests/parity/ddp_parity.h"

namespace paceline::parity {
namespace {

constexpr double kJoinTolerance = 1e-5;

enum class Steps { kNoneAfterTheEnd, kJoined, kSharded };

class JoinParity : public DdpReferenceTest<JoinParity> {
 public:
  static constexpr const char* kCases = "join join_active";

 protected:
  static std::string train(ProcessGroup& group, const std::string& name, Steps steps) {
    at::set_num_threads(1);
    const std::shared_ptr<ProcessGroup> shared(&group, [](ProcessGroup*) {});
    const auto net = std::make_shared<DdpNet>(shared, false);
    take_weights(*net);
    const auto losses = reference().tensor(name + ".losses.f32", {kDdpRanks, kDdpSteps});
    const auto all_inputs = inputs(), all_labels = labels();
    const int rank = group.rank();

    DistributedDataParallel model(net, shared);
    const auto trained = trained_of(*net);
    optim::SGD optimizer(trained, {.lr = 0.05, .momentum = 0.9});
    if (steps == Steps::kSharded) core_of(optimizer).shard(shared);
    double largest = 0;
    join(
        model, steps == Steps::kNoneAfterTheEnd ? nullptr : &optimizer,
        [&] {
          for (std::int64_t step = 0; step < (rank == 0 ? 13 : kDdpSteps); ++step) {
            drop_gradients(trained);
            const auto loss = torch::nn::functional::cross_entropy(
                model(all_inputs[step][rank], true), all_labels[step][rank]);
            loss.backward();
            optimizer.step();
            largest = std::max(
                largest, require_same_loss(fmt::format("{}, rank {}, step {}", name, rank, step),
                                           loss.item<float>(), losses[rank][step].item<float>(),
                                           kJoinTolerance));
          }
        },
        name == "join");
    return fmt::format("{:.1e}, weights {:.1e}", largest,
                       require_weights(name, *net, kJoinTolerance));
  }

  static void expect_pythons(const std::string& name, Steps steps) {
    for (const auto& result : harness::run_process_ranks(
             kDdpRanks, [&](ProcessGroup& group) { return train(group, name, steps); })) {
      EXPECT_EQ(result.exit_code, 0) << result.report;
      std::printf("%s: largest difference of losses %s\n", name.c_str(), result.report.c_str());
    }
  }
};

TEST_F(JoinParity, an_average_over_all_ranks_is_pythons) {
  for (const auto steps : {Steps::kNoneAfterTheEnd, Steps::kJoined, Steps::kSharded})
    expect_pythons("join", steps);
}

TEST_F(JoinParity, an_average_over_the_ranks_with_inputs_is_pythons) {
  for (const auto steps : {Steps::kNoneAfterTheEnd, Steps::kJoined, Steps::kSharded})
    expect_pythons("join_active", steps);
}

}  // namespace
}  // namespace paceline::parity
