#include "paceline/training/optim/parameters/parameter_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tests/harness/expect_error.h"

namespace paceline::optim {
namespace {

using testing::ElementsAre;

using Numbers = std::vector<std::size_t>;

at::Tensor floats(std::int64_t count) { return at::zeros({count}); }
at::Tensor halves(std::int64_t count) { return at::zeros({count}, at::kHalf); }

TEST(UnitPlan, a_row_has_one_type) {
  EXPECT_THAT(rows_by_type({floats(1), halves(2), floats(3), halves(4)}),
              ElementsAre(Numbers{0, 2}, Numbers{1, 3}));
}

TEST(UnitPlan, units_are_filled_from_the_last_parameter_on) {
  EXPECT_THAT(plan_units({floats(10), floats(20), floats(10), floats(30)}, 160, {}),
              ElementsAre(Numbers{3, 2}, Numbers{1, 0}));
}

TEST(UnitPlan, a_large_parameter_is_a_unit) {
  EXPECT_THAT(plan_units({floats(10), floats(1 << 20), floats(10)}, 1 << 10, {}),
              ElementsAre(Numbers{2, 0}, Numbers{1}));
}

TEST(UnitPlan, a_chosen_unit_has_its_parameters_whatever_their_size_and_order) {
  const std::vector<at::Tensor> all{floats(10), floats(1 << 20), floats(10), floats(10)};
  EXPECT_THAT(plan_units(all, 1, {{all[1], all[3]}}),
              ElementsAre(Numbers{3, 1}, Numbers{2}, Numbers{0}));
}

TEST(UnitPlan, a_chosen_unit_of_two_types_becomes_two) {
  const std::vector<at::Tensor> all{floats(10), halves(10), floats(10)};
  EXPECT_THAT(plan_units(all, 1 << 20, {all}), ElementsAre(Numbers{2, 0}, Numbers{1}));
}

TEST(UnitPlan, what_cannot_be_chosen_is_an_error) {
  const std::vector<at::Tensor> all{floats(10), floats(20)};
  expect_error(ErrorCode::kInvalid, {"parameter 1 is in unit 0 and in unit 1"}, [&] {
    plan_units(all, 1, {{all[0], all[1]}, {all[1]}});
  });
  expect_error(ErrorCode::kInvalid, {"unit 1 has a tensor that is not one of the parameters"}, [&] {
    plan_units(all, 1, {{all[0]}, {floats(20)}});
  });
}

}  // namespace
}  // namespace paceline::optim
