// Input that is refused before any row changes.

#include <algorithm>
#include <cmath>
#include <limits>

#include <sys/wait.h>

#include "tests/engine/tables/table_job.h"

namespace paceline::tables {
namespace {

using namespace testing_job;

class BadInput : public testing::Test {
 protected:
  const Memories memories_{adding_rows(2)};
  const std::unique_ptr<SharedRows> rows_ = open(memories_.first(), "a");
  ~BadInput() override { EXPECT_EQ(pull(*rows_, {1, 2}), std::vector<float>(4, 0)); }
};

TEST_F(BadInput, AGradientOfTheWrongWidth) {
  expect_error(ErrorCode::kInvalid,
               {"worker a: push: table 't' has rows of 2 floats, so 2 ids need 4 floats, not 6"},
               [&] {
                 rows_->push(std::vector<Id>{1, 2}, std::vector<float>(6, 1));
               });
}

TEST_F(BadInput, APullOfTheWrongWidth) {
  std::vector<float> values(3);
  expect_error(ErrorCode::kInvalid, {"worker a: pull: table 't' has rows of 2 floats"}, [&] {
    rows_->pull(std::vector<Id>{1, 2}, values);
  });
}

TEST_F(BadInput, AGradientThatIsNotFinite) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    expect_error(
        ErrorCode::kInvalid,
        {"the gradient of row -7 (place 1 of the batch) is not finite", "no row was changed"}, [&] {
          rows_->push(std::vector<Id>{1, -7}, std::vector<float>{1, 1, 1, bad});
        });
  }
}

// A synchronous table writes the gradients where they stay until the end of the clock.
TEST(BadWrittenPush, ChangesNothing) {
  RowOptions options = adding_rows(2);
  options.consistency = Consistency::synchronous();
  const Memories memories(options);
  const auto rows = open(memories.first(), "a");
  const auto write = [](float value) {
    return [value](std::size_t place, std::span<float> gradient) {
      std::fill(gradient.begin(), gradient.end(), place == 1 ? value : 1);
    };
  };
  expect_error(ErrorCode::kInvalid, {"worker a: push: table 't': an id repeats"}, [&] {
    rows->push_written(std::vector<Id>{3, 3}, write(1));
  });
  expect_error(ErrorCode::kInvalid, {"the gradient of row -7 (place 1 of the batch)"}, [&] {
    rows->push_written(std::vector<Id>{1, -7}, write(std::nanf("")));
  });
  rows->push_written(std::vector<Id>{1, 2}, write(4));
  rows->tick();
  EXPECT_EQ(pull(*rows, {1, -7, 2, 3}), (std::vector<float>{1, 1, 0, 0, 4, 4, 0, 0}));
}

TEST_F(BadInput, APushWithTheNumber0) {
  expect_error(ErrorCode::kInvalid, {"worker a: push: table 't': pushes are numbered from 1"}, [&] {
    rows_->push(std::vector<Id>{1}, std::vector<float>{1, 1}, 0);
  });
}

TEST_F(BadInput, ALearningRateThatIsNotFinite) {
  expect_error(ErrorCode::kInvalid, {"the learning rate nan is not finite"},
               [&] { rows_->set_lr(std::nan("")); });
}

TEST_F(BadInput, ARepeatedPushWithOtherIds) {
  rows_->push(std::vector<Id>{5}, std::vector<float>{0, 0}, 3);
  SessionRecord& session = memories_.first()->session(0);
  session.size = 2;  // as if the push had stopped after its first row
  expect_error(ErrorCode::kInvalid, {"push 3 of session ", "to 1 of 2 rows before, with other ids"},
               [&] {
                 rows_->push(std::vector<Id>{1, 2}, std::vector<float>(4, 1), 3);
               });
  session.size = 1;
}

TEST(Options, ThatNoTableCanHave) {
  const auto refused = [](const std::string& words, RowOptions options) {
    expect_error(ErrorCode::kInvalid, {words}, [&] { Settings::of("t", options); });
  };
  refused("the width must be 1 to 16384, not 0", {});
  refused("the width must be 1 to 16384, not 20000", {.width = 20'000});
  refused("the capacity must be 1 to", {.width = 1, .capacity = 0});
  refused("admit_after must be at least 1", {.width = 1, .admit_after = 0});
  refused("initial_range must be finite", {.width = 1, .initial_range = -1});
  refused("the optimizer needs a momentum in [0, 1)",
          {.width = 1, .optimizer = SGD{.momentum = 1}});
  refused("the optimizer needs betas in [0, 1)", {.width = 1, .optimizer = Adam{.beta1 = 1}});
  refused("the learning rate must be finite",
          {.width = 1, .optimizer = Adagrad{.lr = std::nan("")}});
  expect_error(ErrorCode::kInvalid, {"a table needs a name of 1 to 128 bytes"},
               [] { Settings::of("", {.width = 1}); });
}

TEST(Options, ADifferenceIsNamed) {
  const Settings one = Settings::of("t", {.width = 3});
  EXPECT_EQ(one.difference(one), "");
  EXPECT_EQ(one.difference(Settings::of("t", {.width = 4})), "width is 3 here and 4 there");
  EXPECT_EQ(one.difference(Settings::of("t", {.width = 3, .optimizer = Adam{}})),
            "optimizer is RowAdagrad here and Adam there");
  EXPECT_EQ(one.difference(Settings::of("t", {.width = 3, .optimizer = RowAdagrad{.lr = 1}})),
            "lr is 0.01 here and 1 there");
  EXPECT_EQ(one.difference(Settings::of("t", {.width = 3, .consistency = Consistency::bounded(2)})),
            "consistency is asynchronous here and bounded(2) there");
}

TEST(Full, ATableSaysSoBeforeTheRowIsLost) {
  RowOptions options = adding_rows(1);
  options.capacity = 2;
  const Memories memories(options);
  const auto rows = open(memories.first(), "a");
  const std::vector<Id> ids = {1, 2, 3};
  expect_error(ErrorCode::kSystem,
               {"worker a: push: table 't' is full: it holds 2 of 2 rows", "raise capacity"},
               [&] { rows->push(ids, std::vector<float>(3, 1)); });
  EXPECT_EQ(pull(*rows, ids), (std::vector<float>{1, 1, 0}));
  // The same push continues where it stopped.
  expect_error(ErrorCode::kSystem, {"is full"}, [&] { rows->push(ids, std::vector<float>(3, 1)); });
  EXPECT_EQ(pull(*rows, ids), (std::vector<float>{1, 1, 0}));
}

TEST(Forked, AChildMustOpenTheTableItself) {
  const Memories memories(adding_rows(1));
  const auto rows = open(memories.first(), "a");
  const pid_t child = fork();
  if (child == 0) {
    try {
      rows->push(std::vector<Id>{1}, std::vector<float>{1});
    } catch (const Error& error) {
      const std::string text = error.what();
      _exit(text.find("a forked child must open it itself") == std::string::npos ? 1 : 0);
    }
    _exit(2);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace paceline::tables
