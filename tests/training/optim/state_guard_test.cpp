// A bit of an optimizer's state that flips between two steps is found, wherever the state is kept.

#include <bit>
#include <functional>
#include <memory>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/core/error.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/update_rules.h"

#include "tests/harness/thread_ranks.h"
#include "tests/training/optim/odd_parameters.h"

namespace paceline::optim {
namespace {

void flip(const at::Tensor& elements, std::int64_t element, int bit) {
  float* const place = elements.data_ptr<float>() + element;
  *place = std::bit_cast<float>(std::bit_cast<std::uint32_t>(*place) ^ (1u << bit));
}

const StatePart& part_named(const std::vector<StatePart>& parts, const std::string& name) {
  for (const auto& part : parts) {
    if (part.name == name) return part;
  }
  throw std::runtime_error("no state " + name);
}

// The text of the Error(kCorrupt) that `action` throws; empty if it throws none.
std::string corruption(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
    return error.what();
  }
  return "";
}

using Make = std::function<std::unique_ptr<Optimizer>()>;

std::vector<std::pair<std::string, Make>> all_states() {
  const auto bf16 = [] { return make_odd_parameters({at::kBFloat16, at::kFloat, at::kBFloat16}); };
  return {
      {"exp_avg.2", [] { return std::make_unique<Adam>(make_odd_parameters(), AdamOptions{}); }},
      {"exp_avg_sq.0",
       [] { return std::make_unique<AdamW>(make_odd_parameters(), AdamWOptions{}); }},
      {"momentum_buffer.1",
       [] { return std::make_unique<SGD>(make_odd_parameters(), SGDOptions{.momentum = 0.9}); }},
      {"exp_avg.0", [] { return std::make_unique<LAMB>(make_odd_parameters(), LAMBOptions{}); }},
      {"momentum_buffer.0",
       [] { return std::make_unique<LARS>(make_odd_parameters(), LARSOptions{}); }},
      {"master.0", [bf16] { return std::make_unique<Adam>(bf16(), AdamOptions{}); }},
      {"master.2", [bf16] { return std::make_unique<LAMB>(bf16(), LAMBOptions{}); }},
      {"master.2", [bf16] { return std::make_unique<SGD>(bf16(), SGDOptions{}); }},
  };
}

std::string described(const std::string& state) {
  const auto dot = state.find('.');
  return state.substr(0, dot) + " of parameter " + state.substr(dot + 1);
}

TEST(StateGuard, a_flipped_bit_is_found_at_the_next_step_and_by_a_look) {
  for (const auto& [state, make] : all_states()) {
    for (const int bit : {0, 17, 31}) {
      const auto optimizer = make();
      take_steps(*optimizer, 0, 3);
      optimizer->verify_state();
      flip(part_named(core_of(*optimizer).state_parts(), state).elements, 2, bit);
      for (const std::string& text : {corruption([&] { optimizer->verify_state(); }),
                                      corruption([&] { take_steps(*optimizer, 3, 4); })}) {
        EXPECT_NE(text.find(described(state)), std::string::npos) << optimizer->name() << text;
        EXPECT_NE(text.find("after step 3"), std::string::npos) << text;
      }
    }
  }
}

TEST(StateGuard, a_flip_back_is_none_and_steps_without_faults_report_nothing) {
  for (const auto& [state, make] : all_states()) {
    const auto optimizer = make();
    take_steps(*optimizer, 0, 2);
    const auto elements = part_named(core_of(*optimizer).state_parts(), state).elements;
    flip(elements, 1, 5);
    flip(elements, 1, 5);
    take_steps(*optimizer, 2, 5);
    optimizer->verify_state();
  }
}

TEST(StateGuard, a_new_state_is_guarded_from_then_on) {
  Adam adam(make_odd_parameters());
  take_steps(adam, 0, 2);
  const auto saved = copies(adam.state());
  flip(part_named(core_of(adam).state_parts(), "exp_avg.0").elements, 2, 3);
  adam.set_state(saved);
  adam.verify_state();
  take_steps(adam, 2, 3);
  flip(part_named(core_of(adam).state_parts(), "exp_avg.0").elements, 2, 3);
  EXPECT_NE(corruption([&] { adam.verify_state(); }), "");
}

TEST(StateGuard, in_a_sharded_state_the_rank_is_named_and_the_others_hear_of_it) {
  for (const auto& [state, make] : all_states()) {
    if (state.back() != '0') continue;  // only parameter 0 is divided among all ranks
    const auto results = harness::run_ranks(3, [&, &make = make, &state = state](auto& group) {
      const auto optimizer = make();
      core_of(*optimizer).shard(borrowed(group));
      take_steps(*optimizer, 0, 2);
      if (group.rank() == 1)
        flip(part_named(core_of(*optimizer).state_parts(), state).elements, 7, 9);
      group.barrier();
      take_steps(*optimizer, 2, 3);
    });
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      ASSERT_TRUE(results[rank].error) << "rank " << rank << ", " << state;
      const std::string text = results[rank].error->what();
      EXPECT_EQ(results[rank].error->code(), rank == 1 ? ErrorCode::kCorrupt : ErrorCode::kAborted);
      EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
      EXPECT_NE(text.find(described(state)), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace paceline::optim
